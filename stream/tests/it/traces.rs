//! Items and traces: each is followed over the hops that it takes.

use std::path::Path;

use margo::config::Config;
use margo::trace::{self, TraceContext, TraceId};
use margo::ult::channel;
use margo::{Instance, InstanceBuilder};
use margo_stream::graph::{Graph, GraphDocument, Run, Stop};
use margo_stream::{ReceiveSpec, SendSpec};
use serde_json::Value;

use crate::common::{client, end, instance, receiver, sender};

/// A number, and the trace in which it was seen.
type Seen = (u64, Option<TraceId>);

/// Numbers that are made one after the other, each when the one before has arrived: part of a trace
/// of their own, or of none.
struct OneByOne {
    contexts: Vec<Option<TraceContext>>,
    arrived: channel::Receiver<Seen>,
    seen: channel::Sender<Seen>,
}

impl OneByOne {
    fn new(contexts: Vec<Option<TraceContext>>) -> Self {
        let (seen, arrived) = channel::unbounded();
        Self { contexts, arrived, seen }
    }

    /// `read`, `work` with two replicas by key, and `see`.
    fn graph(&self) -> Graph {
        let (contexts, arrived) = (self.contexts.clone(), self.arrived.clone());
        let expected = self.expected();
        let graph = Graph::new();
        let numbers = graph.generate("read", move |emit| {
            for (number, context) in (0..).zip(&contexts) {
                trace::within(*context, || -> Result<(), Stop> {
                    emit.emit(number)?;
                    emit.flush()
                })?;
                assert_eq!(arrived.recv()?, expected[number as usize]);
            }
            Ok(())
        });
        let seen = self.seen.clone();
        let work = numbers.key_by(|n| *n).farm("work", 2).pairs().map(|(n, _)| n).stage("own");
        let own = work.own("see", |io| {
            while let Some(n) = io.recv()? {
                io.emit((n, io.trace().map(|trace| trace.trace_id.get())))?;
            }
            Ok(())
        });
        own.stage("end").for_each(move |(n, within_own)| {
            let trace_id = trace::current().map(|trace| trace.trace_id);
            assert_eq!(trace_id.map(TraceId::get), within_own);
            let _ = seen.send((n, trace_id));
        });
        graph
    }

    fn expected(&self) -> Vec<Seen> {
        let ids = self.contexts.iter().map(|context| context.map(|context| context.trace_id));
        (0..).zip(ids).collect()
    }
}

#[test]
fn items_are_part_of_their_traces_from_stage_to_stage() {
    let contexts = (0..20).map(|number| (number % 3 > 0).then(TraceContext::begin)).collect();
    OneByOne::new(contexts).graph().run_on(2).unwrap();
}

#[test]
fn batches_are_part_of_the_traces_of_those_who_send_them() {
    let (service, from) = (instance("na+sm://"), client("na+sm://"));
    let mut receiver = receiver(&service, &ReceiveSpec::new());
    let mut sender = sender(&from, &receiver, &SendSpec::new());
    for number in 0..10 {
        let context = (number % 2 > 0).then(TraceContext::begin);
        trace::within(context, || sender.send(&number)).unwrap();
        sender.flush().unwrap();
        let id = |context: Option<TraceContext>| context.map(|context| context.trace_id);
        if number % 4 < 2 {
            let mut batch = receiver.recv_batch().unwrap().unwrap();
            assert_eq!((batch.next(), id(batch.trace())), (Some(number), id(context)));
        } else {
            assert_eq!(receiver.recv().unwrap(), Some(number));
            assert_eq!(id(receiver.trace()), id(context));
        }
    }
    sender.finish().unwrap();
    drop(receiver);
    end([from, service]);
}

/// An instance that records.
fn recording(folder: &Path, listens: bool) -> Instance {
    let mut config = Config::default();
    config.margo.address = "na+sm://".to_owned();
    config.margo.listen = listens;
    config.margo.trace.enable = true;
    config.margo.trace.filename_prefix = folder.join("trace").display().to_string();
    InstanceBuilder::from_config(config).start().unwrap()
}

/// The arguments of the slices of a category that were recorded for batches of an edge.
fn slices(file: &Path, category: &str, edge: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    let events: Vec<Value> = serde_json::from_str(&text).unwrap();
    let name = format!("margo_stream.graph/{edge}");
    let is_it = |event: &&Value| {
        event["cat"] == category && event["name"].as_str().is_some_and(|it| it.starts_with(&name))
    };
    let batches = events
        .iter()
        .filter(is_it)
        .filter(|event| event["name"].as_str().is_some_and(|it| it.ends_with(".batch")));
    batches.map(|event| event["args"].clone()).collect()
}

#[test]
fn the_path_of_an_item_over_two_hops_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = |name: &str| {
        let file = folder.path().join(name).display().to_string();
        format!(r#""endpoints": [{{ "address": "na+sm://", "file": "{file}" }}]"#)
    };
    let document = format!(
        r#"{{ "groups": {{
            "G1": {{ "stages": ["read"] }},
            "G2": {{ "stages": ["work", "own"], {} }},
            "G3": {{ "stages": ["see", "end"], {} }}
        }} }}"#,
        endpoint("G2"),
        endpoint("G3"),
    );
    let document = GraphDocument::from_json(&document).unwrap();
    let items = OneByOne::new((0..5).map(|_| Some(TraceContext::begin())).collect());
    let instances = [false, true, true].map(|listens| recording(folder.path(), listens));
    let names = ["G1", "G2", "G3"];
    let written = names.iter().zip(&instances).skip(1).map(|(name, instance)| {
        margo::AddressFile::write(folder.path().join(name), instance.self_addr().uri()).unwrap()
    });
    let written: Vec<_> = written.collect();
    let threads = names.into_iter().zip(&instances).map(|(name, instance)| {
        let (graph, document, instance) = (items.graph(), document.clone(), instance.clone());
        std::thread::spawn(move || {
            let pools = [instance.layout().rpc_pool()];
            let run = graph.start_group(name, &document, &pools, std::slice::from_ref(&instance));
            run.and_then(Run::join).map(drop)
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
    drop(written);
    let files = instances.each_ref().map(|one| one.monitoring().trace_file().unwrap());
    end(instances);
    let calls = slices(&files[0], "call", "read->work");
    let handled = slices(&files[1], "handler", "read->work");
    let passed_on = slices(&files[1], "call", "own->see");
    let arrived = slices(&files[2], "handler", "own->see");
    for context in items.contexts.iter().flatten() {
        let id = context.trace_id.to_string();
        let of = |slices: &[Value]| -> Value {
            let mut own = slices.iter().filter(|args| args["trace"] == *id);
            own.next().unwrap_or_else(|| panic!("no {id} in {slices:#?}")).clone()
        };
        let (call, handled) = (of(&calls), of(&handled));
        let (passed_on, arrived) = (of(&passed_on), of(&arrived));
        assert_eq!(call["parent"], context.span_id.to_string());
        assert_eq!(handled["parent"], call["span"]);
        assert_eq!(passed_on["parent"], handled["span"], "the second hop is below the first");
        assert_eq!(arrived["parent"], passed_on["span"]);
    }
}

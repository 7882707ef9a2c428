//! Rows `rpc.sm.scale2` and `rpc.sm.scale2.contexts`: the gain of a second xstream for a service
//! whose handlers take 2 us.
//!
//! One process with as many busy threads as cores: the service's origins are child instances whose
//! progress and callers run on the xstreams too, so that no xstream contends with another thread
//! for its core, and no caller's work is free. Layouts take turns. In *one*, a single xstream does
//! everything. Twice its rate is the floor: what two cores could do if a request cost no more for
//! being taken in by one core and handled by another. The target is 0.9 of the floor: 1.8 times
//! one.
//!
//! `rpc.sm.scale2`:
//!
//! - *two*, the value: both xstreams serve the handlers' pool, the second one also makes the
//!   service's progress, the first one has the origin. The loss is spread over the whole of a
//!   request that one core takes in and the other one handles: its memory, its place in the pool
//!   and the locks of the endpoint travel between them, at half the round trip of a line each;
//! - *apart*: the first xstream has only the origin, the second one only the service. Printed
//!   beside: one xstream that serves, whose callers cost it nothing.
//!
//! `rpc.sm.scale2.contexts`: nothing has to go from one xstream to the other, each has an origin
//! with half of the callers, and a pool for handlers of its own.
//!
//! - *contexts*, the value: the service has two contexts, each with its progress ULT on an xstream;
//!   callers name the context and the provider of theirs. The contexts have one endpoint in common,
//!   which one of them polls at a time, so half of what arrives is handed from one to the other;
//! - *instances*: the service is two instances, one on each xstream, with an endpoint each. Printed
//!   beside: what there is in common then is the process.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use margo::{Config, Instance, InstanceBuilder, Provider, ProviderHandle, ProviderId, Rpc};
use serde_json::json;
use ult::PoolRef;

use crate::base::{Deadline, Distribution, Doing, Figure, OrFail, Result, Samples};
use crate::process::Context;
use crate::rows::ult::on_ult::{join_each, on_ult};

const WORK: Rpc<(), ()> = Rpc::new("bench_work");
/// The time that a handler computes.
const WORK_TIME: Duration = Duration::from_micros(2);
/// Calls in flight.
const CALLERS: usize = 32;

fn compute() {
    let begun = Instant::now();
    while black_box(begun.elapsed()) < WORK_TIME {}
}

/// The roles of the two xstreams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    One,
    Two,
    Apart,
    Contexts,
    Instances,
}

/// An instance that serves, with its callers.
struct Service {
    service: Instance,
    /// Origins, and the target of each.
    callers: Vec<(Instance, ProviderHandle)>,
    /// Where the ends of calls are awaited.
    pool: PoolRef,
    /// Served until the end.
    _providers: Vec<Provider>,
}

/// A service whose xstreams serve the pools of these names, and in which the `more` make progress
/// beside `progress0`.
fn serve(context: &Context, xstreams: &[&[&str]], more: &[&str]) -> Result<Instance> {
    let mut names = xstreams.concat();
    names.sort_unstable();
    names.dedup();
    let pools: Vec<_> = names.iter().map(|name| json!({ "name": name })).collect();
    let cores = [Some(context.cores.origin), context.cores.target];
    let xstream = |(at, (pools, core))| {
        let scheduler = json!({ "pools": pools });
        json!({ "name": format!("xstream{at}"), "cpubind": core, "scheduler": scheduler })
    };
    let xstreams: Vec<_> = xstreams.iter().zip(cores).enumerate().map(xstream).collect();
    let document = json!({
        "margo": { "address": "na+sm://", "more_progress_pools": more },
        "progress_spindown_msec": 3_600_000,
        "progress_pool": "progress0",
        "rpc_pool": "work0",
        "argobots": { "pools": pools, "xstreams": xstreams },
    });
    margo::init(&document.to_string()).doing("starting margo")
}

/// A child of `service` in pools of it.
fn child(service: &Instance, progress: &str, rpc: &str, listen: bool) -> Result<Instance> {
    let mut config = Config::default();
    config.margo.address = "na+sm://".to_owned();
    config.margo.listen = listen;
    config.progress_spindown_msec = 3_600_000;
    config.progress_pool = Some(progress.into());
    config.rpc_pool = Some(rpc.into());
    InstanceBuilder::from_config(config).parent(service).start().doing("starting a child")
}

impl Service {
    /// The service of `rpc.sm.scale2`.
    fn shared(context: &Context, form: Form) -> Result<Self> {
        let xstreams: &[&[&str]] = match form {
            Form::Two => &[&["work0", "origin0"], &["work0", "progress0"]],
            Form::Apart => &[&["origin0"], &["work0", "progress0"]],
            _ => &[&["work0", "origin0", "progress0"]],
        };
        let service = serve(context, xstreams, &[])?;
        service.serve(WORK).function(|()| compute()).doing("registering")?;
        // Two that poll in turn must not be in pools of which one goes before the other.
        let progress = if form == Form::One { "progress0" } else { "origin0" };
        let origin = child(&service, progress, "origin0", false)?;
        let target = origin.lookup(service.self_addr().uri()).doing("looking the service up")?;
        let pool = origin.rpc_pool();
        Ok(Self { service, callers: vec![(origin, target.into())], pool, _providers: Vec::new() })
    }

    /// The service of `rpc.sm.scale2.contexts`.
    fn split(context: &Context, form: Form) -> Result<Self> {
        let xstreams: [&[&str]; 2] =
            [&["work0", "origin0", "progress0"], &["work1", "origin1", "progress1"]];
        let count = if form == Form::One { 1 } else { 2 };
        let more: &[&str] = if form == Form::Contexts { &["progress1"] } else { &[] };
        let service = serve(context, &xstreams[..count], more)?;
        let (mut callers, mut providers) = (Vec::new(), Vec::new());
        for at in 0..count {
            let progress = format!("progress{at}");
            let serves = match (form, at) {
                (Form::Instances, 1) => child(&service, &progress, "work1", true)?,
                _ => service.clone(),
            };
            let pool = service.runtime().pool(&format!("work{at}"));
            let pool = pool.or_fail("a pool of the document is missing")?;
            let id = ProviderId::new(at as u16 + 1);
            let provider = serves.provider(id, &pool);
            provider.serve(WORK).function(|()| compute()).doing("registering")?;
            providers.push(provider);
            let origin = child(&service, &progress, &format!("origin{at}"), false)?;
            let target = origin.lookup(serves.self_addr().uri()).doing("looking it up")?;
            let target = ProviderHandle::new(target, id);
            let is_named = form == Form::Contexts;
            callers.push((origin, if is_named { target.in_context(at as u8) } else { target }));
        }
        let pool = service.rpc_pool();
        Ok(Self { service, callers, pool, _providers: providers })
    }

    /// Calls per second over about `time`.
    fn rate(&self, time: Duration, deadline: Deadline) -> Result<f64> {
        let (start, done) = (Instant::now(), Arc::new(AtomicU64::new(0)));
        let mut handles = Vec::new();
        for (origin, target) in self.callers.iter().cycle().take(CALLERS) {
            let (origin, target, done) = (origin.clone(), target.clone(), done.clone());
            let own = origin.rpc_pool();
            handles.push(own.spawn(move || -> Result<()> {
                let mut count = 0;
                while start.elapsed() < time {
                    origin.forward(WORK, &target, &()).doing("calling")?;
                    count += 1;
                }
                done.fetch_add(count, Ordering::Relaxed);
                Ok(())
            })?);
        }
        on_ult(&self.pool, deadline, move || join_each(handles))?;
        Ok(done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64())
    }
}

/// Measures three layouts, the first of which is *one*, which take turns; the second is the figure.
fn run(
    context: &Context,
    forms: [(&str, Form); 3],
    start: fn(&Context, Form) -> Result<Service>,
) -> Result<Figure> {
    let (rounds, time) = if context.quick { (1, 50) } else { (5, 400) };
    let time = Duration::from_millis(time);
    // The row process is on the first core alone; each xstream binds itself to its own.
    context.cores.take(2)?;
    let mut rates = forms.map(|form| (form, Samples::new(rounds, 1)));
    for _ in 0..rounds {
        for ((_, form), samples) in &mut rates {
            let service = start(context, *form)?;
            service.rate(time / 10, context.deadline)?;
            let rate = service.rate(time, context.deadline)?;
            service.service.finalize_and_wait().doing("stopping margo")?;
            samples.push(Duration::from_secs_f64(1.0 / rate));
        }
    }
    let [one, value, other]: [Distribution; 3] = rates.map(|(_, mut samples)| samples.rate());
    let figure = Figure::median(value, one.p50.map(|one| 2.0 * one));
    Ok(figure.beside(forms[0].0, one.p50).beside(forms[2].0, other.p50))
}

/// Row `rpc.sm.scale2`.
pub(crate) fn shared(context: &Context) -> Result<Figure> {
    let forms = [("one", Form::One), ("two", Form::Two), ("apart", Form::Apart)];
    run(context, forms, Service::shared)
}

/// Row `rpc.sm.scale2.contexts`.
pub(crate) fn contexts(context: &Context) -> Result<Figure> {
    let forms = [("one", Form::One), ("contexts", Form::Contexts), ("instances", Form::Instances)];
    run(context, forms, Service::split)
}

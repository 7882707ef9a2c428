//! Row `rpc.sm.scale2.contexts`: two xstreams of which each serves its own callers.
//!
//! As in `scale.rs` there is one process with as many busy threads as cores, and handlers take
//! 2 us, but nothing has to go from one xstream to the other: each has an origin, which is a child
//! instance, with half of the callers, and a pool for handlers of its own. Layouts take turns:
//!
//! - *one*: a single xstream does everything. Twice its rate is the floor;
//! - *contexts*, the value: the service has two contexts, each with its progress ULT on an xstream;
//!   callers name the context and the provider of theirs. The contexts have one endpoint in common,
//!   which one of them polls at a time, so half of what arrives is handed from one to the other;
//! - *instances*: the service is two instances, one on each xstream, with an endpoint each. Printed
//!   beside: what there is in common then is the process.

use std::time::Duration;

use margo::{Config, Instance, InstanceBuilder, Provider, ProviderHandle, ProviderId};
use serde_json::json;

use crate::base::failure::{Doing, Failure, Result};
use crate::base::row::Figure;
use crate::base::wait::Deadline;
use crate::process::context::Context;
use crate::rows::rpc::scale::{self, WORK, compute};

/// The roles of the two xstreams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    One,
    Contexts,
    Instances,
}

/// One xstream's callers and their target.
struct Side {
    origin: Instance,
    target: ProviderHandle,
}

struct Service {
    service: Instance,
    sides: Vec<Side>,
    /// Served until the end.
    _providers: Vec<Provider>,
}

/// A child of `service`, in the pools of xstream `at`.
fn child(service: &Instance, at: usize, rpc_pool: &str, listen: bool) -> Result<Instance> {
    let mut config = Config::default();
    config.margo.address = "na+sm://".to_owned();
    config.margo.listen = listen;
    config.progress_spindown_msec = 3_600_000;
    config.progress_pool = Some(format!("progress{at}").as_str().into());
    config.rpc_pool = Some(format!("{rpc_pool}{at}").as_str().into());
    InstanceBuilder::from_config(config).parent(service).start().doing("starting a child")
}

impl Service {
    fn start(context: &Context, form: Form) -> Result<Self> {
        let cores = match form {
            Form::One => vec![context.cores.origin],
            _ => vec![context.cores.origin, context.cores.target()?],
        };
        let names = |at| ["work", "origin", "progress"].map(|pool| format!("{pool}{at}"));
        let pools: Vec<_> = (0..cores.len()).flat_map(names).collect();
        let pools: Vec<_> = pools.iter().map(|name| json!({ "name": name })).collect();
        let xstream = |(at, core)| {
            let scheduler = json!({ "pools": names(at) });
            json!({ "name": format!("xstream{at}"), "cpubind": core, "scheduler": scheduler })
        };
        let xstreams: Vec<_> = cores.iter().enumerate().map(xstream).collect();
        let more = if form == Form::Contexts { vec!["progress1"] } else { vec![] };
        let document = json!({
            "margo": { "address": "na+sm://", "more_progress_pools": more },
            "progress_spindown_msec": 3_600_000,
            "progress_pool": "progress0",
            "rpc_pool": "work0",
            "argobots": { "pools": pools, "xstreams": xstreams },
        });
        let service = margo::init(&document.to_string()).doing("starting margo")?;
        let (mut sides, mut providers) = (Vec::new(), Vec::new());
        for at in 0..cores.len() {
            let serves = match (form, at) {
                (Form::Instances, 1) => child(&service, at, "work", true)?,
                _ => service.clone(),
            };
            let pool = service.runtime().pool(&format!("work{at}"));
            let pool = pool.ok_or_else(|| Failure::new("a pool of the document is missing"))?;
            let id = ProviderId::new(at as u16 + 1);
            let provider = serves.provider(id, &pool);
            provider.serve(WORK).function(|()| compute()).doing("registering")?;
            providers.push(provider);
            let origin = child(&service, at, "origin", false)?;
            let target = origin.lookup(serves.self_addr().uri()).doing("looking it up")?;
            let target = ProviderHandle::new(target, id);
            let target = match form {
                Form::Contexts => target.in_context(at as u8),
                _ => target,
            };
            sides.push(Side { origin, target });
        }
        Ok(Self { service, sides, _providers: providers })
    }

    fn rate(&self, time: Duration, deadline: Deadline) -> Result<f64> {
        let callers = self.sides.iter().map(|Side { origin, target }| (origin, target));
        scale::rate(callers.cycle(), &self.service.rpc_pool(), time, deadline)
    }

    fn stop(self) -> Result<()> {
        self.service.finalize_and_wait().doing("stopping margo")
    }
}

/// Row `rpc.sm.scale2.contexts`.
pub(crate) fn run(context: &Context) -> Result<Figure> {
    let forms = [Form::One, Form::Contexts, Form::Instances];
    let rates = scale::in_turn(context, forms, |form, time| {
        let service = Service::start(context, form)?;
        service.rate(time / 10, context.deadline)?;
        let rate = service.rate(time, context.deadline)?;
        service.stop()?;
        Ok(rate)
    });
    let [one, contexts, instances] = rates?;
    let figure = Figure::median(contexts, one.p50.map(|one| 2.0 * one));
    Ok(figure.beside("one", one.p50).beside("instances", instances.p50))
}

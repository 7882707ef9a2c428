//! Row `rpc.sm.scale2`: the gain of a second xstream for a service whose handlers take 2 us.
//!
//! One process with as many busy threads as cores: the service's origin is a child instance whose
//! progress and callers run on the first xstream, so that no xstream contends with another thread
//! for its core, and no caller's work is free. Three layouts take turns:
//!
//! - *one*: a single xstream does everything. Twice its rate is the floor: what two cores could do
//!   if a request cost no more for being taken in by one core and handled by another;
//! - *two*, the value: both xstreams serve the handlers' pool, the second one also makes the
//!   service's progress, the first one has the origin;
//! - *apart*: the first xstream has only the origin, the second one only the service. Printed
//!   beside: one xstream that serves, whose callers cost it nothing.
//!
//! The target is 0.9 of the floor: 1.8 times one. The loss is spread over the whole of a request
//! that one core takes in and the other one handles: its memory, its place in the pool and the
//! locks of the endpoint travel between them, at half the round trip of a line each.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use margo::{Config, Instance, InstanceBuilder, ProviderHandle, Rpc};
use serde_json::json;
use ult::PoolRef;

use crate::base::failure::{Doing, Result};
use crate::base::row::Figure;
use crate::base::stats::{Distribution, Samples};
use crate::base::wait::Deadline;
use crate::process::context::Context;
use crate::report::machine::pin_to_any;
use crate::rows::ult::on_ult::on_ult;

pub(crate) const WORK: Rpc<(), ()> = Rpc::new("bench_work");
/// The time that a handler computes.
const WORK_TIME: Duration = Duration::from_micros(2);
/// Calls in flight.
const CALLERS: usize = 32;

pub(crate) fn compute() {
    let begun = Instant::now();
    while black_box(begun.elapsed()) < WORK_TIME {}
}

/// The roles of the two xstreams.
#[derive(Debug, Clone, Copy)]
enum Form {
    One,
    Two,
    Apart,
}

struct Service {
    service: Instance,
    origin: Instance,
    target: ProviderHandle,
}

impl Service {
    fn start(context: &Context, form: Form) -> Result<Self> {
        let (first, second) = (context.cores.origin, context.cores.target()?);
        let xstream = |name: &str, core, pools: &[&str]| {
            let scheduler = json!({ "pools": pools });
            json!({ "name": name, "cpubind": core, "scheduler": scheduler })
        };
        let xstreams = match form {
            Form::One => vec![xstream("first", first, &["work", "origin", "progress"])],
            Form::Two => vec![
                xstream("first", first, &["work", "origin"]),
                xstream("second", second, &["work", "progress"]),
            ],
            Form::Apart => vec![
                xstream("first", first, &["origin"]),
                xstream("second", second, &["work", "progress"]),
            ],
        };
        let document = json!({
            "margo": { "address": "na+sm://" },
            "progress_spindown_msec": 3_600_000,
            "progress_pool": "progress",
            "rpc_pool": "work",
            "argobots": {
                "pools": [{ "name": "origin" }, { "name": "progress" }, { "name": "work" }],
                "xstreams": xstreams,
            },
        });
        let service = margo::init(&document.to_string()).doing("starting margo")?;
        service.serve(WORK).function(|()| compute()).doing("registering")?;
        let mut config = Config::default();
        config.margo.address = "na+sm://".to_owned();
        config.margo.listen = false;
        config.progress_spindown_msec = 3_600_000;
        // Two that poll in turn must not be in pools of which one goes before the other.
        let beside = if matches!(form, Form::One) { "progress" } else { "origin" };
        config.progress_pool = Some(beside.into());
        config.rpc_pool = Some("origin".into());
        let origin = InstanceBuilder::from_config(config).parent(&service).start();
        let origin = origin.doing("starting the origin")?;
        let target = origin.lookup(service.self_addr().uri()).doing("looking the service up")?;
        Ok(Self { service, origin, target: target.into() })
    }

    fn rate(&self, time: Duration, deadline: Deadline) -> Result<f64> {
        let caller = (&self.origin, &self.target);
        rate(std::iter::repeat(caller), &self.origin.rpc_pool(), time, deadline)
    }

    fn stop(self) -> Result<()> {
        self.service.finalize_and_wait().doing("stopping margo")
    }
}

/// Calls per second over about `time`, by so many of `callers`, each an origin and its target.
/// `pool`: where their ends are awaited.
pub(crate) fn rate<'a>(
    callers: impl Iterator<Item = (&'a Instance, &'a ProviderHandle)>,
    pool: &PoolRef,
    time: Duration,
    deadline: Deadline,
) -> Result<f64> {
    let (start, done) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let mut handles = Vec::new();
    for (origin, target) in callers.take(CALLERS) {
        let (origin, target, done) = (origin.clone(), target.clone(), done.clone());
        let own = origin.rpc_pool();
        let calls = move || -> Result<()> {
            let mut count = 0;
            while start.elapsed() < time {
                origin.forward(WORK, &target, &()).doing("calling")?;
                count += 1;
            }
            done.fetch_add(count, Ordering::Relaxed);
            Ok(())
        };
        handles.push(own.spawn(calls).doing("spawning")?);
    }
    on_ult(pool, deadline, move || {
        for handle in handles {
            handle.join().doing("joining")??;
        }
        Ok(())
    })?;
    Ok(done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64())
}

/// Calls per second with each of `forms`, which take turns; `shot` starts one, measures for about
/// so long, and stops it.
pub(crate) fn in_turn<F: Copy, const N: usize>(
    context: &Context,
    forms: [F; N],
    shot: impl Fn(F, Duration) -> Result<f64>,
) -> Result<[Distribution; N]> {
    let (rounds, time) = if context.quick {
        (1, Duration::from_millis(50))
    } else {
        (5, Duration::from_millis(400))
    };
    // The row process is on the first core alone; each xstream binds itself to its own.
    pin_to_any(&[context.cores.origin, context.cores.target()?])?;
    let mut rates = forms.map(|form| (form, Samples::new(rounds, 1)));
    for _ in 0..rounds {
        for (form, samples) in &mut rates {
            samples.push(Duration::from_secs_f64(1.0 / shot(*form, time)?));
        }
    }
    Ok(rates.map(|(_, mut samples)| samples.rate()))
}

/// Row `rpc.sm.scale2`.
pub(crate) fn run(context: &Context) -> Result<Figure> {
    let rates = in_turn(context, [Form::One, Form::Two, Form::Apart], |form, time| {
        let service = Service::start(context, form)?;
        service.rate(time / 10, context.deadline)?;
        let rate = service.rate(time, context.deadline)?;
        service.stop()?;
        Ok(rate)
    });
    let [one, two, apart] = rates?;
    let figure = Figure::median(two, one.p50.map(|one| 2.0 * one));
    Ok(figure.beside("one", one.p50).beside("apart", apart.p50))
}

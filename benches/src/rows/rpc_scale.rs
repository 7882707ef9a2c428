//! Row `rpc.sm.scale2`: what a second xstream adds to a service whose handlers take 2 us.
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
//! The target is 0.9 of the floor: 1.8 times one. What is lost is spread over all of a request that
//! one core has taken in and the other one handles: its memory, its place in the pool and the locks
//! of the endpoint travel between them, at half the round trip of a line each.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use margo::{Config, Instance, InstanceBuilder, ProviderHandle, Rpc};
use serde_json::json;

use super::on_ult::on_ult;
use crate::context::Context;
use crate::failure::{Doing, Result};
use crate::machine::pin_to_any;
use crate::row::Figure;
use crate::stats::Samples;
use crate::wait::Deadline;

pub(super) const WORK: Rpc<(), ()> = Rpc::new("bench_work");
/// What a handler computes.
const WORK_TIME: Duration = Duration::from_micros(2);
/// Calls in flight.
pub(super) const CALLERS: usize = 32;

pub(super) fn compute() {
    let begun = Instant::now();
    while black_box(begun.elapsed()) < WORK_TIME {}
}

/// Who does what.
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

    /// Calls per second over about `time`.
    fn rate(&self, time: Duration, deadline: Deadline) -> Result<f64> {
        let (origin, target) = (self.origin.clone(), self.target.clone());
        let pool = self.origin.rpc_pool();
        let callers = pool.clone();
        on_ult(&pool, deadline, move || {
            let done = Arc::new(AtomicU64::new(0));
            let start = Instant::now();
            let call = |_| {
                let (origin, target, done) = (origin.clone(), target.clone(), done.clone());
                let calls = move || -> Result<()> {
                    while start.elapsed() < time {
                        origin.forward(WORK, &target, &()).doing("calling")?;
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                };
                callers.spawn(calls).doing("spawning")
            };
            let handles: Vec<_> = (0..CALLERS).map(call).collect::<Result<_>>()?;
            for handle in handles {
                handle.join().doing("joining")??;
            }
            Ok(done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64())
        })
    }

    fn stop(self) -> Result<()> {
        self.service.finalize_and_wait().doing("stopping margo")
    }
}

/// Row `rpc.sm.scale2`.
pub(crate) fn run(context: &Context) -> Result<Figure> {
    let (rounds, time) = if context.quick {
        (1, Duration::from_millis(50))
    } else {
        (5, Duration::from_millis(400))
    };
    // The row process is on the first core alone; each xstream binds itself to its own.
    pin_to_any(&[context.cores.origin, context.cores.target()?])?;
    let forms = [Form::One, Form::Two, Form::Apart];
    let mut rates = forms.map(|form| (form, Samples::new(rounds, 1)));
    for _ in 0..rounds {
        for (form, samples) in &mut rates {
            let service = Service::start(context, *form)?;
            service.rate(time / 10, context.deadline)?;
            let rate = service.rate(time, context.deadline)?;
            service.stop()?;
            samples.push(Duration::from_secs_f64(1.0 / rate));
        }
    }
    let [one, two, apart] = rates.map(|(_, mut samples)| samples.rate());
    let figure = Figure::median(two, one.p50.map(|one| 2.0 * one));
    Ok(figure.beside("one", one.p50).beside("apart", apart.p50))
}

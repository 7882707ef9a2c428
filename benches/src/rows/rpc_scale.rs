//! Row `rpc.sm.scale2`: what a second xstream adds to a service whose handlers take 2 us.
//!
//! One process: the service has an xstream on each core, and its origin is a child instance whose
//! progress and callers run on the first of them, so that no xstream contends with another thread
//! for its core. In the floor's rounds the second xstream serves the handlers' pool alone, in the
//! row's rounds both do. They alternate.
//!
//! The value is the rate of calls with two, the floor twice the rate with one. What the origin
//! costs is not subtracted from the first core, though it is alone there in the floor's rounds: at
//! 0.3 us for a call, and 2.5 us for its handler, both cores together could reach 0.9 of the floor,
//! which is the target, if nothing else were lost. Lost is what a request costs that one core has
//! taken in and the other one handles: its memory and locks travel between them.

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

const WORK: Rpc<(), ()> = Rpc::new("bench_work");
/// What a handler computes.
const WORK_TIME: Duration = Duration::from_micros(2);
/// Calls in flight.
const CALLERS: usize = 32;

fn compute() {
    let begun = Instant::now();
    while black_box(begun.elapsed()) < WORK_TIME {}
}

struct Service {
    service: Instance,
    origin: Instance,
    target: ProviderHandle,
}

impl Service {
    /// The pool of the handlers is served by the second core, and by the first one if `both`.
    fn start(context: &Context, both: bool) -> Result<Self> {
        let first = if both { json!(["work", "origin"]) } else { json!(["origin"]) };
        let document = json!({
            "margo": { "address": "na+sm://" },
            "progress_spindown_msec": 3_600_000,
            "progress_pool": "progress",
            "rpc_pool": "work",
            "argobots": {
                "pools": [{ "name": "origin" }, { "name": "progress" }, { "name": "work" }],
                "xstreams": [
                    { "name": "first", "cpubind": context.cores.origin,
                      "scheduler": { "pools": first } },
                    { "name": "second", "cpubind": context.cores.target()?,
                      "scheduler": { "pools": ["work", "progress"] } },
                ],
            },
        });
        let service = margo::init(&document.to_string()).doing("starting margo")?;
        service.serve(WORK).function(|()| compute()).doing("registering")?;
        let mut config = Config::default();
        config.margo.address = "na+sm://".to_owned();
        config.margo.listen = false;
        config.progress_spindown_msec = 3_600_000;
        config.progress_pool = Some("origin".into());
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
    let (mut one, mut two) = (Samples::new(rounds, 1), Samples::new(rounds, 1));
    for _ in 0..rounds {
        for (both, samples) in [(false, &mut one), (true, &mut two)] {
            let service = Service::start(context, both)?;
            service.rate(time / 10, context.deadline)?;
            let rate = service.rate(time, context.deadline)?;
            service.stop()?;
            samples.push(Duration::from_secs_f64(1.0 / rate));
        }
    }
    let one = one.rate().p50;
    Ok(Figure::median(two.rate(), one.map(|one| 2.0 * one)).beside("one", one))
}

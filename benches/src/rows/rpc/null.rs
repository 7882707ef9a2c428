//! Rows `rpc.*`: remote procedure calls without arguments and results.
//!
//! - `rpc.{sm,tcp}.rtt.{poll,default}`: `forward` until the reply is decoded, one caller in a
//!   closed loop. The caller is a ULT of the origin's only xstream, which also makes progress; the
//!   handler is a ULT of the target's only one. `poll` never sleeps, `default` is margo as it
//!   comes. Floor: a message and its answer over bare cache lines or a bare socket, between the
//!   same xstreams, alternating.
//! - `rpc.sm.rtt.stats`: as `rtt.poll` with statistics on at both ends as by default; times are
//!   averages of batches, so that the few calls whose times are looked at are in them. Floor: the
//!   same with statistics off, alternating.
//! - `rpc.{sm,tcp}.rate32`: completed calls per second with 32 such callers, over the whole time;
//!   percentiles of time slices. No floor.
//! - `rpc.{sm,tcp}.idle_cpu`: share of one core that an idle instance with default settings uses
//!   after some calls, the busier of the two processes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use margo::{Instance, ProviderHandle, Rpc};
use serde::{Deserialize, Serialize};

use crate::base::cpu_time;
use crate::base::failure::{Doing, Failure, Result};
use crate::base::row::Figure;
use crate::base::stats::{Effort, Samples};
use crate::base::wait::Deadline;
use crate::floors::channel::{Caller, Offer, Place, Responder};
use crate::floors::rtt;
use crate::process::context::Context;
use crate::process::peer::Task;
use crate::rows::rpc::pair::{Pair, Settings, serve};
use crate::rows::ult::on_ult::on_ult;

const NULL: Rpc<(), ()> = Rpc::new("bench_null");
/// Serves one round of floor messages on the target's xstream before it returns.
const FLOOR: Rpc<(), std::result::Result<(), String>> = Rpc::new("bench_floor_rtt");

/// Switches statistics on or off at the target.
const STATISTICS: Rpc<bool, ()> = Rpc::new("bench_statistics");

/// ULTs of the rate rows.
const CALLERS: usize = 32;

/// The order that the peer of these rows gets.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Target {
    settings: Settings,
    place: Place,
}

/// The peer's part.
///
/// # Errors
///
/// When margo does not start, or the floor's channel is not there.
pub(crate) fn peer(target: Target, deadline: Deadline) -> Result<()> {
    let floor = Mutex::new(Responder::join(&target.place, deadline)?);
    let register = move |instance: &Instance| {
        let null = instance.register(NULL, |request| {
            // An origin that is gone needs no answer.
            let _ = request.respond(&());
        });
        null.doing("registering")?;
        let statistics = instance.serve(STATISTICS).returning(|request| {
            switch_statistics(request.instance(), *request.args());
        });
        statistics.doing("registering")?;
        let floor = instance.register(FLOOR, move |request| {
            let mut floor = floor.lock().unwrap_or_else(PoisonError::into_inner);
            let result = floor.answer(deadline).map_err(|failure| failure.to_string());
            let _ = request.respond(&result);
        });
        floor.doing("registering")
    };
    serve(target.settings, register, || Ok(()))
}

fn start(context: &Context, settings: Settings) -> Result<(Pair, Caller)> {
    let offer = Offer::new(settings.transport)?;
    let task = Task::Rpc(Target { settings, place: offer.place()? });
    let deadline = context.deadline;
    Pair::start(context, settings, task, || offer.accept(deadline, std::hint::spin_loop))
}

/// Rows `rpc.*.rtt.*`.
pub(crate) fn rtt(context: &Context, settings: Settings) -> Result<Figure> {
    let (effort, deadline) = (Effort::latency(context.quick), context.deadline);
    let (pair, mut caller) = start(context, settings)?;
    let (instance, target) = (pair.instance.clone(), pair.target.clone());
    let (mut floors, mut samples) = on_ult(&pair.instance.rpc_pool(), deadline, move || {
        let (mut floors, mut samples) = (effort.room(1), effort.room(1));
        for _ in 0..effort.rounds {
            floor_round(&instance, &target, &mut caller, effort, &mut floors, deadline)?;
            effort.each(&mut samples, || null(&instance, &target))?;
        }
        Ok((floors, samples))
    })?;
    pair.stop(deadline)?;
    Ok(Figure::median(samples.latency(), floors.quantile(500)))
}

/// Calls in one sample of [`rtt_stats`].
const BATCH: u32 = 256;

/// Rows `rpc.*.rtt.stats`.
pub(crate) fn rtt_stats(context: &Context, settings: Settings) -> Result<Figure> {
    let round_max = Duration::from_secs(1);
    let effort = match context.quick {
        true => Effort { rounds: 4, samples: 10, warmup: 1, round_max },
        false => Effort { rounds: 50, samples: 100, warmup: 10, round_max },
    };
    let deadline = context.deadline;
    let (pair, _caller) = start(context, settings)?;
    let (instance, target) = (pair.instance.clone(), pair.target.clone());
    let (mut off, mut on) = on_ult(&pair.instance.rpc_pool(), deadline, move || {
        let (mut off, mut on) = (effort.room(BATCH), effort.room(BATCH));
        for _ in 0..effort.rounds {
            for (samples, is_on) in [(&mut off, false), (&mut on, true)] {
                switch_statistics(&instance, is_on);
                instance.forward(STATISTICS, &target, &is_on).doing("calling")?;
                effort.batched(samples, || null(&instance, &target))?;
            }
        }
        Ok((off, on))
    })?;
    pair.stop(deadline)?;
    Ok(Figure::median(on.latency(), off.quantile(500)))
}

fn switch_statistics(instance: &Instance, on: bool) {
    if on {
        instance.start_statistics(margo::config::StatisticsOptions::default().sample_rpcs_every);
    } else {
        instance.stop_statistics();
    }
}

fn null(instance: &Instance, target: &ProviderHandle) -> Result<()> {
    instance.forward(NULL, target, &()).doing("calling")
}

/// Both xstreams stop everything else and exchange floor messages.
fn floor_round(
    instance: &Instance,
    target: &ProviderHandle,
    caller: &mut Caller,
    effort: Effort,
    floors: &mut Samples,
    deadline: Deadline,
) -> Result<()> {
    // This call is under way for as long as the target answers floor messages.
    let (origin, to) = (instance.clone(), target.clone());
    let call = instance.rpc_pool().spawn(move || origin.forward(FLOOR, &to, &()));
    let call = call.doing("spawning")?;
    caller.wait_for_hello(deadline, ult::yield_now)?;
    rtt::round(caller, effort, floors, deadline)?;
    let answered = call.join().doing("joining")?.doing("calling")?;
    answered.map_err(Failure::new)
}

/// Calls by several ULTs.
struct Flow {
    instance: Instance,
    target: ProviderHandle,
    /// Calls that have been begun; none is begun at or past `goal`.
    begun: AtomicUsize,
    goal: usize,
    done: AtomicUsize,
    /// Calls in one sample.
    slice: usize,
    /// When the last slice ended, and the time of each.
    slices: Mutex<(Instant, Samples)>,
    /// No call is begun after this.
    end: Instant,
}

impl Flow {
    /// Runs one caller.
    fn run(&self) -> Result<()> {
        while self.begun.fetch_add(1, Ordering::Relaxed) < self.goal {
            null(&self.instance, &self.target)?;
            let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
            if done.is_multiple_of(self.slice) {
                let now = Instant::now();
                let mut slices = self.slices.lock().unwrap_or_else(PoisonError::into_inner);
                let elapsed = now - slices.0;
                slices.1.push(elapsed);
                slices.0 = now;
                if now > self.end {
                    self.begun.store(self.goal, Ordering::Relaxed);
                }
            }
        }
        Ok(())
    }
}

/// Lets 32 ULTs make `goal` calls, or as many as `limit` allows: calls per second, and the slices.
fn flow(pair: &Pair, goal: usize, limit: Duration, deadline: Deadline) -> Result<(f64, Samples)> {
    let slice = (goal / 100).max(CALLERS);
    let (instance, target) = (pair.instance.clone(), pair.target.clone());
    let pool = instance.rpc_pool();
    let callers = pool.clone();
    on_ult(&pool, deadline, move || {
        let start = Instant::now();
        let flow = Arc::new(Flow {
            instance,
            target,
            begun: AtomicUsize::new(0),
            goal,
            done: AtomicUsize::new(0),
            slice,
            slices: Mutex::new((start, Samples::new(goal / slice + 1, slice as u32))),
            end: start + limit,
        });
        let spawn = |_| {
            let flow = flow.clone();
            callers.spawn(move || flow.run()).doing("spawning")
        };
        let handles: Vec<_> = (0..CALLERS).map(spawn).collect::<Result<_>>()?;
        for handle in handles {
            handle.join().doing("joining")??;
        }
        let rate = flow.done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
        let mut slices = flow.slices.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((rate, std::mem::replace(&mut slices.1, Samples::new(0, 1))))
    })
}

/// Rows `rpc.*.rate32`.
pub(crate) fn rate(context: &Context, settings: Settings) -> Result<Figure> {
    let (calls, limit) = if context.quick {
        (4_000, Duration::from_millis(150))
    } else {
        (4_000_000, Duration::from_secs(5))
    };
    let (pair, _caller) = start(context, settings)?;
    flow(&pair, calls / 10, limit / 10, context.deadline)?;
    let (rate, mut slices) = flow(&pair, calls, limit, context.deadline)?;
    pair.stop(context.deadline)?;
    Ok(Figure { value: Some(rate), ..Figure::median(slices.rate(), None) })
}

/// Rows `rpc.*.idle_cpu`.
pub(crate) fn idle_cpu(context: &Context, settings: Settings) -> Result<Figure> {
    let (settle, window) = if context.quick {
        (Duration::from_millis(100), Duration::from_millis(300))
    } else {
        (Duration::from_millis(500), Duration::from_secs(1))
    };
    let (pair, _caller) = start(context, settings)?;
    flow(&pair, 1_000, settle, context.deadline)?;
    std::thread::sleep(settle); // spins that the calls have earned come to their end
    let pids = [std::process::id(), pair.peer.id()];
    let used = || pids.iter().map(|pid| cpu_time::of(*pid)).collect::<Result<Vec<_>>>();
    let (start, before) = (Instant::now(), used()?);
    std::thread::sleep(window);
    let (elapsed, after) = (start.elapsed(), used()?);
    let busier = before.iter().zip(&after).map(|(before, after)| after.saturating_sub(*before));
    let busier = busier.max().unwrap_or_default();
    pair.stop(context.deadline)?;
    Ok(Figure::single(busier.as_secs_f64() * 100.0 / elapsed.as_secs_f64(), None))
}

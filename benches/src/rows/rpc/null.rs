//! Rows `rpc.*`: remote procedure calls without arguments and results.
//!
//! - `rpc.{sm,tcp}.rtt.{poll,default}`: `forward` until the reply is decoded, one caller in a
//!   closed loop. The caller is a ULT of the origin's only xstream, which also makes progress; the
//!   handler is a ULT of the target's only one. `poll` never sleeps, `default` is margo as it
//!   comes. Floor: a message and its answer over bare cache lines or a bare socket, between the
//!   same xstreams, alternating.
//! - `rpc.private.{rtt.poll,rate32}`: the same over connections with TLS. Floor: rustls alone
//!   over a bare socket.
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

use super::pair::{Pair, Settings, Told, during_call, serve};
use super::trust;
use crate::base::{Deadline, Doing, Effort, Figure, Result, Samples, cpu_time};
use crate::floors::channel::{self, Channel};
use crate::floors::transport::{Offer, join};
use crate::process::Context;
use crate::rows::ult::on_ult::on_ult;

pub(super) const NULL: Rpc<(), ()> = Rpc::new("bench_null");
/// Serves one round of floor messages on the target's xstream before it returns.
const FLOOR: Rpc<(), Told> = Rpc::new("bench_floor_rtt");

/// Switches statistics on or off at the target.
const STATISTICS: Rpc<bool, ()> = Rpc::new("bench_statistics");

/// ULTs of the rate rows.
const CALLERS: usize = 32;

/// Calls in one sample of [`rtt_stats`].
const BATCH: u32 = 256;

/// The peer's part.
///
/// # Errors
///
/// When margo does not start, or the floor's channel is not there.
pub(crate) fn peer(context: &Context, settings: Settings, place: &[u8]) -> Result<()> {
    let deadline = context.deadline;
    let floor = Mutex::new(join(settings.transport, place, deadline)?);
    let register = move |instance: &Instance| {
        // An origin that is gone needs no answer.
        instance.register(NULL, |request| drop(request.respond(&())))?;
        instance.serve(STATISTICS).returning(|request| {
            switch_statistics(request.instance(), *request.args());
        })?;
        trust::serve_beside(instance, settings)?;
        instance.register(FLOOR, move |request| {
            let mut floor = floor.lock().unwrap_or_else(PoisonError::into_inner);
            let result = floor.answer(deadline).map_err(|failure| failure.to_string());
            let _ = request.respond(&result);
        })?;
        Ok(())
    };
    serve(settings, register, || Ok(()))
}

pub(super) fn start(context: &Context, settings: Settings) -> Result<(Pair, Box<dyn Channel>)> {
    let offer = Offer::new(settings.transport)?;
    let place = offer.place()?;
    Pair::start(context, settings, place, || offer.accept(context.deadline))
}

/// Rows `rpc.*.rtt.*`.
pub(crate) fn rtt(context: &Context, settings: Settings) -> Result<Figure> {
    let (effort, deadline) = (Effort::latency(context.quick), context.deadline);
    let (pair, mut caller) = start(context, settings)?;
    let (instance, target) = (pair.instance.clone(), pair.target.clone());
    let rounds = on_ult(&pair.instance.layout().rpc_pool(), deadline, move || {
        let floor = |floors: &mut Samples| {
            during_call(&instance, &target, FLOOR, || {
                channel::round(&mut *caller, floors, deadline, ult::yield_now)
            })
        };
        effort.in_turns([1, 1], floor, |samples| samples.each(|| null(&instance, &target)))
    })?;
    pair.stop(deadline)?;
    Ok(Figure::latency(rounds))
}

/// Rows `rpc.*.rtt.stats`.
pub(crate) fn rtt_stats(context: &Context, settings: Settings) -> Result<Figure> {
    let (rounds, samples, warmup) = if context.quick { (4, 10, 1) } else { (50, 100, 10) };
    let effort = Effort { rounds, samples, warmup, round_max: Duration::from_secs(1) };
    let (pair, _caller) = start(context, settings)?;
    let (instance, target) = (pair.instance.clone(), pair.target.clone());
    let rounds = on_ult(&pair.instance.layout().rpc_pool(), context.deadline, move || {
        let with = |samples: &mut Samples, is_on| {
            switch_statistics(&instance, is_on);
            instance.forward(STATISTICS, &target, &is_on)?;
            samples.batched(|| null(&instance, &target))
        };
        effort.in_turns([BATCH, BATCH], |off| with(off, false), |on| with(on, true))
    })?;
    pair.stop(context.deadline)?;
    Ok(Figure::latency(rounds))
}

fn switch_statistics(instance: &Instance, on: bool) {
    if on {
        instance
            .monitoring()
            .start_statistics(margo::config::StatisticsOptions::default().sample_rpcs_every);
    } else {
        instance.monitoring().stop_statistics();
    }
}

pub(super) fn null(instance: &Instance, target: &ProviderHandle) -> Result<()> {
    instance.forward(NULL, target, &()).doing("calling")
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
pub(super) fn flow(
    (instance, target): (&Instance, &ProviderHandle),
    goal: usize,
    limit: Duration,
    deadline: Deadline,
) -> Result<(f64, Samples)> {
    let slice = (goal / 100).max(CALLERS);
    let (instance, target) = (instance.clone(), target.clone());
    let pool = instance.layout().rpc_pool();
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
        let handles = std::iter::repeat_with(|| {
            let flow = flow.clone();
            callers.spawn(move || flow.run())
        });
        for handle in handles.take(CALLERS).collect::<Vec<_>>() {
            handle?.join()??;
        }
        let rate = flow.done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
        let mut slices = flow.slices.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((rate, std::mem::replace(&mut slices.1, Samples::new(0, 1))))
    })
}

/// Rows `rpc.*.rate32`.
pub(crate) fn rate(context: &Context, settings: Settings) -> Result<Figure> {
    let (calls, limit) = if context.quick { (4_000, 150) } else { (4_000_000, 5_000) };
    let limit = Duration::from_millis(limit);
    let (pair, _caller) = start(context, settings)?;
    let between = (&pair.instance, &pair.target);
    flow(between, calls / 10, limit / 10, context.deadline)?;
    let (rate, mut slices) = flow(between, calls, limit, context.deadline)?;
    pair.stop(context.deadline)?;
    Ok(Figure { value: Some(rate), ..Figure::median(slices.rate(), None) })
}

/// Rows `rpc.*.idle_cpu`.
pub(crate) fn idle_cpu(context: &Context, settings: Settings) -> Result<Figure> {
    let (settle, window) = if context.quick { (100, 300) } else { (500, 1_000) };
    let settle = Duration::from_millis(settle);
    let (pair, _caller) = start(context, settings)?;
    flow((&pair.instance, &pair.target), 1_000, settle, context.deadline)?;
    std::thread::sleep(settle); // spins that the calls have earned come to their end
    let pids = [std::process::id(), pair.peer.id()];
    let used = cpu_time::share(&pids, Duration::from_millis(window))?;
    pair.stop(context.deadline)?;
    Ok(Figure::single(used, None))
}

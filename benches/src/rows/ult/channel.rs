//! Rows `ult.channel.*`.
//!
//! - `ult.channel.same`: a ULT sends an item to itself and receives it. Floor: a queue behind a
//!   lock of the standard library.
//! - `ult.channel.bounded` and `ult.channel.unbounded`: a ULT sends items one by one to a ULT of
//!   another xstream. The figure is the time per item as the receiver sees it. Floor: a ring of
//!   words between threads on the same cores, alternating, while the xstreams sleep.
//! - `ult.channel.spsc`: the same through a channel with one sender and one receiver.
//! - `ult.channel.spsc.batch`: through that one, sent in batches of 64 and received in batches of
//!   at most 512. The floor's ring has no batches.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ult::channel::{self, Receiver, Sender};

use super::on_ult::{Streams, on_ult};
use super::switch::on_one_xstream;
use crate::base::{Doing, Effort, Figure, OrFail, Result, Round, Samples};
use crate::floors::coroutine::BATCH as SAME_BATCH;
use crate::floors::ring;
use crate::process::Context;

/// Items that a sample covers.
const BATCH: u32 = 1024;

/// Row `ult.channel.same`.
pub(crate) fn same(context: &Context) -> Result<Figure> {
    on_one_xstream(context, SAME_BATCH, locked_queue, |_pool, _deadline| {
        let (sender, receiver) = channel::bounded(1024);
        Ok(move |samples: &mut Samples| {
            samples.each(|| {
                for number in 0..SAME_BATCH {
                    sender.send(number).doing("sending")?;
                    black_box(receiver.recv().doing("receiving")?);
                }
                Ok(())
            })
        })
    })
}

/// The floor of `ult.channel.same`.
fn locked_queue() -> Result<Round> {
    let queue = Mutex::new(VecDeque::with_capacity(1024));
    Ok(Box::new(move |samples| {
        samples.each(|| {
            for number in 0..SAME_BATCH {
                let lock = || black_box(&queue).lock().unwrap_or_else(PoisonError::into_inner);
                lock().push_back(number);
                black_box(lock().pop_front().or_fail("the queue is empty")?);
            }
            Ok(())
        })
    }))
}

/// Row `ult.channel.bounded`: a channel with room for 1024.
pub(crate) fn bounded(context: &Context) -> Result<Figure> {
    run(context, || channel::bounded(1024))
}

/// Row `ult.channel.unbounded`.
pub(crate) fn unbounded(context: &Context) -> Result<Figure> {
    run(context, channel::unbounded)
}

fn run(context: &Context, make: impl Fn() -> (Sender<u64>, Receiver<u64>)) -> Result<Figure> {
    between(context, || {
        let (sender, receiver) = make();
        // Until the receiver is gone.
        let sends = move || while sender.send(1).is_ok() {};
        let receives = move |samples: &mut Samples| {
            samples.batched(|| receiver.recv().map(drop).doing("receiving"))
        };
        (sends, receives)
    })
}

/// Row `ult.channel.spsc`.
pub(crate) fn spsc(context: &Context) -> Result<Figure> {
    between(context, || {
        let (mut sender, mut receiver) = channel::spsc(1024);
        let sends = move || while sender.send(1u64).is_ok() {};
        let receives = move |samples: &mut Samples| {
            samples.batched(|| {
                black_box(receiver.recv().doing("receiving")?);
                Ok(())
            })
        };
        (sends, receives)
    })
}

/// Row `ult.channel.spsc.batch`.
pub(crate) fn spsc_batch(context: &Context) -> Result<Figure> {
    between(context, || {
        let (mut sender, mut receiver) = channel::spsc(1024);
        let sends = move || {
            let mut items = Vec::new();
            loop {
                items.extend(0..64u64);
                if sender.send_many(&mut items).is_err() {
                    return;
                }
            }
        };
        let receives = move |samples: &mut Samples| {
            let mut items = Vec::new();
            samples.each(|| {
                let mut left = BATCH as usize;
                while left > 0 {
                    left -= receiver.recv_many(&mut items, left.min(512)).doing("receiving")?;
                    black_box(&items);
                    items.clear();
                }
                Ok(())
            })
        };
        (sends, receives)
    })
}

/// Lets a ULT of one xstream receive from one of another xstream, which ends when the receiver is
/// gone.
fn between<S, R>(context: &Context, make: impl Fn() -> (S, R)) -> Result<Figure>
where
    S: FnOnce() + Send + 'static,
    R: FnOnce(&mut Samples) -> Result<()> + Send + 'static,
{
    let effort = Effort::batches(context.quick);
    let cores = context.cores.take(2)?;
    let streams = Streams::start(&cores)?;
    let floor = |floors: &mut Samples| {
        // Longer than they spin.
        std::thread::sleep(Duration::from_millis(2));
        ring::round(context.cores, floors, context.deadline)
    };
    let rounds = effort.in_turns([BATCH, BATCH], floor, |samples| {
        let (sends, receives) = make();
        let sends = streams.pools[0].spawn(sends).doing("spawning")?;
        let mut taken = std::mem::replace(samples, Samples::new(0, 1));
        *samples = on_ult(&streams.pools[1], context.deadline, move || {
            receives(&mut taken)?;
            Ok(taken)
        })?;
        sends.join().doing("joining")
    })?;
    streams.stop()?;
    Ok(Figure::latency(rounds))
}

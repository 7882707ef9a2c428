//! Row `na.tcp.oneway`: messages of 64 bytes per second from a thread that never polls, while a
//! thread on the other core polls its endpoint and that of the target. The floor is the same with a
//! sender that polls for itself, and a thread on the other core that polls the target alone.
//!
//! The sender always has 128 messages under way. Short rounds of both kinds alternate; the best one
//! of each counts, from its first message to its last. That messages pass from one core to the
//! other is part of the figure, and not of the floor.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use na::{Addr, Completion, Endpoint, MsgBuf, OpId, Tag};

use super::na_node::open;
use crate::base::{Deadline, Doing, Figure, OrFail, Result, ensure};
use crate::floors::transport::Transport;
use crate::process::Context;

/// Messages under way, and receives posted.
const WINDOW: usize = 128;

const MESSAGE_BYTES: usize = 64;
/// Messages of a round.
const MESSAGES: usize = 10_000;

/// A sender and its target.
struct Course {
    origin: Arc<dyn Endpoint>,
    target: Arc<dyn Endpoint>,
    to: Addr,
    /// Messages that nothing is done with.
    free: Mutex<Vec<MsgBuf>>,
    /// The other core polls the origin, too.
    is_polled_apart: bool,
}

impl Course {
    fn new(over: Transport, is_polled_apart: bool) -> Result<Self> {
        let (origin, target) = (open(over, false, true)?, open(over, true, true)?);
        let to = origin.lookup(target.self_addr().uri()).doing("looking the target up")?;
        let mut free = Vec::with_capacity(WINDOW);
        for _ in 0..WINDOW {
            target.recv_unexpected(OpId(2), target.alloc_msg()).doing("posting a receive")?;
            let mut buf = origin.alloc_msg();
            ensure!(buf.try_extend(&[1; MESSAGE_BYTES]), "a message holds less than 64 bytes");
            free.push(buf);
        }
        Ok(Self { origin, target, to, free: Mutex::new(free), is_polled_apart })
    }

    /// Polls the origin; the buffers of messages that have left become free.
    fn poll_origin(&self) -> Result<()> {
        let mut failed = Ok(());
        let mut left = Vec::new();
        let mut sink = |completion| {
            if let Completion::Send { buf, result, .. } = completion {
                failed = std::mem::replace(&mut failed, Ok(())).and(result.doing("a send"));
                left.push(buf);
            }
        };
        self.origin.poll(WINDOW, &mut sink).doing("polling")?;
        if !left.is_empty() {
            self.lock_free().append(&mut left);
        }
        failed
    }

    fn lock_free(&self) -> MutexGuard<'_, Vec<MsgBuf>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the messages of a round.
    fn send(&self, deadline: &Deadline) -> Result<()> {
        let (mut free, mut sent, mut looks) = (Vec::new(), 0, 0_u32);
        while sent < MESSAGES {
            if free.is_empty() {
                looks = looks.wrapping_add(1);
                if looks.is_multiple_of(4096) {
                    deadline.check("the messages to leave")?;
                }
                if !self.is_polled_apart {
                    self.poll_origin()?;
                }
                std::mem::swap(&mut free, &mut *self.lock_free());
            }
            let Some(buf) = free.pop() else {
                std::hint::spin_loop();
                continue;
            };
            sent += 1;
            // As a one-way call is sent.
            if self.origin.send_unexpected_now(&self.to, Tag(7), buf.as_slice()) {
                free.push(buf);
            } else {
                self.origin.send_unexpected(OpId(1), &self.to, Tag(7), buf).doing("sending")?;
            }
        }
        self.lock_free().append(&mut free);
        Ok(())
    }

    /// Polls until the messages of a round have come; the time since the first one.
    fn take(&self, deadline: &Deadline) -> Result<Duration> {
        let (mut came, mut looks, mut begin) = (0, 0_u32, None);
        while came < MESSAGES {
            if self.is_polled_apart {
                self.poll_origin()?;
            }
            let mut failed = Ok(());
            let mut sink = |completion| {
                if let Completion::Recv { buf, result, .. } = completion {
                    came += 1;
                    begin.get_or_insert_with(Instant::now);
                    let posted = result.doing("a message").and_then(|_| {
                        self.target.recv_unexpected(OpId(2), buf).doing("posting a receive")
                    });
                    failed = std::mem::replace(&mut failed, Ok(())).and(posted);
                }
            };
            self.target.poll(WINDOW, &mut sink).doing("polling")?;
            failed?;
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(4096) {
                deadline.check("the messages")?;
            }
        }
        Ok(begin.or_fail("no message")?.elapsed())
    }

    /// Messages per second that arrive.
    fn round(&self, context: &Context) -> Result<f64> {
        let deadline = &context.deadline;
        let has_come = AtomicBool::new(false);
        let sender = || {
            self.send(deadline)?;
            // What it has sent last waits for a poll of its own.
            while !self.is_polled_apart && !has_come.load(Ordering::Relaxed) {
                self.poll_origin()?;
            }
            Ok(())
        };
        let taker = || {
            let taken = self.take(deadline);
            has_come.store(true, Ordering::Relaxed);
            taken
        };
        let ((), taken) = context.cores.run_on_both(sender, taker)?;
        Ok((MESSAGES - 1) as f64 / taken.as_secs_f64())
    }
}

/// Row `na.tcp.oneway`.
pub(crate) fn tcp(context: &Context) -> Result<Figure> {
    let rounds = if context.quick { 4 } else { 50 };
    let alone = Course::new(Transport::Tcp, false)?;
    let apart = Course::new(Transport::Tcp, true)?;
    let (mut floor, mut best) = (0.0, 0.0);
    for _ in 0..rounds {
        floor = f64::max(floor, alone.round(context)?);
        best = f64::max(best, apart.round(context)?);
    }
    Ok(Figure::single(best, Some(floor)))
}

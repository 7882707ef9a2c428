//! Rows `na.sm.rate64` and `na.tcp.rate64`: unexpected messages of 64 bytes to a peer that posts
//! its receives again, both sides polling. No floor.
//!
//! - `na.sm.rate64`: up to 64 sends in flight. A sample is a batch of messages; a sender that is
//!   held back shares the receiver's pace.
//! - `na.tcp.rate64`: messages that arrive per second while the origin always has 256 sends in
//!   flight; over the whole time, which the peer takes from the first message to the last.

use std::time::Instant;

use na::{Addr, Completion, Endpoint, MsgBuf, OpId, Tag};

use super::na_node::open;
use crate::base::{Doing, Effort, Figure, OrFail, Result, ensure};
use crate::floors::transport::Transport;
use crate::process::{Context, child};

/// Sends in flight over shared memory, and receives posted.
const SM_WINDOW: usize = 64;

/// Sends in flight over TCP, and receives posted.
const TCP_WINDOW: usize = 256;

/// Messages of one sample over shared memory.
const BATCH: u32 = 4096;

const MESSAGE_BYTES: usize = 64;

/// Messages of the whole row over TCP.
fn messages(context: &Context) -> u64 {
    if context.quick { 50_000 } else { 8_000_000 }
}

fn send(endpoint: &dyn Endpoint, to: &Addr, buf: MsgBuf) -> Result<()> {
    endpoint.send_unexpected(OpId(1), to, Tag(7), buf).doing("sending")
}

/// Polls once; the first failure of `act`.
fn poll(
    endpoint: &dyn Endpoint,
    window: usize,
    mut act: impl FnMut(Completion) -> Result<()>,
) -> Result<usize> {
    let mut failed = Ok(());
    let mut sink = |completion| {
        let acted = act(completion);
        failed = std::mem::replace(&mut failed, Ok(())).and(acted);
    };
    let count = endpoint.poll(window, &mut sink).doing("polling")?;
    failed.map(|()| count)
}

/// The peer's part: takes messages until the origin's process asks for the end. Over TCP it tells
/// how long all of them took, once they are there.
///
/// # Errors
///
/// When an operation fails, or the row process falls silent.
pub(crate) fn peer(context: &Context, over: Transport) -> Result<()> {
    let (window, messages) = match over {
        Transport::Tcp => (TCP_WINDOW, messages(context)),
        _ => (SM_WINDOW, u64::MAX),
    };
    let endpoint = &*open(over, true, false)?;
    child::send(&endpoint.self_addr().uri())?;
    let post = |buf| endpoint.recv_unexpected(OpId(1), buf).doing("posting a receive");
    (0..window).try_for_each(|_| post(endpoint.alloc_msg()))?;
    let (mut start, mut arrived, mut idle) = (None, 0, 0);
    loop {
        let count = poll(endpoint, window, |completion| {
            let Completion::Recv { buf, result, .. } = completion else { return Ok(()) };
            result.doing("a message")?;
            ensure!(buf.len() == MESSAGE_BYTES, "a message is cut");
            arrived += 1;
            let start: &Instant = start.get_or_insert_with(Instant::now);
            if arrived == messages {
                child::send(&start.elapsed().as_secs_f64())?;
            }
            post(buf)
        })?;
        idle = if count > 0 { 0 } else { idle + 1 };
        // An endpoint that is busy is not held up.
        if idle == 4096 {
            idle = 0;
            if child::finish_asked()? {
                return Ok(());
            }
            context.deadline.check("the messages")?;
        }
    }
}

/// Row `na.sm.rate64`.
pub(crate) fn sm(context: &Context) -> Result<Figure> {
    let effort = Effort::transfers(context.quick, BATCH as usize * MESSAGE_BYTES);
    let mut peer = context.start_peer(())?;
    let uri: String = peer.receive("the peer's address")?;
    let endpoint = &*open(Transport::Sm, false, false)?;
    let to = endpoint.lookup(&uri).doing("looking the peer up")?;
    let mut free: Vec<MsgBuf> = (0..SM_WINDOW).map(|_| endpoint.alloc_msg()).collect();
    free.iter_mut().for_each(|buf| buf.set_len(MESSAGE_BYTES));
    let until_one_is_sent = |free: &mut Vec<MsgBuf>| {
        context.deadline.spin_until("a completion", || {
            let polled = poll(endpoint, SM_WINDOW, |completion| {
                if let Completion::Send { buf, .. } = completion {
                    free.push(buf);
                }
                Ok(())
            });
            !matches!(polled, Ok(0))
        })
    };
    let mut samples = effort.alone(BATCH, |samples| {
        samples.batched(|| {
            while free.is_empty() {
                until_one_is_sent(&mut free)?;
            }
            send(endpoint, &to, free.pop().or_fail("no buffer")?)
        })
    })?;
    until_one_is_sent(&mut free)?;
    endpoint.close();
    peer.finish()?;
    Ok(Figure::median(samples.rate(), None))
}

/// Row `na.tcp.rate64`.
pub(crate) fn tcp(context: &Context) -> Result<Figure> {
    let messages = messages(context);
    let mut peer = context.start_peer(())?;
    let uri: String = peer.receive("the peer's address")?;
    let endpoint = &*open(Transport::Tcp, false, false)?;
    let to = endpoint.lookup(&uri).doing("looking the peer up")?;
    for _ in 0..TCP_WINDOW {
        let mut buf = endpoint.alloc_msg();
        ensure!(buf.try_extend(&[1; MESSAGE_BYTES]), "a message holds less than 64 bytes");
        send(endpoint, &to, buf)?;
    }
    let (mut begun, mut ended) = (TCP_WINDOW as u64, 0);
    while ended < messages {
        poll(endpoint, TCP_WINDOW, |completion| {
            let Completion::Send { buf, result, .. } = completion else { return Ok(()) };
            ended += 1;
            result.doing("a message")?;
            begun += 1;
            if begun > messages { Ok(()) } else { send(endpoint, &to, buf) }
        })?;
        context.deadline.check("the messages to leave")?;
    }
    let elapsed: f64 = peer.receive("the peer's time")?;
    peer.finish()?;
    endpoint.close();
    Ok(Figure::single((messages - 1) as f64 / elapsed, None))
}

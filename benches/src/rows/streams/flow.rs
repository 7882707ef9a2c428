//! Rows `streams.{sm,tcp}.*`: a stream from one process to another, one core each; both poll.
//!
//! - `items`: bytes per second of numbers of 8 bytes each;
//! - `data64k`, `data1m`: bytes per second of items with so much data each, which the receiver
//!   fetches from where it is and does nothing with; the sender has [`BUFFERS`], and sends one
//!   again when it has come back;
//! - `latency`: time of an item that finds the stream empty, until it is acknowledged.
//!
//! A sample of the first three is [`VOLUME`] bytes, until all are acknowledged. Their floor: the
//! receiver copies as many bytes within its own process, in chunks as long as a batch, or reads
//! them from a bare TCP connection. Floor of `latency`: a message and its answer over bare cache
//! lines or a bare socket. Floor and figure alternate, at the same two xstreams.

use std::cell::Cell;
use std::collections::VecDeque;
use std::hint::black_box;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};

use margo::{Handle, Instance, ProviderHandle, Rpc, bulk_memory::AllocOptions};
use margo_stream::{Lent, ReceiveSpec, Receiver, Route, SendSpec, Sender, Stream};
use serde::{Deserialize, Serialize};

use crate::base::{Doing, Effort, Figure, OrFail, Result, Samples};
use crate::floors::channel::{self, Channel};
use crate::floors::memcpy::touched;
use crate::floors::stream::{self, Style};
use crate::floors::tcp;
use crate::floors::transport::{Offer, Transport, join};
use crate::process::{Context, child};
use crate::rows::rpc::pair::{Pair, Settings, Told, WaitPolicy, during_call, serve};
use crate::rows::ult::on_ult::on_ult;

const STREAM: Stream<u64> = Stream::new("bench_items");
/// Takes part in a round of the floor.
const FLOOR: Rpc<(), Told> = Rpc::new("bench_floor_stream");

/// Bytes of a sample.
const VOLUME: usize = 16 << 20;
/// Buffers of data.
const BUFFERS: usize = 8;
/// Bytes that the floor copies, or reads, at a time.
const CHUNK: usize = 64 << 10;

/// The place where the receiver takes part in the floor.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Floor {
    /// Within its process.
    Copy,
    /// The address of somebody who writes.
    Read(String),
    /// A channel whose messages it answers.
    Answer(Vec<u8>),
}

/// A round of the floor, as the receiver has it.
type Round = Box<dyn FnMut() -> Result<()> + Send>;

fn settings(transport: Transport) -> Settings {
    Settings { transport, patience: WaitPolicy::Poll }
}

/// The peer's part: it receives.
///
/// # Errors
///
/// When margo or the floor does not start, or the stream does not come to its end.
pub(crate) fn peer(context: &Context, over: Transport, floor: Floor) -> Result<()> {
    let (effort, deadline) = (Effort::transfers(context.quick, VOLUME), context.deadline);
    let floors = Arc::new(Mutex::new(effort.room(1)));
    let measured = floors.clone();
    let measure = move |round: &mut dyn FnMut() -> Result<()>| {
        measured.lock().unwrap_or_else(PoisonError::into_inner).each(round)
    };
    let round: Round = match floor {
        Floor::Copy => {
            let (from, mut into) = (touched(CHUNK), touched(CHUNK));
            let mut copy = move || {
                for _ in 0..VOLUME / CHUNK {
                    into.copy_from_slice(black_box(&from));
                    black_box(&mut into);
                }
                Ok(())
            };
            Box::new(move || measure(&mut copy))
        }
        Floor::Read(address) => Box::new(move || {
            let mut reader = stream::Reader::connect(&address, Style::Stream, CHUNK, deadline)?;
            measure(&mut || (0..VOLUME / CHUNK).try_for_each(|_| reader.read()))
        }),
        Floor::Answer(place) => {
            let mut channel = join(over, &place, deadline)?;
            Box::new(move || channel.answer(deadline))
        }
    };
    let round = Mutex::new(round);
    let taking = Cell::new(None);
    let register = |instance: &Instance| {
        instance.register(FLOOR, move |request: Handle<(), Told>| {
            let mut round = round.lock().unwrap_or_else(PoisonError::into_inner);
            let told = round().map_err(|failure| failure.to_string());
            // An origin that is gone needs no answer.
            let _ = request.respond(&told);
        })?;
        let receiver = Receiver::serve(&[instance], STREAM, &ReceiveSpec::new());
        let receiver = receiver.doing("serving a stream")?;
        taking.set(Some(instance.layout().rpc_pool().spawn(move || take(receiver))?));
        Ok(())
    };
    serve(settings(over), register, || {
        taking.take().or_fail("nobody receives")?.join()??;
        child::send(&*floors.lock().unwrap_or_else(PoisonError::into_inner))
    })
}

/// Takes all items of a stream.
fn take(mut receiver: Receiver<u64>) -> Result<()> {
    while let Some(batch) = receiver.recv_batch().doing("receiving")? {
        black_box(batch.fold(0, |sum, item| sum ^ item));
    }
    Ok(())
}

/// Starts the receiver, runs `measure` on a ULT of the sender's instance, and stops both; returns
/// the samples of both processes.
fn measured<T: Send + 'static>(
    context: &Context,
    over: Transport,
    floor: Floor,
    meet: impl FnOnce() -> Result<T>,
    measure: impl FnOnce(&Instance, &ProviderHandle, T, &mut Sender<u64>) -> Result<[Samples; 2]>
    + Send
    + 'static,
) -> Result<[Samples; 3]> {
    let (mut pair, met) = Pair::start(context, settings(over), floor, meet)?;
    let (instance, target) = (pair.instance.clone(), pair.target.clone());
    let [floors, samples] =
        on_ult(&pair.instance.layout().rpc_pool(), context.deadline, move || {
            let to = [target.addr().uri().to_owned()];
            let (spec, route) = (SendSpec::new(), Route::RoundRobin);
            let sender = Sender::connect(&[&instance], STREAM, &to, &spec, route);
            let mut sender = sender.doing("connecting a stream")?;
            let samples = measure(&instance, &target, met, &mut sender)?;
            sender.finish().doing("ending a stream")?;
            Ok(samples)
        })?;
    pair.peer.ask_to_finish();
    let of_receiver = pair.peer.receive("the receiver's samples")?;
    pair.stop(context.deadline)?;
    Ok([floors, samples, of_receiver])
}

/// Rows `items`, and `data*` with so many bytes of data for each item: in bytes.
pub(crate) fn flow(context: &Context, over: Transport, data: Option<usize>) -> Result<Figure> {
    let (effort, deadline) = (Effort::transfers(context.quick, VOLUME), context.deadline);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (is_tcp, place) = (over == Transport::Tcp, listener.local_addr()?.to_string());
    let floor = if is_tcp { Floor::Read(place) } else { Floor::Copy };
    let measure =
        move |instance: &Instance, target: &ProviderHandle, (), sender: &mut Sender<_>| {
            let floor = |_: &mut Samples| {
                during_call(instance, target, FLOOR, || {
                    if !is_tcp {
                        return Ok(());
                    }
                    let stream = tcp::accept(&listener, deadline, ult::yield_now)?;
                    stream::write_until_closed(stream, Style::Stream, CHUNK, deadline)
                })
            };
            let Some(data) = data else {
                let numbers: Vec<u64> = (0..(VOLUME / 8) as u64).collect();
                return effort.in_turns([1, 1], floor, |samples| {
                    samples.each(|| {
                        sender.send_slice(&numbers)?;
                        sender.wait_until_taken().doing("sending items")
                    })
                });
            };
            let alloc = |_| instance.alloc(data, &AllocOptions::default());
            let mut free: Vec<_> = (0..BUFFERS).map(alloc).collect::<Result<_, _>>()?;
            effort.in_turns([1, 1], floor, |samples| {
                samples.each(|| {
                    let mut lent = VecDeque::new();
                    for _ in 0..VOLUME / data {
                        let back = || lent.pop_front().and_then(Lent::wait);
                        let buffer = free.pop().or_else(back).or_fail("data did not come back")?;
                        lent.push_back(sender.send_with(&0, buffer).doing("sending data")?);
                    }
                    sender.wait_until_taken().doing("sending data")?;
                    free.extend(lent.into_iter().filter_map(Lent::wait));
                    Ok(())
                })
            })
        };
    let [_, samples, floors] = measured(context, over, floor, || Ok(()), measure)?;
    Ok(Figure::bandwidth([floors, samples], VOLUME))
}

/// Rows `latency`.
pub(crate) fn latency(context: &Context, over: Transport) -> Result<Figure> {
    let (effort, deadline) = (Effort::latency(context.quick), context.deadline);
    let offer = Offer::new(over)?;
    let floor = Floor::Answer(offer.place()?);
    let meet = || offer.accept(deadline);
    let [floors, samples, _] = measured(
        context,
        over,
        floor,
        meet,
        move |instance, target, mut caller: Box<dyn Channel>, sender| {
            let floor = |floors: &mut Samples| {
                during_call(instance, target, FLOOR, || {
                    channel::round(&mut *caller, floors, deadline, ult::yield_now)
                })
            };
            effort.in_turns([1, 1], floor, |samples| {
                samples.each(|| {
                    sender.send(&0)?;
                    sender.wait_until_taken().doing("sending an item")
                })
            })
        },
    )?;
    Ok(Figure::latency([floors, samples]))
}

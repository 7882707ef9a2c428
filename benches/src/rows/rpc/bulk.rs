//! Rows `bulk.sm.alloc.*`, `bulk.sm.any.*` and `bulk.tcp.*`: the target pulls the origin's memory.
//!
//! Measures [`Handle::pull`](margo::Handle::pull) in a handler, one transfer after the other,
//! from memory of the origin into registered memory of the target, both of [`Instance::alloc`] or
//! both plain; both sides poll. The request that asks for it and its answer are not included. After
//! each round the target compares what it has with what it must be.
//!
//! Floor, alternating, at the same two xstreams: the target copies as many bytes within its own
//! process (`alloc`), reads the same memory by cross-memory attach (`any`), or asks for chunks of
//! the same size over a bare TCP connection.

use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};

use margo::{
    Access, AllocOptions, Bulk, BulkBuffer, Exposable, Exposed, Handle, Instance, ProviderHandle,
    Rpc, SharedBuffer,
};
use serde::{Deserialize, Serialize};

use crate::base::failure::{Doing, Failure, Result};
use crate::base::row::Figure;
use crate::base::stats::{Effort, Samples};
use crate::base::wait::Deadline;
use crate::floors::attach::{self, Attach};
use crate::floors::channel::Transport;
use crate::floors::memcpy::{self, touched};
use crate::floors::stream::Style;
use crate::floors::{stream, tcp};
use crate::process::child;
use crate::process::context::Context;
use crate::process::peer::Task;
use crate::rows::rpc::pair::{Pair, Settings, WaitPolicy, serve};
use crate::rows::ult::on_ult::on_ult;

type Told = std::result::Result<(), String>;

/// Pulls the argument's memory for a round.
const PULL: Rpc<Bulk, Told> = Rpc::new("bench_pull");
/// Measures the floor for a round.
const FLOOR: Rpc<(), Told> = Rpc::new("bench_floor_bulk");

/// The memory that is pulled, and the transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Shared memory, from `alloc`.
    SmAlloc,
    /// Shared memory, from plain memory.
    SmAny,
    /// TCP, from plain memory.
    Tcp,
}

/// The order that the peer of these rows gets.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Target {
    settings: Settings,
    floor: Floor,
    bytes: usize,
    effort: Effort,
}

/// Where the target finds the floor's data.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Floor {
    /// A copy within the target; what it pulls to is from `alloc` as well.
    Copy,
    /// Memory of the origin's process.
    Attach(attach::Source),
    /// An address where chunks can be asked for.
    Get(String),
}

/// The figures that the target has measured.
struct Measured {
    floors: Samples,
    samples: Samples,
    /// Made at the first pull, since it needs the instance.
    destination: Option<Destination>,
}

/// Where the target pulls to.
enum Destination {
    Alloc(Exposed<SharedBuffer>),
    Plain(BulkBuffer),
}

impl Destination {
    fn new(instance: &Instance, shared: bool, bytes: usize) -> Result<Self> {
        if !shared {
            return instance.bulk_buffer(bytes).map(Self::Plain).doing("a buffer");
        }
        let buffer = instance.alloc(bytes, &AllocOptions::default()).doing("allocating")?;
        instance.expose(buffer, Access::ReadWrite).map(Self::Alloc).doing("exposing memory")
    }

    fn clear(&mut self, bytes: usize) -> Result<()> {
        match self {
            Self::Alloc(exposed) => exposed.write_at(0, &vec![0; bytes]).doing("clearing"),
            Self::Plain(buffer) => {
                buffer.fill(0);
                Ok(())
            }
        }
    }

    fn holds(&self, expected: &[u8]) -> Result<bool> {
        match self {
            Self::Alloc(exposed) => {
                let mut bytes = vec![0; expected.len()];
                exposed.read_at(0, &mut bytes).doing("reading")?;
                Ok(bytes == expected)
            }
            Self::Plain(buffer) => Ok(buffer[..] == *expected),
        }
    }
}

/// The peer's part.
///
/// # Errors
///
/// When margo does not start.
pub(crate) fn peer(target: Target, deadline: Deadline) -> Result<()> {
    let Target { settings, floor, bytes, effort } = target;
    let (floors, samples) = (effort.room(1), effort.room(1));
    let measured = Arc::new(Mutex::new(Some(Measured { floors, samples, destination: None })));
    let (pulls, bare) = (measured.clone(), measured.clone());
    let shared = matches!(floor, Floor::Copy);
    let register = move |instance: &Instance| {
        let pull = move |request: Handle<Bulk, Told>| {
            answer(&request, &pulls, |measured| pull(&request, measured, shared, bytes, effort));
        };
        instance.register(PULL, pull).doing("registering")?;
        let floor = move |request: Handle<(), Told>| {
            answer(&request, &bare, |measured| {
                bare_round(&floor, measured, bytes, effort, deadline)
            });
        };
        instance.register(FLOOR, floor).doing("registering")
    };
    serve(settings, register, || {
        let measured = take(&measured)?;
        child::send(&(measured.floors.raw(), measured.samples.raw()))
    })
}

/// Runs a round with the measurements taken out of their place: no lock is held while it suspends.
fn answer<A>(
    request: &Handle<A, Told>,
    place: &Mutex<Option<Measured>>,
    round: impl FnOnce(&mut Measured) -> Result<()>,
) {
    let result = take(place).and_then(|mut measured| {
        let result = round(&mut measured);
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(measured);
        result
    });
    // An origin that is gone needs no answer.
    let _ = request.respond(&result.map_err(|failure| failure.to_string()));
}

fn take(place: &Mutex<Option<Measured>>) -> Result<Measured> {
    let taken = place.lock().unwrap_or_else(PoisonError::into_inner).take();
    taken.ok_or_else(|| Failure::new("a round is under way, or was broken off"))
}

fn pull(
    request: &Handle<Bulk, Told>,
    measured: &mut Measured,
    shared: bool,
    bytes: usize,
    effort: Effort,
) -> Result<()> {
    let Measured { samples, destination, .. } = measured;
    let destination = match destination {
        Some(destination) => destination,
        None => destination.insert(Destination::new(request.instance(), shared, bytes)?),
    };
    destination.clear(bytes)?;
    effort.each(samples, || {
        let pulled = match destination {
            Destination::Alloc(exposed) => request.pull(request.args(), 0, exposed, 0..bytes),
            Destination::Plain(buffer) => request.pull(request.args(), 0, buffer, 0..bytes),
        };
        pulled.doing("pulling")
    })?;
    match destination.holds(&touched(bytes))? {
        true => Ok(()),
        false => Err(Failure::new("the pulled bytes are not the origin's")),
    }
}

fn bare_round(
    floor: &Floor,
    measured: &mut Measured,
    bytes: usize,
    effort: Effort,
    deadline: Deadline,
) -> Result<()> {
    match floor {
        Floor::Copy => memcpy::Copy::new(bytes).round(effort, &mut measured.floors),
        Floor::Attach(source) => Attach::new(*source).round(effort, &mut measured.floors),
        Floor::Get(address) => {
            let mut reader = stream::Reader::connect(address, Style::Get, bytes, deadline)?;
            reader.round(effort, &mut measured.floors)
        }
    }
}

/// The row.
pub(crate) fn run(context: &Context, way: Way, bytes: usize) -> Result<Figure> {
    let (effort, deadline) = (Effort::transfers(context.quick, bytes), context.deadline);
    let transport = if way == Way::Tcp { Transport::Tcp } else { Transport::Sm };
    let settings = Settings { transport, patience: WaitPolicy::Poll };
    let data = touched(bytes);
    let (floor, listener) = match way {
        Way::SmAlloc => (Floor::Copy, None),
        Way::SmAny => {
            attach::allow_attach();
            // The bytes stay where they are when the vector moves.
            (Floor::Attach(attach::Source::of(&data)), None)
        }
        Way::Tcp => {
            let listener = TcpListener::bind("127.0.0.1:0").doing("listening on loopback")?;
            let address = listener.local_addr().doing("asking for the port")?;
            (Floor::Get(address.to_string()), Some(listener))
        }
    };
    let task = Task::Bulk(Target { settings, floor, bytes, effort });
    let (mut pair, ()) = Pair::start(context, settings, task, || Ok(()))?;
    let (instance, target) = (pair.instance.clone(), pair.target.clone());
    on_ult(&pair.instance.rpc_pool(), deadline, move || {
        let rounds = Rounds { instance: &instance, target: &target, listener, effort, deadline };
        if way != Way::SmAlloc {
            return rounds.run(data, bytes);
        }
        let buffer = instance.alloc(bytes, &AllocOptions::default());
        let mut buffer = buffer.doing("allocating")?;
        buffer.as_mut_slice().doing("filling")?.copy_from_slice(&data);
        rounds.run(buffer, bytes)
    })?;
    pair.peer.ask_to_finish();
    let (floors, samples): (Vec<u64>, Vec<u64>) =
        pair.peer.receive("the target's samples", deadline)?;
    pair.stop(deadline)?;
    let floor = Samples::from_raw(floors).bandwidth(bytes).p50;
    Ok(Figure::median(Samples::from_raw(samples).bandwidth(bytes), floor))
}

/// The origin's part: what it exposes, and how often the target measures.
struct Rounds<'a> {
    instance: &'a Instance,
    target: &'a ProviderHandle,
    /// Where the floor's chunks are asked for, if that is how they come.
    listener: Option<TcpListener>,
    effort: Effort,
    deadline: Deadline,
}

impl Rounds<'_> {
    fn run(&self, data: impl Exposable, bytes: usize) -> Result<()> {
        let Self { instance, target, listener, effort, deadline } = self;
        let exposed = instance.expose(data, Access::ReadOnly).doing("exposing memory")?;
        for _ in 0..effort.rounds {
            let (origin, to) = (Instance::clone(instance), ProviderHandle::clone(target));
            let call = instance.rpc_pool().spawn(move || origin.forward(FLOOR, &to, &()));
            let call = call.doing("spawning")?;
            if let Some(listener) = listener {
                let stream = tcp::accept(listener, *deadline, ult::yield_now)?;
                stream::write_until_closed(stream, Style::Get, bytes, *deadline)?;
            }
            let told = call.join().doing("joining")?.doing("calling")?;
            told.map_err(Failure::new)?;
            let told = instance.forward(PULL, target, exposed.bulk()).doing("calling")?;
            told.map_err(Failure::new)?;
        }
        drop(exposed.release().doing("taking memory back")?);
        Ok(())
    }
}

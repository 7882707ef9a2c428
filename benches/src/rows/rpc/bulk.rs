//! Rows `bulk.sm.alloc.*`, `bulk.sm.any.*`, `bulk.tcp.*` and `bulk.private.*`: the target pulls the
//! origin's memory.
//!
//! Measures [`Handle::pull`](margo::Handle::pull) in a handler, one transfer after the other,
//! from memory of the origin into registered memory of the target, both of [`Instance::alloc`] or
//! both plain; both sides poll. The request that asks for it and its answer are not included. After
//! each round the target compares what it has with what it must be.
//!
//! Floor, alternating, at the same two xstreams: the target copies as many bytes within its own
//! process (`alloc`), reads the same memory by cross-memory attach (`any`), or asks for chunks of
//! the same size over a bare TCP connection, with rustls alone for `private`.

use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};

use margo::{
    Access, Bulk, Exposed, Handle, Instance, Rpc, bulk_memory::AllocOptions,
    bulk_memory::BulkBuffer, bulk_memory::Exposable, bulk_memory::SharedBuffer,
};
use serde::{Deserialize, Serialize};

use super::pair::{Pair, Settings, Told, WaitPolicy, during_call, serve};
use crate::base::{Doing, Effort, Failure, Figure, OrFail, Result, Samples, ensure};
use crate::floors::attach::Source;
use crate::floors::memcpy::{copies, touched};
use crate::floors::stream::{self, Style};
use crate::floors::transport::Transport;
use crate::floors::{tcp, tls};
use crate::process::{Context, child};
use crate::rows::ult::on_ult::on_ult;

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
    /// TCP with TLS.
    Private,
}

impl Way {
    fn settings(self) -> Settings {
        let transport = match self {
            Self::SmAlloc | Self::SmAny => Transport::Sm,
            Self::Tcp => Transport::Tcp,
            Self::Private => Transport::Private,
        };
        Settings { transport, patience: WaitPolicy::Poll }
    }
}

/// Where the target finds the floor's data.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Floor {
    /// A copy within the target; what it pulls to is from `alloc` as well.
    Copy,
    /// Memory of the origin's process.
    Attach(Source),
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
            return Ok(Self::Plain(instance.memory().bulk_buffer(bytes)?));
        }
        let buffer = instance.alloc(bytes, &AllocOptions::default())?;
        Ok(Self::Alloc(instance.expose(buffer, Access::ReadWrite)?))
    }

    fn clear(&mut self, bytes: usize) -> Result<()> {
        match self {
            Self::Alloc(exposed) => exposed.write_at(0, &vec![0; bytes])?,
            Self::Plain(buffer) => buffer.fill(0),
        }
        Ok(())
    }

    fn holds(&self, expected: &[u8]) -> Result<bool> {
        match self {
            Self::Alloc(exposed) => {
                let mut bytes = vec![0; expected.len()];
                exposed.read_at(0, &mut bytes)?;
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
pub(crate) fn peer(context: &Context, way: Way, bytes: usize, floor: Floor) -> Result<()> {
    let (effort, deadline) = (Effort::transfers(context.quick, bytes), context.deadline);
    let (floors, samples) = (effort.room(1), effort.room(1));
    let measured = Arc::new(Mutex::new(Some(Measured { floors, samples, destination: None })));
    let (pulls, bare) = (measured.clone(), measured.clone());
    let register = move |instance: &Instance| {
        instance.register(PULL, move |request: Handle<Bulk, Told>| {
            answer(&request, &pulls, |measured| pull(&request, measured, way, bytes));
        })?;
        instance.register(FLOOR, move |request: Handle<(), Told>| {
            answer(&request, &bare, |Measured { floors, .. }| match &floor {
                Floor::Copy => copies(bytes)(floors),
                Floor::Attach(source) => source.reads()(floors),
                Floor::Get(address) => {
                    let connect = match way {
                        Way::Private => stream::Reader::connect_private,
                        _ => stream::Reader::connect,
                    };
                    let mut reader = connect(address, Style::Get, bytes, deadline)?;
                    floors.each(|| reader.read())
                }
            });
        })?;
        Ok(())
    };
    serve(way.settings(), register, || {
        let measured = take(&measured)?;
        child::send(&[measured.floors, measured.samples])
    })
}

/// Runs a round with the measurements taken out of their place: no lock is held while it suspends.
pub(crate) fn answer<A, M>(
    request: &Handle<A, Told>,
    place: &Mutex<Option<M>>,
    round: impl FnOnce(&mut M) -> Result<()>,
) {
    let result = take(place).and_then(|mut measured| {
        let result = round(&mut measured);
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(measured);
        result
    });
    // An origin that is gone needs no answer.
    let _ = request.respond(&result.map_err(|failure| failure.to_string()));
}

/// Takes the measurements out of their place.
///
/// # Errors
///
/// When they are not there.
pub(crate) fn take<M>(place: &Mutex<Option<M>>) -> Result<M> {
    let taken = place.lock().unwrap_or_else(PoisonError::into_inner).take();
    taken.or_fail("a round is under way, or was broken off")
}

fn pull(
    request: &Handle<Bulk, Told>,
    measured: &mut Measured,
    way: Way,
    bytes: usize,
) -> Result<()> {
    let Measured { samples, destination, .. } = measured;
    let destination = match destination {
        Some(destination) => destination,
        None => {
            let shared = way == Way::SmAlloc;
            destination.insert(Destination::new(request.instance(), shared, bytes)?)
        }
    };
    destination.clear(bytes)?;
    samples.each(|| {
        let pulled = match destination {
            Destination::Alloc(exposed) => request.pull(request.args(), 0, exposed, 0..bytes),
            Destination::Plain(buffer) => request.pull(request.args(), 0, buffer, 0..bytes),
        };
        pulled.doing("pulling")
    })?;
    ensure!(destination.holds(&touched(bytes))?, "the pulled bytes are not the origin's");
    Ok(())
}

/// The row.
pub(crate) fn run(context: &Context, way: Way, bytes: usize) -> Result<Figure> {
    let (effort, deadline) = (Effort::transfers(context.quick, bytes), context.deadline);
    let data = touched(bytes);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let floor = match way {
        Way::SmAlloc => Floor::Copy,
        // The bytes stay where they are when the vector moves.
        Way::SmAny => Floor::Attach(Source::of(&data)),
        Way::Tcp | Way::Private => Floor::Get(listener.local_addr()?.to_string()),
    };
    let (mut pair, ()) = Pair::start(context, way.settings(), floor, || Ok(()))?;
    let (instance, target) = (pair.instance.clone(), pair.target.clone());
    on_ult(&pair.instance.layout().rpc_pool(), deadline, move || {
        let round = |exposed: &Bulk| {
            during_call(&instance, &target, FLOOR, || {
                if !matches!(way, Way::Tcp | Way::Private) {
                    return Ok(());
                }
                let stream = tcp::accept(&listener, deadline, ult::yield_now)?;
                if way == Way::Tcp {
                    return stream::write_until_closed(stream, Style::Get, bytes, deadline);
                }
                let stream = tls::serve(stream, deadline, ult::yield_now)?;
                stream::write_until_closed(stream, Style::Get, bytes, deadline)
            })?;
            instance.forward(PULL, &target, exposed)?.map_err(Failure::new)
        };
        let rounds = |exposed: &Bulk| (0..effort.rounds).try_for_each(|_| round(exposed));
        if way != Way::SmAlloc {
            return expose(&instance, data, rounds);
        }
        let mut buffer = instance.alloc(bytes, &AllocOptions::default())?;
        buffer.as_mut_slice()?.copy_from_slice(&data);
        expose(&instance, buffer, rounds)
    })?;
    pair.peer.ask_to_finish();
    let rounds: [Samples; 2] = pair.peer.receive("the target's samples")?;
    pair.stop(deadline)?;
    Ok(Figure::bandwidth(rounds, bytes))
}

/// Runs `rounds` while `data` is exposed.
fn expose(
    instance: &Instance,
    data: impl Exposable,
    rounds: impl FnOnce(&Bulk) -> Result<()>,
) -> Result<()> {
    let exposed = instance.expose(data, Access::ReadOnly)?;
    rounds(exposed.bulk())?;
    drop(exposed.release()?);
    Ok(())
}

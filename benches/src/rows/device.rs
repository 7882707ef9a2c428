//! Rows `device.*`: memory of a GPU.
//!
//! `device.pinned_d2h.*` and its sisters are floors: one `cuMemcpyAsync` after the other, between
//! the device and memory of the host that is pinned or is not, and within the device.
//! `device.sm.h2d.*`, `.d2h.*` and `.d2d.*`, and those of `tcp`, measure
//! [`Handle::pull`](margo::Handle::pull) in a handler, as the rows `bulk.*` do: from memory of the
//! host into the device of the target, the other way round, and from the origin's device into the
//! target's, which may be the same. Both sides poll. After each round the target compares what it
//! has with what it must be. `device.sm.shared_d2d.*` are as `.d2d.*`, with memory that the target
//! lends to the origin, whose device copies alone (`margo.device.share`); they fail where it does
//! not.
//!
//! Floor, alternating: the target copies as many bytes between its device and pinned memory, in the
//! direction that the row has there; of `shared_d2d` within its device.
//!
//! Where there is no driver the rows say so. `MARGO_BENCH_FAKE_DEVICE` in the environment has them
//! run on a driver for tests, whose figures say nothing.

use std::sync::{Arc, Mutex};

use margo::bulk_memory::BulkBuffer;
use margo::device::{Copies, Device, DeviceCopy, DeviceError, DeviceMemory, Driver, Pinned, fake};
use margo::{Access, Bulk, Exposed, Handle, Instance, Rpc};

use super::rpc::bulk::{answer, take};
use super::rpc::pair::{Pair, Settings, Told, serve};
use super::ult::on_ult::on_ult;
use crate::base::{Doing, Effort, Failure, Figure, Result, Samples, ensure};
use crate::floors::memcpy::touched;
use crate::process::{Context, child};

/// Pulls the argument's memory for a round.
const PULL: Rpc<Bulk, Told> = Rpc::new("bench_pull_device");
/// Measures the floor for a round.
const FLOOR: Rpc<(), Told> = Rpc::new("bench_floor_device");

/// Has the rows run without a device.
const FAKE: &str = "MARGO_BENCH_FAKE_DEVICE";

/// The sizes, by their word in ids.
pub(crate) const SIZES: [(&str, usize); 3] =
    [("1m", 1 << 20), ("16m", 16 << 20), ("256m", 256 << 20)];

/// The device that is measured.
fn device() -> std::result::Result<Device, DeviceError> {
    let driver = match std::env::var_os(FAKE) {
        Some(_) => fake::Fake::new(1, 1).driver()?,
        None => Driver::cuda()?,
    };
    driver.device(0)
}

/// Returns what the machine lacks for these rows.
pub(crate) fn lacks() -> Option<String> {
    device().err().map(|error| error.to_string())
}

/// A copy by the device alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copied {
    /// To pinned memory.
    PinnedToHost,
    /// From pinned memory.
    PinnedToDevice,
    /// To memory as it is.
    PageableToHost,
    /// From memory as it is.
    PageableToDevice,
    /// Within the device.
    Within,
}

/// Memory of the host, pinned or not, and two memories of a device.
struct Bare {
    copies: Copies,
    one: DeviceMemory,
    two: Option<DeviceMemory>,
    /// Before the bytes that it pins.
    _pinned: Option<Pinned>,
    bytes: Vec<u8>,
}

impl Bare {
    fn new(device: &Device, bytes: usize, what: Copied) -> Result<Self> {
        let mut host = touched(bytes);
        let pins = matches!(what, Copied::PinnedToHost | Copied::PinnedToDevice);
        // SAFETY: the bytes go after what pins them, and are not moved in memory.
        let pin = || unsafe { Pinned::new(device, host.as_mut_ptr(), bytes) };
        let pinned = pins.then(pin).transpose()?;
        let two = (what == Copied::Within).then(|| device.alloc(bytes)).transpose()?;
        let (copies, one) = (Copies::new(device, 1)?, device.alloc(bytes)?);
        Ok(Self { copies, one, two, _pinned: pinned, bytes: host })
    }

    fn copy(&mut self, what: Copied) -> Result<()> {
        let (at, len) = (self.bytes.as_mut_ptr(), self.bytes.len());
        let copy: DeviceCopy = match (what, &self.two) {
            (Copied::Within, Some(two)) => {
                self.copies.start_within((&self.one, 0), (two, 0), len)?
            }
            (Copied::PinnedToHost | Copied::PageableToHost, _) => {
                // SAFETY: `self` is borrowed until the copy is over, which is waited for here.
                unsafe { self.copies.start_to_host(&self.one, 0, at, len)? }
            }
            _ => {
                // SAFETY: as before.
                unsafe { self.copies.start_to_device(at, &self.one, 0, len)? }
            }
        };
        Ok(copy.wait()?)
    }
}

/// A floor by itself.
pub(crate) fn floor(context: &Context, what: Copied, bytes: usize) -> Result<Figure> {
    let mut bare = Bare::new(&device()?, bytes, what)?;
    let round = |samples: &mut Samples| samples.each(|| bare.copy(what));
    let mut samples = Effort::transfers(context.quick, bytes).alone(1, round)?;
    Ok(Figure::median(samples.bandwidth(bytes), None))
}

/// Where the bytes are, at the origin and at the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Between {
    /// The origin's are in its device.
    pub(crate) from_device: bool,
    /// The target's are in its device.
    pub(crate) to_device: bool,
    /// They are lent to the origin, whose device copies.
    pub(crate) shared: bool,
}

/// The measurements of the target, and where it pulls to.
struct Measured {
    floors: Samples,
    samples: Samples,
    floor: Option<Bare>,
    destination: Option<Destination>,
}

enum Destination {
    Device(DeviceMemory, Exposed<DeviceMemory>),
    Host(BulkBuffer),
}

impl Destination {
    fn new(instance: &Instance, between: Between, bytes: usize) -> Result<Self> {
        if !between.to_device {
            return Ok(Self::Host(instance.memory().bulk_buffer(bytes)?));
        }
        let gpu = device()?;
        let memory = match between.shared {
            true => gpu.alloc_exportable(bytes)?,
            false => gpu.alloc(bytes)?,
        };
        memory.write_at(0, &vec![0; bytes])?;
        let exposed = instance.expose(memory.clone(), Access::ReadOnly)?;
        Ok(Self::Device(memory, exposed))
    }

    fn pull(&mut self, request: &Handle<Bulk, Told>, bytes: usize) -> Result<()> {
        let pulled = match self {
            Self::Device(_, exposed) => request.pull(request.args(), 0, exposed, 0..bytes),
            Self::Host(buffer) => request.pull(request.args(), 0, buffer, 0..bytes),
        };
        pulled.doing("pulling")
    }

    fn holds(&self, expected: &[u8]) -> Result<bool> {
        match self {
            Self::Device(memory, _) => {
                let mut bytes = vec![0; expected.len()];
                memory.read_at(0, &mut bytes)?;
                Ok(bytes == expected)
            }
            Self::Host(buffer) => Ok(buffer[..] == *expected),
        }
    }
}

/// The peer's part.
///
/// # Errors
///
/// When margo does not start.
pub(crate) fn peer(
    context: &Context,
    settings: Settings,
    between: Between,
    bytes: usize,
) -> Result<()> {
    let effort = Effort::transfers(context.quick, bytes);
    let (floors, samples) = (effort.room(1), effort.room(1));
    let measured = Measured { floors, samples, floor: None, destination: None };
    let measured = Arc::new(Mutex::new(Some(measured)));
    let (pulls, bare) = (measured.clone(), measured.clone());
    let what = match between {
        Between { shared: true, .. } => Copied::Within,
        Between { to_device: true, .. } => Copied::PinnedToDevice,
        _ => Copied::PinnedToHost,
    };
    let register = move |instance: &Instance| {
        instance.register(PULL, move |request: Handle<Bulk, Told>| {
            answer(&request, &pulls, |measured| {
                let Measured { samples, destination, .. } = measured;
                let destination = match destination {
                    Some(destination) => destination,
                    None => {
                        destination.insert(Destination::new(request.instance(), between, bytes)?)
                    }
                };
                samples.each(|| destination.pull(&request, bytes))?;
                ensure!(destination.holds(&touched(bytes))?, "the bytes are not the origin's");
                Ok(())
            });
        })?;
        instance.register(FLOOR, move |request: Handle<(), Told>| {
            answer(&request, &bare, |Measured { floors, floor, .. }| {
                let bare = match floor {
                    Some(bare) => bare,
                    None => floor.insert(Bare::new(&device()?, bytes, what)?),
                };
                floors.each(|| bare.copy(what))
            });
        })?;
        Ok(())
    };
    serve(settings, register, || {
        let measured = take(&measured)?;
        child::send(&[measured.floors, measured.samples])
    })
}

/// The row.
pub(crate) fn run(
    context: &Context,
    settings: Settings,
    between: Between,
    bytes: usize,
) -> Result<Figure> {
    let (effort, deadline) = (Effort::transfers(context.quick, bytes), context.deadline);
    // The owner of device memory is asked for it, and so listens.
    let (mut pair, ()) = Pair::start_listening(context, settings, (), || Ok(()))?;
    let (instance, target) = (pair.instance.clone(), pair.target.clone());
    on_ult(&pair.instance.layout().rpc_pool(), deadline, move || {
        let round = |exposed: &Bulk| {
            instance.forward(FLOOR, &target, &())?.map_err(Failure::new)?;
            instance.forward(PULL, &target, exposed)?.map_err(Failure::new)
        };
        let rounds = |exposed: &Bulk| (0..effort.rounds).try_for_each(|_| round(exposed));
        if between.from_device {
            let memory = device()?.alloc(bytes)?;
            memory.write_at(0, &touched(bytes))?;
            let exposed = instance.expose(memory, Access::ReadOnly)?;
            rounds(exposed.bulk())?;
            let alone = instance.metrics().memory.device_shared_bytes;
            ensure!(!between.shared || alone > 0, "buffers were the way, and not the device alone");
            drop(exposed.release()?);
        } else {
            let exposed = instance.expose(touched(bytes), Access::ReadOnly)?;
            rounds(exposed.bulk())?;
            drop(exposed.release()?);
        }
        Ok(())
    })?;
    pair.peer.ask_to_finish();
    let rounds: [Samples; 2] = pair.peer.receive("the target's samples")?;
    pair.stop(deadline)?;
    Ok(Figure::bandwidth(rounds, bytes))
}

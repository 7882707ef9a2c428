//! Rows `sweep.*`: the measurements of Mercury's `hg_rate`, `hg_bw_read` and `hg_bw_write`, for
//! each size and number of calls in flight that is asked for (`--sizes`, `--in-flight`).
//!
//! One origin and one target, a core each, both polling, at the layer below ULTs. The origin starts
//! as many calls as are to be in flight, waits for all of their answers, and begins again.
//!
//! - `rate`: the call has a length and that many bytes of arguments, which the target copies to a
//!   buffer; the answer is empty. Longer arguments than a message holds overflow it.
//! - `write`, `read`: the call names a buffer and a length; the target pulls the origin's buffer of
//!   that number, or pushes its own to there, and then answers. Buffers are registered once, at
//!   both sides, one for each call in flight, plain memory; with `_alloc` they are of
//!   [`SharedBuffer`](na::SharedBuffer). Handles are told once, before: small memory that can only
//!   be read has come inside its handle then, here as in Mercury.
//!
//! With `--mercury` those programs are run as well, in turn with ours, and their figures stand
//! beside the row.
//!
//! The value is the mean over all calls, as there; p50 and p99 are of batches of calls. After the
//! last one the destination's bytes are compared with what they must be. No floor: these rows are
//! for comparing libraries, those without a size in their id have one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use margo::hg::{Core, HgOptions, ProviderId, Registration, RpcId};
use na::{Access, AllocOptions, LocalMem, Memory, OpenOptions};
use serde::{Deserialize, Serialize};

use crate::base::failure::{Doing, Failure, Result};
use crate::base::row::{Figure, Unit};
use crate::base::stats::{Effort, Samples};
use crate::floors::channel::Transport;
use crate::process::context::Context;
use crate::process::peer::{self, Task};

pub(crate) mod mercury;
mod origin;
mod target;

use self::origin::Origin;
pub(crate) use self::target::peer;

/// Tells a buffer's number and its handle.
const BEGIN: RpcId = RpcId::margo("bench_sweep_begin", ProviderId::DEFAULT);
/// The RPC that is measured.
const CALL: RpcId = RpcId::margo("bench_sweep_call", ProviderId::DEFAULT);
/// Asks whether the target has the right bytes, and ends it.
const END: RpcId = RpcId::margo("bench_sweep_end", ProviderId::DEFAULT);

/// Completions taken in one poll.
const BUDGET: usize = 64;

/// Most memory of all calls in flight.
const BYTES_MAX: usize = 1 << 30;

/// The work of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum What {
    /// Carries its bytes.
    Rate,
    /// Has the target push to the origin.
    Read,
    /// Has the target pull from the origin.
    Write,
}

/// One row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sweep {
    transport: Transport,
    what: What,
    /// Buffers are of `SharedBuffer`.
    shared: bool,
    in_flight: usize,
    bytes: usize,
}

/// The rows for these transports, sizes and numbers of calls.
pub(crate) fn all(over: &[Transport], sizes: &[usize], in_flight: &[usize]) -> Vec<Sweep> {
    let mut rows = Vec::new();
    for transport in over.iter().copied() {
        let kinds = [(What::Rate, false), (What::Read, false), (What::Write, false)];
        let shared = [(What::Read, true), (What::Write, true)];
        // To a network it is memory like any other.
        let shared = shared.into_iter().filter(|_| transport == Transport::Sm);
        for (what, shared) in kinds.into_iter().chain(shared) {
            for in_flight in in_flight.iter().copied() {
                let row = |&bytes| Sweep { transport, what, shared, in_flight, bytes };
                rows.extend(sizes.iter().map(row));
            }
        }
    }
    rows
}

impl Sweep {
    /// `sweep.sm.read_alloc.x16.64k`
    pub(crate) fn id(&self) -> String {
        let Self { transport, in_flight, bytes, .. } = self;
        let (transport, size) = (transport.word(), size_word(*bytes));
        format!("sweep.{transport}.{}.x{in_flight}.{size}", self.kind())
    }

    /// The row of that id.
    pub(crate) fn of(id: &str) -> Option<Self> {
        let mut words = id.split('.').skip(3);
        let in_flight = words.next()?.strip_prefix('x')?.parse().ok()?;
        let bytes = parse_size(words.next()?).ok()?;
        let over: Vec<Transport> = Transport::all().collect();
        all(&over, &[bytes], &[in_flight]).into_iter().find(|row| row.id() == id)
    }

    /// The unit of its figures.
    pub(crate) fn unit(&self) -> Unit {
        if self.what == What::Rate { Unit::PerSecond } else { Unit::BytesPerSecond }
    }

    fn kind(&self) -> &'static str {
        match (self.what, self.shared) {
            (What::Rate, _) => "rate",
            (What::Read, false) => "read",
            (What::Read, true) => "read_alloc",
            (What::Write, false) => "write",
            (What::Write, true) => "write_alloc",
        }
    }

    /// Measures it.
    pub(crate) fn run(self, context: &Context) -> Result<Figure> {
        if self.bytes.saturating_mul(self.in_flight) > BYTES_MAX {
            return Err(Failure::new("more than 1 GiB in flight; ask for less at a time"));
        }
        if let Transport::Fabric(fabric) = self.transport
            && let Some(lacks) = fabric.lacks()
        {
            return Ok(Figure::lacking(lacks));
        }
        let mut samples = self.measure(context)?;
        let Some(programs) = &context.mercury else { return Ok(self.figure(&mut samples)) };
        // By turns, so that both meet the same machine.
        let round = samples.mean().unwrap_or(f64::MAX);
        let theirs = || mercury::measure(self, programs, round, context);
        let first = theirs();
        let mut figure = self.figure(&mut samples);
        figure.value = mean(figure.value, self.figure(&mut self.measure(context)?).value);
        match first.and_then(|first| Ok((first, theirs()?))) {
            Ok((first, second)) => Ok(figure.beside("Mercury", mean(Some(first), Some(second)))),
            Err(failure) => {
                eprintln!("margo-bench: {}: beside Mercury: {failure}", self.id());
                Ok(figure)
            }
        }
    }

    /// Our side of it.
    fn measure(self, context: &Context) -> Result<Samples> {
        let deadline = context.deadline;
        let mut peer = peer::start(context, Task::Sweep(self))?;
        let address: String = peer.receive("the target's address", deadline)?;
        let mut origin = Origin::open(self, &address, deadline)?;
        let (mut samples, effort) = effort(context, self.in_flight, &mut || origin.calls())?;
        effort.batched(&mut samples, || origin.calls())?;
        let arrived = origin.end()?;
        peer.finish(deadline)?;
        if !arrived {
            return Err(Failure::new("the bytes that arrived are not those that were sent"));
        }
        Ok(samples)
    }

    /// A sample is of batches of `in_flight` calls; a rate counts calls, a bandwidth their bytes.
    fn figure(&self, samples: &mut Samples) -> Figure {
        let amount = match self.what {
            What::Rate => self.in_flight,
            What::Read | What::Write => self.in_flight * self.bytes,
        };
        let value = samples.mean().map(|ns| amount as f64 * 1e9 / ns);
        Figure { value, ..Figure::median(samples.bandwidth(amount), None) }
    }
}

/// The mean of two rates of the same work.
fn mean(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.zip(other).map(|(one, other)| 2.0 / (one.recip() + other.recip()))
}

/// Warms up, and finds out how many calls make a batch of some milliseconds.
fn effort(
    context: &Context,
    in_flight: usize,
    calls: &mut dyn FnMut() -> Result<()>,
) -> Result<(Samples, Effort)> {
    const BATCH: Duration = Duration::from_millis(2);
    let (warm, samples) = if context.quick { (5, 4) } else { (40, 120) };
    let warm = Duration::from_millis(warm);
    // Touches all buffers at both sides.
    calls()?;
    let (start, mut turns) = (Instant::now(), 0u32);
    while turns < 2 || start.elapsed() < warm {
        calls()?;
        turns += 1;
    }
    let per = BATCH.as_secs_f64() * f64::from(turns) / start.elapsed().as_secs_f64();
    let per = per.clamp(1.0, 1e6 / in_flight as f64) as u32;
    let round_max = if context.quick { warm * 4 } else { Duration::from_millis(600) };
    let effort = Effort { rounds: 1, samples, warmup: 0, round_max };
    Ok((effort.room(per), effort))
}

/// Reads a size: a number of bytes, or of KiB or MiB with `k` or `m` behind it.
///
/// # Errors
///
/// When it is no such number, or beyond 256 MiB.
pub(crate) fn parse_size(text: &str) -> std::result::Result<usize, String> {
    let (digits, shift) = match text.strip_suffix('k') {
        Some(digits) => (digits, 10),
        None => text.strip_suffix('m').map_or((text, 0), |digits| (digits, 20)),
    };
    let size = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(1 << shift));
    let size = size.filter(|size| (1..=256 << 20).contains(size));
    size.ok_or_else(|| format!("`{text}` is no size from 1 to 256m, such as 8, 64k or 16m"))
}

/// The shortest text that [`parse_size`] reads as `bytes`.
fn size_word(bytes: usize) -> String {
    match bytes {
        bytes if bytes % (1 << 20) == 0 => format!("{}m", bytes >> 20),
        bytes if bytes % (1 << 10) == 0 => format!("{}k", bytes >> 10),
        bytes => bytes.to_string(),
    }
}

/// The RPC layer of a side. Its tokens are numbers of buffers.
fn open(sweep: Sweep, listen: bool) -> Result<Arc<Core<usize>>> {
    let uri = sweep.transport.uri();
    let mut options = OpenOptions::listening(listen);
    options.no_block = true;
    let endpoint = na::open(uri, &options).doing(uri)?;
    let mut options = HgOptions::default();
    options.listen = listen;
    let core = Core::new(endpoint, options).doing("starting the RPC layer")?;
    for (id, name) in [(BEGIN, "begin"), (CALL, "call"), (END, "end")] {
        core.register(Registration::with_id(id, name)).doing("registering")?;
    }
    Ok(core)
}

/// A side's buffers, one for each call in flight; the side that sends has `data` in them.
fn buffers(
    core: &Core<usize>,
    sweep: Sweep,
    access: Access,
    data: Option<&[u8]>,
) -> Result<Vec<LocalMem>> {
    let buffer = |_| {
        let memory = match sweep.shared {
            true => Memory::alloc(sweep.bytes, &AllocOptions::default()).doing("allocating")?,
            // Not zeros from the system: those would be pages that are not there yet.
            false => Memory::from_vec(vec![1; sweep.bytes]),
        };
        let memory = core.endpoint().register(memory, access).doing("registering memory")?;
        // So that a buffer that nothing arrives in is found out.
        let filled = data.map_or_else(|| vec![0; sweep.bytes], <[u8]>::to_vec);
        match memory.write_at(0, &filled) {
            true => Ok(memory),
            false => Err(Failure::new("a buffer cannot be filled")),
        }
    };
    (0..sweep.in_flight).map(buffer).collect()
}

/// Returns true if every buffer holds `data`.
fn all_hold(buffers: &[LocalMem], data: &[u8]) -> bool {
    let mut bytes = vec![0; data.len()];
    buffers.iter().all(|memory| memory.read_at(0, &mut bytes) && bytes == data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_by_its_id() {
        let over: Vec<Transport> = Transport::all().collect();
        for row in all(&over, &[1, 8, 1 << 10, 3 << 10, 5 << 20], &[1, 16]) {
            assert_eq!(Sweep::of(&row.id()), Some(row), "{}", row.id());
        }
        for id in ["", "sweep.sm.rate.x1", "sweep.tcp.read_alloc.x1.8", "sweep.sm.rate.8.8"] {
            assert_eq!(Sweep::of(id), None, "{id}");
        }
    }

    #[test]
    fn sizes_are_read_and_written_alike() {
        for (text, size) in [("8", 8), ("1k", 1024), ("16m", 16 << 20), ("256m", 256 << 20)] {
            assert_eq!((parse_size(text), size_word(size)), (Ok(size), text.to_owned()));
        }
        for bad in ["", "0", "k", "257m", "8x", "-1", "99999999999999999999k"] {
            assert!(parse_size(bad).unwrap_err().contains("16m"), "{bad}");
        }
    }

    #[test]
    fn a_rate_counts_calls_and_a_bandwidth_their_bytes() {
        let sweep = |id| Sweep::of(id).unwrap();
        let value = |id| sweep(id).figure(&mut Samples::from_raw(vec![1000, 3000])).value;
        assert_eq!(value("sweep.sm.rate.x16.8"), Some(8e6));
        assert_eq!(value("sweep.sm.read.x2.1k"), Some(1024e6));
    }
}

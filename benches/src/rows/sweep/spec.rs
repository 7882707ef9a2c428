//! A row of the sweep, and what its two sides have in common.

use std::sync::Arc;

use margo::hg::{Core, ProviderId, RpcId};
use na::{Access, LocalMem};

use crate::base::{Result, Unit};
use crate::floors::transport::Transport;
use crate::rows::net::{hg_node, na_node};

/// Tells a buffer's number and its handle.
pub(super) const BEGIN: RpcId = RpcId::margo("bench_sweep_begin", ProviderId::DEFAULT);
/// The RPC that is measured.
pub(super) const CALL: RpcId = RpcId::margo("bench_sweep_call", ProviderId::DEFAULT);
/// Asks whether the target has the right bytes, and ends it.
pub(super) const END: RpcId = RpcId::margo("bench_sweep_end", ProviderId::DEFAULT);

/// The work of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// Carries its bytes.
    Rate,
    /// Has the target push to the origin.
    Read,
    /// Has the target pull from the origin.
    Write,
}

/// One row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sweep {
    pub(super) transport: Transport,
    pub(super) what: What,
    /// Buffers are of `SharedBuffer`.
    pub(super) shared: bool,
    pub(super) in_flight: usize,
    pub(super) bytes: usize,
}

/// The rows for these transports, sizes and numbers of calls.
pub(crate) fn all(over: &[Transport], sizes: &[usize], in_flight: &[usize]) -> Vec<Sweep> {
    let mut rows = Vec::new();
    for transport in over.iter().copied() {
        let plain = [What::Rate, What::Read, What::Write].map(|what| (what, false));
        // To a network it is memory like any other.
        let shared = [What::Read, What::Write].map(|what| (what, true));
        let shared = shared.into_iter().filter(|_| transport == Transport::Sm);
        for (what, shared) in plain.into_iter().chain(shared) {
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

    /// The RPC layer of a side.
    pub(super) fn open(&self, listen: bool) -> Result<Arc<Core<usize>>> {
        let rpcs = [(BEGIN, "begin"), (CALL, "call"), (END, "end")];
        hg_node::open(self.transport, listen, &rpcs)
    }

    /// A side's buffers, one for each call in flight; the side that sends has `data` in them.
    pub(super) fn buffers(
        &self,
        core: &Core<usize>,
        access: Access,
        data: Option<&[u8]>,
    ) -> Result<Vec<LocalMem>> {
        // So that a buffer that nothing arrives in is found out.
        let filled = data.map_or_else(|| vec![0; self.bytes], <[u8]>::to_vec);
        let buffer = |_| na_node::register(&**core.endpoint(), self.shared, access, &filled);
        (0..self.in_flight).map(buffer).collect()
    }
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
}

//! UCX's calls about memory that peers reach by remote keys.

use std::ffi::c_void;
use std::ptr;

use ucx_sys::*;

use super::slots::Pinned;
use super::wire::{GivenKey, PACKED_BYTES_MAX, Place};
use super::worker::{Posted, Worker, posted, request_params};
use crate::{Access, RawSegment};

/// Bytes that UCX may look at when it unpacks a key, whatever it says of itself: it is not told how
/// long it is. A mask and a type, and for each of 64 bits of the mask a length of one byte and so
/// much; and as much again for what later versions append.
const UNPACKED_BYTES_MAX: usize = 2 * (9 + 64 * 256);

/// The remote key of a peer's memory. Dropped by the holder of the driver, when no transfer uses it
/// and before the worker is destroyed.
pub(super) struct RemoteKey {
    /// `None`: nothing is to be destroyed.
    ucp: Option<&'static Ucp>,
    access: Access,
    places: Vec<RemotePlace>,
}

struct RemotePlace {
    /// The offset at which it begins in the memory.
    at: u64,
    address: u64,
    len: u64,
    rkey: ucp_rkey_h,
}

/// Bytes of a peer's memory that lie in one piece.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reach {
    address: u64,
    rkey: ucp_rkey_h,
    /// How many.
    pub(super) len: u64,
}

impl RemoteKey {
    /// Returns whether the owner lets us read so many bytes there, or write them.
    pub(super) fn covers(&self, offset: u64, len: u64, write: bool) -> bool {
        let total = self.places.last().map_or(0, |last| last.at + last.len);
        let allowed = if write { self.access.writable() } else { self.access.readable() };
        allowed && offset.checked_add(len).is_some_and(|end| end <= total)
    }

    /// Returns the bytes that lie in one piece from `offset` on, `len` bytes at most. The bytes
    /// must be covered.
    pub(super) fn reach(&self, offset: u64, len: u64) -> Option<Reach> {
        let next = self.places.partition_point(|place| place.at <= offset);
        let place = self.places.get(next.checked_sub(1)?)?;
        let skip = offset - place.at;
        let len = len.min(place.len.checked_sub(skip)?);
        Some(Reach { address: place.address + skip, rkey: place.rkey, len })
    }
}

impl Drop for RemoteKey {
    fn drop(&mut self) {
        let Some(ucp) = self.ucp else { return };
        for place in &self.places {
            // SAFETY: unpacked by `unpack`, destroyed once; the worker is there, and nothing uses
            // the key any more (see the type).
            unsafe { ucp.ucp_rkey_destroy(place.rkey) };
        }
    }
}

impl Worker {
    /// Makes memory reachable for peers that are told what is returned.
    ///
    /// # Errors
    ///
    /// It cannot be; whether UCX knows nothing of the memory.
    ///
    /// # Safety
    ///
    /// The memory stays until it was [unmapped](Self::unmap), and nobody makes references to it.
    pub(super) unsafe fn map(
        &self,
        piece: RawSegment,
        access: Access,
    ) -> Result<(ucp_mem_h, Place), bool> {
        // SAFETY: plain data, for which all zero is valid; the mask says which fields are read.
        let mut params: ucp_mem_map_params_t = unsafe { std::mem::zeroed() };
        params.field_mask = u64::from(
            UCP_MEM_MAP_PARAM_FIELD_ADDRESS
                | UCP_MEM_MAP_PARAM_FIELD_LENGTH
                | UCP_MEM_MAP_PARAM_FIELD_PROT,
        );
        (params.address, params.length) = (piece.ptr.cast(), piece.len);
        params.prot = protection(access);
        let mut memory = ptr::null_mut();
        // SAFETY: a live context; the memory is there (contract of this function), the parameters
        // live through the call, and the result has room.
        let status = unsafe { self.ucp.ucp_mem_map(self.context, &params, &mut memory) };
        if status != UCS_OK {
            return Err(true);
        }
        let (mut packed, mut len) = (ptr::null_mut(), 0);
        // SAFETY: mapped above; both results have room.
        let status = unsafe { self.ucp.ucp_rkey_pack(self.context, memory, &mut packed, &mut len) };
        if status != UCS_OK {
            return Err(self.unmap(memory));
        }
        // SAFETY: UCX has packed so many bytes there, which are ours until they are released.
        let bytes = unsafe { std::slice::from_raw_parts(packed.cast::<u8>(), len) }.to_vec();
        // SAFETY: of the call above; used no more.
        unsafe { self.ucp.ucp_rkey_buffer_release(packed) };
        if bytes.is_empty() || bytes.len() > PACKED_BYTES_MAX {
            return Err(self.unmap(memory));
        }
        Ok((memory, Place { address: piece.ptr as u64, len: piece.len as u64, packed: bytes }))
    }

    /// Ends what [`map`](Self::map) has begun; whether it has ended.
    pub(super) fn unmap(&self, memory: ucp_mem_h) -> bool {
        // SAFETY: of `map`, which is called for each once: by who has the driver, which forgets it.
        unsafe { self.ucp.ucp_mem_unmap(self.context, memory) == UCS_OK }
    }

    /// Takes a key that the peer at the other end of `endpoint` gives.
    ///
    /// # Safety
    ///
    /// `endpoint` is one of this worker's that was not closed.
    pub(super) unsafe fn unpack(
        &self,
        endpoint: ucp_ep_h,
        given: &GivenKey,
    ) -> Result<RemoteKey, ucs_status_t> {
        let mut key = RemoteKey { ucp: Some(self.ucp), access: given.access, places: Vec::new() };
        let mut room = vec![0; UNPACKED_BYTES_MAX];
        let mut at = 0;
        for Place { address, len, packed } in &given.places {
            room[..packed.len()].copy_from_slice(packed);
            room[packed.len()..].fill(0);
            let mut rkey = ptr::null_mut();
            // SAFETY: contract of this function; behind what the peer gives are as many zeros as
            // UCX may look at, and the result has room.
            let status =
                unsafe { self.ucp.ucp_ep_rkey_unpack(endpoint, room.as_ptr().cast(), &mut rkey) };
            if status != UCS_OK {
                return Err(status);
            }
            key.places.push(RemotePlace { at, address: *address, len: *len, rkey });
            at += len;
        }
        Ok(key)
    }

    /// Moves bytes between memory here and a peer's. A put is over when the local memory is free;
    /// [`flush`](Self::flush) tells that it has arrived.
    ///
    /// # Safety
    ///
    /// `endpoint` is the one for which the key of `reach` was unpacked, and was not closed. The
    /// local memory, of `reach`'s length, the key and `pinned` live until the callback; nobody
    /// makes references to that memory meanwhile.
    pub(super) unsafe fn access(
        &self,
        endpoint: ucp_ep_h,
        put: bool,
        local: *mut u8,
        reach: Reach,
        pinned: *const Pinned,
    ) -> Posted {
        let params = request_params(pinned);
        let Reach { address, rkey, len } = reach;
        let (local, len) = (local.cast::<c_void>(), len as usize);
        posted(match put {
            // SAFETY: contract of this function.
            true => unsafe { self.ucp.ucp_put_nbx(endpoint, local, len, address, rkey, &params) },
            // SAFETY: contract of this function.
            false => unsafe { self.ucp.ucp_get_nbx(endpoint, local, len, address, rkey, &params) },
        })
    }
}

fn protection(access: Access) -> u32 {
    let (reads, writes) = (
        UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_REMOTE_READ,
        // Whoever lets others write must be able to, says verbs.
        UCP_MEM_MAP_PROT_LOCAL_WRITE | UCP_MEM_MAP_PROT_REMOTE_WRITE,
    );
    match access {
        Access::ReadOnly => reads,
        Access::WriteOnly => UCP_MEM_MAP_PROT_LOCAL_READ | writes,
        Access::ReadWrite => reads | writes,
    }
}

/// Returns whether all lanes of UCX's description of an endpoint are connections of InfiniBand or
/// RoCE: adapters move memory to and from the peer by remote keys, and the end of a connection ends
/// that. Over others puts and gets are emulated by messages, or go by one queue for all peers,
/// which outlives the connection (`dc_mlx5`).
///
/// UCX does not tell which lanes puts and gets take (until 1.10 it did: `rma#0`), so it has to be
/// true of each, but for the connection manager's. And of those which do nothing but find out
/// whether the peer lives: UCX prefers `ud` or TCP for that, which have no puts and gets of their
/// own but for those that it tells (`rma_bw`).
pub(super) fn names_only_rc(description: &str) -> bool {
    let lanes: Vec<_> = description.lines().filter_map(Lane::of).collect();
    lanes.iter().any(Lane::is_rc) && lanes.iter().all(|lane| lane.is_rc() || lane.only_watches())
}

/// A lane of UCX's description of an endpoint, but the connection manager's:
/// `lane[2]:  5:rc_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[1] rma_bw#0 am am_bw#0`.
struct Lane<'a> {
    transport: &'a str,
    uses: Vec<&'a str>,
}

impl<'a> Lane<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let (_, lane) = line.split_once("lane[")?.1.split_once("]:")?;
        if lane.split_whitespace().next() == Some("cm") {
            return None;
        }
        // Of what cannot be read nothing is known, which is not `rc`.
        let (resource, peer) = lane.split_once("->").unwrap_or((lane, ""));
        let name = resource.split_once(':').map_or("", |(_, name)| name);
        let transport = name.split('/').next().unwrap_or_default();
        let is_use = |word: &&str| !word.contains('[') && *word != "seg" && !is_number(word);
        let uses = peer.split_whitespace().filter(is_use).collect();
        Some(Self { transport, uses })
    }

    fn is_rc(&self) -> bool {
        self.transport.starts_with("rc_")
    }

    /// Returns whether it moves no bytes of ours.
    fn only_watches(&self) -> bool {
        let watches = |word: &&str| *word == "keepalive" || word.starts_with("wireup");
        (self.transport.starts_with("ud_") || self.transport == "tcp")
            && self.uses.contains(&"keepalive")
            && self.uses.iter().all(watches)
    }
}

fn is_number(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

    use super::*;

    /// As UCX 1.11 and later print them (`ucp_ep_config_lane_info_str`): nothing says which lanes
    /// puts and gets take.
    #[test]
    fn only_connections_of_adapters_have_remote_keys() {
        let cm = "#                 lane[0]: cm rdmacm\n";
        let tcp = "#  lane[1]:  0:tcp/lo.0 md[0]  -> md[0]/tcp/sysdev[255] rma_bw#0 am am_bw#0\n";
        assert!(!names_only_rc(tcp), "puts and gets are emulated");
        let rc = "#  lane[1]:  5:rc_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[1] rma_bw#0 am\n\
            #  lane[2]:  6:rc_verbs/mlx5_1:1.0 md[5] -> md[5]/ib/sysdev[2] rma_bw#1 am_bw#0\n";
        assert!(names_only_rc(rc) && names_only_rc(&[cm, rc].concat()));
        assert!(!names_only_rc(&[rc, tcp].concat()), "some of it goes by messages");
        let newer = "# lane[1]: 5:rc_mlx5/mlx5_0:1.0 md[10] -> md[4]/ib/sysdev[1] seg 8256 am\n";
        assert!(names_only_rc(newer), "1.16 and later");
        let dc = "#  lane[1]:  5:dc_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[1] rma_bw#0 am\n";
        assert!(!names_only_rc(dc), "its queue outlives the connection");
        assert!(!names_only_rc(&[rc, dc].concat()));
        assert!(!names_only_rc(cm) && !names_only_rc(""));
        assert!(!names_only_rc(&[rc, "# lane[7]: something new\n"].concat()));
    }

    /// UCX asks by transports that serve many peers whether one lives.
    #[test]
    fn a_lane_that_only_finds_out_whether_the_peer_lives_does_not_count() {
        let rc = "#  lane[1]:  5:rc_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[1] rma_bw#0 am\n";
        let with = |lane: &str| names_only_rc(&[rc, lane].concat());
        assert!(with("# lane[2]: 7:ud_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[1] keepalive\n"));
        assert!(with(
            "# lane[2]: 7:tcp/ib0.0 md[4] -> md[4]/tcp/sysdev[1] seg 99 keepalive wireup\n"
        ));
        assert!(!with("# lane[2]: 7:tcp/ib0.0 md[4] -> md[4]/tcp/sysdev[1] am_bw#1 keepalive\n"));
        assert!(!with("# lane[2]: 7:ud_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[1]\n"));
        assert!(!with("# lane[2]: 7:dc_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[1] keepalive\n"));
        let alone = "# lane[2]: 7:ud_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[1] keepalive\n";
        assert!(!names_only_rc(alone));
    }

    /// A key of pieces of these lengths, of which nothing is UCX's.
    fn key(access: Access, lens: &[u64]) -> RemoteKey {
        let mut at = 0;
        let place = |(index, len): (usize, &u64)| {
            let (begin, address) = (at, 1000 * (index as u64 + 1));
            at += len;
            RemotePlace { at: begin, address, len: *len, rkey: ptr::null_mut() }
        };
        let places = lens.iter().enumerate().map(place).collect();
        RemoteKey { ucp: None, access, places }
    }

    #[test]
    fn a_key_covers_what_was_granted_and_no_byte_more() {
        let reads = key(Access::ReadOnly, &[10, 20]);
        assert!(reads.covers(0, 30, false) && reads.covers(29, 1, false));
        assert!(!reads.covers(0, 31, false) && !reads.covers(30, 1, false));
        assert!(!reads.covers(u64::MAX, 2, false));
        assert!(!reads.covers(0, 1, true));
        let writes = key(Access::WriteOnly, &[10]);
        assert!(writes.covers(0, 10, true) && !writes.covers(0, 10, false));
    }

    #[test]
    fn bytes_are_reached_piece_by_piece() {
        let key = key(Access::ReadWrite, &[10, 20, 5]);
        let reached = |offset, len| {
            let reach = key.reach(offset, len).unwrap();
            (reach.address, reach.len)
        };
        assert_eq!(reached(0, 35), (1000, 10));
        assert_eq!(reached(9, 26), (1009, 1));
        assert_eq!(reached(10, 25), (2000, 20));
        assert_eq!(reached(12, 3), (2002, 3));
        assert_eq!(reached(34, 1), (3004, 1));
    }
}

//! Memory of `alloc` that one process of a connection has mapped from the other.
//!
//! The owner of a block sends its descriptor over the socket, once per connection and level of
//! access, before the first record that names the block. The other side maps it when it meets such
//! a record, or hears the socket for another reason. Block numbers are never used again, so nothing
//! depends on the order of packets and records beyond that. If a block is unknown, or this process
//! cannot map it, or only beyond what its options allow one peer, the data takes another path. The
//! one exception is a lane (`fallback.rs`), whose data is on its way already: without it the
//! connection ends, with an error that names what was lacking.
//!
//! | packet, 32 bytes | |
//! |---|---|
//! | 0 | `B` |
//! | 1 | 1: may be written |
//! | 2..8 | zero |
//! | 8 | u64 number of the block, not zero |
//! | 16 | u64 its address in the owner's process |
//! | 24 | u64 its length, bytes |

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Weak;

use crate::link::handshake::{ANNOUNCE, ANNOUNCE_BYTES};
use crate::link::record::{Piece, word_at};
use crate::link::socket::{self, Announcements};
use crate::mapping::{Unmapped, sealed_bytes};
use na_core::RawSegment;
use na_core::memory::alloc::{Block, map, unmap};
use prim::sync::Arc;
use prim::sync::atomic::{AtomicU64, Ordering};

/// Blocks that a side announces on one connection; the data of others takes another path.
pub(crate) const BLOCKS_MAX: usize = 64;

/// Mappings that a peer can make us keep. More than it may announce, because it learns of the end
/// of a block before we do.
const MAPPED_MAX: usize = 2 * BLOCKS_MAX;

/// Longest block that does not count against the bytes that a peer may have mapped here: a lane.
pub(crate) const SMALL_BYTES: usize =
    super::fallback::SLOT_BYTES * crate::link::lane::SLOTS as usize;

/// The blocks that we have announced on a connection; behind the send lock.
#[derive(Debug, Default)]
pub(crate) struct Announced {
    blocks: Vec<(Weak<Block>, u64, bool)>,
}

impl Announced {
    /// Makes sure that the peer can map `block`. `false`: it cannot. `ended` is told the numbers of
    /// announced blocks that exist no more.
    pub(crate) fn announce(
        &mut self,
        socket: impl AsFd,
        block: &Arc<Block>,
        write: bool,
        mut ended: impl FnMut(u64),
    ) -> bool {
        let place = self.blocks.iter().position(|(_, id, _)| *id == block.id());
        if let Some(place) = place
            && (self.blocks[place].2 || !write)
        {
            return true;
        }
        self.blocks.retain(|(block, id, _)| {
            let lives = block.strong_count() > 0;
            if !lives {
                ended(*id);
            }
            lives
        });
        let place = self.blocks.iter().position(|(_, id, _)| *id == block.id());
        if (place.is_none() && self.blocks.len() >= BLOCKS_MAX) || !send(socket, block, write) {
            return false;
        }
        match place {
            Some(place) => self.blocks[place].2 = true,
            None => self.blocks.push((Arc::downgrade(block), block.id(), write)),
        }
        true
    }
}

fn send(socket: impl AsFd, block: &Block, write: bool) -> bool {
    let mut packet = [0; ANNOUNCE_BYTES];
    (packet[0], packet[1]) = (ANNOUNCE, u8::from(write));
    let base = block.base().as_ptr().expose_provenance() as u64;
    for (place, word) in
        packet[8..].chunks_exact_mut(8).zip([block.id(), base, block.segment().len as u64])
    {
        place.copy_from_slice(&word.to_le_bytes());
    }
    if write {
        return socket::send_packet(socket, &packet, &[block.writable_fd()]).is_ok();
    }
    let Ok(fd) = block.read_only_fd() else { return false };
    socket::send_packet(socket, &packet, &[fd.as_fd()]).is_ok()
}

/// A block of the peer, mapped here.
#[derive(Debug)]
pub(crate) struct PeerBlock {
    id: u64,
    /// Where the peer has it.
    there: u64,
    here: NonNull<u8>,
    len: usize,
    writable: bool,
    /// Bytes of all blocks of the peer that are mapped here and count; this one's among them.
    mapped: Arc<AtomicU64>,
}

// SAFETY: the mapping is not tied to a thread and lives until `drop`; it is used only by copies
// through raw pointers.
unsafe impl Send for PeerBlock {}
// SAFETY: as for `Send`.
unsafe impl Sync for PeerBlock {}

impl PeerBlock {
    /// Maps what the packet `bytes` announces with `fd`, if that is small or has at most `room`
    /// bytes.
    fn attach(
        bytes: &[u8],
        fd: &OwnedFd,
        room: u64,
        mapped: &Arc<AtomicU64>,
    ) -> Result<Self, Unmapped> {
        let word = |index| word_at(bytes, index).ok_or("an announcement is cut short");
        let (id, there, len) = (word(1)?, word(2)?, word(3)?);
        let writable = match bytes[1..8] {
            [0, 0, 0, 0, 0, 0, 0] => false,
            [1, 0, 0, 0, 0, 0, 0] => true,
            _ => return Err("an announcement with unknown flags".into()),
        };
        if id == 0 || len == 0 || there.checked_add(len).is_none() {
            return Err("an announcement of impossible memory".into());
        }
        let len = usize::try_from(len).map_err(|_| "an announcement of too much memory")?;
        if sealed_bytes(fd)? < len as u64 {
            return Err("memory that is shorter than announced".into());
        }
        if len > SMALL_BYTES && len as u64 > room {
            return Err(Unmapped::Lack(format!(
                "{len} bytes of the peer's memory are more than it may still have mapped \
                 ({room} bytes; raise `sm.mapped_bytes_per_peer_max`)"
            )));
        }
        let here = map(fd, len, writable)
            .map_err(|errno| Unmapped::no_mapping(&format!("{len} bytes"), errno))?;
        let block = Self { id, there, here, len, writable, mapped: mapped.clone() };
        mapped.fetch_add(block.counts(), Ordering::Relaxed);
        Ok(block)
    }

    /// Bytes that count against what the peer may have mapped here.
    fn counts(&self) -> u64 {
        if self.len > SMALL_BYTES { self.len as u64 } else { 0 }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns whether it is mapped to be read, or to be written.
    pub(crate) fn allows(&self, write: bool) -> bool {
        self.writable || !write
    }

    /// The `len` bytes from `offset`, to read, or to write.
    #[inline]
    pub(crate) fn at(&self, offset: u64, len: u64, write: bool) -> Option<RawSegment> {
        let end = offset.checked_add(len)?;
        if end > self.len as u64 || (write && !self.writable) {
            return None;
        }
        let ptr = self.here.as_ptr().wrapping_add(offset as usize);
        Some(RawSegment { ptr, len: len as usize })
    }
}

impl Drop for PeerBlock {
    fn drop(&mut self) {
        // SAFETY: mapped in `attach`; whoever uses pointers into it holds the block.
        unsafe { unmap(self.here, self.len) };
        self.mapped.fetch_sub(self.counts(), Ordering::Relaxed);
    }
}

/// The blocks of one peer; the poll's.
#[derive(Debug, Default)]
pub(crate) struct PeerBlocks {
    blocks: Vec<Arc<PeerBlock>>,
    /// Bytes that count of those that exist, of which a transfer may hold some that are not in
    /// `blocks` any more.
    mapped: Arc<AtomicU64>,
    mapped_max: u64,
    /// Why the last block that is not here is not.
    lack: Option<String>,
}

impl PeerBlocks {
    /// Takes blocks of together at most `mapped_max` bytes, small ones not counted.
    pub(crate) fn up_to(mapped_max: u64) -> Self {
        Self { mapped_max, ..Self::default() }
    }

    /// Why a block that was announced is not here, if that is not the peer's fault.
    pub(crate) fn lack(&self) -> Option<&str> {
        self.lack.as_deref()
    }

    pub(crate) fn forget(&mut self, id: u64) {
        self.blocks.retain(|block| block.id != id);
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Arc<PeerBlock>> {
        self.blocks.iter().find(|block| block.id == id)
    }

    /// Returns whether a block is known, to be read or to be written.
    pub(crate) fn knows(&self, id: u64, write: bool) -> bool {
        self.get(id).is_some_and(|block| block.allows(write))
    }

    /// Where `pieces` are mapped, if all of them are, to be read or written.
    pub(crate) fn resolve(&self, pieces: &[Piece], write: bool) -> Option<Mapped> {
        let mut mapped = Mapped::default();
        for piece in pieces {
            let block = self.get(piece.block)?;
            let offset = piece.addr.checked_sub(block.there)?;
            mapped.pieces.push(block.at(offset, piece.len, write)?);
            if !mapped.blocks.iter().any(|known| known.id == block.id) {
                mapped.blocks.push(block.clone());
            }
        }
        Some(mapped)
    }
}

impl Announcements for PeerBlocks {
    fn announced(&mut self, bytes: &[u8], fd: Option<&OwnedFd>, cut: bool) -> Result<(), String> {
        let attached = match fd {
            Some(fd) => {
                let replaced = word_at(bytes, 1).and_then(|id| self.get(id));
                let replaced = replaced.map_or(0, |block| block.counts());
                let taken = self.mapped.load(Ordering::Relaxed).saturating_sub(replaced);
                let room = self.mapped_max.saturating_sub(taken);
                PeerBlock::attach(bytes, fd, room, &self.mapped)
            }
            None if cut => Err(Unmapped::no_descriptor("memory")),
            None => Err("an announcement without memory".into()),
        };
        match attached {
            Ok(block) => {
                self.forget(block.id);
                if self.blocks.len() < MAPPED_MAX {
                    self.blocks.push(Arc::new(block));
                }
            }
            Err(Unmapped::Breach(reason)) => return Err(reason),
            Err(Unmapped::Lack(reason)) => {
                tracing::debug!("bulk data takes another way: {reason}");
                self.lack = Some(reason);
            }
        }
        Ok(())
    }
}

/// Pieces of a peer's memory, and what keeps them mapped.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    pub(crate) pieces: Vec<RawSegment>,
    blocks: Vec<Arc<PeerBlock>>,
}

// SAFETY: the pieces lie in the blocks, which are `Send`.
unsafe impl Send for Mapped {}

impl Mapped {
    /// One piece of one block.
    pub(crate) fn one(block: &Arc<PeerBlock>, piece: RawSegment) -> Self {
        Self { pieces: vec![piece], blocks: vec![block.clone()] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::handshake::hand_over;
    use crate::link::socket::{Heard, Socket, send_packet};
    use na_core::memory::handed::ExpectedDescriptor;
    use rustix::fs::{MemfdFlags, SealFlags};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn memfd(flags: MemfdFlags, len: u64) -> rustix::io::Result<OwnedFd> {
        let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(c"test", flags)?;
        rustix::fs::ftruncate(&fd, len)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK)?;
        Ok(fd)
    }

    fn announcement(len: u64) -> [u8; ANNOUNCE_BYTES] {
        let mut packet = [0; ANNOUNCE_BYTES];
        packet[0] = ANNOUNCE;
        for (place, word) in packet[8..].chunks_exact_mut(8).zip([7, 1 << 30, len]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        packet
    }

    #[test]
    fn only_who_shares_memory_may_announce_it() {
        let kind = SocketType::SEQPACKET;
        let (theirs, ours) =
            socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        let ours = Socket::of(ours);
        let fd = memfd(MemfdFlags::empty(), 4096).unwrap();
        let mut blocks = PeerBlocks::default();
        send_packet(&theirs, &announcement(4096), &[fd.as_fd()]).unwrap();
        assert_eq!(ours.hear(Some(&mut blocks)), Ok(Heard::Bells));
        assert!(blocks.knows(7, false) && !blocks.knows(7, true));
        send_packet(&theirs, &announcement(4096), &[fd.as_fd()]).unwrap();
        assert!(ours.hear(None).unwrap_err().contains("another user"));
    }

    #[test]
    fn a_descriptor_comes_to_who_expects_it_and_only_if_it_may_be_closed() {
        let kind = SocketType::SEQPACKET;
        let (theirs, ours) =
            socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        let ours = Socket::of(ours);
        let (sender, receiver) = std::sync::mpsc::channel();
        let expected = ExpectedDescriptor::new(move |fd| sender.send(fd).unwrap()).unwrap();
        let fd = memfd(MemfdFlags::empty(), 4096).unwrap();
        let send = |packet: &[u8], fds: &[_]| send_packet(&theirs, packet, fds).unwrap();
        let mut blocks = PeerBlocks::default();
        // What nobody expects is closed, and nothing else comes of it.
        send(&hand_over(expected.number() ^ 1), &[fd.as_fd()]);
        send(&hand_over(expected.number()), &[fd.as_fd()]);
        send(&hand_over(expected.number()), &[fd.as_fd()]);
        assert_eq!(ours.hear(Some(&mut blocks)), Ok(Heard::Bells));
        let came: Vec<OwnedFd> = receiver.try_iter().collect();
        assert!(matches!(&came[..], [fd] if rustix::fs::fstat(fd).unwrap().st_size == 4096));
        // None, and a packet that says more.
        let mut more = hand_over(7);
        more[1] = 1;
        for (packet, fds) in [(hand_over(7), vec![]), (more, vec![fd.as_fd()])] {
            send(&packet, &fds);
            let told = ours.hear(Some(&mut blocks)).unwrap_err();
            assert!(told.contains("hands nothing over"), "{told}");
        }
        send(&hand_over(7), &[fd.as_fd()]);
        assert!(ours.hear(None).unwrap_err().contains("another user"));
        // Neither memory nor a file of NVIDIA's driver.
        let other = std::fs::File::open("/dev/null").unwrap();
        send(&hand_over(7), &[other.as_fd()]);
        let told = ours.hear(Some(&mut blocks)).unwrap_err();
        assert!(told.contains("do not belong there"), "{told}");
    }

    #[test]
    fn memory_of_a_pool_of_huge_pages_is_refused() {
        const HUGE: u64 = 2 << 20;
        let fd = match memfd(MemfdFlags::HUGETLB, HUGE) {
            Ok(fd) => fd,
            Err(errno) => return eprintln!("SKIPPED: this kernel has no such memory ({errno})"),
        };
        let told = PeerBlock::attach(&announcement(4096), &fd, 0, &Arc::default()).map(drop);
        assert_eq!(told, Err("memory of a pool of huge pages".into()));
    }

    #[test]
    fn a_peer_has_no_more_mapped_than_it_may() {
        const LARGE: u64 = 1 << 40;
        let fd = memfd(MemfdFlags::empty(), LARGE).unwrap();
        let announce = |blocks: &mut PeerBlocks, id: u64, len: u64, write: bool| {
            let mut packet = announcement(len);
            packet[1] = u8::from(write);
            packet[8..16].copy_from_slice(&id.to_le_bytes());
            blocks.announced(&packet, Some(&fd), false).unwrap();
            blocks.knows(id, write)
        };
        let mut blocks = PeerBlocks::up_to(2 * LARGE);
        assert!(announce(&mut blocks, 1, LARGE, false) && announce(&mut blocks, 2, LARGE, false));
        assert!(!announce(&mut blocks, 3, LARGE, false));
        assert!(blocks.lack().unwrap().contains("sm.mapped_bytes_per_peer_max"));
        // What is small has room still, and another level of access takes the place of the first.
        assert!(announce(&mut blocks, 4, SMALL_BYTES as u64, false));
        assert!(announce(&mut blocks, 2, LARGE, true));
        // What a transfer holds is mapped still.
        let held = blocks.get(1).unwrap().clone();
        blocks.forget(1);
        assert!(!announce(&mut blocks, 5, LARGE, false));
        drop(held);
        assert!(announce(&mut blocks, 5, LARGE, false));
        drop(blocks);
    }
}

//! Device memory that another process of this host has mapped: ours that peers have, and theirs
//! that we have. What they say to each other is in `bulk/staged`.
//!
//! | state | touched by | under |
//! |---|---|---|
//! | memory that is lent | transfers of ours; whoever revokes it; the end of the call that holds it | its lock |
//! | the list of what is lent of some memory | transfers of ours | its lock |
//! | the list of what is mapped | requests of peers | its lock |

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use device::{Device, DeviceMemory};
use na::handed::ExpectedDescriptor;
use na::{Offer, RetiredMemory};
use prim::sync::lock;
use ult::Eventual;

use crate::Addr;

/// Pieces of memory of all peers that are mapped here at a time.
pub(crate) const MAPPINGS_MAX: usize = 64;

/// Those of one peer.
pub(crate) const MAPPINGS_OF_PEER_MAX: usize = 16;

/// Pieces of one exposed memory that are lent, or were refused, at a time.
pub(crate) const LENT_MAX: usize = 64;

/// A peer that has said under which number it expects a descriptor, holds the memory within this
/// time, or its place is given to others.
pub(crate) const HELD_WITHIN: Duration = Duration::from_secs(10);

/// A piece of our device memory that a peer has mapped, or is to.
pub(crate) struct Lent {
    pub(crate) peer: Addr,
    /// The number of the peer's device that copies.
    pub(crate) device: u16,
    /// Address of the piece.
    pub(crate) at: u64,
    /// Set when that is decided: the number under which the peer knows it; `None`: it goes by
    /// buffers.
    pub(crate) agreed: Eventual<Option<u64>>,
    /// Set: the peer has it no more.
    pub(crate) over: Eventual<()>,
    state: Mutex<LentState>,
    /// Asks the peer to give it back, by its number; set before it is lent.
    pub(crate) take_back: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct LentState {
    is_withdrawn: bool,
    is_refused: bool,
    /// Dropped when the peer has it no more.
    kept: Vec<Box<dyn Send>>,
}

impl Lent {
    fn new(peer: Addr, device: u16, at: u64) -> Self {
        let (agreed, over) = (Eventual::new(), Eventual::new());
        Self { peer, device, at, agreed, over, state: Mutex::default(), take_back: OnceLock::new() }
    }

    /// The peer has it no more.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.state);
        let _ = self.over.set(());
        let kept = std::mem::take(&mut state.kept);
        drop(state);
        drop(kept);
    }

    /// Keeps something until the peer has it no more.
    pub(crate) fn keep_until_over(&self, what: impl Send + 'static) {
        let mut state = lock(&self.state);
        if !self.over.is_ready() {
            state.kept.push(Box::new(what));
        }
    }

    /// The peer cannot map it, so later transfers do not try, unless it was taken back.
    fn refuse(&self) {
        let mut state = lock(&self.state);
        state.is_refused |= !state.is_withdrawn;
    }

    fn is_refused(&self) -> bool {
        let state = lock(&self.state);
        let not_agreed = matches!(self.agreed.try_get(), Some(None));
        state.is_refused || (not_agreed && !state.is_withdrawn)
    }

    fn is_withdrawn(&self) -> bool {
        lock(&self.state).is_withdrawn
    }
}

impl Offer for Lent {
    fn withdraw(&self) {
        if !std::mem::replace(&mut lock(&self.state).is_withdrawn, true)
            && let Some(take_back) = self.take_back.get()
        {
            take_back();
        }
    }

    fn stands(&self) -> bool {
        !self.is_withdrawn() && !self.over.is_ready()
    }

    fn is_used(&self) -> bool {
        !self.over.is_ready()
    }

    fn keep(&self, held: RetiredMemory) {
        self.keep_until_over(held);
    }
}

/// The pieces of one exposed memory that are lent.
#[derive(Default)]
pub(crate) struct LentPieces(Mutex<Vec<Arc<Lent>>>);

impl LentPieces {
    /// Returns the piece at `at` as that device of the peer has it, and whether it is to be lent
    /// now. `None`: too many are.
    pub(crate) fn piece(&self, peer: &Addr, device: u16, at: u64) -> Option<(Arc<Lent>, bool)> {
        let mut lent = lock(&self.0);
        lent.retain(|one| one.is_refused() || (!one.over.is_ready() && !one.is_withdrawn()));
        let is_it = |one: &&Arc<Lent>| one.at == at && one.device == device && one.peer == *peer;
        if let Some(there) = lent.iter().find(is_it) {
            return Some((there.clone(), false));
        }
        if lent.len() >= LENT_MAX {
            // A peer that may try again.
            let refused = lent.iter().position(|one| one.is_refused())?;
            lent.remove(refused);
        }
        let new = Arc::new(Lent::new(peer.clone(), device, at));
        lent.push(new.clone());
        Some((new, true))
    }

    /// That peer cannot map what it was to.
    pub(crate) fn refuse(&self, peer: &Addr) {
        let all = lock(&self.0);
        all.iter().filter(|one| one.peer == *peer).for_each(|one| one.refuse());
    }

    /// Returns what that peer has.
    pub(crate) fn of_peer(&self, peer: &Addr) -> Vec<Arc<Lent>> {
        let is_its = |one: &&Arc<Lent>| {
            let has_it = matches!(one.agreed.try_get(), Some(Some(_))) && !one.over.is_ready();
            one.peer == *peer && has_it
        };
        lock(&self.0).iter().filter(is_its).cloned().collect()
    }
}

/// Device memory of a peer that is mapped here, or is to be.
pub(crate) struct PeerMapping {
    pub(crate) from: Addr,
    pub(crate) bytes: u64,
    /// The device that copies.
    pub(crate) device: Device,
    since: Instant,
    expected: ExpectedDescriptor,
    descriptor: Arc<(Eventual<()>, Mutex<Option<OwnedFd>>)>,
    /// Set by the request that holds it.
    pub(crate) held: Eventual<()>,
    /// Set when the memory is there, or will not be.
    pub(crate) ready: Eventual<()>,
    /// Taken away at the end.
    pub(crate) memory: Mutex<Option<Arc<MappedMemory>>>,
    /// Set: its owner wants it back.
    pub(crate) ended: Eventual<()>,
}

impl PeerMapping {
    /// Returns the number that its owner is told.
    pub(crate) fn number(&self) -> u64 {
        self.expected.number()
    }

    /// The event that the descriptor has come.
    pub(crate) fn has_come(&self) -> &Eventual<()> {
        &self.descriptor.0
    }

    /// Takes the descriptor.
    pub(crate) fn take_descriptor(&self) -> Option<OwnedFd> {
        lock(&self.descriptor.1).take()
    }

    /// Returns the memory, if it is there.
    pub(crate) fn mapped(&self) -> Option<Arc<MappedMemory>> {
        lock(&self.memory).clone()
    }
}

/// Mapped memory of a peer; unmapped with the last count.
pub(crate) struct MappedMemory {
    /// First, so that it is unmapped when that is told.
    memory: DeviceMemory,
    _gone: TellGone,
}

/// Tells that mapped memory is unmapped.
struct TellGone(Arc<Eventual<()>>);

impl MappedMemory {
    pub(crate) fn new(memory: DeviceMemory, gone: Arc<Eventual<()>>) -> Self {
        Self { memory, _gone: TellGone(gone) }
    }

    pub(crate) fn memory(&self) -> &DeviceMemory {
        &self.memory
    }
}

impl Drop for TellGone {
    fn drop(&mut self) {
        let _ = self.0.set(());
    }
}

/// The memory of peers that is mapped here.
#[derive(Default)]
pub(crate) struct PeerMappings(Mutex<Vec<Arc<PeerMapping>>>);

impl PeerMappings {
    /// Makes a place for `bytes` bytes of `from`, to be copied by `device`.
    pub(crate) fn expect(
        &self,
        from: &Addr,
        bytes: u64,
        device: &Device,
        bytes_max: u64,
    ) -> Result<Arc<PeerMapping>, String> {
        let mut all = lock(&self.0);
        all.retain(|one| one.held.is_ready() || one.since.elapsed() < HELD_WITHIN);
        let taken = all.iter().fold(0_u64, |sum, one| sum.saturating_add(one.bytes));
        if bytes > bytes_max.saturating_sub(taken) {
            return Err(format!(
                "{bytes} bytes beside {taken} that are mapped are more than \
                 margo.device.mapped_bytes_max, {bytes_max}"
            ));
        }
        let of_peer = all.iter().filter(|one| one.from == *from).count();
        if all.len() >= MAPPINGS_MAX || of_peer >= MAPPINGS_OF_PEER_MAX {
            return Err(format!(
                "{of_peer} pieces of its memory and {} of all peers are mapped, of at most \
                 {MAPPINGS_OF_PEER_MAX} and {MAPPINGS_MAX}",
                all.len()
            ));
        }
        let descriptor = Arc::new((Eventual::new(), Mutex::new(None)));
        let come = descriptor.clone();
        let expected = ExpectedDescriptor::new(move |fd| {
            *lock(&come.1) = Some(fd);
            let _ = come.0.set(());
        });
        let mapping = Arc::new(PeerMapping {
            from: from.clone(),
            bytes,
            device: device.clone(),
            since: Instant::now(),
            expected: expected.map_err(|error| error.to_string())?,
            descriptor,
            held: Eventual::new(),
            ready: Eventual::new(),
            memory: Mutex::new(None),
            ended: Eventual::new(),
        });
        all.push(mapping.clone());
        Ok(mapping)
    }

    /// Returns the one of that number.
    pub(crate) fn find(&self, number: u64) -> Option<Arc<PeerMapping>> {
        lock(&self.0).iter().find(|one| one.number() == number).cloned()
    }

    /// Takes one away: no copy begins there any more.
    pub(crate) fn forget(&self, number: u64) {
        lock(&self.0).retain(|one| one.number() != number);
    }

    /// How many are mapped, and their bytes.
    pub(crate) fn totals(&self) -> (usize, u64) {
        let all = lock(&self.0);
        let mapped = all.iter().filter(|one| lock(&one.memory).is_some());
        mapped.fold((0, 0), |(count, bytes), one| (count + 1, bytes + one.bytes))
    }
}

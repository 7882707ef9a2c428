//! Peers that libfabric can reach: their addresses were looked up, or messages came from them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::bounds::{Load, STUCK_LIMIT};
use crate::fabrics::fabric::Domain;
use crate::providers::{address::RawAddr, opx, provider::Provider};
use na_core::base::cheap::IntBuildHasher;
use na_core::{Addr, Error};
use prim::sync::Arc;
use prim::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Peers that nothing refers to any more are kept up to this number, so that a peer that comes
/// again is known; beyond, they are forgotten.
pub(crate) const IDLE_MAX: usize = 4096;

/// Least length of an era: as long as anything waits for a provider (`queue.rs`).
const ERA: Duration = STUCK_LIMIT;

/// A peer; the state behind its address.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) id: u64,
    /// libfabric's name of it.
    pub(crate) fi_addr: u64,
    pub(crate) raw: RawAddr,
    /// The raw address with zeros behind it, for providers that look for it in the context.
    pub(crate) told: Option<Box<[u8]>>,
    /// Something of ours has reached it, or something of its has come.
    reached: AtomicBool,
    /// The [era](Peers::era) of the last message to it whose end libfabric does not tell; 0: none.
    injected: AtomicU32,
    /// A transfer with it has ended with its connection, or has ended that, and no message has left
    /// since.
    torn: AtomicBool,
    /// How often it was taken for gone.
    life: AtomicU32,
    pub(crate) load: Load,
}

impl Peer {
    /// Which life of the peer this is, as far as we know: under its address there may be a
    /// successor of one that is gone.
    pub(crate) fn life(&self) -> u32 {
        self.life.load(Ordering::Relaxed)
    }

    /// It is gone: what is handed over from now on is for a successor.
    pub(crate) fn begin_life(&self) {
        self.life.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn was_reached(&self) -> bool {
        self.reached.load(Ordering::Relaxed)
    }

    pub(crate) fn set_reached(&self, reached: bool) {
        self.reached.store(reached, Ordering::Relaxed);
    }

    /// Providers over connections close the one over which a transfer is refused. The next messages
    /// may still find that connection.
    pub(crate) fn is_torn(&self) -> bool {
        self.torn.load(Ordering::Relaxed)
    }

    pub(crate) fn set_torn(&self, torn: bool) {
        self.torn.store(torn, Ordering::Relaxed);
    }

    /// A message without a completion was handed over, in that era.
    pub(crate) fn set_injected(&self, era: u32) {
        self.load.count_untold();
        self.injected.store(era, Ordering::Relaxed);
    }
}

/// All peers of an endpoint.
pub(crate) struct Peers {
    endpoint: u64,
    provider: &'static Provider,
    by_raw: HashMap<RawAddr, Addr>,
    /// Peers by the bytes that go before their messages, as we would write them.
    by_header: HashMap<Box<[u8]>, Addr>,
    by_fi_addr: HashMap<u64, Addr, IntBuildHasher>,
    /// The peer whose message came last, with its header as in `by_header`: mostly the next message
    /// comes from it, too.
    last: Option<(Vec<u8>, Addr)>,
    next: u64,
    idle_max: usize,
    sweep_at: usize,
    /// Time in steps of at least [`ERA`], which ends at a sweep: a message without a completion has
    /// left, or never will, if it was sent in an era before the last.
    era: u32,
    era_began: Instant,
}

impl Peers {
    /// `idle_max` is [`IDLE_MAX`], but in tests.
    pub(crate) fn new(endpoint: u64, provider: &'static Provider, idle_max: usize) -> Self {
        Self {
            endpoint,
            provider,
            by_raw: HashMap::new(),
            by_header: HashMap::new(),
            by_fi_addr: HashMap::default(),
            last: None,
            next: 1,
            idle_max,
            sweep_at: idle_max,
            era: 1,
            era_began: Instant::now(),
        }
    }

    /// Returns the era for [`Peer::set_injected`].
    pub(crate) fn era(&self) -> u32 {
        self.era
    }

    /// The peer at that address.
    pub(crate) fn at(&mut self, domain: &Domain, raw: &RawAddr) -> Result<Addr, Error> {
        if let Some(addr) = self.by_raw.get(raw) {
            return Ok(addr.clone());
        }
        let fi_addr = domain.insert(raw)?;
        let peer = Arc::new(Peer {
            id: self.next,
            fi_addr,
            raw: raw.clone(),
            told: self.provider.told_address.then(|| {
                let zeros = [0; opx::EXTENSION_BYTES];
                [raw.bytes(), &zeros].concat().into()
            }),
            reached: AtomicBool::new(false),
            injected: AtomicU32::new(0),
            torn: AtomicBool::new(false),
            life: AtomicU32::new(0),
            load: Load::default(),
        });
        self.next += 1;
        let uri = raw.uri(self.provider);
        let addr = Addr::with_state(uri, self.endpoint, peer.id, peer);
        self.by_raw.insert(raw.clone(), addr.clone());
        self.by_header.insert(raw.header(self.provider), addr.clone());
        // It may stand for the same header.
        self.last = None;
        self.by_fi_addr.insert(fi_addr, addr.clone());
        Ok(addr)
    }

    /// The peer whose messages begin with `header`; `None` if that names nobody.
    pub(crate) fn of_header(
        &mut self,
        domain: &Domain,
        own: &RawAddr,
        header: &[u8],
    ) -> Option<Addr> {
        if let Some((last, addr)) = &self.last
            && **last == *header
        {
            return Some(addr.clone());
        }
        if let Some(addr) = self.by_header.get(header) {
            // The same memory again: several peers may take turns.
            let mut bytes = self.last.take().map(|(bytes, _)| bytes).unwrap_or_default();
            bytes.clear();
            bytes.extend_from_slice(header);
            self.last = Some((bytes, addr.clone()));
            return Some(addr.clone());
        }
        let raw = RawAddr::from_header(self.provider, own, header)?;
        match self.at(domain, &raw) {
            Ok(addr) => Some(addr),
            Err(error) => {
                tracing::warn!(%error, "a message came from an address that libfabric refuses");
                None
            }
        }
    }

    /// The peer that libfabric calls so.
    pub(crate) fn of_fi_addr(&self, fi_addr: u64) -> Option<Addr> {
        self.by_fi_addr.get(&fi_addr).cloned()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Addr> {
        self.by_raw.values()
    }

    /// Returns whether there are so many that it is time to [sweep](Self::sweep).
    pub(crate) fn are_many(&self) -> bool {
        self.by_raw.len() > self.sweep_at
    }

    /// Forgets those that nothing refers to but the tables here, and libfabric.
    ///
    /// Only while the completion queue is empty: a provider may have found out who sent a message
    /// long before it reports it (`cxi` does so when it takes the event from the device), and gives
    /// what it calls a peer who is forgotten to another one.
    pub(crate) fn sweep(&mut self, domain: &Domain) {
        const TABLES: usize = 3;
        self.last = None;
        if self.era_began.elapsed() >= ERA {
            self.era += 1;
            self.era_began = Instant::now();
        }
        let quiet = |addr: &Addr| {
            let injected = addr.state::<Peer>().map(|peer| peer.injected.load(Ordering::Relaxed));
            injected.is_none_or(|era| era == 0 || era + 1 < self.era)
        };
        let idle: Vec<Addr> = self
            .by_raw
            .values()
            .filter(|addr| addr.count() == TABLES && quiet(addr))
            .cloned()
            .collect();
        for addr in idle {
            let Some(peer) = addr.state::<Peer>() else { continue };
            self.by_raw.remove(&peer.raw);
            self.by_header.remove(&peer.raw.header(self.provider));
            self.by_fi_addr.remove(&peer.fi_addr);
            domain.remove(peer.fi_addr);
        }
        self.sweep_at = 2 * self.by_raw.len() + self.idle_max;
    }
}

/// The error of a peer that cannot be reached, or not any more.
pub(crate) fn unreachable(with: &Addr, reason: String) -> Error {
    let uri = with.uri().to_owned();
    match with.state::<Peer>().is_some_and(Peer::was_reached) {
        true => Error::PeerGone { peer: uri, reason },
        false => Error::Unreachable { peer: uri, reason },
    }
}

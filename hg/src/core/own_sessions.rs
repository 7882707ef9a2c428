//! Sessions of one shard with targets that have proven that they are members of our cluster:
//! `members.rs` says what they are.
//!
//! They are kept by the target's address, so that the end of one is found without a look at the
//! others. Each shard has its own, because its connections are.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use na::{Addr, Principal};
use prim::sync::lock;

use crate::Build;
use crate::base::membership::{Nonce, SessionKey};

/// Addresses with sessions; beyond it, those that are over are forgotten, and then all.
const PEERS_MAX: usize = 16_384;

/// Sessions with one address, each for another connection; beyond it the first one goes.
const OF_PEER_MAX: usize = 4;

/// The sessions of a shard, by the address of the target.
#[derive(Debug, Default)]
pub(crate) struct OwnSessions(Mutex<HashMap<Box<str>, Vec<Arc<OwnSession>>>>);

/// A session with a target that has proven that it is a member, too.
#[derive(Debug)]
pub(crate) struct OwnSession {
    connection: (u64, u64),
    principal: Principal,
    pub(crate) build: Build,
    pub(crate) epoch: u32,
    pub(crate) nonce: Nonce,
    pub(crate) key: SessionKey,
    /// The number of the next request.
    next: AtomicU64,
    begun: Instant,
    lifetime: Duration,
    is_renewed: AtomicBool,
}

impl OwnSession {
    /// A session that begins now.
    pub(crate) fn new(
        (to, principal): (&Addr, Principal),
        build: Build,
        (epoch, nonce, key): (u32, Nonce, SessionKey),
        (begun, lifetime): (Instant, Duration),
    ) -> Self {
        let (next, is_renewed) = (AtomicU64::new(0), AtomicBool::new(false));
        let connection = to.connection();
        Self { connection, principal, build, epoch, nonce, key, next, begun, lifetime, is_renewed }
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.begun) >= self.lifetime
    }

    /// Returns whether a request that is sent now will be accepted, and is not to renew the
    /// session.
    fn is_good(&self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.begun);
        if passed < self.lifetime / 2 {
            return true;
        }
        // One call renews it, and others do when that has had its time.
        passed < self.lifetime / 4 * 3 && self.is_renewed.swap(true, Ordering::Relaxed)
    }
}

impl OwnSessions {
    /// Returns the session with a target; `None`: the call is to introduce us first.
    pub(crate) fn with_target(&self, to: &Addr, now: Instant) -> Option<Arc<OwnSession>> {
        self.known_target(to).filter(|session| session.is_good(now))
    }

    /// Returns the session with a target if there is one, however old.
    pub(crate) fn known_target(&self, to: &Addr) -> Option<Arc<OwnSession>> {
        let connection = to.connection();
        let known = lock(&self.0);
        known.get(to.uri())?.iter().find(|session| session.connection == connection).cloned()
    }

    /// Remembers a session with a target that has just proven something.
    pub(crate) fn learn(&self, to: &Addr, session: OwnSession) {
        let mut known = lock(&self.0);
        if known.len() >= PEERS_MAX && !known.contains_key(to.uri()) {
            let now = session.begun;
            known.retain(|_, sessions| sessions.iter().any(|session| !session.is_over(now)));
            if known.len() >= PEERS_MAX {
                known.clear();
            }
        }
        let sessions = known.entry(to.uri().into()).or_default();
        sessions.retain(|other| other.connection != session.connection);
        if sessions.len() == OF_PEER_MAX {
            sessions.remove(0);
        }
        sessions.push(Arc::new(session));
    }

    /// Forgets the session with a target that does not know it.
    pub(crate) fn forget(&self, to: &Addr) {
        let mut known = lock(&self.0);
        if let Some(sessions) = known.get_mut(to.uri()) {
            sessions.retain(|session| session.connection != to.connection());
            if sessions.is_empty() {
                known.remove(to.uri());
            }
        }
    }

    /// Forgets the sessions with a peer that is gone: another process may come in its place.
    pub(crate) fn forget_peer(&self, peer: &str) {
        lock(&self.0).remove(peer);
    }

    /// Tells the address of each target that has a session, and who it has proven to be.
    pub(crate) fn each(&self, now: Instant, mut tell: impl FnMut(&str, Principal)) {
        for (peer, sessions) in &*lock(&self.0) {
            let good = sessions.iter().filter(|session| !session.is_over(now));
            good.for_each(|session| tell(peer, session.principal));
        }
    }

    /// How many sessions there are; for tests.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        lock(&self.0).values().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn addr(peer: usize, connection: u64) -> Addr {
        Addr::new(format!("na+test://{peer}"), 1, connection, ())
    }

    fn learn(sessions: &OwnSessions, to: &Addr, lifetime: Duration) {
        let key = SessionKey::new(&[1; 32], &[2; 16], &[3; 16]);
        let (who, names) = ((to, Principal::Unknown), (0, [2; 16], key));
        let times = (Instant::now(), lifetime);
        sessions.learn(to, OwnSession::new(who, Build::Plain, names, times));
    }

    #[test]
    fn a_peer_that_is_gone_takes_its_sessions_along_and_no_others() {
        let sessions = OwnSessions::default();
        let all = [addr(1, 1), addr(1, 2), addr(2, 3)];
        all.iter().for_each(|to| learn(&sessions, to, HOUR));
        let known = || all.each_ref().map(|to| sessions.known_target(to).is_some());
        assert_eq!(known(), [true; 3]);
        sessions.forget(&all[1]);
        assert_eq!(known(), [true, false, true]);
        learn(&sessions, &all[1], HOUR);
        sessions.forget_peer(all[0].uri());
        assert_eq!(known(), [false, false, true]);
    }

    #[test]
    fn sessions_are_bounded_by_address_and_in_sum() {
        let sessions = OwnSessions::default();
        for connection in 0..2 * OF_PEER_MAX as u64 {
            learn(&sessions, &addr(0, connection), HOUR);
        }
        assert_eq!(sessions.count(), OF_PEER_MAX);
        assert!(sessions.known_target(&addr(0, 2 * OF_PEER_MAX as u64 - 1)).is_some());
        let sessions = OwnSessions::default();
        for peer in 0..PEERS_MAX {
            let lifetime = if peer % 2 == 0 { HOUR } else { Duration::ZERO };
            learn(&sessions, &addr(peer, 1), lifetime);
        }
        assert_eq!(sessions.count(), PEERS_MAX);
        learn(&sessions, &addr(PEERS_MAX, 1), HOUR);
        assert_eq!(sessions.count(), PEERS_MAX / 2 + 1, "those that were over have gone");
        assert!(sessions.known_target(&addr(0, 1)).is_some());
    }
}

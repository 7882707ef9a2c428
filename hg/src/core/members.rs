//! Sessions with members of our cluster, over transports that do not tell who a peer is.
//!
//! ```text
//! origin                                       target
//!   nonce, code of it under the secret   ──►   believes that it knows the secret, or refuses
//!   believes the target, or ends the call ◄──  epoch, challenge, code of all under the secret
//!   request, with a proof                ──►   principal: member
//! ```
//!
//! The challenge is a code of the nonce and the origin's address under a key that the target draws
//! for an *epoch*. Nonce, challenge and the secret give the key of the session. The proof of a
//! request is a code of the whole message under that key, with a number that no other request of
//! the session has. So the target keeps nothing before somebody has proven something, and:
//!
//! - who does not know the secret makes no proof, and no key of a session;
//! - a proof is of no use at another target, after a restart of this one, or two epochs later: that
//!   takes another challenge;
//! - nor is it twice: the target remembers the numbers that it has seen;
//! - nor for another peer, whose address gives another challenge, nor for another message.
//!
//! Responses and bulk data carry no proof, and nothing is encrypted.
//!
//! An origin introduces itself before the first call to a target (`origin/introduce.rs`), and again
//! when half of the time is over for which its proofs are accepted; one call does, and others go on
//! with the session that there is. Targets answer and verify in `requests/prove.rs`.
//!
//! | state | touched by | under |
//! |---|---|---|
//! | epochs and their sessions | requests with a proof, introductions | `epochs` |
//! | numbers of a session | requests of it | `MemberSession::seen` |
//! | own sessions | calls to members | `own` |

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use na::{Addr, Principal, secret};
use prim::sync::lock;

use crate::Build;
use crate::base::membership::{Code, Nonce, SessionKey, code};
use crate::wire::extension::Proof;

/// Sessions that a target remembers, and those among them of members of one host.
const SESSIONS_MAX: usize = 65_536;
const OF_HOST_MAX: usize = SESSIONS_MAX / 4;

/// Sessions with targets that an origin remembers; beyond it, those that are over are forgotten,
/// and then all.
const OWN_MAX: usize = 65_536;

/// Numbers that are missing among those that a session has seen. Beyond it the lowest one counts as
/// seen.
const GAPS_MAX: usize = 64;

/// The sessions of all shards, in both directions.
#[derive(Debug, Default)]
pub(crate) struct MemberSessions {
    epochs: Mutex<Option<Epochs>>,
    own: Mutex<HashMap<(u64, u64), Arc<OwnSession>>>,
    /// Tests let time pass.
    #[cfg(test)]
    passed: Mutex<Duration>,
}

/// The epochs of this target whose challenges are good: this one, and the one before it.
#[derive(Debug)]
struct Epochs {
    now: Epoch,
    before: Option<Epoch>,
    begun: Instant,
}

#[derive(Debug)]
struct Epoch {
    number: u32,
    key: [u8; 32],
    sessions: HashMap<Nonce, Arc<MemberSession>>,
    /// How many of them members of a host have.
    of_hosts: HashMap<Principal, usize>,
}

/// A session with an origin that has proven something.
#[derive(Debug)]
pub(crate) struct MemberSession {
    pub(crate) key: SessionKey,
    /// The connection that its challenge was for.
    pub(crate) connection: (u64, u64),
    pub(crate) principal: Principal,
    seen: Mutex<Seen>,
}

/// The numbers that have been seen: ranges, in order, of which none touches the next one.
#[derive(Debug, Default)]
struct Seen(Vec<(u64, u64)>);

impl Seen {
    /// Returns whether a number is new, and remembers it.
    fn take(&mut self, number: u64) -> bool {
        let ranges = &mut self.0;
        if let Some((_, end)) = ranges.last_mut().filter(|(_, end)| *end + 1 == number) {
            *end = number;
            return true;
        }
        let at = ranges.partition_point(|(_, end)| *end < number);
        if ranges.get(at).is_some_and(|(begin, _)| *begin <= number) {
            return false;
        }
        let joins_before = at > 0 && ranges[at - 1].1 + 1 == number;
        let joins_next = ranges.get(at).is_some_and(|(begin, _)| *begin == number + 1);
        match (joins_before, joins_next) {
            (true, true) => {
                ranges[at - 1].1 = ranges[at].1;
                ranges.remove(at);
            }
            (true, false) => ranges[at - 1].1 = number,
            (false, true) => ranges[at].0 = number,
            (false, false) => ranges.insert(at, (number, number)),
        }
        if ranges.len() > GAPS_MAX {
            ranges[1].0 = ranges[0].0;
            ranges.remove(0);
        }
        true
    }
}

impl MemberSession {
    pub(crate) fn new(key: SessionKey, connection: (u64, u64), principal: Principal) -> Self {
        Self { key, connection, principal, seen: Mutex::default() }
    }

    /// Returns whether a request of that number has not come before. Asked once for each whose code
    /// is right.
    pub(crate) fn takes(&self, number: u64) -> bool {
        // The highest one has nothing behind it.
        number < u64::MAX && lock(&self.seen).take(number)
    }
}

/// Why there is no session for a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoSession {
    /// The epoch is none of ours, or is over.
    Over,
    /// There are too many.
    Full,
}

impl Epoch {
    fn draw(number: u32) -> Option<Self> {
        let (sessions, of_hosts) = Default::default();
        secret::draw().map(|key| Self { number, key, sessions, of_hosts })
    }

    fn challenge(&self, nonce: &Nonce, address: &str) -> Code {
        code(&self.key, "epoch", &[nonce, address.as_bytes()])
    }
}

impl Epochs {
    /// `None`: the system has no random numbers.
    fn begin(now: Instant) -> Option<Self> {
        Some(Self { now: Epoch::draw(0)?, before: None, begun: now })
    }

    /// Ends epochs that are over. `None`: the system has no random numbers for the next one.
    fn look(&mut self, now: Instant, length: Duration) -> Option<()> {
        let passed = now.saturating_duration_since(self.begun);
        if passed >= length {
            let next = Epoch::draw(self.now.number.wrapping_add(1))?;
            let over = std::mem::replace(&mut self.now, next);
            self.before = (passed < 2 * length).then_some(over);
            self.begun = now;
        }
        Some(())
    }

    fn get(&mut self, number: u32) -> Option<&mut Epoch> {
        let all = [Some(&mut self.now), self.before.as_mut()];
        all.into_iter().flatten().find(|epoch| epoch.number == number)
    }

    fn count(&self) -> usize {
        let before = self.before.as_ref().map_or(0, |epoch| epoch.sessions.len());
        self.now.sessions.len() + before
    }

    fn count_of(&self, host: Principal) -> usize {
        let of = |epoch: &Epoch| epoch.of_hosts.get(&host).copied().unwrap_or(0);
        of(&self.now) + self.before.as_ref().map_or(0, of)
    }
}

impl MemberSessions {
    fn now(&self) -> Instant {
        #[cfg(test)]
        return Instant::now() + *lock(&self.passed);
        #[cfg(not(test))]
        Instant::now()
    }

    fn with_epochs<R>(
        &self,
        length: Duration,
        look: impl FnOnce(&mut Epochs) -> Option<R>,
    ) -> Option<R> {
        let (mut epochs, now) = (lock(&self.epochs), self.now());
        if epochs.is_none() {
            *epochs = Epochs::begin(now);
        }
        let epochs = epochs.as_mut()?;
        epochs.look(now, length)?;
        look(epochs)
    }

    /// Makes the challenge of an origin at that address: epoch, milliseconds for which its proofs
    /// are accepted, challenge. `None`: the system has no random numbers.
    pub(crate) fn challenge(
        &self,
        length: Duration,
        nonce: &Nonce,
        address: &str,
    ) -> Option<(u32, u32, Code)> {
        self.with_epochs(length, |epochs| {
            let left = (epochs.begun + 2 * length).saturating_duration_since(self.now());
            let left = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
            Some((epochs.now.number, left, epochs.now.challenge(nonce, address)))
        })
    }

    /// Returns the session that a proof names.
    pub(crate) fn session(&self, length: Duration, proof: &Proof) -> Option<Arc<MemberSession>> {
        self.with_epochs(length, |epochs| {
            epochs.get(proof.epoch)?.sessions.get(&proof.nonce).cloned()
        })
    }

    /// Makes the challenge again that the session of a proof has had, if its origin has that
    /// address. `None`: the epoch is over.
    pub(crate) fn challenge_of(
        &self,
        length: Duration,
        proof: &Proof,
        address: &str,
    ) -> Option<Code> {
        self.with_epochs(length, |epochs| {
            epochs.get(proof.epoch).map(|epoch| epoch.challenge(&proof.nonce, address))
        })
    }

    /// Remembers the session of a proof that was right. If it is known, because its origin has sent
    /// two requests at once, that one stays.
    pub(crate) fn begin(
        &self,
        length: Duration,
        proof: &Proof,
        session: MemberSession,
    ) -> Result<(Arc<MemberSession>, bool), NoSession> {
        let begun = self.with_epochs(length, |epochs| {
            let host = session.principal;
            let is_full = epochs.count() >= SESSIONS_MAX || epochs.count_of(host) >= OF_HOST_MAX;
            let epoch = epochs.get(proof.epoch)?;
            if let Some(known) = epoch.sessions.get(&proof.nonce) {
                return Some(Ok((known.clone(), false)));
            }
            if is_full {
                return Some(Err(NoSession::Full));
            }
            let session = Arc::new(session);
            epoch.sessions.insert(proof.nonce, session.clone());
            *epoch.of_hosts.entry(host).or_default() += 1;
            Some(Ok((session, true)))
        });
        begun.unwrap_or(Err(NoSession::Over))
    }

    /// How many sessions there are with origins, and with targets; for tests.
    #[cfg(test)]
    pub(crate) fn count(&self) -> (usize, usize) {
        let of_origins = lock(&self.epochs).as_ref().map_or(0, Epochs::count);
        (of_origins, lock(&self.own).len())
    }

    /// Lets time pass.
    #[cfg(test)]
    pub(crate) fn pass(&self, time: Duration) {
        *lock(&self.passed) += time;
    }

    /// As after an introduction.
    #[cfg(test)]
    pub(crate) fn learn_for_tests(&self, to: &Addr) {
        let key = SessionKey::new(&[1; 32], &[2; 16], &[3; 16]);
        self.learn(to, Build::Plain, (0, [2; 16], key), Duration::from_secs(600));
    }

    /// As a process that has started again.
    #[cfg(test)]
    pub(crate) fn start_again(&self) {
        *lock(&self.epochs) = None;
    }
}

/// A session with a target that has proven that it is a member, too.
#[derive(Debug)]
pub(crate) struct OwnSession {
    /// The address of the target.
    peer: Box<str>,
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
    fn new(
        peer: &Addr,
        build: Build,
        (epoch, nonce, key): (u32, Nonce, SessionKey),
        (begun, lifetime): (Instant, Duration),
    ) -> Self {
        let (next, is_renewed) = (AtomicU64::new(0), AtomicBool::new(false));
        let peer = peer.uri().into();
        Self { peer, build, epoch, nonce, key, next, begun, lifetime, is_renewed }
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
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

impl MemberSessions {
    /// Returns the session with a target; `None`: the call is to introduce us first.
    pub(crate) fn with_target(&self, to: &Addr) -> Option<Arc<OwnSession>> {
        let now = self.now();
        lock(&self.own).get(&to.connection()).filter(|session| session.is_good(now)).cloned()
    }

    /// Returns the session with a target if there is one, however old.
    pub(crate) fn known_target(&self, to: &Addr) -> Option<Arc<OwnSession>> {
        lock(&self.own).get(&to.connection()).cloned()
    }

    /// Begins a session with a target that has just proven something.
    pub(crate) fn learn(
        &self,
        to: &Addr,
        build: Build,
        names: (u32, Nonce, SessionKey),
        lifetime: Duration,
    ) {
        let now = self.now();
        let session = Arc::new(OwnSession::new(to, build, names, (now, lifetime)));
        let mut own = lock(&self.own);
        if own.len() >= OWN_MAX && !own.contains_key(&to.connection()) {
            own.retain(|_, one| now.saturating_duration_since(one.begun) < one.lifetime);
            if own.len() >= OWN_MAX {
                own.clear();
            }
        }
        own.insert(to.connection(), session);
    }

    /// Forgets the session with a target that does not know it.
    pub(crate) fn forget(&self, to: &Addr) {
        lock(&self.own).remove(&to.connection());
    }

    /// Forgets the sessions with a target that is gone: another process may come in its place.
    pub(crate) fn forget_gone(&self, error: &na::Error) {
        if let na::Error::PeerGone { peer, .. } | na::Error::Unreachable { peer, .. } = error {
            lock(&self.own).retain(|_, session| *session.peer != **peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    const LENGTH: Duration = Duration::from_secs(3600);

    fn proof(epoch: u32, nonce: u64) -> Proof {
        let mut proof = Proof { epoch, ..Proof::default() };
        proof.nonce[..8].copy_from_slice(&nonce.to_le_bytes());
        proof
    }

    fn session(host: u8) -> MemberSession {
        let key = SessionKey::new(&[1; 32], &[2; 16], &[3; 16]);
        MemberSession::new(key, (1, 1), Principal::member_at([10, 0, 0, host].into()))
    }

    #[test]
    fn numbers_are_taken_once_in_any_order() {
        let mut seen = Seen::default();
        for number in [0, 1, 2, 5, 4, 9, 3, 7, 6, 8] {
            assert!(seen.take(number), "{number}");
            assert!(!seen.take(number), "{number} again");
        }
        assert_eq!(seen.0, [(0, 9)]);
    }

    #[test]
    fn so_many_are_missing_and_then_the_oldest_count_as_seen() {
        let mut seen = Seen::default();
        let last = 2 * GAPS_MAX as u64;
        assert!((0..=last).step_by(2).all(|number| seen.take(number)));
        assert_eq!(seen.0.len(), GAPS_MAX);
        assert!(!seen.take(1), "too late");
        assert!(seen.take(3) && !seen.take(3), "this one is still waited for");
    }

    proptest! {
        #[test]
        fn no_number_is_taken_twice(numbers in proptest::collection::vec(0u64..300, 0..600)) {
            let (mut seen, mut taken) = (Seen::default(), HashSet::new());
            for number in numbers {
                let is_new = seen.take(number);
                prop_assert!(!is_new || taken.insert(number));
                prop_assert!(seen.0.len() <= GAPS_MAX);
                prop_assert!(seen.0.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0));
            }
        }
    }

    #[test]
    fn sessions_are_bounded_in_sum_and_by_host() {
        let members = MemberSessions::default();
        let (epoch, ..) = members.challenge(LENGTH, &[0; 16], "a").unwrap();
        let mut count = 0;
        for host in 0..5 {
            for of_host in 0..=OF_HOST_MAX as u64 {
                let proof = proof(epoch, count);
                match members.begin(LENGTH, &proof, session(host)) {
                    Ok(_) => count += 1,
                    Err(error) => {
                        assert_eq!(error, NoSession::Full);
                        let has_all = of_host == if host < 4 { OF_HOST_MAX as u64 } else { 0 };
                        assert!(has_all, "{of_host} of host {host}");
                        break;
                    }
                }
            }
        }
        assert_eq!(members.count().0, SESSIONS_MAX);
        let known = members.begin(LENGTH, &proof(epoch, 0), session(0)).unwrap();
        assert!(!known.1, "one that is known goes on");
    }

    #[test]
    fn an_epoch_is_over_with_its_challenges_and_sessions() {
        let members = MemberSessions::default();
        let length = Duration::from_nanos(1);
        let (epoch, _, challenge) = members.challenge(LENGTH, &[7; 16], "a").unwrap();
        assert_ne!(members.challenge(LENGTH, &[7; 16], "b").unwrap().2, challenge);
        let named = Proof { epoch, nonce: [7; 16], ..Proof::default() };
        assert_eq!(members.challenge_of(LENGTH, &named, "a"), Some(challenge));
        members.begin(LENGTH, &named, session(1)).unwrap();
        assert!(members.session(LENGTH, &named).is_some());
        // Two of these lengths have passed.
        let (next, _, other) = members.challenge(length, &[7; 16], "a").unwrap();
        assert!(next != epoch && other != challenge);
        assert!(members.session(LENGTH, &named).is_none());
        assert_eq!(members.challenge_of(LENGTH, &named, "a"), None);
        assert_eq!(members.begin(LENGTH, &named, session(1)).err(), Some(NoSession::Over));
    }
}

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
//! With the challenge the target says at which address it is, and its code is for that, too. An
//! origin that has called another address ends the call: whoever is there leads calls on to a
//! member ([`na::Endpoint::is_at`]).
//!
//! An origin introduces itself before the first call to a target (`origin/introduce.rs`), and again
//! when half of the time is over for which its proofs are accepted; one call does, and others go on
//! with the session that there is (`own_sessions.rs`). Targets answer and verify in
//! `requests/prove.rs`; their sessions are here.
//!
//! | state | touched by | under |
//! |---|---|---|
//! | epochs, how many sessions each has | introductions, first requests of a session | `epochs` |
//! | sessions, by part | requests with a proof | the part's lock, which is taken after `epochs` |
//! | numbers of a session | requests of it | `MemberSession::seen` |
//!
//! So two sessions seldom share a lock, and shards do not wait for each other.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use na::secret::SecretKey;
use na::{Addr, Principal};
use prim::OwnLine;
use prim::sync::lock;

use crate::base::membership::{Code, Nonce, SessionKey, code};
use crate::wire::extension::Proof;

/// Sessions that a target remembers, and those among them of members of one host.
const SESSIONS_MAX: usize = 65_536;
const OF_HOST_MAX: usize = SESSIONS_MAX / 4;

/// Parts that the sessions are in.
const PARTS: usize = 32;

/// Numbers that are missing among those that a session has seen. Beyond it the lowest one counts as
/// seen.
const GAPS_MAX: usize = 64;

/// The sessions of all shards with origins.
#[derive(Debug, Default)]
pub(crate) struct MemberSessions {
    epochs: Mutex<Option<Epochs>>,
    /// Each in the part that its nonce says.
    parts: [OwnLine<Part>; PARTS],
    /// Tests let time pass.
    #[cfg(test)]
    passed: Mutex<Duration>,
}

/// Sessions by epoch and nonce.
type Part = Mutex<HashMap<(u32, Nonce), Arc<MemberSession>>>;

/// The epochs of this target whose challenges are good: this one, and the one before it.
#[derive(Debug)]
struct Epochs {
    now: Epoch,
    before: Option<Epoch>,
}

#[derive(Debug)]
struct Epoch {
    number: u32,
    begun: Instant,
    key: SecretKey,
    /// How many sessions it has, and members of each host.
    sessions: usize,
    of_hosts: HashMap<Principal, usize>,
}

/// A session with an origin that has proven something.
#[derive(Debug)]
pub(crate) struct MemberSession {
    pub(crate) key: SessionKey,
    /// The connection that its challenge was for, and the address of the peer there.
    pub(crate) connection: (u64, u64),
    pub(crate) address: Box<str>,
    pub(crate) principal: Principal,
    /// When its proofs are not accepted any more.
    until: Instant,
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
    /// One that is over, until it [begins](MemberSessions::begin).
    pub(crate) fn new(key: SessionKey, origin: &Addr, principal: Principal) -> Self {
        let (connection, address) = (origin.connection(), origin.uri().into());
        Self { key, connection, address, principal, until: Instant::now(), seen: Mutex::default() }
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
    fn draw(number: u32, begun: Instant) -> Option<Self> {
        let (sessions, of_hosts) = Default::default();
        SecretKey::draw().map(|key| Self { number, begun, key, sessions, of_hosts })
    }

    fn challenge(&self, nonce: &Nonce, address: &str) -> Code {
        code(&self.key, "epoch", &[nonce, address.as_bytes()])
    }
}

impl Epochs {
    /// Ends epochs that are over. `None`: the system has no random numbers for the next one.
    fn look(&mut self, now: Instant, length: Duration) -> Option<()> {
        let passed = now.saturating_duration_since(self.now.begun);
        if passed >= length {
            let next = Epoch::draw(self.now.number.wrapping_add(1), now)?;
            let over = std::mem::replace(&mut self.now, next);
            self.before = (passed < 2 * length).then_some(over);
        }
        Some(())
    }

    fn get(&mut self, number: u32) -> Option<&mut Epoch> {
        let all = [Some(&mut self.now), self.before.as_mut()];
        all.into_iter().flatten().find(|epoch| epoch.number == number)
    }

    fn count(&self) -> usize {
        self.now.sessions + self.before.as_ref().map_or(0, |epoch| epoch.sessions)
    }

    fn count_of(&self, host: Principal) -> usize {
        let of = |epoch: &Epoch| epoch.of_hosts.get(&host).copied().unwrap_or(0);
        of(&self.now) + self.before.as_ref().map_or(0, of)
    }
}

impl MemberSessions {
    pub(crate) fn now(&self) -> Instant {
        #[cfg(test)]
        return Instant::now() + *lock(&self.passed);
        #[cfg(not(test))]
        Instant::now()
    }

    fn part(&self, nonce: &Nonce) -> &Part {
        &self.parts[usize::from(nonce[0]) % PARTS].0
    }

    fn with_epochs<R>(
        &self,
        length: Duration,
        look: impl FnOnce(&mut Epochs) -> Option<R>,
    ) -> Option<R> {
        let (mut epochs, now) = (lock(&self.epochs), self.now());
        if epochs.is_none() {
            *epochs = Some(Epochs { now: Epoch::draw(0, now)?, before: None });
        }
        let epochs = epochs.as_mut()?;
        let last = epochs.now.number;
        epochs.look(now, length)?;
        if epochs.now.number != last {
            for part in &self.parts {
                lock(&part.0).retain(|(epoch, _), _| epochs.get(*epoch).is_some());
            }
        }
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
            let left = (epochs.now.begun + 2 * length).saturating_duration_since(self.now());
            let left = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
            Some((epochs.now.number, left, epochs.now.challenge(nonce, address)))
        })
    }

    /// Returns the session that a proof names.
    pub(crate) fn session(&self, proof: &Proof) -> Option<Arc<MemberSession>> {
        let now = self.now();
        let part = lock(self.part(&proof.nonce));
        part.get(&(proof.epoch, proof.nonce)).filter(|session| now < session.until).cloned()
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
            let mut part = lock(self.part(&proof.nonce));
            match part.entry((proof.epoch, proof.nonce)) {
                Entry::Occupied(known) => Some(Ok((known.get().clone(), false))),
                Entry::Vacant(_) if is_full => Some(Err(NoSession::Full)),
                Entry::Vacant(place) => {
                    let until = epoch.begun + 2 * length;
                    let session = Arc::new(MemberSession { until, ..session });
                    epoch.sessions += 1;
                    *epoch.of_hosts.entry(host).or_default() += 1;
                    Some(Ok((place.insert(session).clone(), true)))
                }
            }
        });
        begun.unwrap_or(Err(NoSession::Over))
    }

    /// Tells the address of each origin that has a session, and who it has proven to be.
    pub(crate) fn each(&self, mut tell: impl FnMut(&str, Principal)) {
        let now = self.now();
        for part in &self.parts {
            let part = lock(&part.0);
            let sessions = part.values().filter(|session| now < session.until);
            sessions.for_each(|session| tell(&session.address, session.principal));
        }
    }

    /// How many sessions there are; for tests.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        let counted = lock(&self.epochs).as_ref().map_or(0, Epochs::count);
        let kept = self.parts.iter().map(|part| lock(&part.0).len()).sum();
        assert_eq!(counted, kept);
        kept
    }

    /// Lets time pass.
    #[cfg(test)]
    pub(crate) fn pass(&self, time: Duration) {
        *lock(&self.passed) += time;
    }

    /// As a process that has started again.
    #[cfg(test)]
    pub(crate) fn start_again(&self) {
        *lock(&self.epochs) = None;
        self.parts.iter().for_each(|part| lock(&part.0).clear());
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
        let origin = Addr::new(format!("na+test://{host}"), 1, 1, ());
        MemberSession::new(key, &origin, Principal::member_at([10, 0, 0, host].into()))
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
        assert_eq!(members.count(), SESSIONS_MAX);
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
        assert!(members.session(&named).is_some());
        // Two of these lengths have passed.
        let (next, _, other) = members.challenge(length, &[7; 16], "a").unwrap();
        assert!(next != epoch && other != challenge);
        assert!(members.session(&named).is_none());
        assert_eq!(members.challenge_of(LENGTH, &named, "a"), None);
        assert_eq!(members.begin(LENGTH, &named, session(1)).err(), Some(NoSession::Over));
    }
}

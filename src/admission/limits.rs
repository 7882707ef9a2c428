//! How much each caller may ask for (`margo.security.limits`).
//!
//! A caller is a user or host, with however many connections; all of whom nothing is known are one.
//! Each has an account in one of 256 sets, which is found by a hash with a key that peers do not
//! know. A set has a lock, so that shards wait for each other only if they serve the same caller,
//! or by chance. In a full set a new caller takes the place of one that has nothing in hand: first
//! of those whose account says nothing that a new one would not, then of the one that was seen
//! least lately. If all have something in hand, which bounds of requests bound, the set grows until
//! they end.
//!
//! A rate is a token bucket, kept as the time at which it will be full again.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use margo_config::{RateLimit, ResolvedLimit};
use prim::lock::Lock;

use crate::Principal;
use crate::admission::rules;
use crate::observe::clock::Moment;

const SETS: usize = 256;

/// Accounts of a set, unless more have requests in hand.
const SET_MAX: usize = 16;

/// The limits of an instance, and the accounts of its callers.
pub(crate) struct Limits {
    limits: Box<[ResolvedLimit]>,
    own_user: u32,
    sets: Box<[Lock<Vec<Account>>]>,
    hasher: RandomState,
    start: Moment,
}

/// Why a request is too much, and how long it will be; part of the answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OverLimit {
    /// The place of the limit in its list.
    limit: usize,
    of: Measure,
    /// Nanoseconds until it is not; 0: when another request has ended.
    wait: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Measure {
    Calls,
    Bytes,
    Handlers,
    RequestBytes,
}

struct Account {
    caller: Principal,
    /// The place of its limit in the list, if it has one.
    limit: Option<usize>,
    /// All times are nanoseconds since the start.
    seen: u64,
    /// When the buckets will be full.
    calls_full: u64,
    bytes_full: u64,
    in_hand: u64,
    bytes_in_hand: u64,
}

/// A request that is counted until this is dropped.
pub(crate) struct Charge {
    limits: Arc<Limits>,
    caller: Principal,
    bytes: u64,
}

impl Limits {
    /// Makes those of an instance, if it has any.
    pub(crate) fn new(limits: &[ResolvedLimit], own_user: u32) -> Option<Arc<Self>> {
        let sets = (0..SETS).map(|_| Lock::new(Vec::new())).collect();
        let (hasher, start) = (RandomState::new(), Moment::now());
        let made = || Arc::new(Self { limits: limits.into(), own_user, sets, hasher, start });
        (!limits.is_empty()).then(made)
    }

    /// Counts a request with so many bytes of arguments, if it is not too much. `Some`: it counts
    /// until that is dropped.
    pub(crate) fn admit(
        self: &Arc<Self>,
        caller: Principal,
        bytes: u64,
    ) -> Result<Option<Charge>, OverLimit> {
        let counts = self.count_in(caller, bytes, self.now())?;
        Ok(counts.then(|| Charge { limits: self.clone(), caller, bytes }))
    }

    /// Returns the name of a limit.
    pub(crate) fn name_of(&self, over: &OverLimit) -> &str {
        &self.limits[over.limit].name
    }

    fn now(&self) -> u64 {
        Moment::now().nanos_since(self.start)
    }

    fn set_of(&self, caller: Principal) -> &Lock<Vec<Account>> {
        let hash = self.hasher.hash_one(caller) as usize;
        &self.sets[hash % SETS]
    }

    /// Counts a request in. `true`: it is to be counted out.
    fn count_in(&self, caller: Principal, bytes: u64, now: u64) -> Result<bool, OverLimit> {
        let mut set = self.set_of(caller).lock();
        let account = match set.iter().position(|account| account.caller == caller) {
            Some(at) => &mut set[at],
            None => self.open(&mut set, caller, now),
        };
        account.seen = now;
        let Some(limit) = account.limit else { return Ok(false) };
        account.charge(&self.limits[limit], bytes, now).map_err(|(of, wait)| OverLimit {
            limit,
            of,
            wait,
        })
    }

    /// Opens the account of a caller that has none.
    #[cold]
    fn open<'a>(&self, set: &'a mut Vec<Account>, caller: Principal, now: u64) -> &'a mut Account {
        while set.len() >= SET_MAX {
            let idle = set.iter().enumerate().filter(|(_, account)| account.in_hand == 0);
            let by_use = |(_, account): &(usize, &Account)| (!account.is_new(now), account.seen);
            let Some((least, _)) = idle.min_by_key(by_use) else { break };
            set.swap_remove(least);
        }
        let is_its = |limit: &ResolvedLimit| rules::is_one_of(&limit.who, self.own_user, caller);
        let limit = self.limits.iter().position(is_its);
        let (calls_full, bytes_full, in_hand, bytes_in_hand) = (0, 0, 0, 0);
        let new =
            Account { caller, limit, seen: now, calls_full, bytes_full, in_hand, bytes_in_hand };
        set.push(new);
        set.last_mut().expect("it was just pushed")
    }

    fn count_out(&self, caller: Principal, bytes: u64) {
        let mut set = self.set_of(caller).lock();
        // One with something in hand stays.
        let Some(at) = set.iter().position(|account| account.caller == caller) else { return };
        let is_crowded = set.len() > SET_MAX;
        let account = &mut set[at];
        account.in_hand -= 1;
        account.bytes_in_hand -= bytes;
        if is_crowded && account.in_hand == 0 && account.is_new(self.now()) {
            set.swap_remove(at);
        }
    }
}

impl Account {
    /// Returns whether it is as one that was just opened.
    fn is_new(&self, now: u64) -> bool {
        self.calls_full.max(self.bytes_full) <= now
    }

    /// Counts a request, or says of what it is too much, and for how long.
    fn charge(
        &mut self,
        limit: &ResolvedLimit,
        bytes: u64,
        now: u64,
    ) -> Result<bool, (Measure, u64)> {
        let ResolvedLimit { calls, bytes: of_bytes, handlers_max, request_bytes_max, .. } = limit;
        if handlers_max.is_some_and(|max| self.in_hand >= max) {
            return Err((Measure::Handlers, 0));
        }
        let others = self.bytes_in_hand;
        if request_bytes_max.is_some_and(|max| others > 0 && others.saturating_add(bytes) > max) {
            return Err((Measure::RequestBytes, 0));
        }
        let calls_full = taken(calls.as_ref(), self.calls_full, 1, now)
            .map_err(|wait| (Measure::Calls, wait))?;
        self.bytes_full = taken(of_bytes.as_ref(), self.bytes_full, bytes, now)
            .map_err(|wait| (Measure::Bytes, wait))?;
        self.calls_full = calls_full;
        let counts = handlers_max.is_some() || request_bytes_max.is_some();
        if counts {
            self.in_hand += 1;
            self.bytes_in_hand += bytes;
        }
        Ok(counts)
    }
}

/// Takes some out of a bucket that is full at a time. Returns when it will be full again, or how
/// long to wait. More than the bucket has room for is taken when it is full.
fn taken(rate: Option<&RateLimit>, full: u64, count: u64, now: u64) -> Result<u64, u64> {
    let Some(RateLimit { per_sec, burst, .. }) = rate else { return Ok(0) };
    let nanos = |count: u64| {
        let nanos = u128::from(count) * 1_000_000_000 / u128::from(*per_sec);
        u64::try_from(nanos).unwrap_or(u64::MAX)
    };
    let missing = full.saturating_sub(now).saturating_add(nanos(count.min(*burst)));
    match missing.saturating_sub(nanos(*burst)) {
        0 => Ok(full.max(now).saturating_add(nanos(count))),
        wait => Err(wait),
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.limits.count_out(self.caller, self.bytes);
    }
}

impl fmt::Display for OverLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = match self.of {
            Measure::Calls => "calls in a second",
            Measure::Bytes => "bytes in a second",
            Measure::Handlers => "requests at once",
            Measure::RequestBytes => "bytes of requests at once",
        };
        write!(f, "this caller is over its limit of {of}")?;
        match self.wait {
            0 => f.write_str("; try again when others have ended"),
            wait => write!(f, "; try again in {} ms", wait.div_ceil(1_000_000)),
        }
    }
}

#[cfg(test)]
#[path = "limits/tests.rs"]
mod tests;

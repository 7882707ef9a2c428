//! The databases that a client shares out keys among, and calls of one or several of them.
//!
//! A key belongs to the database for which [`weight`] is highest (rendezvous hashing): one more
//! takes its share from each of the others, and no key moves between those. All clients compute it
//! alike, so the function does not change. Of a database with several shards, each is a member.

use std::time::{Duration, Instant};

use margo::encoding::Bytes;
use margo::{ForwardError, ForwardRequest, Instance, ProviderHandle, Rpc};
use serde::Serialize;
use serde::de::DeserializeOwned;
use twox_hash::XxHash64;

use super::bad_answer;
use crate::rpc::{Found, KvStat, Meta, READ, ReadArgs, routed, shard_of_key};
use crate::{ClientError, KvError};

/// A request that is under way.
pub(super) type Started<R> = Result<ForwardRequest<Result<R, KvError>>, ForwardError>;

/// A database, or a shard of one, and the provider that serves it.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) instance: Instance,
    pub(super) target: ProviderHandle,
    /// The id of the database. Any where there is only one.
    pub(super) id: u64,
    /// The shard, if the database has several.
    pub(super) shard: Option<u8>,
}

/// The members that a database is, which has told its figures.
pub(super) fn of_database(alone: Member, told: &KvStat) -> impl Iterator<Item = Member> + use<> {
    let KvStat { id, shards, instance_shards, .. } = *told;
    (0..shards).map(move |shard| {
        let Member { instance, target, .. } = alone.clone();
        let target = match instance_shards {
            2.. if shards > 1 => target.in_shard(shard % instance_shards),
            _ => target,
        };
        Member { instance, target, id, shard: (shards > 1).then_some(shard) }
    })
}

/// The members by database.
pub(super) fn databases(members: &[Member]) -> impl Iterator<Item = &[Member]> {
    members.chunk_by(|one, next| one.id == next.id)
}

/// Returns which member has a key. They are in the order of their ids and shards.
pub(super) fn owner(members: &[Member], key: &[u8]) -> usize {
    if members.len() == 1 {
        return 0;
    }
    let (routed, mut first) = (routed(key), 0);
    let weighed = databases(members).map(|shards| {
        let at = first;
        first += shards.len();
        (weight(shards[0].id, routed), at, shards.len())
    });
    // Of equal weights the last one counts.
    weighed.max().map_or(0, |(_, at, shards)| at + shard_of_key(key, shards))
}

/// XXH64 of the key, with the id of the database as its seed.
fn weight(id: u64, key: &[u8]) -> u64 {
    XxHash64::oneshot(id, key)
}

/// Waits for requests that were started at the same time.
pub(super) fn answers<R: DeserializeOwned>(
    started: Vec<Started<R>>,
) -> impl Iterator<Item = Result<R, ClientError>> {
    started.into_iter().map(answer)
}

/// Waits for a request.
pub(super) fn answer<R: DeserializeOwned>(started: Started<R>) -> Result<R, ClientError> {
    Ok(started?.wait()??)
}

/// The result of one key of a call whose other keys have other results.
pub(super) fn result_of_key(error: ClientError) -> KvError {
    match error {
        ClientError::Kv(error) => error,
        error => KvError::Unanswered(error.to_string()),
    }
}

/// Asks the owners of `keys`, all at the same time. Returns for each of them the places of its
/// keys, and its answer, which has as many items.
#[expect(clippy::type_complexity, reason = "a name would hide what it is")]
pub(super) fn ask_owners<'k, A: Serialize, R: DeserializeOwned>(
    members: &[Member],
    rpc: Rpc<A, Result<Vec<R>, KvError>>,
    keys: &[&'k [u8]],
    args: impl Fn(Vec<Bytes<&'k [u8]>>) -> A,
    limit: Duration,
) -> Vec<(Vec<usize>, Result<Vec<R>, ClientError>)> {
    let mut places = vec![Vec::new(); members.len()];
    for (place, key) in keys.iter().enumerate() {
        places[owner(members, key)].push(place);
    }
    let shares = places.into_iter().zip(members).filter(|(places, _)| !places.is_empty());
    let started = shares.map(|(places, member)| {
        let args = args(places.iter().map(|place| Bytes(keys[*place])).collect());
        (places, member.start(rpc, &args, limit))
    });
    let (places, started): (Vec<_>, Vec<_>) = started.unzip();
    let checked = answers(started).zip(&places).map(|(answer, places)| match answer {
        Ok(answer) if answer.len() != places.len() => {
            Err(bad_answer(format!("{} results for {} keys", answer.len(), places.len())))
        }
        answer => answer,
    });
    let checked: Vec<_> = checked.collect();
    places.into_iter().zip(checked).collect()
}

impl Member {
    /// Sends a request, whose answer is waited for later.
    pub(super) fn start<A: Serialize, R: DeserializeOwned>(
        &self,
        rpc: Rpc<A, Result<R, KvError>>,
        args: &A,
        limit: Duration,
    ) -> Started<R> {
        self.instance.rpc(rpc, &self.target, args).timeout(limit).start()
    }

    pub(super) fn call<A: Serialize, R: DeserializeOwned>(
        &self,
        rpc: Rpc<A, Result<R, KvError>>,
        args: &A,
        limit: Duration,
    ) -> Result<R, ClientError> {
        Ok(self.instance.forward_timed(rpc, &self.target, args, limit)??)
    }

    /// A value of `len` bytes, or of as many as it has by then; of a view, if one is given.
    pub(super) fn fetch(
        &self,
        key: &[u8],
        view: Option<u64>,
        mut len: u64,
        clock: Clock,
    ) -> Result<Found, ClientError> {
        loop {
            let mut value = Vec::new();
            let room = usize::try_from(len).unwrap_or(usize::MAX);
            value.try_reserve_exact(room).map_err(|_| ClientError::NoMemory { bytes: len })?;
            value.resize(room, 0);
            match self.read(key, view, &mut value, clock.left()) {
                Ok(meta) => {
                    value.truncate(usize::try_from(meta.len).unwrap_or(usize::MAX));
                    return Ok(Found { version: meta.version, value: Bytes(value) });
                }
                Err(ClientError::Kv(KvError::TooSmall { need })) if need > len => len = need,
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn read(
        &self,
        key: &[u8],
        view: Option<u64>,
        into: &mut [u8],
        limit: Duration,
    ) -> Result<Meta, ClientError> {
        let room = into.len() as u64;
        let meta = self.instance.memory().expose_mut(into, |bulk| {
            let args = ReadArgs { key: Bytes(key), view, bulk: bulk.clone() };
            self.call(READ.sending(), &args, limit)
        })??;
        match meta.len <= room {
            true => Ok(meta),
            false => Err(bad_answer(format!("{} bytes read into {room}", meta.len))),
        }
    }
}

/// The time that is left of a limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    begun: Instant,
    limit: Duration,
}

impl Clock {
    pub(super) fn of(limit: Duration) -> Self {
        Self { begun: Instant::now(), limit }
    }

    pub(super) fn left(self) -> Duration {
        self.limit.saturating_sub(self.begun.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use margo::ProviderId;

    use super::*;

    /// Members with these ids, none of which is there.
    fn members(instance: &Instance, ids: &[u64]) -> Vec<Member> {
        let addr = instance.lookup("na+sm://nobody-1").unwrap();
        let target = ProviderHandle::new(addr, ProviderId::new(1));
        let member = |id: &u64| Member {
            instance: instance.clone(),
            target: target.clone(),
            id: *id,
            shard: None,
        };
        ids.iter().map(member).collect()
    }

    #[test]
    fn weights_are_the_hash_that_is_written_down() {
        // From the tests of xxHash: nothing, with its prime number 2654435761 as the seed.
        assert_eq!(weight(2_654_435_761, b""), 0xac75_fda2_929b_17ef);
        // Without a seed.
        assert_eq!(weight(0, b""), 0xef46_db37_51d8_e999);
        assert_eq!(weight(0, b"abc"), 0x44bc_2cf5_ad77_0999);
    }

    #[test]
    fn one_more_member_takes_its_share_and_no_other_key_moves() {
        const KEYS: u32 = 40_000;
        let instance = Instance::builder("na+sm://").listen(false).start().unwrap();
        let ids: Vec<u64> = (1..=5_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        for count in 1..ids.len() {
            let (few, more) =
                (members(&instance, &ids[..count]), members(&instance, &ids[..=count]));
            let mut counts = vec![0; count + 1];
            for key in 0..KEYS {
                let key = format!("key/{key}");
                let (before, now) = (owner(&few, key.as_bytes()), owner(&more, key.as_bytes()));
                assert!(now == before || now == count, "{key} moved from {before} to {now}");
                counts[now] += 1;
            }
            let even = KEYS / more.len() as u32;
            let is_even = |count: &u32| (even * 95 / 100..even * 105 / 100).contains(count);
            assert!(counts.iter().all(is_even), "{counts:?}");
        }
        instance.finalize_and_wait().unwrap();
    }

    #[test]
    fn a_collection_has_one_owner() {
        let document = |id: u64| [b"events\0", &id.to_be_bytes()[..]].concat();
        assert_eq!(routed(b"events\0"), b"events");
        assert!((0..300).all(|id| routed(&document(id)) == b"events"));
        for key in
            [&b""[..], b"events", b"\0", b"\0\0\0\0\0\0\0\0\x01", b"a\0b", b"0123\0\0\0\0\0\0"]
        {
            assert_eq!(routed(key), key);
        }
    }
}

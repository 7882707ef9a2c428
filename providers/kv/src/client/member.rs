//! A database, or a shard of one, that a client calls; and calls of several at the same time.

use std::time::{Duration, Instant};

use margo::encoding::Bytes;
use margo::{ForwardError, ForwardRequest, Instance, ProviderHandle, Rpc};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::bad_answer;
use crate::rpc::{Found, Meta, READ, ReadArgs};
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

/// The members that a database is, of so many shards, in an instance of so many.
pub(super) fn of_database(
    alone: Member,
    shards: u8,
    instance_shards: u8,
) -> impl Iterator<Item = Member> + use<> {
    (0..shards).map(move |shard| {
        let Member { instance, target, id, .. } = alone.clone();
        let target = match instance_shards {
            2.. if shards > 1 => target.in_shard(shard % instance_shards),
            _ => target,
        };
        Member { instance, target, id, shard: (shards > 1).then_some(shard) }
    })
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

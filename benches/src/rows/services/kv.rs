//! Rows `services.kv.*`: a key-value provider, keys of 32 bytes, values of 100.
//!
//! - `services.kv.{sm,tcp}.{hashed,ordered,redb,lmdb}.{get,put}.SIZE`: calls per second of 32 ULTs
//!   at the origin's only xstream, on random keys of as many as the id says; puts replace values.
//!   Floor: an RPC that carries the same bytes both ways and does nothing, alternating. The target
//!   has one xstream, too. Beside it: the store by itself in a loop ([`alone`]), and
//!   what one core could do that does both, an RPC and then that.
//! - `services.kv.sm.{redb,fjall,lmdb}.put.synced`: the same with puts that are on the disk when
//!   they are answered. No floor: what a disk does between two syncs is its own.
//! - `services.kv.sm.{hashed,ordered}.get_many.{10k,1m}`: keys per second of 4 ULTs that ask for
//!   1,000 keys at a time. No floor.

use std::sync::Arc;
use std::time::{Duration, Instant};

use margo::encoding::Bytes;
use margo::{Instance, ProviderHandle, ProviderId, Rpc};
use margo_provider_kv::{Found, GetArgs, KvClient, KvConfig, KvError, KvProvider, StoreConfig};
use ult::PoolRef;

use super::alone;
use super::subject::{Picks, Spec, Store, VALUE, Work, key};
use crate::base::{Doing, Effort, Failure, Figure, Result};
use crate::process::Context;
use crate::rows::rpc::pair::{Pair, Settings, WaitPolicy, serve};
use crate::rows::ult::on_ult::on_ult;

const PROVIDER: ProviderId = ProviderId::new(1);

/// ULTs that call.
const CALLERS: u64 = 32;

/// Calls of each in one sample.
const CALLS: u64 = 32;

/// ULTs, calls of each in one sample, and keys of one call.
const MANY: (u64, u64, u64) = (4, 4, 1_000);

/// The store by itself, and an RPC and the store one after the other, in rows beside them.
pub(crate) const ALONE: &str = "the store alone";
pub(crate) const BOTH: &str = "an echo and the store";

/// For a call.
const LIMIT: Duration = Duration::from_secs(30);

/// Carries what [`margo_provider_kv::GET`] does.
const GET_ECHO: Rpc<GetArgs, Result<Found, KvError>> = Rpc::new("bench_get_echo");

/// Carries the bytes of a put.
const PUT_ECHO: Rpc<(Bytes, Bytes), u64> = Rpc::new("bench_put_echo");

fn settings(spec: Spec) -> Settings {
    Settings { transport: spec.transport, patience: WaitPolicy::Poll }
}

/// The peer's part.
///
/// # Errors
///
/// When margo or the provider does not start.
pub(crate) fn peer(_context: &Context, spec: Spec) -> Result<()> {
    let mut kept = None;
    let register = |instance: &Instance| {
        let folder = tempfile::tempdir().doing("making a folder for the store")?;
        let store = match spec.store {
            Store::Memory(order) => StoreConfig::memory(order),
            Store::Disk(kind) => StoreConfig::new(kind, folder.path().join("store")),
        };
        let provider = instance.provider(PROVIDER, &instance.layout().rpc_pool());
        let running = KvProvider::start(provider, &KvConfig::new(store));
        let running = running.doing("starting the provider")?;
        instance.serve(GET_ECHO).in_place(|_, _, handle| {
            let found = Found { version: 1, value: Bytes(&VALUE[..]) };
            // An origin that is gone needs no answer.
            let _ = handle.respond_as(&Ok::<_, KvError>(found));
        })?;
        instance.serve(PUT_ECHO).in_place(|_, _, handle| drop(handle.respond(&1)))?;
        kept = Some((running, folder));
        Ok(())
    };
    serve(settings(spec), register, || Ok(()))?;
    drop(kept);
    Ok(())
}

/// Makes `calls` calls on each of `callers` ULTs, and returns how long that takes. On a ULT.
fn flow<F>(pool: &PoolRef, (callers, calls): (u64, u64), call: &Arc<F>) -> Result<Duration>
where
    F: Fn() -> Result<()> + Send + Sync + 'static,
{
    let begin = Instant::now();
    let spawn = |_| {
        let call = call.clone();
        pool.spawn(move || (0..calls).try_for_each(|_| call()))
    };
    for caller in (0..callers).map(spawn).collect::<Vec<_>>() {
        caller?.join()??;
    }
    Ok(begin.elapsed())
}

/// Puts all keys.
fn fill(kv: &KvClient, keys: u64) -> Result<()> {
    for from in (0..keys).step_by(1_000) {
        let some: Vec<_> = (from..keys.min(from + 1_000)).map(key).collect();
        let batch = some.iter().fold(kv.batch(), |batch, key| batch.put(key, &VALUE));
        for outcome in batch.run(LIMIT).doing("filling the store")? {
            outcome.doing("filling the store")?;
        }
    }
    Ok(())
}

/// Calls by the origin, and what they cost without a store.
struct Origin {
    kv: KvClient,
    instance: Instance,
    target: ProviderHandle,
    picks: Picks,
}

impl Origin {
    fn get(&self) -> Result<()> {
        let found = self.kv.get(&self.picks.key(), LIMIT).doing("getting")?;
        if found.value.len() == VALUE.len() { Ok(()) } else { Err(Failure::new("a wrong value")) }
    }

    fn put(&self) -> Result<()> {
        self.kv.put(&self.picks.key(), &VALUE, LIMIT).doing("putting").map(drop)
    }

    fn get_many(&self) -> Result<()> {
        let keys: Vec<_> = (0..MANY.2).map(|_| self.picks.key()).collect();
        let keys: Vec<&[u8]> = keys.iter().map(<[u8; 32]>::as_slice).collect();
        for found in self.kv.get_many(&keys, LIMIT).doing("getting many")? {
            found.doing("getting many")?;
        }
        Ok(())
    }

    fn echo(&self, work: Work) -> Result<()> {
        let key = self.picks.key();
        let key = Bytes(&key[..]);
        let Self { instance, target, .. } = self;
        if work == Work::Get {
            let args = GetArgs { key, most: 1 << 20 };
            let found = instance.forward_timed(GET_ECHO.sending(), target, &args, LIMIT);
            found.doing("calling")?.doing("calling")?;
        } else {
            let args = (key, Bytes(&VALUE[..]));
            let told = instance.forward_timed(PUT_ECHO.sending(), target, &args, LIMIT);
            told.doing("calling")?;
        }
        Ok(())
    }
}

/// Measures a row.
///
/// # Errors
///
/// When one of the two sides does not do its part in time.
pub(crate) fn run(context: &Context, spec: Spec) -> Result<Figure> {
    let deadline = context.deadline;
    let keys = if context.quick { spec.keys.min(500) } else { spec.keys };
    let (pair, ()) = Pair::start(context, settings(spec), (), || Ok(()))?;
    let (instance, target) = (pair.instance.clone(), pair.target.clone());
    let pool = instance.layout().rpc_pool();
    let callers = pool.clone();
    let (rounds, warmup, round_max) = if context.quick { (1, 0, 20) } else { (10, 5, 500) };
    let round_max = Duration::from_millis(round_max);
    let effort = Effort { rounds, samples: 1_000, warmup, round_max };
    let alone = if is_synced(spec) { None } else { alone::rate(spec, keys, effort)? };
    let figure = on_ult(&pool, deadline, move || {
        let kv = KvClient::new(&instance, ProviderHandle::new(target.addr().clone(), PROVIDER));
        fill(&kv, keys)?;
        let picks = Picks::new(keys);
        let origin = Arc::new(Origin { kv, instance, target, picks });
        let echo = Arc::new({
            let origin = origin.clone();
            move || origin.echo(spec.work)
        });
        let call = Arc::new(move || match spec.work {
            Work::Get => origin.get(),
            Work::Put => origin.put(),
            Work::GetMany => origin.get_many(),
        });
        if spec.work == Work::GetMany {
            let (ults, calls, keys) = MANY;
            let per = u32::try_from(ults * calls * keys).unwrap_or(u32::MAX);
            let mut samples =
                effort.alone(per, |all| all.told(|| flow(&callers, (ults, calls), &call)))?;
            return Ok(Figure::median(samples.rate(), None));
        }
        let per = (CALLERS * CALLS) as u32;
        let work = (CALLERS, CALLS);
        if is_synced(spec) {
            let mut samples = effort.alone(per, |all| all.told(|| flow(&callers, work, &call)))?;
            return Ok(Figure::median(samples.rate(), None));
        }
        let rounds = effort.in_turns(
            [per, per],
            |floors| floors.told(|| flow(&callers, work, &echo)),
            |samples| samples.told(|| flow(&callers, work, &call)),
        )?;
        let figure = Figure::rate(rounds);
        let both = figure.floor.zip(alone).map(|(call, store)| 1.0 / (1.0 / call + 1.0 / store));
        Ok(figure.beside(ALONE, alone).beside(BOTH, both))
    })?;
    pair.stop(deadline)?;
    Ok(figure)
}

/// Returns whether the disk has a part in each call.
fn is_synced(spec: Spec) -> bool {
    matches!(spec.store, Store::Disk(_)) && spec.work == Work::Put
}

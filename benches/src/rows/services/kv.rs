//! Rows `services.kv.*`: a key-value provider, keys of 32 bytes, values of 100.
//!
//! - `services.kv.{sm,tcp}.{hashed,ordered,redb,lmdb}.{get,put}.SIZE`: calls per second of 32 ULTs
//!   at the origin's only xstream, on random keys of as many as the id says; puts replace values.
//!   Floor: an RPC that carries the same bytes both ways and does nothing, alternating. The target
//!   has one xstream, too.
//! - `services.kv.sm.{redb,fjall,lmdb}.put.synced`: the same with puts that are on the disk when
//!   they are answered. No floor: what a disk does between two syncs is its own.
//! - `services.kv.sm.{hashed,ordered}.get_many.{10k,1m}`: keys per second of 4 ULTs that ask for
//!   1,000 keys at a time. No floor.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use margo::encoding::Bytes;
use margo::{Instance, ProviderHandle, ProviderId, Rpc};
use margo_provider_kv::{
    Found, GetArgs, KvClient, KvConfig, KvError, KvProvider, MemoryOrder, StoreConfig, StoreKind,
};
use ult::PoolRef;

use crate::base::{Doing, Effort, Failure, Figure, Result};
use crate::floors::transport::Transport;
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

const VALUE: [u8; 100] = [7; 100];

/// For a call.
const LIMIT: Duration = Duration::from_secs(30);

/// Carries what [`margo_provider_kv::GET`] does.
const GET_ECHO: Rpc<GetArgs, Result<Found, KvError>> = Rpc::new("bench_get_echo");

/// Carries the bytes of a put.
const PUT_ECHO: Rpc<(Bytes, Bytes), u64> = Rpc::new("bench_put_echo");

/// The store that a row is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    /// In memory.
    Memory(MemoryOrder),
    /// In a file.
    Disk(StoreKind),
}

impl Store {
    /// The word in ids.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Memory(MemoryOrder::Ordered) => "ordered",
            Self::Memory(_) => "hashed",
            Self::Disk(StoreKind::Fjall) => "fjall",
            Self::Disk(StoreKind::Lmdb) => "lmdb",
            Self::Disk(_) => "redb",
        }
    }
}

/// The calls that a row makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// One key of a call.
    Get,
    /// One key of a call.
    Put,
    /// Many keys of a call.
    GetMany,
}

/// The subject of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spec {
    pub(crate) transport: Transport,
    pub(crate) store: Store,
    pub(crate) work: Work,
    pub(crate) keys: u64,
}

impl Spec {
    fn settings(self) -> Settings {
        Settings { transport: self.transport, patience: WaitPolicy::Poll }
    }
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
    serve(spec.settings(), register, || Ok(()))?;
    drop(kept);
    Ok(())
}

/// The key of that number: keys are as long as a hash, and in no order.
fn key(number: u64) -> [u8; 32] {
    let mut key = [0; 32];
    let mut state = number;
    for part in key.chunks_exact_mut(8) {
        state = mixed(state.wrapping_add(0x9e37_79b9_7f4a_7c15));
        part.copy_from_slice(&state.to_le_bytes());
    }
    key
}

/// The output function of `splitmix64`.
fn mixed(mut state: u64) -> u64 {
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// Random numbers of keys.
#[derive(Debug)]
struct Picks {
    next: AtomicU64,
    keys: u64,
}

impl Picks {
    fn key(&self) -> [u8; 32] {
        key(mixed(self.next.fetch_add(1, Ordering::Relaxed)) % self.keys)
    }
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
    let (pair, ()) = Pair::start(context, spec.settings(), (), || Ok(()))?;
    let (instance, target) = (pair.instance.clone(), pair.target.clone());
    let pool = instance.layout().rpc_pool();
    let callers = pool.clone();
    let (rounds, warmup, round_max) = if context.quick { (1, 0, 20) } else { (10, 5, 500) };
    let round_max = Duration::from_millis(round_max);
    let effort = Effort { rounds, samples: 1_000, warmup, round_max };
    let figure = on_ult(&pool, deadline, move || {
        let kv = KvClient::new(&instance, ProviderHandle::new(target.addr().clone(), PROVIDER));
        fill(&kv, keys)?;
        let picks = Picks { next: AtomicU64::new(0), keys };
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
        Ok(Figure::rate(rounds))
    })?;
    pair.stop(deadline)?;
    Ok(figure)
}

/// Returns whether the disk has a part in each call.
fn is_synced(spec: Spec) -> bool {
    matches!(spec.store, Store::Disk(_)) && spec.work == Work::Put
}

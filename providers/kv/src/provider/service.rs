//! The handlers, and the state that they share.
//!
//! Values in bulk transfers pass through memory of their own length: pulled ones become the bytes
//! that the database keeps, pushed ones are a copy of what it shows, since a view is not to be
//! waited in. All of it together is bounded (`budget.rs`).

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use margo::cancel::CancelToken;
use margo::encoding::Bytes;

use margo::ult::wait_any;
use margo::{Bulk, Handle, Instance, RespondError};

use super::budget::Budget;
use super::members::Members;
use super::scan;
use super::shards;
use super::views::{ServedView, Views};
use super::waiters::{Waiters, Wake};
use crate::config::KvConfig;
use crate::engine::{Database, Record, Stats, View};
use crate::members::shard_of_key;
use crate::model::{Batch, Change, Changed, Condition, Durability, Outcomes};
use crate::rpc::{
    ChangeArgs, CountArgs, Entry, Found, GetArgs, GetManyArgs, KvStat, ListArgs, Meta, Page,
    PageToken, Part, PutArgs, ReadArgs, WaitArgs,
};
use crate::{KvError, StartError, StoreKind};

/// Bytes of a page for each entry, besides its key and value.
const ENTRY_BYTES: u64 = 48;

/// Keys that are looked up before other requests have their turn.
const STEP: usize = 256;

pub(super) struct Service {
    /// One for each shard.
    pub(super) databases: Box<[Database]>,
    pub(super) views: Views,
    pub(super) waiters: Waiters,
    pub(super) members: Members,
    pub(super) budget: Budget,
    page_bytes: u64,
    key_bytes: u64,
    pub(super) is_in_memory: bool,
}

/// A request without its arguments.
type Request<R> = Handle<(), Result<R, KvError>>;

/// Logs that there was nobody to answer: the origin is gone, or this instance is closed.
pub(super) fn say_if_untold<R>(request: &Request<R>, told: Result<(), RespondError>) {
    if let Err(error) = told {
        tracing::debug!(rpc = request.rpc_name(), %error, "no answer");
    }
}

impl Service {
    pub(super) fn new(config: &KvConfig) -> Result<Self, StartError> {
        config.check()?;
        let databases = open(config)?;
        Ok(Self {
            members: Members::new(&databases)?,
            databases,
            // A list of all shards has a view of each.
            views: Views::new(config.views.saturating_mul(config.shards), config.view_idle()),
            waiters: Waiters::new(config.waiters),
            budget: Budget::new(config.bulk_bytes),
            page_bytes: config.page_bytes,
            key_bytes: config.store.max_key_bytes as u64,
            is_in_memory: config.store.kind == StoreKind::Memory,
        })
    }

    /// The database that has a key.
    pub(super) fn database(&self, key: &[u8]) -> &Database {
        &self.databases[shard_of_key(key, self.databases.len())]
    }

    /// All databases as they are.
    fn shown(&self) -> Result<Vec<Arc<dyn View>>, KvError> {
        self.databases.iter().map(Database::view).collect()
    }

    /// The error of a key that the database does not have: it may have been erased since it was
    /// asked for, as another one serves it now.
    fn absent(&self, key: &[u8]) -> KvError {
        self.members.reads(key).err().unwrap_or(KvError::NotFound)
    }

    /// Answers from where the store has the value, or with an error.
    pub(super) fn get(&self, args: GetArgs<Bytes<&[u8]>>, request: &Request<Found>) {
        let GetArgs { key, most } = args;
        let mut told = Ok(());
        let shown = self.members.reads(&key).and_then(|()| {
            self.database(&key).view()?.get(&key, &mut |Record { version, value }| {
                let need = value.len() as u64;
                let found = match need > most {
                    true => Err(KvError::TooSmall { need }),
                    false => Ok(Found { version, value: Bytes(value) }),
                };
                told = request.respond_as(&found);
            })
        });
        let failed = match shown {
            Ok(true) => None,
            Ok(false) => Some(self.absent(&key)),
            Err(error) => Some(error),
        };
        if let Some(error) = failed {
            told = request.respond(&Err(error));
        }
        say_if_untold(request, told);
    }

    /// Gathers all values in one buffer: an allocation for each costs more than to look it up.
    pub(super) fn get_many(
        &self,
        args: GetManyArgs<Bytes<&[u8]>>,
        request: &Request<Vec<Result<Found, KvError>>>,
    ) {
        let views = match self.shown() {
            Ok(views) => views,
            Err(error) => return say_if_untold(request, request.respond(&Err(error))),
        };
        let (mut values, page_bytes) = (Vec::new(), self.page_bytes);
        let served = self.members.served();
        let mut places = vec![Err(KvError::NotFound); args.keys.len()];
        for from in (0..args.keys.len()).step_by(STEP) {
            if from > 0 {
                margo::ult::yield_now();
            }
            // By shard, without keys of other servers.
            let mut asked = vec![Vec::with_capacity(STEP / views.len()); views.len()];
            for (at, key) in args.keys.iter().enumerate().skip(from).take(STEP) {
                match served.reads(key) {
                    Ok(()) => asked[shard_of_key(key, views.len())].push((at, &**key)),
                    Err(moved) => places[at] = Err(moved),
                }
            }
            for (view, asked) in views.iter().zip(asked) {
                view.get_each(&asked, &mut |at, record| {
                    places[at] = record.and_then(|Record { version, value }| {
                        let (from, need) = (values.len(), value.len() as u64);
                        if need > args.most.min(page_bytes - from as u64) {
                            return Err(KvError::TooSmall { need });
                        }
                        values.extend_from_slice(value);
                        Ok((version, from..values.len()))
                    });
                });
            }
        }
        let found = places.into_iter().zip(&args.keys).map(|(place, key)| match place {
            Ok((version, place)) => Ok(Found { version, value: Bytes(&values[place]) }),
            Err(KvError::NotFound) => Err(self.absent(key)),
            Err(error) => Err(error),
        });
        let found = Ok::<Vec<_>, KvError>(found.collect());
        say_if_untold(request, request.respond_as(&found));
    }

    pub(super) fn read<R>(&self, request: &Handle<ReadArgs, R>) -> Result<Meta, KvError> {
        let ReadArgs { key, view, bulk } = request.args();
        let view = match view {
            Some(id) => self.views.find(*id, request.origin())?.records,
            None => {
                self.members.reads(key)?;
                self.database(key).view()?
            }
        };
        let token = request.cancel_token();
        loop {
            let measured = measure(&*view, key)?;
            let Meta { len, .. } = measured.ok_or_else(|| self.absent(key))?;
            let most = self.budget.most();
            if len > bulk.len() {
                return Err(KvError::TooSmall { need: len });
            }
            if len > most {
                return Err(KvError::TooLong { what: "a value".to_owned(), len, most });
            }
            let taken = self.budget.take(request.principal(), len, token.event());
            let _loan = taken.ok_or(KvError::Deadline)?;
            let Some((version, value)) = copy(&*view, key, len)? else {
                // In memory it may be another one by now.
                continue;
            };
            let meta = Meta { version, len: value.len() as u64 };
            let memory = request.instance().memory();
            let mut value = memory.bulk_segments(vec![value]).map_err(failed)?;
            let all = 0..value.len();
            request.push(bulk, 0, &mut value, all).map_err(failed)?;
            return Ok(meta);
        }
    }

    pub(super) fn measure<R>(
        &self,
        request: &Handle<Vec<Bytes>, R>,
    ) -> Result<Vec<Option<Meta>>, KvError> {
        let (views, served) = (self.shown()?, self.members.served());
        let each = |(at, key): (usize, &Bytes)| {
            if at % STEP == STEP - 1 {
                margo::ult::yield_now();
            }
            served.reads(key)?;
            match measure(&*views[shard_of_key(key, views.len())], key)? {
                None => self.members.reads(key).map(|()| None),
                measured => Ok(measured),
            }
        };
        request.args().iter().enumerate().map(each).collect()
    }

    /// Sets a value in memory, without a batch if nothing else has to be looked at.
    pub(super) fn put(
        &self,
        args: PutArgs<Bytes<&[u8]>>,
        request: &Request<u64>,
    ) -> Result<u64, KvError> {
        let PutArgs { key, value, when, durability } = args;
        if when == Condition::Always {
            self.views.sweep(Instant::now);
            let wake = Wake::of_key(&key, &self.waiters);
            if let Some(version) = self.database(&key).put(&key, &value)? {
                self.waiters.wake(wake);
                return Ok(version);
            }
        }
        let own = |bytes: Bytes<&[u8]>| Bytes(bytes.to_vec());
        let args = PutArgs { key: own(key), value: own(value), when: when.map(own), durability };
        self.put_by_batch(args, request)
    }

    pub(super) fn put_by_batch(
        &self,
        args: PutArgs,
        request: &Request<u64>,
    ) -> Result<u64, KvError> {
        let PutArgs { key, value, when, durability } = args;
        let changes = vec![Change::Put { key, value, when }];
        let batch = Batch { changes, ..Batch::default() };
        match self.apply(batch, (0, durability), request)?.pop() {
            Some(Ok(Changed::Put { version })) => Ok(version),
            Some(Err(error)) => Err(error),
            other => Err(KvError::Failed(format!("{other:?} for a put"))),
        }
    }

    pub(super) fn change(
        &self,
        args: ChangeArgs,
        request: &Request<Outcomes>,
    ) -> Result<Outcomes, KvError> {
        let ChangeArgs { batch, durability, bulk, skip, epoch } = args;
        let batch = match bulk {
            None => batch.try_map(|part| match part {
                Part::Here(bytes) => Ok(bytes),
                Part::There(_) => Err(invalid("a part is elsewhere, and no memory is exposed")),
            })?,
            Some(bulk) => {
                return self.change_from((&bulk, skip), batch, (epoch, durability), request);
            }
        };
        self.apply(batch, (epoch, durability), request)
    }

    /// Makes changes of which some parts are in the memory of the origin, from `skip` on.
    fn change_from(
        &self,
        (bulk, skip): (&Bulk, u64),
        batch: Batch<Part>,
        asked: (u64, Option<Durability>),
        request: &Request<Outcomes>,
    ) -> Result<Outcomes, KvError> {
        let (mut lens, mut sum) = (Vec::new(), 0_u64);
        let batch = batch.try_map(|part| {
            if let Part::There(len) = part {
                lens.push(len);
                sum = sum.checked_add(len).ok_or_else(|| invalid("parts beyond all memory"))?;
            }
            Ok(part)
        })?;
        if sum.checked_add(skip).is_none_or(|end| end > bulk.len()) {
            return Err(invalid("parts are longer than the memory that is exposed"));
        }
        let most = self.budget.most();
        if sum > most {
            return Err(KvError::TooLong { what: "a batch".to_owned(), len: sum, most });
        }
        let token = request.cancel_token();
        let taken = self.budget.take(request.principal(), sum, token.event());
        // Held until the database has the values.
        let _loan = taken.ok_or(KvError::Deadline)?;
        let parts = lens.iter().map(|len| zeroed(*len, *len)).collect::<Result<_, _>>()?;
        let mut parts = request.instance().memory().bulk_segments(parts).map_err(failed)?;
        let all = 0..parts.len();
        request.pull(bulk, skip, &mut parts, all).map_err(failed)?;
        let mut parts = parts.into_segments().into_iter();
        let batch = batch.try_map(|part| match part {
            Part::Here(bytes) => Ok(bytes),
            Part::There(_) => parts.next().map(Bytes).ok_or_else(|| invalid("a part is missing")),
        })?;
        self.apply(batch, asked, request)
    }

    fn apply<R>(
        &self,
        batch: Batch,
        (epoch, durability): (u64, Option<Durability>),
        request: &Request<R>,
    ) -> Result<Outcomes, KvError> {
        // Old views cost something from now on: the store keeps for them what is changed.
        self.views.sweep(Instant::now);
        let wake = Wake::of(&batch, &self.waiters);
        let outcomes =
            shards::apply(&self.databases, batch, epoch, durability, request.deadline())?;
        self.waiters.wake(wake);
        Ok(outcomes)
    }

    pub(super) fn count<R>(&self, request: &Handle<CountArgs, R>) -> Result<u64, KvError> {
        let (token, args) = (request.cancel_token(), request.args());
        self.members.steadily(args.epoch, |served| {
            let mut count = 0;
            for view in self.shown()? {
                scan::walk(&*view, &args.selection, None, &token, &mut |key, _| {
                    count += u64::from(served.reads(key).is_ok());
                    ControlFlow::Continue(())
                })?;
            }
            Ok(count)
        })
    }

    pub(super) fn list<R>(&self, request: &Handle<ListArgs, R>) -> Result<Page, KvError> {
        let (args, owner) = (request.args(), request.origin());
        let canceled = request.cancel_token();
        if let Some(PageToken { view: id, .. }) = args.token {
            let view = self.views.find(id, owner)?;
            let page = Filling::of(&view, args, self.page_bytes, &canceled)?;
            if !page.is_full {
                self.views.end(id, owner);
            }
            return Ok(page.page(|| id));
        }
        let shard = match (args.shard, self.databases.len()) {
            (None, 1) => 0,
            (None, shards) => {
                return Err(invalid(&format!("there are {shards} shards, and it names none")));
            }
            (Some(shard), _) => usize::from(shard),
        };
        let database =
            self.databases.get(shard).ok_or_else(|| invalid("there is no such shard"))?;
        let (page, view) = self.members.steadily(args.epoch, |served| {
            let mut view = ServedView { records: database.view()?, served: served.clone() };
            let mut page = Filling::of(&view, args, self.page_bytes, &canceled)?;
            if page.is_full && self.is_in_memory {
                // Only what is on disk keeps old records by itself, and most lists have one page.
                view.records = database.snapshot()?;
                page = Filling::of(&view, args, self.page_bytes, &canceled)?;
            }
            Ok((page, view))
        })?;
        Ok(page.page(|| self.views.keep(owner, request.principal(), view)))
    }

    pub(super) fn wait<R>(&self, request: &Handle<WaitArgs, R>) -> Result<Found, KvError> {
        let WaitArgs { key, above, most } = request.args();
        let (len, most_bytes) = (key.len() as u64, self.key_bytes);
        if len > most_bytes {
            // It is never there, and would be kept for nothing.
            return Err(KvError::TooLong { what: "a key".to_owned(), len, most: most_bytes });
        }
        let token = request.cancel_token();
        loop {
            let waiting = self.waiters.enter(request.principal(), key)?;
            self.members.reads(key)?;
            match find(&*self.database(key).view()?, key, above.saturating_add(1), *most) {
                Err(KvError::NotFound) => {}
                found => return found,
            }
            let (closed, closing) = (self.waiters.closed(), request.closing());
            match wait_any(&[waiting.woken(), closed, closing, token.event()], None) {
                Some(0) => {}
                Some(1 | 2) => return Err(KvError::Closing),
                _ => return Err(KvError::Deadline),
            }
        }
    }

    pub(super) fn flush<R>(&self, request: &Handle<(), R>) -> Result<(), KvError> {
        self.databases.iter().try_for_each(|database| database.flush(request.deadline()))
    }

    pub(super) fn stat(&self, instance: &Instance) -> KvStat {
        let all: Vec<_> = self.databases.iter().map(Database::stats).collect();
        let sum = |figure: fn(&Stats) -> u64| all.iter().map(figure).sum();
        // As long ago as of the one that has waited longest.
        let since_sync = all.iter().filter_map(|stats| stats.since_sync).max();
        KvStat {
            id: all[0].id,
            shards: all.len() as u8,
            instance_shards: instance.layout().progress_pools().count() as u8,
            keys: sum(|stats| stats.keys),
            bytes: sum(|stats| stats.bytes),
            queued_requests: sum(|stats| stats.queued_requests as u64),
            queued_bytes: sum(|stats| stats.queued_bytes as u64),
            commits: sum(|stats| stats.commits),
            changes: sum(|stats| stats.changes),
            ms_since_sync: since_sync.map(|time| time.as_millis() as u64),
            views: self.views.len() as u64,
            waiters: self.waiters.len() as u64,
            bulk_bytes: self.budget.bytes(),
        }
    }
}

/// Opens the database of each shard.
fn open(config: &KvConfig) -> Result<Box<[Database]>, KvError> {
    let shards = config.store.of_shards(config.shards as usize)?;
    let mut databases = shards.iter().rev().map(Database::open).collect::<Result<Box<[_]>, _>>()?;
    databases.reverse();
    Ok(databases)
}

/// A page that is being filled.
struct Filling {
    entries: Vec<Entry>,
    left: u64,
    is_full: bool,
}

impl Filling {
    /// The page of a view that `args` ask for.
    fn of(
        view: &ServedView,
        args: &ListArgs,
        page_bytes: u64,
        canceled: &CancelToken,
    ) -> Result<Self, KvError> {
        let ServedView { records, served } = view;
        let ListArgs { selection, values, max, token, .. } = args;
        let after = token.as_ref().map(|token| &token.after);
        // A page that has no entries would not get on.
        let max = usize::try_from(*max).unwrap_or(usize::MAX).max(1);
        let mut page = Self { entries: Vec::new(), left: page_bytes, is_full: false };
        scan::walk(&**records, selection, after, canceled, &mut |key, record| {
            match served.reads(key) {
                Ok(()) => page.add(key, record, *values, max, page_bytes),
                // It is in the list of another server.
                Err(_) => ControlFlow::Continue(()),
            }
        })?;
        Ok(page)
    }

    /// The page, with the place to go on if there is more; `keep` tells the id of its view.
    fn page(self, keep: impl FnOnce() -> u64) -> Page {
        let Self { entries, is_full, .. } = self;
        let last = entries.last().filter(|_| is_full);
        let next = last.map(|last| PageToken { view: keep(), after: last.key.clone() });
        Page { entries, next }
    }

    fn add(
        &mut self,
        key: &[u8],
        Record { version, value }: Record<'_>,
        values: bool,
        max: usize,
        page_bytes: u64,
    ) -> ControlFlow<()> {
        let len = value.len() as u64;
        let is_long = values && len > page_bytes;
        let shown = (values && !is_long).then_some(value);
        let need = key.len() as u64 + ENTRY_BYTES + shown.map_or(0, |value| value.len() as u64);
        if self.entries.len() >= max || (need > self.left && !self.entries.is_empty()) {
            self.is_full = true;
            return ControlFlow::Break(());
        }
        self.left = self.left.saturating_sub(need);
        let (key, value) = (Bytes(key.to_vec()), shown.map(|value| Bytes(value.to_vec())));
        self.entries.push(Entry { key, version, len, value });
        // Its view is kept until it has been read.
        self.is_full = is_long;
        if is_long { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// The record of `key`, if it has version `least` or a later one, unless its value has more than
/// `most` bytes.
fn find(view: &dyn View, key: &[u8], least: u64, most: u64) -> Result<Found, KvError> {
    let mut found = Err(KvError::NotFound);
    view.get(key, &mut |Record { version, value }| {
        let need = value.len() as u64;
        found = match version >= least {
            false => Err(KvError::NotFound),
            true if need > most => Err(KvError::TooSmall { need }),
            true => Ok(Found { version, value: Bytes(value.to_vec()) }),
        };
    })?;
    found
}

fn measure(view: &dyn View, key: &[u8]) -> Result<Option<Meta>, KvError> {
    let mut found = None;
    view.get(key, &mut |Record { version, value }| {
        found = Some(Meta { version, len: value.len() as u64 });
    })?;
    Ok(found)
}

/// A copy of the record of `key`, if there is one with at most `most` bytes.
fn copy(view: &dyn View, key: &[u8], most: u64) -> Result<Option<(u64, Vec<u8>)>, KvError> {
    let (mut value, mut found) = (zeroed(0, most)?, None);
    view.get(key, &mut |record| {
        if record.value.len() as u64 <= most {
            value.extend_from_slice(record.value);
            found = Some(record.version);
        }
    })?;
    Ok(found.map(|version| (version, value)))
}

/// So many zeros, with room for more, where there is memory for it.
pub(super) fn zeroed(len: u64, room: u64) -> Result<Vec<u8>, KvError> {
    let full = || KvError::Full(format!("no memory for {room} bytes"));
    let (len, room) = (usize::try_from(len), usize::try_from(room));
    let (Ok(len), Ok(room)) = (len, room) else { return Err(full()) };
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(room).map_err(|_| full())?;
    bytes.resize(len, 0);
    Ok(bytes)
}

pub(super) fn invalid(text: &str) -> KvError {
    KvError::Invalid(text.to_owned())
}

/// An error of a bulk transfer.
pub(super) fn failed(error: margo::BulkError) -> KvError {
    KvError::Failed(format!("the value was not moved: {error}"))
}

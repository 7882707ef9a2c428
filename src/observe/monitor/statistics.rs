//! Statistics: the types of a snapshot ([`Statistics`]), and the store that snapshots are taken of
//! ([`Store`]).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hg::{RpcId, margo};
use serde::{Deserialize, Serialize};

use super::histogram::{Distribution, Figures};
use super::rows::{About, OTHER_RPCS_NAME, Rest, Row, RowCounts, RowTable};
use crate::observe::span::{BulkDirection, BulkOutcome, BulkSpan, CallOutcome, OriginSpan};
use crate::observe::span::{RequestOutcome, TargetSpan};

/// Defines quantities twice: as distributions, which are kept, and as figures, which are told.
macro_rules! quantities {
    ($(#[$meta:meta])* $told:ident, $kept:ident { $($(#[$doc:meta])* $field:ident,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[non_exhaustive]
        pub struct $told { $($(#[$doc])* pub $field: Figures,)* }

        impl $told {
            /// All of them with their names.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, &Figures)> {
                [$((stringify!($field), &self.$field)),*].into_iter()
            }

            /// Takes those of `other` in, as if all had been seen together.
            pub fn merge(&mut self, other: &Self) {
                $(self.$field.merge(&other.$field);)*
            }
        }

        #[derive(Debug, Clone, Default)]
        pub(super) struct $kept { $($field: Distribution,)* }

        impl $kept {
            fn told(&self) -> $told {
                $told { $($field: self.$field.figures(),)* }
            }
        }
    };
}

quantities! {
    /// The times of calls at their origin, nanoseconds, and sizes, bytes. A phase that a call did
    /// not come to is not in it.
    ///
    /// ```
    /// # const PING: margo::Rpc<(), ()> = margo::Rpc::new("ping");
    /// let instance = margo::Instance::builder("na+sm://").start()?;
    /// # instance.serve(PING).function(|()| ())?;
    /// instance.monitoring().start_statistics(1);
    /// instance.forward(PING, &instance.self_addr().into(), &())?;
    /// let figures = &instance.monitoring().statistics().origin[0].figures;
    /// println!("{} ns, of which {} away", figures.total.mean, figures.network.mean);
    /// assert_eq!(figures.total.count, 1);
    /// # instance.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    OriginFigures, OriginKept {
        /// Encoding the arguments.
        encode,
        /// From the beginning until the network had taken the request: encoding is part of it.
        send,
        /// From there until the response, or the end of the call, was here: both ways, and all
        /// that the target did.
        network,
        /// From there until the caller looked at it: its ULT had to get its turn.
        wake,
        /// Decoding the result.
        decode,
        /// From the beginning to the decoded result, or to the end of a call that has none.
        total,
        /// From the beginning until encoding began.
        encode_at,
        /// From the beginning until the response, or the end of the call, was here.
        arrived_at,
        /// From when the network had taken the request until the caller looked at the end.
        waited,
        /// Size of the encoded arguments.
        bytes_out,
        /// Size of the encoded result.
        bytes_in,
    }
}

quantities! {
    /// The times of requests at their target, nanoseconds, and sizes, bytes. A phase that a
    /// request did not come to is not in it.
    ///
    /// ```
    /// # const LEN: margo::Rpc<String, usize> = margo::Rpc::new("len");
    /// let instance = margo::Instance::builder("na+sm://").start()?;
    /// # instance.serve(LEN).function(|text| text.len())?;
    /// instance.monitoring().start_statistics(1);
    /// instance.forward(LEN, &instance.self_addr().into(), &"four".to_owned())?;
    /// instance.finalize_and_wait()?; // Now its handlers have ended.
    /// let figures = &instance.monitoring().statistics().target[0].figures;
    /// for (name, figures) in figures.each() {
    ///     println!("{name}: {}", figures.mean);
    /// }
    /// assert_eq!((figures.run.count, figures.bulk.count), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    TargetFigures, TargetKept {
        /// From when the request was here until it had passed all bounds on requests in hand.
        admission,
        /// From there until its ULT began.
        queue,
        /// From there until its arguments were decoded.
        decode,
        /// From there until the handler's ULT ended.
        run,
        /// Bulk transfers of the handler's ULT, added up; only of requests that made some.
        bulk,
        /// Encoding the result and giving it to the network.
        respond,
        /// From there until the network had taken all of it.
        network,
        /// From when the request was here until the response was gone, or, without one, until the
        /// handler's ULT ended.
        total,
        /// Encoding the result.
        encode,
        /// From when the request was here until its ULT began.
        started_at,
        /// From when its ULT began until that ended.
        unit,
        /// From when its ULT began until it answered.
        respond_at,
        /// From when it answered until the network had taken all of the response.
        sent_at,
        /// Size of the encoded arguments.
        bytes_in,
        /// Size of the encoded result.
        bytes_out,
    }
}

quantities! {
    /// The times of bulk transfers, nanoseconds, and sizes, bytes.
    ///
    /// ```
    /// # use margo::{Access, Instance};
    /// # let instance = Instance::builder("na+sm://").start()?;
    /// # let exposed = instance.expose(vec![7; 100_000], Access::ReadOnly)?;
    /// # let mut buffer = instance.memory().bulk_buffer(100_000)?;
    /// instance.monitoring().start_statistics(1);
    /// instance.pull(&instance.self_addr(), exposed.bulk(), 0, &mut buffer, 0..100_000)?;
    /// let figures = &instance.monitoring().statistics().bulk[0].figures;
    /// println!("{} bytes in {} ns", figures.size.mean, figures.total.mean);
    /// assert_eq!(figures.size.max, 100_000);
    /// # instance.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    BulkFigures, BulkKept {
        /// Asking the network for it.
        start,
        /// From the beginning until the last byte had been moved, or it had ended otherwise.
        total,
        /// From when the network had been asked for it until the caller looked at the end.
        waited,
        /// Bytes of a transfer.
        size,
    }
}

/// Adds the time from one moment to another, if there are both.
macro_rules! add {
    ($kept:ident.$field:ident, $span:ident, $from:expr, $to:expr) => {
        if let (Some(from), Some(to)) = ($from, $to) {
            $kept.$field.add(to.nanos_since(from), $span.weight);
        }
    };
}

impl OriginKept {
    fn add(&mut self, span: &OriginSpan) {
        let created = Some(span.created);
        add!(self.encode, span, span.encode_start, span.encode_end);
        add!(self.send, span, created, span.sent);
        add!(self.network, span, span.sent, span.arrived);
        add!(self.wake, span, span.arrived, span.resumed);
        add!(self.decode, span, span.resumed, span.decoded);
        add!(self.total, span, created, span.decoded.or(span.resumed).or(span.arrived));
        add!(self.encode_at, span, created, span.encode_start);
        add!(self.arrived_at, span, created, span.arrived);
        add!(self.waited, span, span.sent, span.resumed);
        if span.encode_end.is_some() {
            self.bytes_out.add(span.bytes_out, span.weight);
        }
        if let Some(bytes) = span.bytes_in {
            self.bytes_in.add(bytes, span.weight);
        }
    }
}

impl TargetKept {
    fn add(&mut self, span: &TargetSpan) {
        let arrived = Some(span.arrived);
        add!(self.admission, span, arrived, span.admitted);
        add!(self.queue, span, span.admitted, span.started);
        add!(self.decode, span, span.started, span.decoded);
        add!(self.run, span, span.decoded, span.ended);
        add!(self.respond, span, span.respond_start, span.respond_end);
        add!(self.network, span, span.respond_end, span.sent);
        add!(self.total, span, arrived, span.sent.or(span.respond_end).or(span.ended));
        add!(self.encode, span, span.respond_start, span.encode_end);
        add!(self.started_at, span, arrived, span.started);
        add!(self.unit, span, span.started, span.ended);
        if span.started.is_some() {
            add!(self.respond_at, span, span.started, span.respond_start);
        }
        add!(self.sent_at, span, span.respond_start, span.sent);
        self.bytes_in.add(span.bytes_in, span.weight);
        if let Some(bytes) = span.bytes_out {
            self.bytes_out.add(bytes, span.weight);
        }
        if span.bulk.transfers > 0 {
            self.bulk.add(span.bulk.nanos, span.weight);
        }
    }
}

impl BulkKept {
    fn add(&mut self, span: &BulkSpan) {
        add!(self.start, span, Some(span.created), span.started);
        add!(self.total, span, Some(span.created), span.ended);
        add!(self.waited, span, span.started, span.resumed);
        self.size.add(span.bytes, span.weight);
    }
}

/// An RPC as statistics name it.
///
/// ```
/// # const PING: margo::Rpc<(), ()> = margo::Rpc::new("ping");
/// let instance = margo::Instance::builder("na+sm://").start()?;
/// # instance.serve(PING).function(|()| ())?;
/// instance.monitoring().start_statistics(1);
/// instance.forward(PING, &instance.self_addr().into(), &())?;
/// let rpc = &instance.monitoring().statistics().origin[0].rpc;
/// assert_eq!((&*rpc.name, rpc.provider), ("ping", margo::ProviderId::DEFAULT.get()));
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RpcName {
    /// The name; empty if it is not known here.
    pub name: String,
    /// The number on the wire, provider included.
    pub rpc_id: u64,
    /// The provider.
    pub provider: u16,
}

/// Calls that this instance has made: of one RPC, on behalf of one RPC, to one peer.
///
/// ```
/// # use margo::{Instance, Rpc, monitor::CallOutcome};
/// # const PING: Rpc<(), ()> = Rpc::new("ping");
/// let instance = Instance::builder("na+sm://").start()?;
/// # instance.serve(PING).function(|()| ())?;
/// instance.monitoring().start_statistics(1);
/// instance.forward(PING, &instance.self_addr().into(), &())?;
/// let row = &instance.monitoring().statistics().origin[0];
/// assert_eq!((&*row.rpc.name, &*row.peer), ("ping", instance.self_addr().uri()));
/// assert_eq!((row.calls, row.in_flight, row.outcomes[&CallOutcome::Ok]), (1, 0, 1));
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OriginStatistics {
    /// The RPC that was called.
    pub rpc: RpcName,
    /// The one in whose handlers the calls were made; `None`: outside of any.
    pub parent: Option<RpcName>,
    /// The peer's address, or `other peers`.
    pub peer: String,
    /// How many calls have begun.
    pub calls: u64,
    /// How many calls are in flight.
    pub in_flight: u64,
    /// How many calls have ended, and how.
    pub outcomes: BTreeMap<CallOutcome, u64>,
    /// Times and sizes.
    pub figures: OriginFigures,
}

/// Requests that this instance has got: of one RPC, on behalf of one RPC, from one peer.
///
/// ```
/// # use margo::{Instance, Rpc, monitor::RequestOutcome};
/// # const PING: Rpc<(), ()> = Rpc::new("ping");
/// let instance = Instance::builder("na+sm://").start()?;
/// # instance.serve(PING).function(|()| ())?;
/// instance.monitoring().start_statistics(1);
/// instance.forward(PING, &instance.self_addr().into(), &())?;
/// instance.finalize_and_wait()?; // Now its handlers have ended.
/// let row = &instance.monitoring().statistics().target[0];
/// assert_eq!((&*row.rpc.name, row.requests, row.in_hand), ("ping", 1, 0));
/// assert_eq!(row.outcomes[&RequestOutcome::Ok], 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TargetStatistics {
    /// The RPC that was called.
    pub rpc: RpcName,
    /// The one in whose handlers, at the origin, the calls were made; `None`: outside of any.
    pub parent: Option<RpcName>,
    /// The peer's address, or `other peers`; `other paths`: what has no row of its call path.
    pub peer: String,
    /// How many requests were admitted or refused. Those that wait for admission are not yet
    /// among them.
    pub requests: u64,
    /// How many requests were admitted and are not answered. (Of one-way requests: whose handlers
    /// have not ended.)
    pub in_hand: u64,
    /// How many were answered or refused, and how.
    pub outcomes: BTreeMap<RequestOutcome, u64>,
    /// Times and sizes.
    pub figures: TargetFigures,
}

/// Bulk transfers that this instance asked for: on behalf of one RPC, with one peer, one way.
///
/// ```
/// # use margo::{Access, Instance, monitor::BulkDirection};
/// # let instance = Instance::builder("na+sm://").start()?;
/// # let exposed = instance.expose(vec![7; 100_000], Access::ReadOnly)?;
/// # let mut buffer = instance.memory().bulk_buffer(100_000)?;
/// instance.monitoring().start_statistics(1);
/// instance.pull(&instance.self_addr(), exposed.bulk(), 0, &mut buffer, 0..100_000)?;
/// let row = &instance.monitoring().statistics().bulk[0];
/// assert_eq!((row.direction, row.transfers, row.bytes), (BulkDirection::Pull, 1, 100_000));
/// assert_eq!(row.rpc, None, "no handler asked for it");
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BulkStatistics {
    /// The RPC on whose behalf they were made, or `other RPCs` with number 0; `None`: outside of
    /// any.
    pub rpc: Option<RpcName>,
    /// The peer whose memory is at the other side: an address, or `other peers`.
    pub peer: String,
    /// The direction.
    pub direction: BulkDirection,
    /// How many transfers have begun.
    pub transfers: u64,
    /// How many bytes they were to move.
    pub bytes: u64,
    /// How many transfers are in flight.
    pub in_flight: u64,
    /// How many transfers have ended, and how.
    pub outcomes: BTreeMap<BulkOutcome, u64>,
    /// Times and sizes.
    pub figures: BulkFigures,
}

/// The time that progress ULTs spend on polls and on sleeps, nanoseconds. One sleep in
/// `sample_progress_every` is timed, and one poll in 1024 times as many. Each stands for those
/// before it, so sums and counts are comparable.
///
/// ```
/// let instance = margo::Instance::builder("na+sm://").start()?;
/// instance.monitoring().start_statistics(1);
/// // … calls …
/// let progress = instance.monitoring().statistics().progress;
/// println!("slept {} times, for {} ns in all", progress.sleep.count, progress.sleep.sum());
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProgressStatistics {
    /// A round of the network that found nothing to do.
    pub idle_poll: Figures,
    /// A round of the network that found something, with the work that this led to.
    pub busy_poll: Figures,
    /// A sleep, from its beginning until the progress ULT ran again.
    pub sleep: Figures,
}

/// The statistics of calls, requests and transfers since they were switched on or reset. See
/// [`InstanceMonitoring::statistics`](crate::groups::InstanceMonitoring::statistics).
///
/// Counts are exact. Times and sizes are those of calls that were looked at: of the first ones of
/// a path all, later on, at random moments, down to one in `sample_rpcs_every`. Each of them stands
/// for those between it and the one before, so averages, percentiles and counts of
/// [`Figures`] are estimates for all calls; only `min` and `max` are those of the calls that were
/// looked at.
///
/// ```
/// use margo::{Instance, Rpc};
///
/// const PING: Rpc<(), ()> = Rpc::new("ping");
///
/// let instance = Instance::builder("na+sm://").start()?;
/// instance.monitoring().start_statistics(1);
/// # instance.serve(PING).function(|()| ())?;
/// instance.forward(PING, &instance.self_addr().into(), &())?;
/// let statistics = instance.monitoring().statistics();
/// let calls: u64 = statistics.origin.iter().map(|row| row.calls).sum();
/// assert_eq!((calls, statistics.bulk.len()), (1, 0));
/// println!("{} calls per second", calls as f64 / statistics.seconds);
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Statistics {
    /// Address of the instance.
    pub address: String,
    /// Time since they were switched on or reset, seconds.
    pub seconds: f64,
    /// The number of calls of a path of which one is looked at; 1: all; 0: none.
    pub sample_rpcs_every: u32,
    /// Calls of this instance, by call path and peer.
    pub origin: Vec<OriginStatistics>,
    /// Requests to this instance, by call path and peer.
    pub target: Vec<TargetStatistics>,
    /// Bulk transfers that this instance asked for.
    pub bulk: Vec<BulkStatistics>,
    /// The loop that polls the network.
    pub progress: ProgressStatistics,
}

/// The statistics that are kept.
pub(super) struct Store {
    every: AtomicU32,
    progress_every: AtomicU32,
    pub(super) origin: RowTable<OriginKept>,
    pub(super) target: RowTable<TargetKept>,
    pub(super) bulk: RowTable<BulkKept>,
    progress: Mutex<ProgressKept>,
    since: Mutex<Instant>,
}

/// One of [`ProgressStatistics`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProgressPhase {
    IdlePoll,
    BusyPoll,
    Sleep,
}

#[derive(Debug, Clone, Default)]
struct ProgressKept {
    idle_poll: Distribution,
    busy_poll: Distribution,
    sleep: Distribution,
}

impl Store {
    /// With at most so many rows of each kind.
    pub(super) fn new(rows_max: usize) -> Self {
        Self {
            every: AtomicU32::new(1),
            progress_every: AtomicU32::new(0),
            origin: RowTable::new(rows_max, Rest::Together),
            // Peers name the call paths, and the program the RPCs.
            target: RowTable::new(rows_max, Rest::ById),
            // By the direction.
            bulk: RowTable::new(rows_max, Rest::ByParent),
            progress: Mutex::default(),
            since: Mutex::new(Instant::now()),
        }
    }

    #[inline]
    pub(super) fn every(&self) -> u32 {
        self.every.load(Ordering::Relaxed)
    }

    /// Returns the number of sleeps of a progress ULT of which one is timed; 0: none.
    #[inline]
    pub(super) fn progress_every(&self) -> u32 {
        self.progress_every.load(Ordering::Relaxed)
    }

    pub(super) fn set_every(&self, every: u32, progress_every: u32) {
        self.every.store(every, Ordering::Relaxed);
        self.progress_every.store(progress_every, Ordering::Relaxed);
    }

    pub(super) fn note_origin(&self, row: u32, span: &OriginSpan) {
        if let Some(row) = self.origin.row(row) {
            row.note(|kept| kept.add(span));
        }
    }

    pub(super) fn note_target(&self, row: u32, span: &TargetSpan) {
        if let Some(row) = self.target.row(row) {
            row.note(|kept| kept.add(span));
        }
    }

    pub(super) fn note_bulk(&self, row: u32, span: &BulkSpan) {
        if let Some(row) = self.bulk.row(row) {
            row.note(|kept| kept.add(span));
        }
    }

    pub(super) fn note_turn(&self, turn: ProgressPhase, nanos: u64, weight: u32) {
        let mut kept = lock(&self.progress);
        match turn {
            ProgressPhase::IdlePoll => kept.idle_poll.add(nanos, weight),
            ProgressPhase::BusyPoll => kept.busy_poll.add(nanos, weight),
            ProgressPhase::Sleep => kept.sleep.add(nanos, weight),
        }
    }

    /// A snapshot, and, if `reset`, the beginning of the next one.
    pub(super) fn read(&self, address: String, reset: bool) -> Statistics {
        crate::observe::clock::prepare();
        let names = self.names();
        let mut statistics = Statistics {
            address,
            seconds: self.elapsed(reset).as_secs_f64(),
            sample_rpcs_every: self.every(),
            origin: together(&self.origin, reset)
                .map(|(about, all)| origin_of(&names, about, &all))
                .collect(),
            target: together(&self.target, reset)
                .map(|(about, all)| target_of(&names, about, &all))
                .collect(),
            bulk: together(&self.bulk, reset)
                .map(|(about, all)| bulk_of(&names, about, &all))
                .collect(),
            progress: self.progress(reset),
        };
        // Rows in which nothing has happened since the last reset.
        statistics.origin.retain(|row| row.calls + row.in_flight > 0 || !row.outcomes.is_empty());
        statistics.target.retain(|row| row.requests + row.in_hand > 0 || !row.outcomes.is_empty());
        let happened = |row: &BulkStatistics| row.transfers + row.in_flight > 0;
        statistics.bulk.retain(|row| happened(row) || !row.outcomes.is_empty());
        statistics
    }

    fn elapsed(&self, reset: bool) -> Duration {
        let mut since = lock(&self.since);
        let elapsed = since.elapsed();
        if reset {
            *since = Instant::now();
        }
        elapsed
    }

    fn progress(&self, reset: bool) -> ProgressStatistics {
        let mut own = lock(&self.progress);
        let kept = if reset { std::mem::take(&mut *own) } else { own.clone() };
        drop(own);
        ProgressStatistics {
            idle_poll: kept.idle_poll.figures(),
            busy_poll: kept.busy_poll.figures(),
            sleep: kept.sleep.figures(),
        }
    }

    /// Returns, for each RPC that is served here (`name:provider`), how many requests came and how
    /// many bytes were to be moved on their behalf, since the beginning. RPCs beyond the bound of
    /// rows are [`OTHER_RPCS_NAME`].
    pub(super) fn by_rpc(&self) -> BTreeMap<String, (u64, u64)> {
        let mut sums = BTreeMap::<String, (u64, u64)>::new();
        let mut keys = BTreeMap::new();
        for (number, row) in self.target.rows().enumerate() {
            give_way(number);
            let key = if row.about.is_of_the_rest() {
                OTHER_RPCS_NAME.to_owned()
            } else {
                let RpcName { name, provider, .. } = rpc_name(row.about.id, row.about.rpc.clone());
                let key = format!("{name}:{provider}");
                keys.insert(row.about.id, key.clone());
                key
            };
            sums.entry(key).or_default().0 += row.all().calls;
        }
        for (number, row) in self.bulk.rows().enumerate() {
            give_way(number);
            if row.about.is_of_the_rest() {
                sums.entry(OTHER_RPCS_NAME.to_owned()).or_default().1 += row.all().bytes;
            } else if let Some(sum) = keys.get(&row.about.id).and_then(|key| sums.get_mut(key)) {
                sum.1 += row.all().bytes;
            }
        }
        sums
    }

    /// Names of the RPCs that were called or handled.
    fn names(&self) -> BTreeMap<u64, String> {
        let origin = self.origin.rows().map(|row| &row.about);
        let target = self.target.rows().map(|row| &row.about);
        origin.chain(target).map(|about| (about.id, about.rpc.clone())).collect()
    }
}

/// In a loop over rows, of which there may be many: those who read figures may do so on an
/// execution stream of handlers, which wait meanwhile.
fn give_way(row: usize) {
    const ROWS_AT_ONCE: usize = 64;
    if row % ROWS_AT_ONCE == ROWS_AT_ONCE - 1 {
        ult::yield_now();
    }
}

/// The rows of one name, taken together.
struct Together<D> {
    counts: RowCounts,
    in_flight: u64,
    kept: Vec<D>,
}

/// Rows by name: a peer that comes again may have got another number, and so another row.
fn together<D: Default + Clone>(
    table: &RowTable<D>,
    reset: bool,
) -> impl Iterator<Item = (About, Together<D>)> {
    let mut named = BTreeMap::<About, Together<D>>::new();
    let mut enter = |row: &Row<D>| {
        let (counts, in_flight, kept) = row.read(reset);
        match named.entry(row.about.clone()) {
            std::collections::btree_map::Entry::Vacant(free) => {
                free.insert(Together { counts, in_flight, kept: kept.into_iter().collect() });
            }
            std::collections::btree_map::Entry::Occupied(mut there) => {
                let there = there.get_mut();
                there.counts.add(&counts);
                there.in_flight += in_flight;
                there.kept.extend(kept);
            }
        }
    };
    table.rows().for_each(&mut enter);
    named.into_iter()
}

fn rpc_name(id: u64, name: String) -> RpcName {
    // The lowest 16 bits.
    RpcName { name, rpc_id: id, provider: (id & 0xffff) as u16 }
}

fn parent_of(names: &BTreeMap<u64, String>, id: u64) -> Option<RpcName> {
    let is_none = RpcId(id) == margo::NO_PARENT || id == 0;
    (!is_none).then(|| rpc_name(id, names.get(&id).cloned().unwrap_or_default()))
}

fn outcomes<O: Ord + Copy, const N: usize>(all: [O; N], counts: &RowCounts) -> BTreeMap<O, u64> {
    all.into_iter().zip(counts.ends).filter(|(_, count)| *count > 0).collect()
}

fn origin_of(
    names: &BTreeMap<u64, String>,
    about: About,
    all: &Together<OriginKept>,
) -> OriginStatistics {
    let mut figures = OriginFigures::default();
    all.kept.iter().for_each(|kept| figures.merge(&kept.told()));
    OriginStatistics {
        rpc: rpc_name(about.id, about.rpc),
        parent: parent_of(names, about.parent),
        peer: about.peer,
        calls: all.counts.calls,
        in_flight: all.in_flight,
        outcomes: outcomes(CallOutcome::ALL, &all.counts),
        figures,
    }
}

fn target_of(
    names: &BTreeMap<u64, String>,
    about: About,
    all: &Together<TargetKept>,
) -> TargetStatistics {
    let mut figures = TargetFigures::default();
    all.kept.iter().for_each(|kept| figures.merge(&kept.told()));
    TargetStatistics {
        rpc: rpc_name(about.id, about.rpc),
        parent: parent_of(names, about.parent),
        peer: about.peer,
        requests: all.counts.calls,
        in_hand: all.in_flight,
        outcomes: outcomes(RequestOutcome::ALL, &all.counts),
        figures,
    }
}

fn bulk_of(
    names: &BTreeMap<u64, String>,
    about: About,
    all: &Together<BulkKept>,
) -> BulkStatistics {
    let mut figures = BulkFigures::default();
    all.kept.iter().for_each(|kept| figures.merge(&kept.told()));
    let rpc = match about.is_of_the_rest() {
        true => Some(rpc_name(about.id, about.rpc)),
        false => parent_of(names, about.id),
    };
    BulkStatistics {
        rpc,
        peer: about.peer,
        direction: if about.parent == 0 { BulkDirection::Pull } else { BulkDirection::Push },
        transfers: all.counts.calls,
        bytes: all.counts.bytes,
        in_flight: all.in_flight,
        outcomes: outcomes(BulkOutcome::ALL, &all.counts),
        figures,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code of others runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;

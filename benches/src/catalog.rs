//! Every row: id, unit, target, and the functions that measure it.
//!
//! An id is `group.what.variant`. Targets are for the machine that the project is tuned on; the
//! ratio to the floor of the same run is what can be compared between machines.

use std::fmt;
use std::path::PathBuf;

use clap::ValueEnum;
use margo_provider_kv::{MemoryOrder, StoreKind};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::base::Target::{self, Limit, LimitWithTail, TimesFloor, TimesOther};
use crate::base::Unit::{self, Bytes, BytesPerSecond, Nanoseconds, PerSecond, Percent};
use crate::base::{Doing, Figure, Result, fail};
use crate::floors::fabric::{Fabric, Verb};
use crate::floors::stream::{self, Style};
use crate::floors::transport::{self, Transport};
use crate::floors::{attach, coroutine, memcpy};
use crate::process::Context;
use crate::rows::argobots::ops::Work as ArgobotsWork;
use crate::rows::argobots::{Kind, Op, UNITS, ops_all, sync_ops};
use crate::rows::device::{self, Between, Copied};
use crate::rows::net::crowd::Crowd;
use crate::rows::net::echo::{self, Node, Work};
use crate::rows::net::hg_node::HgNode;
use crate::rows::net::na_node::NaNode;
use crate::rows::net::transfers::Transfers;
use crate::rows::net::{group, handshakes, hg_proc, oneway, rates};
use crate::rows::rpc::bulk::{self, Way};
use crate::rows::rpc::pair::{Settings, WaitPolicy};
use crate::rows::rpc::{null, timer, trust};
use crate::rows::services::{blob, kv, subject};
use crate::rows::streams::nexmark::{self, plain, queries};
use crate::rows::streams::{flow, word_count};
use crate::rows::sweep::spec::{self, Sweep};
use crate::rows::sweep::target;
use crate::rows::ult::{
    blocking, channel, fib, fifo, fork, idle, joins, memory, switch, sync, wake,
};

/// No target: floors have none.
const NONE: Target = Target::None;

/// Transfer sizes, by their word in ids; the rows of `na` have all, the others all but the last.
const SIZES: [(&str, usize); 5] =
    [("4k", 4 << 10), ("64k", 64 << 10), ("1m", 1 << 20), ("16m", 16 << 20), ("64m", 64 << 20)];

/// Part of the catalogue that can be asked for on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Group {
    /// The machine without us
    Floor,
    /// User-level threads
    Ult,
    /// Sleeping ULTs
    Timer,
    /// The operations that the benchmarks of C Argobots measure
    Argobots,
    /// Messages of the network layer
    Na,
    /// Remote procedure calls below the ULTs
    Hg,
    /// Remote procedure calls, small arguments
    Rpc,
    /// Calls whose targets look at who calls, and private connections
    Trust,
    /// Bulk transfers
    Bulk,
    /// Memory of a GPU
    Device,
    /// Providers of keys and of blobs
    Services,
    /// Streams and graphs of stages
    #[value(alias = "stream")]
    Streams,
    /// Messages, calls and transfers over libfabric and UCX
    Fabric,
    /// The rows of hg_rate, hg_bw_read and hg_bw_write of Mercury; only when it is named
    Sweep,
}

/// Measures a row, in a process of its own.
type Measure = Box<dyn Fn(&Context) -> Result<Figure>>;

/// Takes the other side of a row, in a peer of the row's process that was started with this order.
type Answer = Box<dyn Fn(&Context, Value) -> Result<()>>;

/// One row of the catalogue.
pub(crate) struct Case {
    /// `group.what.variant`
    pub(crate) id: String,
    /// Unit of its figures.
    pub(crate) unit: Unit,
    /// The figure that the row should reach.
    pub(crate) target: Target,
    /// True if both cores take part, so that their distance matters.
    pub(crate) two_cores: bool,
    /// The row's side.
    pub(crate) measure: Measure,
    /// The peer's side.
    pub(crate) answer: Answer,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Case {
    fn new(
        id: impl Into<String>,
        unit: Unit,
        target: Target,
        measure: impl Fn(&Context) -> Result<Figure> + 'static,
    ) -> Self {
        let measure: Measure = Box::new(measure);
        let answer: Answer = Box::new(|context, _| fail!("{} has no peer", context.id));
        Self { id: id.into(), unit, target, two_cores: false, measure, answer }
    }

    /// The row's peer does this, with the order that the row's side gave it.
    fn peer<O: DeserializeOwned>(
        self,
        answer: impl Fn(&Context, O) -> Result<()> + 'static,
    ) -> Self {
        let answer: Answer = Box::new(move |context, order| {
            answer(context, serde_json::from_value(order).doing("reading an order")?)
        });
        Self { answer, two_cores: true, ..self }
    }

    fn two_cores(self) -> Self {
        Self { two_cores: true, ..self }
    }

    /// Returns whether it is one of a group: that which the id names, and maybe another one.
    pub(crate) fn is_of(&self, group: Group) -> bool {
        let is_of_trust = || OF_TRUST.iter().any(|part| self.id.contains(part));
        self.group() == group || (group == Group::Trust && is_of_trust())
    }

    /// The group that the id names.
    fn group(&self) -> Group {
        let name = self.id.split('.').next().unwrap_or_default();
        Group::from_str(name, false).unwrap_or(Group::Floor)
    }
}

/// The row of that id.
pub(crate) fn case(id: &str) -> Option<Case> {
    let sweep = Sweep::of(id).map(sweep_case);
    sweep.or_else(|| cases().into_iter().find(|case| case.id == id))
}

/// Rows for these sizes and numbers of calls in flight.
pub(crate) fn sweep_cases(over: &[Transport], sizes: &[usize], in_flight: &[usize]) -> Vec<Case> {
    spec::all(over, sizes, in_flight).into_iter().map(sweep_case).collect()
}

fn sweep_case(sweep: Sweep) -> Case {
    Case::new(sweep.id(), sweep.unit(), NONE, move |c| sweep.run(c))
        .peer(move |c, ()| target::peer(c, sweep))
}

/// All rows that have no parameters, in the order of the report.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = floor_cases();
    cases.extend(ult_cases());
    cases.extend(argobots_cases());
    for over in [Transport::Sm, Transport::Tcp] {
        let target = if over == Transport::Tcp { TimesFloor(1.05) } else { NONE };
        let id = format!("na.{}.rtt", over.word());
        cases.push(echo_case::<NaNode>(id, over, Work::Null, target));
    }
    cases.extend(na_cases());
    for over in [Transport::Sm, Transport::Tcp] {
        let target = if over == Transport::Sm { Limit(300.0) } else { NONE };
        let id = format!("hg.{}.rtt", over.word());
        cases.push(echo_case::<HgNode>(id, over, Work::Null, target));
    }
    cases.extend(hg_cases());
    cases.extend(rpc_cases());
    cases.extend(trust_cases());
    cases.extend(bulk_cases());
    cases.extend(device_cases());
    cases.extend(kv_cases());
    cases.extend(blob_cases());
    cases.extend(stream_cases());
    cases.extend(Fabric::ALL.into_iter().flat_map(fabric_cases));
    cases
}

fn floor_cases() -> Vec<Case> {
    let coroutine = |id, floor| Case::new(id, Nanoseconds, NONE, move |c| coroutine::run(c, floor));
    let mut cases = vec![
        coroutine("floor.coroutine.switch", coroutine::switches),
        coroutine("floor.coroutine.create", coroutine::creations),
    ];
    for over in [Transport::Sm, Transport::Tcp] {
        let id = format!("floor.{}.rtt", over.word());
        let case = Case::new(id, Nanoseconds, NONE, move |c| transport::rtt(c, over));
        cases.push(case.peer(move |c, place: Vec<u8>| transport::answer(c, over, &place)));
    }
    for (size, bytes) in SIZES.into_iter().take(4) {
        let bulk = |what, measure: fn(&Context, usize) -> Result<Figure>| {
            let id = format!("floor.{what}.{size}");
            Case::new(id, BytesPerSecond, NONE, move |c| measure(c, bytes))
        };
        let get = bulk("tcp_get", |c, bytes| stream::run(c, Style::Get, bytes));
        let stream = bulk("tcp_stream", |c, bytes| stream::run(c, Style::Stream, bytes));
        cases.extend([
            bulk("memcpy", memcpy::run),
            bulk("attach", attach::run).peer(attach::peer),
            get.peer(move |c, at: String| stream::peer(c, Style::Get, bytes, &at)),
            stream.peer(move |c, at: String| stream::peer(c, Style::Stream, bytes, &at)),
        ]);
    }
    cases
}

fn stream_cases() -> Vec<Case> {
    // Bytes per minute are what others print.
    let per_minute = |gigabytes: f64| Limit(gigabytes * 1e9 / 60.0);
    let row = |id, target, measure: fn(&Context) -> Result<Figure>| {
        Case::new(id, BytesPerSecond, target, measure).two_cores()
    };
    let mut cases = Vec::new();
    for over in [Transport::Sm, Transport::Tcp] {
        let mut case = |what: &str, unit, target, measure: Measure| {
            let id = format!("streams.{}.{what}", over.word());
            let case = Case::new(id, unit, target, measure);
            cases.push(case.peer(move |c, floor| flow::peer(c, over, floor)));
        };
        let is_tcp = over == Transport::Tcp;
        // Bytes of numbers of 8 bytes each.
        let items = if is_tcp { TimesFloor(0.8) } else { Limit(400e6 * 8.0) };
        let flow = |data| -> Measure { Box::new(move |c| flow::flow(c, over, data)) };
        case("items", BytesPerSecond, items, flow(None));
        for (what, data) in [("data64k", 64 << 10), ("data1m", 1 << 20)] {
            case(what, BytesPerSecond, NONE, flow(Some(data)));
        }
        case("latency", Nanoseconds, NONE, Box::new(move |c| flow::latency(c, over)));
    }
    cases.extend([
        row("streams.wordcount.keyed", per_minute(8.0), word_count::keyed),
        row("streams.wordcount.aggregated", per_minute(20.0), word_count::aggregated),
    ]);
    let queries: [fn(&Context) -> Result<Figure>; 9] = [
        |c| nexmark::run(c, queries::q0, plain::q0),
        |c| nexmark::run(c, queries::q1, plain::q1),
        |c| nexmark::run(c, queries::q2, plain::q2),
        |c| nexmark::run(c, queries::q3, plain::q3),
        |c| nexmark::run(c, queries::q4, plain::q4),
        |c| nexmark::run(c, queries::q5, plain::q5),
        |c| nexmark::run(c, queries::q6, plain::q6),
        |c| nexmark::run(c, queries::q7, plain::q7),
        |c| nexmark::run(c, queries::q8, plain::q8),
    ];
    cases.extend(queries.into_iter().enumerate().map(|(number, measure)| {
        Case::new(format!("streams.nexmark.q{number}"), PerSecond, NONE, measure).two_cores()
    }));
    cases
}

/// A row of round trips over a layer.
fn echo_case<N: Node + 'static>(id: String, over: Transport, work: Work, target: Target) -> Case {
    let unit = if work.in_flight() > 1 { PerSecond } else { Nanoseconds };
    Case::new(id, unit, target, move |c| echo::run::<N>(c, over, work))
        .peer(move |c, place: Vec<u8>| echo::peer::<N>(c, over, &place))
}

fn transfers_case(id: String, transfers: Transfers, target: Target) -> Case {
    Case::new(id, BytesPerSecond, target, move |c| transfers.run(c))
        .peer(move |c, place: Vec<u8>| transfers.peer(c, &place))
}

/// The rows of `na` beside its round trips.
fn na_cases() -> Vec<Case> {
    use Transport::{Sm, Tcp};
    let crowd = |what: &str, over, peers, each, target| {
        let crowd = Crowd { over, peers, each };
        Case::new(format!("na.{what}"), Nanoseconds, target, move |c| crowd.run(c))
            .peer(move |c, ()| crowd.peer(c))
    };
    let rate = |what, over, limit, measure: fn(&Context) -> Result<Figure>| {
        Case::new(what, PerSecond, Limit(limit), measure).peer(move |c, ()| rates::peer(c, over))
    };
    let group2 = |over: Transport| {
        let id = format!("na.{}.group2", over.word());
        Case::new(id, PerSecond, TimesFloor(0.95), move |c| group::group2(c, over))
    };
    let mut cases = vec![
        rate("na.sm.rate64", Sm, 1e7, rates::sm),
        group2(Sm),
        crowd("sm.rtt.256", Sm, 256, false, TimesFloor(1.3)),
        crowd("sm.rtt.256.each", Sm, 256, true, NONE),
    ];
    let kinds = [("get", Verb::Get), ("put", Verb::Put)];
    for (word, verb) in kinds {
        for (what, shared) in [("alloc", true), ("any", false)] {
            for (size, bytes) in SIZES {
                let target = match (shared, size) {
                    (true, _) => TimesFloor(0.8),
                    (false, "1m") => Limit(25e9),
                    (false, _) => NONE,
                };
                let transfers = Transfers { over: Sm, verb, shared, bytes };
                let id = format!("na.sm.{word}.{what}.{size}");
                cases.push(transfers_case(id, transfers, target));
            }
        }
    }
    cases.push(rate("na.tcp.rate64", Tcp, 2e6, rates::tcp));
    cases.push(group2(Tcp));
    let one_way = Case::new("na.tcp.oneway", PerSecond, TimesFloor(0.5), oneway::tcp);
    let private = Case::new("na.tcp.handshakes", PerSecond, Limit(1500.0), handshakes::rate);
    cases.extend([one_way.two_cores(), private]);
    cases.push(crowd("tcp.rtt.idle1000", Tcp, 1001, false, TimesFloor(1.05)));
    for (word, verb) in kinds {
        for (size, bytes) in SIZES {
            let transfers = Transfers { over: Tcp, verb, shared: false, bytes };
            let id = format!("na.tcp.{word}.{size}");
            cases.push(transfers_case(id, transfers, TimesFloor(0.95)));
        }
    }
    cases
}

fn ult_cases() -> Vec<Case> {
    let row = |id: &str, target, measure: fn(&Context) -> Result<Figure>| {
        Case::new(id, Nanoseconds, target, measure)
    };
    vec![
        row("ult.create_join", Limit(38.0), switch::create_join),
        row("ult.create_detached", Limit(25.0), switch::create_detached),
        row("ult.yield", Limit(15.0), switch::yields),
        row("ult.yield_to", Limit(12.0), switch::yields_to),
        row("ult.park_to", NONE, switch::parks_to),
        row("ult.tasklet", Limit(18.0), switch::tasklet),
        row("ult.tasklet_detached", Limit(10.0), switch::tasklet_detached),
        row("ult.mutex", Limit(10.0), sync::mutex),
        row("na.lock.biased", TimesFloor(1.0), sync::biased),
        row("ult.mutex.contended", TimesOther(1.0, "parking_lot"), sync::contended).two_cores(),
        row("ult.eventual_resume", Limit(40.0), sync::eventual_resume),
        row("ult.blocking", TimesFloor(2.0), blocking::empty),
        row("ult.wake.spin", TimesFloor(2.5), wake::spin).two_cores(),
        row("ult.wake.parked", TimesFloor(1.2), wake::parked).two_cores(),
        row("ult.fifo.units2", NONE, fifo::units2).two_cores(),
        row("ult.channel.same", NONE, channel::same),
        row("ult.channel.bounded", NONE, channel::bounded).two_cores(),
        row("ult.channel.unbounded", NONE, channel::unbounded).two_cores(),
        row("ult.channel.spsc", NONE, channel::spsc).two_cores(),
        row("ult.channel.spsc.batch", NONE, channel::spsc_batch).two_cores(),
        Case::new("ult.memory_1m", Bytes, Limit(8.5 * 1024.0), memory::memory),
        row("ult.create_1m", Limit(2e9), memory::create),
        row("ult.create_join.1m", NONE, |c| memory::lives(c, |pool| pool.ult())),
        row("ult.tasklet.1m", NONE, |c| memory::lives(c, |pool| pool.tasklet())),
        row("ult.fib.1", NONE, |c| fib::run(c, 1)),
        row("ult.fib.2", NONE, |c| fib::run(c, 2)).two_cores(),
        row("ult.spawn_join", NONE, joins::runs),
        row("ult.join.waits", NONE, joins::waits),
        row("ult.join.taken", NONE, joins::taken),
        row("ult.join", TimesOther(1.15, "rayon"), |c| fork::run(c, 1, fork::TINY)),
        row("ult.join.fib", TimesOther(1.15, "rayon"), |c| fork::run(c, 2, fork::LEAVES))
            .two_cores(),
        row("ult.par.loop", TimesOther(1.3, "rayon"), |c| fork::run(c, 2, fork::LOOP)).two_cores(),
        Case::new("ult.idle_cpu", Percent, Limit(0.1), idle::idle_cpu),
        row("timer.lateness", Limit(100_000.0), idle::lateness),
        row("timer.lateness.margo", Limit(100_000.0), timer::lateness),
    ]
}

fn argobots_cases() -> Vec<Case> {
    let id = "argobots.sync_ops.mutex_create_free";
    let mut cases = vec![Case::new(id, Nanoseconds, NONE, sync_ops::create_free)];
    for kind in [Kind::Ult, Kind::Tasklet] {
        argobots_ops(&mut cases, kind);
    }
    for ults in [1, 8] {
        let what = format!("sync_ops.mutex_lock_unlock.{ults}");
        on_one_and_two(&mut cases, what, move |c, count| sync_ops::lock_unlock(c, ults, count));
    }
    cases
}

/// Rows that run on as many xstreams as they are told.
fn on_one_and_two(
    cases: &mut Vec<Case>,
    what: String,
    measure: impl Fn(&Context, usize) -> Result<Figure> + Copy + 'static,
) {
    for count in [1, 2] {
        let id = format!("argobots.{what}.{count}");
        let case = Case::new(id, Nanoseconds, NONE, move |c| measure(c, count));
        cases.push(Case { two_cores: count > 1, ..case });
    }
}

/// The rows that exist for ULTs and, but for the yields, for tasklets.
fn argobots_ops(cases: &mut Vec<Case>, kind: Kind) {
    let word = kind.word();
    let life = [Op::Create, Op::Join, Op::CreateJoin];
    let turns = [Op::Yield, Op::YieldTo].into_iter().filter(|_| kind == Kind::Ult);
    let more = [Op::CreateUnnamed].into_iter().chain(turns);
    for op in life {
        let work = ArgobotsWork { kind, op, units: UNITS };
        let what = format!("{word}_ops.{}_cold", op.word());
        on_one_and_two(cases, what, move |c, count| work.cold(c, count));
    }
    for op in life.into_iter().chain(more.clone()) {
        let work = ArgobotsWork { kind, op, units: UNITS };
        let what = format!("{word}_ops.{}", op.word());
        on_one_and_two(cases, what, move |c, count| work.run(c, count));
    }
    for op in [Op::CreateJoin].into_iter().chain(more) {
        let what = format!("{word}_ops_all.{}", op.word());
        on_one_and_two(cases, what, move |c, count| ops_all::ops_all(c, kind, op, count));
    }
    for (units, op) in [64, 256].into_iter().flat_map(|units| life.map(|op| (units, op))) {
        let work = ArgobotsWork { kind, op, units };
        let what = format!("{word}_fork_join.{}.{units}", op.word());
        on_one_and_two(cases, what, move |c, count| work.run(c, count));
    }
}

fn hg_cases() -> Vec<Case> {
    let proc = |what: &str, target, measure: fn(&Context) -> Result<Figure>| {
        Case::new(format!("hg.proc.{what}"), Nanoseconds, target, measure)
    };
    let mut cases = vec![
        proc("encode", Limit(15.0), hg_proc::encode),
        proc("decode", Limit(15.0), hg_proc::decode),
        proc("decode_owned", NONE, hg_proc::decode_owned),
    ];
    for over in [Transport::Sm, Transport::Tcp] {
        let (kilobyte, overflow, rate) = match over {
            Transport::Sm => {
                (TimesOther(1.3, echo::NULL), TimesOther(2.0, echo::EAGER), Limit(5e6))
            }
            _ => (NONE, TimesOther(1.0, echo::EAGER_AND_TRIP), NONE),
        };
        let row = |what, work, target| {
            echo_case::<HgNode>(format!("hg.{}.{what}", over.word()), over, work, target)
        };
        cases.push(row("rtt.1k", Work::Bytes(1024), kilobyte));
        cases.push(row("rtt.overflow", Work::Overflow, overflow));
        cases.push(row("rate16", Work::Many(16), rate));
    }
    cases
}

/// Measures a row of null calls.
type MeasureNull = fn(&Context, Settings) -> Result<Figure>;

fn null_case(
    id: String,
    unit: Unit,
    target: Target,
    settings: Settings,
    measure: MeasureNull,
) -> Case {
    Case::new(id, unit, target, move |c| measure(c, settings))
        .peer(move |c, place: Vec<u8>| null::peer(c, settings, &place))
}

fn rpc_cases() -> Vec<Case> {
    use WaitPolicy::{Default, Poll};
    let mut cases = Vec::new();
    for transport in [Transport::Sm, Transport::Tcp] {
        let mut row = |what: &str, unit, patience, target, measure| {
            let id = format!("rpc.{}.{what}", transport.word());
            let settings = Settings { transport, patience };
            cases.push(null_case(id, unit, target, settings, measure));
        };
        let sm = transport == Transport::Sm;
        let target = if sm { Limit(350.0) } else { TimesFloor(1.15) };
        row("rtt.poll", Nanoseconds, Poll, target, null::rtt);
        let target = if sm { LimitWithTail(500.0, 20_000.0) } else { NONE };
        row("rtt.default", Nanoseconds, Default, target, null::rtt);
        if sm {
            row("rtt.stats", Nanoseconds, Poll, TimesFloor(1.03), null::rtt_stats);
            row("rtt.rules", Nanoseconds, Poll, TimesFloor(1.01), trust::rules);
        }
        row("idle_cpu", Percent, Default, Limit(1.0), null::idle_cpu);
        row("rate32", PerSecond, Poll, Limit(if sm { 4e6 } else { 0.8e6 }), null::rate);
    }
    let private = Settings { transport: Transport::Private, patience: Poll };
    let mut row = |what: &str, unit, target, measure| {
        cases.push(null_case(format!("rpc.private.{what}"), unit, target, private, measure));
    };
    row("rtt.poll", Nanoseconds, TimesFloor(1.15), null::rtt);
    row("rate32", PerSecond, NONE, null::rate);
    cases
}

fn trust_cases() -> Vec<Case> {
    let patience = WaitPolicy::Poll;
    let settings = Settings { transport: Transport::Tcp, patience };
    let id = "trust.tcp.rtt.principals".to_owned();
    let principals = null_case(id, Nanoseconds, TimesFloor(1.01), settings, trust::principals);
    let mut cases = vec![principals];
    for fabric in [Fabric::OfiTcp, Fabric::OfiShm, Fabric::UcxTcp] {
        let settings = Settings { transport: Transport::Fabric(fabric), patience };
        for (what, unit, measure) in [
            ("rtt", Nanoseconds, trust::proven_rtt as MeasureNull),
            ("rate32", PerSecond, trust::proven_rate),
        ] {
            let id = format!("trust.{}.{what}", fabric.word());
            let case = null_case(id, unit, NONE, settings, measure);
            cases.push(unless(move || fabric.lacks(), case));
        }
    }
    cases
}

/// Rows of other groups that are also about trust.
const OF_TRUST: [&str; 3] = [".private.", ".handshakes", "rtt.rules"];

fn kv_case(spec: subject::Spec, what: &str, unit: Unit, target: Target) -> Case {
    let store = spec.store.word();
    let id = format!("services.kv.{}.{store}.{what}", spec.transport.word());
    Case::new(id, unit, target, move |c| kv::run(c, spec)).peer(move |c, ()| kv::peer(c, spec))
}

fn kv_cases() -> Vec<Case> {
    use subject::{Spec, Store, Work};
    let [hashed, ordered] = [MemoryOrder::Hashed, MemoryOrder::Ordered].map(Store::Memory);
    let [redb, fjall, lmdb] = [StoreKind::Redb, StoreKind::Fjall, StoreKind::Lmdb].map(Store::Disk);
    let lmdb = cfg!(feature = "lmdb").then_some(lmdb);
    let mut cases = Vec::new();
    for (transport, many) in [(Transport::Sm, true), (Transport::Tcp, false)] {
        for (size, keys) in [("10k", 10_000), ("1m", 1_000_000)] {
            if keys > 10_000 && !many {
                continue;
            }
            let target = if keys > 10_000 { TimesOther(0.85, kv::BOTH) } else { TimesFloor(0.8) };
            for store in [hashed, ordered] {
                for (what, work) in [("get", Work::Get), ("put", Work::Put)] {
                    let spec = Spec { transport, store, work, keys };
                    cases.push(kv_case(spec, &format!("{what}.{size}"), PerSecond, target));
                }
                if many {
                    let most = match (store == hashed, keys > 10_000) {
                        (true, false) => 5e6,
                        (true, true) => 4e6,
                        (false, _) => 1e6,
                    };
                    let spec = Spec { transport, store, work: Work::GetMany, keys };
                    cases.push(kv_case(spec, &format!("get_many.{size}"), PerSecond, Limit(most)));
                }
            }
        }
    }
    let (transport, keys) = (Transport::Sm, 100_000);
    for store in [Some(redb), lmdb].into_iter().flatten() {
        let spec = Spec { transport, store, work: Work::Get, keys };
        let target = if store == redb { TimesOther(0.7, kv::ALONE) } else { NONE };
        cases.push(kv_case(spec, "get.100k", PerSecond, target));
    }
    for store in [Some(redb), Some(fjall), lmdb].into_iter().flatten() {
        let spec = Spec { transport, store, work: Work::Put, keys };
        cases.push(kv_case(spec, "put.synced", PerSecond, NONE));
    }
    cases
}

fn blob_cases() -> Vec<Case> {
    use blob::{Spec, Work};
    let mut cases = Vec::new();
    for transport in [Transport::Sm, Transport::Tcp] {
        for (what, work, share) in [
            ("write", Work::Write, 0.55),
            ("write.persist", Work::WriteAndPersist, 0.9),
            ("read", Work::Read, 0.55),
        ] {
            let spec = Spec { transport, work };
            let id = format!("services.blob.{}.{what}", transport.word());
            let target = if transport == Transport::Sm { TimesFloor(share) } else { NONE };
            let case = Case::new(id, BytesPerSecond, target, move |c| blob::run(c, spec));
            cases.push(case.peer(move |c, folder: PathBuf| blob::peer(c, spec, &folder)));
        }
    }
    cases
}

const WAYS: [(&str, Way); 4] = [
    ("sm.alloc", Way::SmAlloc),
    ("sm.any", Way::SmAny),
    ("tcp", Way::Tcp),
    ("private", Way::Private),
];

fn bulk_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (what, way) in WAYS {
        for (size, bytes) in SIZES.into_iter().take(4) {
            let target = match (way, size) {
                (Way::SmAlloc, "1m") => TimesFloor(0.8),
                (Way::SmAny, "1m") => Limit(25e9),
                (Way::Tcp, "1m") => TimesFloor(0.95),
                (Way::Private, "1m") => TimesFloor(0.9),
                _ => NONE,
            };
            let id = format!("bulk.{what}.{size}");
            let case = Case::new(id, BytesPerSecond, target, move |c| bulk::run(c, way, bytes));
            cases.push(case.peer(move |c, floor| bulk::peer(c, way, bytes, floor)));
        }
    }
    cases
}

fn device_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (size, bytes) in device::SIZES {
        for (what, copied) in [
            ("pinned_h2d", Copied::PinnedToDevice),
            ("pinned_d2h", Copied::PinnedToHost),
            ("pageable_h2d", Copied::PageableToDevice),
            ("pageable_d2h", Copied::PageableToHost),
            ("within", Copied::Within),
        ] {
            let id = format!("device.{what}.{size}");
            cases.push(Case::new(id, BytesPerSecond, NONE, move |c| {
                device::floor(c, copied, bytes)
            }));
        }
        for over in [Transport::Sm, Transport::Tcp] {
            let settings = Settings { transport: over, patience: WaitPolicy::Poll };
            for (what, from_device, to_device, shared) in [
                ("h2d", false, true, false),
                ("d2h", true, false, false),
                ("d2d", true, true, false),
                ("shared_d2d", true, true, true),
            ] {
                if shared && over != Transport::Sm {
                    continue;
                }
                let between = Between { from_device, to_device, shared };
                let id = format!("device.{}.{what}.{size}", over.word());
                let row = move |c: &Context| device::run(c, settings, between, bytes);
                let target = if shared { TimesFloor(0.9) } else { NONE };
                let case = Case::new(id, BytesPerSecond, target, row);
                cases.push(case.peer(move |c, ()| device::peer(c, settings, between, bytes)));
            }
        }
    }
    cases.into_iter().map(|case| unless(device::lacks, case)).collect()
}

/// A row that says what the machine lacks for it.
fn unless(lacks: impl Fn() -> Option<String> + 'static, case: Case) -> Case {
    let measure = case.measure;
    let measure: Measure = Box::new(move |context| match lacks() {
        Some(lacks) => Ok(Figure::lacking(lacks)),
        None => measure(context),
    });
    Case { measure, ..case }
}

/// Time in ns that our round trip may take beyond a bare one.
const FABRIC_OVERHEAD: f64 = 300.0;

/// Share of the bare bandwidth that a transfer of ours should have.
const FABRIC_SHARE: f64 = 0.97;

fn fabric_cases(fabric: Fabric) -> Vec<Case> {
    let over = Transport::Fabric(fabric);
    let overhead = Target::MoreThanFloor(FABRIC_OVERHEAD);
    let settings = Settings { transport: over, patience: WaitPolicy::Poll };
    let id = |what: &str| format!("fabric.{}.{what}", fabric.word());
    let mut cases = vec![
        echo_case::<NaNode>(id("rtt"), over, Work::Null, overhead),
        echo_case::<HgNode>(id("hg.rtt"), over, Work::Null, overhead),
        null_case(id("rpc.rtt"), Nanoseconds, overhead, settings, null::rtt),
        echo_case::<HgNode>(id("hg.rate16"), over, Work::Many(16), NONE),
    ];
    for (what, verb) in [("get.1m", Verb::Get), ("put.1m", Verb::Put)] {
        let transfers = Transfers { over, verb, shared: false, bytes: 1 << 20 };
        cases.push(transfers_case(id(what), transfers, TimesFloor(FABRIC_SHARE)));
    }
    // Where the machine lacks the library or its provider, the rows say so.
    cases.into_iter().map(|case| unless(move || fabric.lacks(), case)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_are_unique_and_begin_with_their_group() {
        let mut seen = HashSet::new();
        for case in cases() {
            let group = case.group().to_possible_value().unwrap();
            assert!(case.id.starts_with(&format!("{}.", group.get_name())), "{}", case.id);
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._".contains(c);
            assert!(case.id.chars().all(plain), "{}", case.id);
            assert!(seen.insert(case.id.clone()), "{} twice", case.id);
        }
    }
}

//! Every row: id, unit, target, and the function that measures it.
//!
//! An id is `group.what.variant`. Targets are for the machine that the project is tuned on; the
//! ratio to the floor of the same run is what can be compared between machines.

use std::fmt;
use std::rc::Rc;

use clap::ValueEnum;

use crate::base::failure::Result;
use crate::base::row::{Figure, Target, Unit};
use crate::floors::channel::Transport;
use crate::floors::fabric::{Fabric, Verb};
use crate::floors::stream::Style;
use crate::floors::{attach, coroutine, memcpy, rtt, stream};
use crate::process::context::Context;
use crate::rows::argobots::{self, All, Kind, Op};
use crate::rows::net::echo::{self, Layer, Work};
use crate::rows::net::{fabric, hg_proc, na_sm, na_tcp};
use crate::rows::rpc::bulk::{self, Way};
use crate::rows::rpc::pair::{Settings, WaitPolicy};
use crate::rows::rpc::{
    null as rpc, scale as rpc_scale, scale_apart as rpc_scale_apart, timer as timer_callback,
};
use crate::rows::sweep::{self, Sweep};
use crate::rows::ult::{
    fib as ult_fib, idle as ult_idle, memory as ult_memory, switch as ult_switch, sync as ult_sync,
    tasklet as ult_tasklet, wake as ult_wake,
};

/// Transfer sizes, by their word in ids.
pub(crate) const SIZES: [(&str, usize); 4] =
    [("4k", 4 << 10), ("64k", 64 << 10), ("1m", 1 << 20), ("16m", 16 << 20)];

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
    /// Bulk transfers
    Bulk,
    /// Messages, calls and transfers over libfabric and UCX
    Fabric,
    /// The rows of hg_rate, hg_bw_read and hg_bw_write of Mercury; only when it is named
    Sweep,
}

/// How a row is measured.
pub(crate) type Measure = Box<dyn Fn(&Context) -> Result<Figure>>;

type MeasureRpc = fn(&Context, Settings) -> Result<Figure>;

/// One row of the catalogue.
pub(crate) struct Case {
    /// `group.what.variant`
    pub(crate) id: String,
    /// Where it belongs.
    pub(crate) group: Group,
    /// Unit of its figures.
    pub(crate) unit: Unit,
    /// The figure that the row should reach.
    pub(crate) target: Target,
    /// True if both cores take part, so that their distance matters.
    pub(crate) two_cores: bool,
    /// Measures it, in a process of its own.
    pub(crate) measure: Measure,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Case {
    fn new(
        group: Group,
        id: impl Into<String>,
        unit: Unit,
        measure: impl Fn(&Context) -> Result<Figure> + 'static,
    ) -> Self {
        let measure: Measure = Box::new(measure);
        let two_cores = false;
        Self { id: id.into(), group, unit, target: Target::None, two_cores, measure }
    }

    fn target(self, target: Target) -> Self {
        Self { target, ..self }
    }

    fn two_cores(self) -> Self {
        Self { two_cores: true, ..self }
    }
}

/// The row of that id.
pub(crate) fn case(id: &str) -> Option<Case> {
    let sweep = Sweep::of(id).map(sweep_case);
    sweep.or_else(|| cases().into_iter().find(|case| case.id == id))
}

/// Rows for these sizes and numbers of calls in flight.
pub(crate) fn sweep_cases(over: &[Transport], sizes: &[usize], in_flight: &[usize]) -> Vec<Case> {
    sweep::all(over, sizes, in_flight).into_iter().map(sweep_case).collect()
}

fn sweep_case(sweep: Sweep) -> Case {
    let measure = move |context: &Context| sweep.run(context);
    Case::new(Group::Sweep, sweep.id(), sweep.unit(), measure).two_cores()
}

/// All rows that have no parameters, in the order of the report.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = floor_cases();
    cases.extend(ult_cases());
    cases.extend(timer_cases());
    cases.extend(argobots_cases());
    cases.extend(echo_cases(Group::Na, "na", Layer::Na));
    cases.extend(na_sm_cases());
    cases.extend(na_tcp_cases());
    cases.extend(echo_cases(Group::Hg, "hg", Layer::Hg));
    cases.extend(hg_proc_cases());
    cases.extend(hg_cases());
    cases.extend(rpc_cases());
    cases.extend(bulk_cases());
    cases.extend(Fabric::ALL.into_iter().flat_map(fabric_cases));
    cases
}

fn floor_cases() -> Vec<Case> {
    let floor = |id: &str, unit, measure: fn(&Context) -> Result<Figure>| {
        Case::new(Group::Floor, id, unit, measure)
    };
    let mut cases = vec![
        floor("floor.coroutine.switch", Unit::Nanoseconds, coroutine::switch),
        floor("floor.coroutine.create", Unit::Nanoseconds, coroutine::create),
    ];
    for transport in [Transport::Sm, Transport::Tcp] {
        let id = format!("floor.{}.rtt", transport.word());
        let measure = move |context: &Context| rtt::run(context, transport);
        cases.push(Case::new(Group::Floor, id, Unit::Nanoseconds, measure).two_cores());
    }
    let get = |context: &Context, bytes| stream::run(context, Style::Get, bytes);
    let stream = |context: &Context, bytes| stream::run(context, Style::Stream, bytes);
    for (size, bytes) in SIZES {
        let bulk = |what: &str, measure: fn(&Context, usize) -> Result<Figure>| {
            let id = format!("floor.{what}.{size}");
            let measure = move |context: &Context| measure(context, bytes);
            Case::new(Group::Floor, id, Unit::BytesPerSecond, measure)
        };
        cases.push(bulk("memcpy", memcpy::run));
        cases.push(bulk("attach", attach::run).two_cores());
        cases.push(bulk("tcp_get", get).two_cores());
        cases.push(bulk("tcp_stream", stream).two_cores());
    }
    cases
}

fn echo_cases(group: Group, word: &'static str, layer: Layer) -> impl Iterator<Item = Case> {
    [Transport::Sm, Transport::Tcp].into_iter().map(move |transport| {
        let id = format!("{word}.{}.rtt", transport.word());
        let measure = move |context: &Context| echo::run(context, layer, transport, Work::Null);
        let target = match (layer, transport) {
            (Layer::Na, Transport::Tcp) => Target::TimesFloor(1.05),
            (Layer::Hg, Transport::Sm) => Target::Limit(300.0),
            _ => Target::None,
        };
        Case::new(group, id, Unit::Nanoseconds, measure).target(target).two_cores()
    })
}

fn hg_proc_cases() -> [Case; 3] {
    let proc = |what: &str, target, measure: fn(&Context) -> Result<Figure>| {
        Case::new(Group::Hg, format!("hg.proc.{what}"), Unit::Nanoseconds, measure).target(target)
    };
    [
        proc("encode", Target::Limit(15.0), hg_proc::encode),
        proc("decode", Target::Limit(15.0), hg_proc::decode),
        proc("decode_owned", Target::None, hg_proc::decode_owned),
    ]
}

fn hg_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for transport in [Transport::Sm, Transport::Tcp] {
        let mut row = |what: &str, unit, work, target| {
            let id = format!("hg.{}.{what}", transport.word());
            let measure = move |context: &Context| echo::run(context, Layer::Hg, transport, work);
            cases.push(Case::new(Group::Hg, id, unit, measure).target(target).two_cores());
        };
        let (rate, kilobyte, overflow) = match transport {
            Transport::Sm => (
                Target::Limit(5e6),
                Target::TimesOther(1.3, echo::NULL),
                Target::TimesOther(2.0, echo::EAGER),
            ),
            _ => (Target::None, Target::None, Target::TimesOther(1.0, echo::EAGER_AND_TRIP)),
        };
        row("rtt.1k", Unit::Nanoseconds, Work::Bytes(1024), kilobyte);
        row("rtt.overflow", Unit::Nanoseconds, Work::Overflow, overflow);
        row("rate16", Unit::PerSecond, Work::Many(16), rate);
    }
    cases
}

fn na_tcp_cases() -> Vec<Case> {
    let row = |what: &str, unit, target, measure: fn(&Context) -> Result<Figure>| {
        Case::new(Group::Na, format!("na.tcp.{what}"), unit, measure).target(target).two_cores()
    };
    let mut cases = vec![
        row("rate64", Unit::PerSecond, Target::Limit(2e6), na_tcp::rate),
        row("rtt.idle1000", Unit::Nanoseconds, Target::TimesFloor(1.05), na_tcp::idle_peers),
    ];
    for (what, put) in [("get", false), ("put", true)] {
        for (size, bytes) in SIZES.into_iter().chain([("64m", 64 << 20)]) {
            let measure = move |context: &Context| na_tcp::transfers(context, put, bytes);
            let id = format!("na.tcp.{what}.{size}");
            let case = Case::new(Group::Na, id, Unit::BytesPerSecond, measure);
            cases.push(case.two_cores().target(Target::TimesFloor(0.95)));
        }
    }
    cases
}

/// The rows of `na` that only sm has.
fn na_sm_cases() -> Vec<Case> {
    let na = |id: &str, unit, measure: fn(&Context) -> Result<Figure>| {
        Case::new(Group::Na, id, unit, measure).two_cores()
    };
    let mut cases = vec![
        na("na.sm.rate64", Unit::PerSecond, na_sm::rate).target(Target::Limit(1e7)),
        na("na.sm.rtt.256", Unit::Nanoseconds, |c| na_sm::peers(c, false))
            .target(Target::TimesFloor(1.3)),
        na("na.sm.rtt.256.each", Unit::Nanoseconds, |c| na_sm::peers(c, true)),
    ];
    for (put, shared) in [(false, true), (false, false), (true, true), (true, false)] {
        for (size, bytes) in SIZES.into_iter().chain([("64m", 64 << 20)]) {
            let verb = if put { "put" } else { "get" };
            let what = if shared { "alloc" } else { "any" };
            let measure = move |context: &Context| na_sm::transfer(context, put, shared, bytes);
            let id = format!("na.sm.{verb}.{what}.{size}");
            let target = match (shared, size) {
                (true, _) => Target::TimesFloor(0.8),
                (false, "1m") => Target::Limit(25e9),
                (false, _) => Target::None,
            };
            let case = Case::new(Group::Na, id, Unit::BytesPerSecond, measure);
            cases.push(case.two_cores().target(target));
        }
    }
    cases
}

fn ult_cases() -> Vec<Case> {
    let ult = |id: &str, unit, limit: f64, measure: fn(&Context) -> Result<Figure>| {
        Case::new(Group::Ult, id, unit, measure).target(Target::Limit(limit))
    };
    vec![
        ult("ult.create_join", Unit::Nanoseconds, 38.0, ult_switch::create_join),
        ult("ult.create_detached", Unit::Nanoseconds, 25.0, ult_switch::create_detached),
        ult("ult.yield", Unit::Nanoseconds, 15.0, ult_switch::yields),
        ult("ult.yield_to", Unit::Nanoseconds, 12.0, ult_switch::yields_to),
        Case::new(Group::Ult, "ult.park_to", Unit::Nanoseconds, ult_switch::parks_to),
        ult("ult.tasklet", Unit::Nanoseconds, 18.0, ult_tasklet::create_join),
        ult("ult.tasklet_detached", Unit::Nanoseconds, 10.0, ult_tasklet::create_detached),
        ult("ult.mutex", Unit::Nanoseconds, 10.0, ult_sync::mutex),
        ult("ult.mutex.contended", Unit::Nanoseconds, 0.0, ult_sync::contended)
            .target(Target::TimesOther(1.0, "parking_lot"))
            .two_cores(),
        ult("ult.eventual_resume", Unit::Nanoseconds, 40.0, ult_sync::eventual_resume),
        ult("ult.wake.spin", Unit::Nanoseconds, 200.0, ult_wake::spin).two_cores(),
        ult("ult.wake.parked", Unit::Nanoseconds, 0.0, ult_wake::parked)
            .target(Target::TimesFloor(1.2))
            .two_cores(),
        ult("ult.memory_1m", Unit::Bytes, 8.5 * 1024.0, ult_memory::memory),
        ult("ult.create_1m", Unit::Nanoseconds, 2e9, ult_memory::create),
        Case::new(Group::Ult, "ult.fib.1", Unit::Nanoseconds, |c: &Context| ult_fib::run(c, 1)),
        Case::new(Group::Ult, "ult.fib.2", Unit::Nanoseconds, |c: &Context| ult_fib::run(c, 2))
            .two_cores(),
        ult("ult.idle_cpu", Unit::Percent, 0.1, ult_idle::idle_cpu),
    ]
}

fn timer_cases() -> [Case; 2] {
    let timer = |id, measure: fn(&Context) -> Result<Figure>| {
        let case = Case::new(Group::Timer, id, Unit::Nanoseconds, measure);
        case.target(Target::Limit(100_000.0))
    };
    [
        timer("timer.lateness", ult_idle::lateness),
        timer("timer.lateness.margo", timer_callback::lateness),
    ]
}

/// A row that runs on as many xstreams as it is told.
type MeasureOn = Box<dyn Fn(&Context, usize) -> Result<Figure>>;

fn argobots_cases() -> Vec<Case> {
    let mut rows = argobots_ops(Kind::Ult);
    rows.extend(argobots_ops(Kind::Tasklet));
    for ults in [1, 8] {
        let measure = move |context: &Context, count| argobots::lock_unlock(context, ults, count);
        rows.push((format!("sync_ops.mutex_lock_unlock.{ults}"), Box::new(measure)));
    }
    let id = "argobots.sync_ops.mutex_create_free";
    let mut cases = vec![Case::new(Group::Argobots, id, Unit::Nanoseconds, argobots::create_free)];
    for (what, measure) in rows {
        let measure = Rc::new(measure);
        for count in [1, 2] {
            let (id, measure) = (format!("argobots.{what}.{count}"), measure.clone());
            let on = move |context: &Context| measure(context, count);
            let case = Case::new(Group::Argobots, id, Unit::Nanoseconds, on);
            cases.push(if count > 1 { case.two_cores() } else { case });
        }
    }
    cases
}

/// The rows that exist for ULTs and, but for the yields, for tasklets.
fn argobots_ops(kind: Kind) -> Vec<(String, MeasureOn)> {
    let word = kind.word();
    let mut rows: Vec<(String, MeasureOn)> = Vec::new();
    let life = [Op::Create, Op::Join, Op::CreateJoin];
    for op in life {
        let measure = move |context: &Context, count| argobots::cold(context, kind, op, count);
        rows.push((format!("{word}_ops.{}_cold", op.word()), Box::new(measure)));
    }
    let mut ops = vec![Op::CreateUnnamed];
    let mut alls = vec![All::CreateJoin, All::CreateUnnamed];
    if kind == Kind::Ult {
        ops.extend([Op::Yield, Op::YieldTo]);
        alls.extend([All::Yield, All::YieldTo]);
    }
    for op in life.into_iter().chain(ops) {
        let measure = move |context: &Context, count| argobots::ops(context, kind, op, count);
        rows.push((format!("{word}_ops.{}", op.word()), Box::new(measure)));
    }
    for all in alls {
        let measure = move |context: &Context, count| argobots::ops_all(context, kind, all, count);
        rows.push((format!("{word}_ops_all.{}", all.word()), Box::new(measure)));
    }
    for (units, op) in [64, 256].into_iter().flat_map(|units| life.map(|op| (units, op))) {
        let measure = move |c: &Context, count| argobots::fork_join(c, kind, op, units, count);
        rows.push((format!("{word}_fork_join.{}.{units}", op.word()), Box::new(measure)));
    }
    rows
}

fn rpc_cases() -> Vec<Case> {
    let rpc = |what: &str, unit, settings: Settings, measure: MeasureRpc| {
        let id = format!("rpc.{}.{what}", settings.transport.word());
        let measure = move |context: &Context| measure(context, settings);
        Case::new(Group::Rpc, id, unit, measure).two_cores()
    };
    let mut cases = Vec::new();
    for transport in [Transport::Sm, Transport::Tcp] {
        let sm = transport == Transport::Sm;
        let settings = |patience| Settings { transport, patience };
        let (poll, default) = (settings(WaitPolicy::Poll), settings(WaitPolicy::Default));
        let target = if sm { Target::Limit(350.0) } else { Target::TimesFloor(1.15) };
        cases.push(rpc("rtt.poll", Unit::Nanoseconds, poll, rpc::rtt).target(target));
        let target = if sm { Target::LimitWithTail(500.0, 20_000.0) } else { Target::None };
        cases.push(rpc("rtt.default", Unit::Nanoseconds, default, rpc::rtt).target(target));
        if sm {
            let target = Target::TimesFloor(1.03);
            cases.push(rpc("rtt.stats", Unit::Nanoseconds, poll, rpc::rtt_stats).target(target));
        }
        let target = Target::Limit(1.0);
        cases.push(rpc("idle_cpu", Unit::Percent, default, rpc::idle_cpu).target(target));
        let target = Target::Limit(if sm { 4e6 } else { 0.8e6 });
        cases.push(rpc("rate32", Unit::PerSecond, poll, rpc::rate).target(target));
    }
    let scale = Case::new(Group::Rpc, "rpc.sm.scale2", Unit::PerSecond, rpc_scale::run);
    cases.push(scale.two_cores().target(Target::TimesFloor(0.9)));
    let id = "rpc.sm.scale2.contexts";
    let apart = Case::new(Group::Rpc, id, Unit::PerSecond, rpc_scale_apart::run);
    cases.push(apart.two_cores().target(Target::TimesFloor(0.9)));
    cases
}

fn bulk_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (what, way) in [("sm.alloc", Way::SmAlloc), ("sm.any", Way::SmAny), ("tcp", Way::Tcp)] {
        for (size, bytes) in SIZES {
            let target = match (way, size) {
                (Way::SmAlloc, "1m") => Target::TimesFloor(0.8),
                (Way::SmAny, "1m") => Target::Limit(25e9),
                (Way::Tcp, "1m") => Target::TimesFloor(0.95),
                _ => Target::None,
            };
            let measure = move |context: &Context| bulk::run(context, way, bytes);
            let id = format!("bulk.{what}.{size}");
            let case = Case::new(Group::Bulk, id, Unit::BytesPerSecond, measure);
            cases.push(case.two_cores().target(target));
        }
    }
    cases
}

/// Time in ns that our round trip may take beyond a bare one.
const FABRIC_OVERHEAD: f64 = 300.0;

/// Share of the bare bandwidth that a transfer of ours should have.
const FABRIC_SHARE: f64 = 0.97;

fn fabric_cases(over: Fabric) -> Vec<Case> {
    let transport = Transport::Fabric(over);
    let row = |what: &str, unit, measure: Measure| {
        let id = format!("fabric.{}.{what}", over.word());
        let measure = move |context: &Context| match over.lacks() {
            Some(lacks) => Ok(Figure::lacking(lacks)),
            None => measure(context),
        };
        Case::new(Group::Fabric, id, unit, measure).two_cores()
    };
    let mut cases = Vec::new();
    for (what, layer) in [("rtt", Layer::Na), ("hg.rtt", Layer::Hg)] {
        let measure = move |context: &Context| echo::run(context, layer, transport, Work::Null);
        cases.push(row(what, Unit::Nanoseconds, Box::new(measure)));
    }
    let settings = Settings { transport, patience: WaitPolicy::Poll };
    let measure = move |context: &Context| rpc::rtt(context, settings);
    cases.push(row("rpc.rtt", Unit::Nanoseconds, Box::new(measure)));
    for case in &mut cases {
        case.target = Target::MoreThanFloor(FABRIC_OVERHEAD);
    }
    let measure = move |c: &Context| echo::run(c, Layer::Hg, transport, Work::Many(16));
    cases.push(row("hg.rate16", Unit::PerSecond, Box::new(measure)));
    for (what, verb) in [("get", Verb::Get), ("put", Verb::Put)] {
        let measure = move |c: &Context| fabric::transfers(c, over, verb, 1 << 20);
        let case = row(&format!("{what}.1m"), Unit::BytesPerSecond, Box::new(measure));
        cases.push(case.target(Target::TimesFloor(FABRIC_SHARE)));
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_are_unique_and_begin_with_their_group() {
        let mut seen = HashSet::new();
        for case in cases() {
            let group = case.group.to_possible_value().unwrap();
            assert!(case.id.starts_with(&format!("{}.", group.get_name())), "{}", case.id);
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._".contains(c);
            assert!(case.id.chars().all(plain), "{}", case.id);
            assert!(seen.insert(case.id.clone()), "{} twice", case.id);
        }
    }
}

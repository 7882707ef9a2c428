//! The steps of a run, and how long each may measure.

use std::path::PathBuf;
use std::time::Duration;

use super::arguments::{Arguments, WINDOW};
use super::layout::Layout;
use super::programs;
use super::server::{Calls, Stack, Work};
use super::units::Units;
use crate::base::{Result, ensure};
use crate::floors::transport::Transport;

/// The thing that a step measures.
#[derive(Debug, Clone)]
pub(crate) enum What {
    /// Calls by clients in processes of their own.
    Calls(Calls),
    /// Calls by clients beside the server.
    Beside(Calls, Layout),
    /// Calls, by a program of the user's.
    CallsOf(PathBuf, Calls, Layout),
    /// Units.
    Units(Units),
    /// Units, by a program of the user's.
    UnitsOf(PathBuf, &'static str),
}

/// A step.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) id: String,
    pub(crate) what: What,
    /// Xstreams of the server, or all.
    pub(crate) count: usize,
}

/// The steps, and the window in which each measures.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    pub(crate) window: Duration,
}

/// Starting and stopping the processes of a step.
const OVERHEAD: Duration = Duration::from_millis(400);

/// The numbers of xstreams that are measured, up to the largest.
fn counts(most: usize) -> impl Iterator<Item = usize> + Clone {
    std::iter::successors(Some(1), |count| Some(count * 2)).take_while(move |count| *count <= most)
}

impl Plan {
    /// The plan for so many cores.
    ///
    /// # Errors
    ///
    /// When no step is left, or a folder of programs has none.
    pub(crate) fn new(arguments: &Arguments, cores: usize) -> Result<Self> {
        let mut steps = calls(cores);
        #[cfg(feature = "peers")]
        steps.extend(peers(cores));
        steps.extend(units(cores));
        if let Some(directory) = &arguments.c_programs {
            let [calls, units] = programs::NAMES.map(|name| programs::program(directory, name));
            let is_empty = calls.is_none() && units.is_none();
            let names = programs::NAMES.join("` nor `");
            ensure!(!is_empty, "--c-programs: neither `{names}` in {}", directory.display());
            steps.extend(calls.iter().flat_map(|program| calls_of(program, cores)));
            steps.extend(units.iter().flat_map(|program| units_of(program, cores)));
        }
        steps.retain(|step| step.id.contains(&arguments.filter));
        ensure!(!steps.is_empty(), "no step is selected; `--list` without a filter shows all");
        let count = steps.len() as u32;
        let left = arguments.time().saturating_sub(OVERHEAD * count);
        // A quarter of the window is before it and after it.
        let window = (left / count).mul_f64(0.8).clamp(WINDOW[0], arguments.window);
        Ok(Self { steps, window })
    }
}

/// Steps for each number of xstreams, each layout where there is a choice.
fn layouts(most: usize) -> impl Iterator<Item = (usize, Layout)> {
    counts(most).flat_map(|count| {
        let layouts = if count == 1 { &Layout::ALL[..1] } else { &Layout::ALL[..] };
        layouts.iter().map(move |layout| (count, *layout))
    })
}

/// Layouts for a kind of calls. Those that compute have one more, where nothing but the help of
/// idle xstreams spreads them.
fn layouts_for(work: Work, most: usize) -> impl Iterator<Item = (usize, Layout)> {
    let skewed = counts(most).filter(move |count| *count > 1 && work == Work::Burn);
    layouts(most).chain(skewed.map(|count| (count, Layout::Skewed)))
}

fn works() -> impl Iterator<Item = (Transport, Work)> {
    let over = [Transport::Sm, Transport::Tcp].into_iter();
    over.flat_map(|over| Work::ALL.into_iter().map(move |work| (over, work)))
}

fn id(calls: Calls, count: usize, more: &str) -> String {
    let (over, work) = (calls.over.word(), calls.work.word());
    format!("rpc.{over}.{work}.{}.{count}{more}", calls.stack.word())
}

fn calls(cores: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    for (over, work) in works() {
        let calls = |layout| Calls { stack: Stack::Margo(layout), over, work };
        // At least as many clients as xstreams.
        steps.extend(layouts_for(work, cores / 2).map(|(count, layout)| {
            let what = What::Calls(calls(layout));
            Step { id: id(calls(layout), count, ""), what, count }
        }));
        if cores < 4 {
            steps.extend(layouts_for(work, cores).map(|(count, layout)| {
                let what = What::Beside(calls(layout), layout);
                Step { id: id(calls(layout), count, ".beside"), what, count }
            }));
        }
    }
    steps
}

#[cfg(feature = "peers")]
fn peers(cores: usize) -> Vec<Step> {
    let step = |count, stack| {
        let calls = Calls { stack, over: Transport::Tcp, work: Work::Null };
        Step { id: id(calls, count, ""), what: What::Calls(calls), count }
    };
    let both = |count| [Stack::Tarpc, Stack::Tonic].map(|stack| step(count, stack));
    counts(cores / 2).flat_map(both).collect()
}

fn calls_of(program: &std::path::Path, cores: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    for (over, work) in works() {
        let known = |(_, layout): &(usize, Layout)| *layout != Layout::Shards;
        steps.extend(layouts(cores / 2).filter(known).map(|(count, layout)| {
            let calls = Calls { stack: Stack::Margo(layout), over, work };
            let id = format!("c-{}", id(calls, count, ""));
            Step { id, what: What::CallsOf(program.into(), calls, layout), count }
        }));
    }
    steps
}

/// The tests of units that grow with the number of cores, and those for all cores at once.
const TESTS: [&[&str]; 2] = [&["fib", "parfor"], &["pingpong", "ult-many"]];

fn units(cores: usize) -> Vec<Step> {
    let step = |units: Units, count| Step {
        id: format!("{}.{count}", units.words().join(".")),
        what: What::Units(units),
        count,
    };
    let each = [
        Units::Fib,
        Units::FibRayon,
        #[cfg(feature = "peers")]
        Units::FibTokio,
        Units::Loop,
        Units::LoopTasklet,
        Units::LoopRayon,
        #[cfg(feature = "peers")]
        Units::LoopTokio,
    ];
    let mut steps = vec![step(Units::FibSerial, 1)];
    steps.extend(each.iter().flat_map(|units| counts(cores).map(|count| step(*units, count))));
    if cores > 1 {
        steps.push(step(Units::Wake, cores));
    }
    steps.push(step(Units::Many, cores));
    steps
}

fn units_of(program: &std::path::Path, cores: usize) -> Vec<Step> {
    let step = |test: &'static str, count| {
        let id = format!("c-{test}.abt.{count}");
        Step { id, what: What::UnitsOf(program.into(), test), count }
    };
    let each = TESTS[0].iter().flat_map(|test| counts(cores).map(|count| step(test, count)));
    each.chain(TESTS[1].iter().map(|test| step(test, cores))).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn plan(words: &[&str], cores: usize) -> Result<Plan> {
        let line = std::iter::once("scale").chain(words.iter().copied());
        Plan::new(&Line::try_parse_from(line).unwrap().arguments, cores)
    }

    fn ids(filter: &str, cores: usize) -> Vec<String> {
        let plan = plan(&["--filter", filter], cores).unwrap();
        plan.steps.into_iter().map(|step| step.id).collect()
    }

    #[test]
    fn the_time_is_shared_out_among_the_steps() {
        for cores in [1, 2, 3, 4, 16, 128] {
            for (words, seconds) in [(&[][..], 300), (&["--seconds", "480"], 480)] {
                let Plan { steps, window } = plan(words, cores).unwrap();
                let step = OVERHEAD + window.mul_f64(1.25);
                assert!(step * steps.len() as u32 <= Duration::from_secs(seconds), "{cores}");
                assert!(window > WINDOW[0] * 10, "{cores}: {window:?}");
            }
            // Nothing is left to share: the run ends when its time does.
            assert_eq!(plan(&["--seconds", "1"], cores).unwrap().window, WINDOW[0]);
        }
        for bad in ["0", "481", "x"] {
            assert!(Line::try_parse_from(["scale", "--seconds", bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_server_never_has_more_cores_than_its_clients() {
        let wanted = ["shared.1", "shared.2", "all.2", "shards.2", "instances.2"];
        let wanted = wanted.map(|word| format!("rpc.sm.null.margo-{word}"));
        assert_eq!(ids("rpc.sm.null.margo", 5), wanted);
        let largest = ids("rpc.tcp.burn2us.margo-all", 17).pop().unwrap();
        assert_eq!(largest, "rpc.tcp.burn2us.margo-all.8");
        let beside = ids(".beside", 2);
        assert_eq!(beside.len(), 6 * 5 + 2, "{beside:?}");
        assert!(beside.contains(&"rpc.sm.burn2us.margo-skewed.2.beside".to_owned()));
        assert!(ids("rpc.sm.null.", 2).contains(&"rpc.sm.null.margo-shared.1".to_owned()));
        assert_eq!(ids("rpc.sm.null.", 1), ["rpc.sm.null.margo-shared.1.beside"]);
        assert_eq!(ids("fib.ult-ws", 6), ["fib.ult-ws.1", "fib.ult-ws.2", "fib.ult-ws.4"]);
    }

    #[test]
    fn no_step_and_a_folder_without_programs_are_errors() {
        assert!(plan(&["--filter", "nothing"], 2).unwrap_err().to_string().contains("no step"));
        let error = plan(&["--c-programs", "/no/such/place"], 2).unwrap_err().to_string();
        assert!(error.contains("neither `scale-calls` nor `scale-units`"), "{error}");
    }
}

//! The machine: what it is, which cores are used, and in which state they are.

use std::process::Command;
use std::time::Duration;

use rustix::thread::CpuSet;
use serde::{Deserialize, Serialize};

use crate::base::failure::{Doing, Failure, Result};
use crate::base::stats::{Effort, Samples, clock_read_ns};
use crate::base::wait::Deadline;
use crate::floors::lines::{Caller, Lines, Responder};
use crate::process::child::output_of;

/// The cores of a run, by the kernel's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cores {
    /// Where the origin runs, and everything that needs one core only.
    pub(crate) origin: usize,
    /// Where the target runs. `None` on a machine (or in a container) with one core.
    pub(crate) target: Option<usize>,
}

impl Cores {
    /// The first two cores that this process may use.
    ///
    /// # Errors
    ///
    /// When the kernel does not say, or allows none below its set's size.
    pub(crate) fn first_allowed() -> Result<Self> {
        let allowed = rustix::thread::sched_getaffinity(None).doing("asking for usable cores")?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        let origin = cores.next().ok_or_else(|| Failure::new("no usable core"))?;
        Ok(Self { origin, target: cores.next() })
    }

    /// The cores that the user named as `A,B`.
    ///
    /// # Errors
    ///
    /// When the text is not two different numbers.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let numbers: Vec<usize> = text.split(',').filter_map(|n| n.trim().parse().ok()).collect();
        match numbers[..] {
            [origin, target] if origin != target && origin.max(target) < CpuSet::MAX_CPU => {
                Ok(Self { origin, target: Some(target) })
            }
            _ => Err(Failure::new(format!(
                "`{text}` does not name two different cores; expected for example `0,1`"
            ))),
        }
    }

    /// Checks that both cores may be used, before anything waits for the other one.
    ///
    /// # Errors
    ///
    /// When one of them does not exist or is not allowed.
    pub(crate) fn check(self) -> Result<Self> {
        let allowed = rustix::thread::sched_getaffinity(None).doing("asking for usable cores")?;
        let mut cores = [Some(self.origin), self.target].into_iter().flatten();
        match cores.find(|core| !allowed.is_set(*core)) {
            Some(core) => Err(Failure::new(format!("core {core} cannot be used here"))),
            None => Ok(self),
        }
    }

    /// The target's core.
    ///
    /// # Errors
    ///
    /// When there is none: two sides that poll on one core would measure the kernel's scheduler.
    pub(crate) fn target(&self) -> Result<usize> {
        self.target.ok_or_else(|| Failure::new("needs two cores, and only one is usable"))
    }
}

/// Pins the calling thread, and the threads that it starts from now on, to `core`.
///
/// # Errors
///
/// When the core does not exist or is not allowed.
pub(crate) fn pin(core: usize) -> Result<()> {
    pin_to_any(&[core])
}

/// Like [`pin`], to several cores between which the kernel chooses.
///
/// # Errors
///
/// When none of them exists and is allowed.
pub(crate) fn pin_to_any(cores: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    rustix::thread::sched_setaffinity(None, &set).doing(&format!("pinning to {cores:?}"))
}

/// Round-trip time of one cache line between the two cores, median, ns: the machine's state. A
/// virtual machine's cores may be near each other or far apart, and this may change while it runs.
///
/// # Errors
///
/// When there is one core only, or the other one does not answer.
pub(crate) fn probe_ns(cores: Cores) -> Result<f64> {
    let effort =
        Effort { rounds: 1, samples: 2_000, warmup: 200, round_max: Duration::from_millis(20) };
    let mut samples = effort.room(1);
    line_round(cores, effort, &mut samples, Deadline::after(Duration::from_secs(5)))?;
    samples.quantile(500).ok_or_else(|| Failure::new("the probe took no sample"))
}

/// One round of cache-line round trips between two threads of this process, one on each core.
///
/// # Errors
///
/// When there is one core only, or the other one does not answer in time.
pub(crate) fn line_round(
    cores: Cores,
    effort: Effort,
    samples: &mut Samples,
    deadline: Deadline,
) -> Result<()> {
    let target = cores.target()?;
    let lines = Lines::default();
    std::thread::scope(|scope| {
        let responder =
            scope.spawn(|| pin(target).and_then(|()| Responder::new(&lines).answer(deadline)));
        let caller = scope.spawn(|| {
            pin(cores.origin)?;
            let mut caller = Caller::new(&lines);
            effort.each(samples, || caller.round_trip(deadline))?;
            caller.stop(deadline)
        });
        let panicked = || Failure::new("the probe panicked");
        let called = caller.join().map_err(|_| panicked())?;
        let answered = responder.join().map_err(|_| panicked())?;
        called.and(answered)
    })
}

/// The machine and the build, as the report shows them, one line each.
pub(crate) fn header(cores: Cores) -> Vec<String> {
    let or_unknown = |text: Option<String>| text.unwrap_or_else(|| "unknown".into());
    let uname = rustix::system::uname();
    let target = cores.target.map_or_else(|| "none".into(), |core| core.to_string());
    let mut lines = vec![
        format!("cpu      {}", or_unknown(cpu_model())),
        format!(
            "kernel   {} {} {}",
            uname.sysname().to_string_lossy(),
            uname.release().to_string_lossy(),
            uname.machine().to_string_lossy()
        ),
        format!("rustc    {}", option_env!("MARGO_BENCH_RUSTC").unwrap_or("unknown")),
    ];
    lines.extend(commit().map(|commit| format!("tree     {commit}")));
    lines.push(format!("cores    origin {}, target {target}", cores.origin));
    lines.push(format!("clock    {:.0} ns for a read", clock_read_ns()));
    if let Ok(ns) = probe_ns(cores) {
        lines.push(format!("line     {ns:.0} ns round trip of a cache line between the cores"));
    }
    if cfg!(debug_assertions) {
        lines.push("build    with debug assertions: the figures say nothing".into());
    }
    lines
}

fn cpu_model() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    // AArch64 kernels name the model in the device tree only, if at all.
    model_in(&text).or_else(|| {
        let model = std::fs::read_to_string("/proc/device-tree/model").ok()?;
        Some(model.trim_end_matches('\0').to_owned())
    })
}

fn model_in(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The commit of the tree in which the program runs, best effort. It may have been built from
/// another one.
fn commit() -> Option<String> {
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]);
    let text = output_of(&mut git, Deadline::after(Duration::from_secs(5))).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_cores_are_named_by_two_different_numbers() {
        let cores = Cores::parse("2, 5").unwrap();
        assert_eq!((cores.origin, cores.target), (2, Some(5)));
        for bad in ["", "1", "1,1", "0,1,2", "a,b", "0,-1", "0,1024"] {
            assert!(Cores::parse(bad).unwrap_err().to_string().contains("two different"), "{bad}");
        }
    }

    #[test]
    fn one_core_is_no_pair() {
        let error = Cores { origin: 0, target: None }.target().unwrap_err();
        assert!(error.to_string().contains("two cores"));
    }

    #[test]
    fn the_model_is_found_in_cpuinfo() {
        let text = "processor\t: 0\nmodel\t\t: 26\nmodel name\t: AMD EPYC 9575F\n";
        assert_eq!(model_in(text).as_deref(), Some("AMD EPYC 9575F"));
        assert_eq!(model_in("processor : 0\n"), None);
    }

    #[test]
    fn the_header_names_what_a_reader_needs() {
        let header = header(Cores { origin: 0, target: None });
        for word in ["cpu", "kernel", "rustc", "cores", "clock"] {
            assert!(header.iter().any(|line| line.starts_with(word)), "{word}: {header:?}");
        }
    }
}

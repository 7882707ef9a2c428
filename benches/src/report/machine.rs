//! The header of the report: the machine, which cores are used, and in which state they are.

use std::process::Command;
use std::time::Duration;

use crate::base::{Cores, Deadline, clock_read_ns};
use crate::floors::lines::probe_ns;
use crate::process::child::ChildProcess;

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
    let git = ChildProcess::program(&mut git, Deadline::after(Duration::from_secs(5))).ok()?;
    let text = git.output().ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

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

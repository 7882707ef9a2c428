//! The command line of `margo-bench scale`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::base::{Doing, OrFail, Result, ensure};

/// Measures rates over the number of cores: servers with 1, 2, 4, 8 ... xstreams in each layout.
///
/// Clients are processes of their own on the remaining cores, with 32 calls in flight each (2 of
/// transfers, by as many clients as the server has xstreams). Below four cores there are also
/// steps with the clients beside the server, on its own xstreams, since so few cores can not be
/// shared out. Every thread is pinned. `busy` is the processor time of the server's threads over
/// the time of the clock, in cores; `fair` the rate of the slowest client over that of the
/// fastest.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Cores to use, for example `0-7,16` [default: all that are usable]
    #[arg(long, value_name = "LIST")]
    cores: Option<String>,
    /// Longest time for everything, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300,
        value_parser = clap::value_parser!(u64).range(1..=480))]
    seconds: u64,
    /// Longest time for which a step measures, in seconds, 0.01 to 2; less where all of them would
    /// not come to their end
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = parse_window)]
    pub(crate) window: Duration,
    /// Also write each result as a line of JSON, which `margo-bench plot` draws
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Also run the programs `scale-calls` and `scale-units` of this folder, which measure the
    /// same with C Margo and C Argobots; docs/performance.md says how they are called
    #[arg(long, value_name = "DIR")]
    pub(crate) c_programs: Option<PathBuf>,
    /// Only steps whose id contains this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) filter: String,
    /// Print the ids and run nothing
    #[arg(long)]
    pub(crate) list: bool,
}

/// The limits of a window.
pub(crate) const WINDOW: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(2)];

fn parse_window(text: &str) -> std::result::Result<Duration, String> {
    let window = text.parse().ok().and_then(|time| Duration::try_from_secs_f64(time).ok());
    let window = window.filter(|window| (WINDOW[0]..=WINDOW[1]).contains(window));
    window.ok_or_else(|| format!("`{text}` is no time from 0.01 to 2"))
}

impl Arguments {
    /// The time for everything.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// The cores to use.
    ///
    /// # Errors
    ///
    /// When the list is none, or names a core twice or one that is not usable.
    pub(crate) fn cores(&self) -> Result<Vec<usize>> {
        let allowed = sched_getaffinity(None).doing("asking for usable cores")?;
        let Some(list) = &self.cores else {
            return Ok((0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect());
        };
        let wrong = || format!("`{list}` is no list of cores; expected for example `0-7,16`");
        let mut cores = Vec::new();
        for part in list.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse().ok().or_fail(&wrong());
            let (first, last): (usize, usize) = (number(first)?, number(last)?);
            ensure!(first <= last && last < CpuSet::MAX_CPU, "{}", wrong());
            cores.extend(first..=last);
        }
        for (at, core) in cores.iter().enumerate() {
            ensure!(!cores[..at].contains(core), "core {core} is named twice");
            ensure!(allowed.is_set(*core), "core {core} cannot be used here");
        }
        Ok(cores)
    }
}

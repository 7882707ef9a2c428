//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::base::{Cores, Deadline, Result, ensure};
use crate::catalog::{Case, Group, cases, sweep_cases};
use crate::floors::transport::Transport;
use crate::process::Context;
use crate::rows::sweep::mercury;
use crate::rows::sweep::spec::parse_size;
use crate::{plot, scale};

/// Measures margo beside what the machine itself needs for the same thing.
///
/// Prints one table: figure, floor of the same run, and their ratio. Exit code 1 when a row failed;
/// a missed target is no failure.
#[derive(Debug, Parser)]
#[command(name = "margo-bench", version, args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// Groups to run [default: all but `sweep`]
    #[arg(value_enum, value_name = "GROUP")]
    pub(crate) groups: Vec<Group>,
    /// Also write the rows as a JSON array
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// As little as shows that each row works; the figures say little
    #[arg(long)]
    pub(crate) quick: bool,
    /// Core of the origin and of the target [default: the first two that are usable]
    #[arg(long, value_name = "A,B")]
    pub(crate) cores: Option<String>,
    /// Longest time for one row, in seconds [default: 120, with --quick 10]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) limit: Option<u64>,
    /// Print the ids and run nothing
    #[arg(long)]
    pub(crate) list: bool,
    /// Only rows whose id contains this text
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Option<String>,
    /// For `sweep`: bytes of arguments or of a transfer
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size,
        default_value = "8,64,1k,4k,16k,64k,256k,1m,4m,16m")]
    pub(crate) sizes: Vec<usize>,
    /// For `sweep`: calls at a time
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,16",
        value_parser = parse_in_flight)]
    pub(crate) in_flight: Vec<usize>,
    /// For `sweep`: sm, tcp, ofi_tcp, ofi_rxm, ofi_shm, ucx_tcp, ucx_sm
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "sm,tcp",
        value_parser = parse_transport)]
    pub(crate) over: Vec<Transport>,
    /// For `sweep`: where `hg_perf_server`, `hg_rate`, `hg_bw_read` and `hg_bw_write` of C Mercury
    /// are, to be run beside each row
    #[arg(long, value_name = "DIR")]
    pub(crate) mercury: Option<PathBuf>,
}

/// Subcommand, in place of a report.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Scale(scale::Arguments),
    Plot(plot::Arguments),
}

impl Arguments {
    /// The rows that were asked for, in the order of the catalogue.
    ///
    /// # Errors
    ///
    /// When there are none.
    pub(crate) fn selected(&self) -> Result<Vec<Case>> {
        let wanted = |case: &Case| {
            let in_group =
                self.groups.is_empty() || self.groups.iter().any(|group| case.is_of(*group));
            in_group && self.filter.as_ref().is_none_or(|text| case.id.contains(text.as_str()))
        };
        let mut all = cases();
        if self.groups.contains(&Group::Sweep) {
            all.extend(sweep_cases(&self.over, &self.sizes, &self.in_flight));
        }
        let selected: Vec<Case> = all.into_iter().filter(wanted).collect();
        ensure!(!selected.is_empty(), "no row is selected; `--list` without a filter shows all");
        Ok(selected)
    }

    /// The context that all rows have in common.
    ///
    /// # Errors
    ///
    /// When the cores that were asked for are not usable, or programs that were are not there.
    pub(crate) fn context(&self) -> Result<Context> {
        let limit = self.limit.unwrap_or(if self.quick { 10 } else { 120 });
        let deadline = Deadline::after(Duration::from_secs(limit));
        let mercury = self.mercury.as_deref().map(mercury::checked).transpose()?;
        let cores = match &self.cores {
            Some(text) => Cores::parse(text)?.check()?,
            None => Cores::first_allowed()?,
        };
        Ok(Context { id: String::new(), cores, quick: self.quick, deadline, mercury })
    }
}

fn parse_transport(text: &str) -> std::result::Result<Transport, String> {
    Transport::all().find(|transport| transport.word() == text).ok_or_else(|| {
        let words: Vec<&str> = Transport::all().map(Transport::word).collect();
        format!("`{text}` is no transport; there are {}", words.join(", "))
    })
}

fn parse_in_flight(text: &str) -> std::result::Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=1024).contains(number));
    number.ok_or_else(|| format!("`{text}` is no number of calls from 1 to 1024"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(line: &[&str]) -> Result<Vec<String>> {
        let line = std::iter::once("margo-bench").chain(line.iter().copied());
        let cases = Arguments::try_parse_from(line).unwrap().selected()?;
        Ok(cases.into_iter().map(|case| case.id).collect())
    }

    #[test]
    fn groups_and_filter_narrow_the_selection() {
        let all = selected(&[]).unwrap();
        let floors = selected(&["floor"]).unwrap();
        assert!(floors.len() < all.len() && floors.iter().all(|id| id.starts_with("floor.")));
        let some = selected(&["floor", "--filter", "1m"]).unwrap();
        let wanted =
            ["memcpy", "attach", "tcp_get", "tcp_stream"].map(|what| format!("floor.{what}.1m"));
        assert_eq!(some, wanted);
    }

    #[test]
    fn a_sweep_is_run_only_when_it_is_named() {
        let words = ["sweep", "--sizes", "8,64k", "--in-flight", "4", "--filter", "tcp"];
        let wanted = ["rate.x4.8", "rate.x4.64k", "read.x4.8", "read.x4.64k", "write.x4.8"];
        let mut wanted = wanted.map(|what| format!("sweep.tcp.{what}")).to_vec();
        wanted.push("sweep.tcp.write.x4.64k".into());
        assert_eq!(selected(&words).unwrap(), wanted);
        let over = selected(&["sweep", "--over", "ucx_sm,ofi_rxm", "--sizes", "8"]).unwrap();
        assert_eq!(over.len(), 2 * 3 * 2, "{over:?}");
        assert_eq!([&over[0], &over[11]], ["sweep.ucx_sm.rate.x1.8", "sweep.ofi_rxm.write.x16.8"]);
        assert!(selected(&[]).unwrap().iter().all(|id| !id.starts_with("sweep.")));
        for bad in [["--sizes", "0"], ["--sizes", "8,x"], ["--in-flight", "0"], ["--over", "udp"]] {
            let line = ["margo-bench", "sweep"].into_iter().chain(bad);
            assert!(Arguments::try_parse_from(line).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_empty_selection_and_an_unknown_group_are_errors() {
        assert!(selected(&["--filter", "nothing of the kind"]).is_err());
        assert!(Arguments::try_parse_from(["margo-bench", "nothing"]).is_err());
    }
}

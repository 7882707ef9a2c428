//! C Mercury's own programs for the measurement of a sweep row, run beside that row.
//!
//! A build of Mercury has them with `BUILD_TESTING=ON` (2.4.1 was tried). Both sides poll, each on
//! a core of its own. The options make them do the work of the row: one size, so many calls in
//! flight, one transfer for each.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};

use super::spec::{Sweep, What};
use crate::base::{Deadline, Doing, OrFail, Result, fail};
use crate::floors::fabric::Fabric;
use crate::floors::transport::Transport;
use crate::process::{ChildProcess, Context};

const SERVER: &str = "hg_perf_server";
const PROGRAMS: [&str; 4] = [SERVER, "hg_rate", "hg_bw_read", "hg_bw_write"];

/// Which devices UCX uses.
const DEVICES: &str = "UCX_NET_DEVICES";

/// How long one of them may measure.
const TIME: Duration = Duration::from_millis(500);

/// How long, when it is only to be seen that it works.
const TIME_QUICK: Duration = Duration::from_millis(10);

/// The longest that one of them may take.
const LIMIT: Duration = Duration::from_secs(20);

/// The directory as a path that holds anywhere, if the programs are in it.
///
/// # Errors
///
/// When one of them is not there.
pub(crate) fn checked(directory: &Path) -> Result<PathBuf> {
    let directory = std::path::absolute(directory).doing("--mercury")?;
    match PROGRAMS.iter().find(|program| !directory.join(program).is_file()) {
        None => Ok(directory),
        Some(missing) => fail!(
            "--mercury: there is no `{missing}` in {}; Mercury builds its programs for measuring \
             with the CMake option BUILD_TESTING=ON",
            directory.display()
        ),
    }
}

/// Plugin and protocol for what we measure over. Over TCP it has nothing but libfabric's
/// `tcp;ofi_rxm`, as far as libfabric 1.17 goes.
fn plugin(transport: Transport) -> [&'static str; 2] {
    match transport {
        Transport::Sm => ["na", "sm"],
        Transport::Tcp
        | Transport::Private
        | Transport::Fabric(Fabric::OfiTcp | Fabric::OfiRxm) => ["ofi", "tcp"],
        Transport::Fabric(Fabric::OfiShm) => ["ofi", "shm"],
        Transport::Fabric(Fabric::UcxTcp) => ["ucx", "tcp"],
        Transport::Fabric(Fabric::UcxSm) => ["ucx", "sm"],
    }
}

/// The arguments of both sides.
fn arguments(sweep: Sweep, file: &Path) -> Vec<String> {
    let [plugin, protocol] = plugin(sweep.transport);
    let (size, in_flight) = (sweep.bytes.to_string(), sweep.in_flight.to_string());
    let words = ["-c", plugin, "-p", protocol, "-b", "-y", &size, "-z", &size, "-x", &in_flight];
    let mut words: Vec<String> = words.map(String::from).to_vec();
    words.extend(["-w", "1", "-M", "-f"].map(String::from));
    words.push(file.display().to_string());
    words
}

/// The figure in what the program says of `bytes`, in the row's unit: a line of size, calls per
/// second or MB/s, and us. What has too few digits in MB/s has more in us.
fn figure(text: &str, sweep: Sweep) -> Option<f64> {
    let of_line = |line: &str| {
        let mut words = line.split_whitespace();
        let size: usize = words.next()?.parse().ok()?;
        let (figure, time): (f64, f64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let figure = match sweep.what {
            What::Rate => figure,
            What::Read | What::Write if figure < 100.0 => sweep.bytes as f64 * 1e6 / time,
            What::Read | What::Write => figure * 1e6,
        };
        (size == sweep.bytes && figure.is_normal() && figure > 0.0).then_some(figure)
    };
    text.lines().rev().find_map(of_line)
}

/// Calls or bytes per second, as the row has them. `round` is what ours takes for as many calls as
/// are in flight, in ns. Main thread only.
///
/// # Errors
///
/// When a program fails, or says nothing in time.
pub(super) fn measure(sweep: Sweep, programs: &Path, round: f64, context: &Context) -> Result<f64> {
    // One that hangs shall leave time for ours.
    let limit = (context.deadline.left() / 4).min(LIMIT);
    let deadline = Deadline::after(limit);
    let folder = tempfile::tempdir().doing("a folder for Mercury's address")?;
    let file = folder.path().join("address");
    let words = arguments(sweep, &file);
    let command = |program: &str| {
        let mut command = Command::new(programs.join(program));
        command.args(&words);
        // As ours: with others it may find no way to itself.
        if sweep.transport == Transport::Fabric(Fabric::UcxTcp)
            && std::env::var_os(DEVICES).is_none()
        {
            command.env(DEVICES, "lo");
        }
        command
    };
    let mut server = command(SERVER);
    if sweep.transport != Transport::Sm {
        server.args(["-H", "127.0.0.1"]);
    }
    let mut cores = CpuSet::new();
    cores.set(context.cores.target()?);
    let pin = move || Ok(sched_setaffinity(None, &cores)?);
    // SAFETY:
    // - between `fork` and `exec` it makes one system call: no allocation, no lock, no panic.
    unsafe { server.pre_exec(pin) };
    let mut server = ChildProcess::program(&mut server, deadline)?;
    while !std::fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n')) {
        server.check(SERVER)?;
        deadline.check("Mercury's address")?;
        std::thread::sleep(Duration::from_millis(1));
    }
    let program = match sweep.what {
        What::Rate => "hg_rate",
        What::Read => "hg_bw_read",
        What::Write => "hg_bw_write",
    };
    let time = if context.quick { TIME_QUICK } else { TIME };
    let rounds = (time.as_nanos() as f64 / round).clamp(10.0, 1e6) as u64;
    let mut command = command(program);
    let client = ChildProcess::program(command.args(["-l", &rounds.to_string()]), deadline)?;
    let text = client.output().doing(program)?;
    let last = text.lines().last().unwrap_or("nothing");
    figure(&text, sweep).or_fail(&format!("{program} has no figure; it said: {last}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_and_nothing_else() {
        let text = "# Loop 100 times from size 8 to 8 byte(s) with 1 handle(s) in-flight\n\
                    # Size               \"Rate (ops/s)\"              \"Time (us)\"\n\
                    8                            196011                     5.10\n\
                    Finalizing...\n";
        let of = |id: &str| Sweep::of(id).unwrap();
        let (rate, read) = (of("sweep.sm.rate.x1.8"), of("sweep.sm.read.x1.8"));
        assert_eq!(figure(text, rate), Some(196_011.0));
        assert_eq!(figure(text, of("sweep.sm.rate.x1.64")), None);
        let long = of("sweep.sm.write.x1.64k");
        assert_eq!(figure("65536     5931.25    11.05\n", long), Some(5_931.25e6));
        assert_eq!(figure("8      0.00      4.00\n", read), Some(8e6 / 4.0));
        for bad in ["", "8", "8 x", "8 0 0.0", "eight 5 1.0", "8 5"] {
            assert_eq!(figure(bad, rate), None, "{bad}");
            assert_eq!(figure(bad, read), None, "{bad}");
        }
    }

    #[test]
    fn programs_that_are_not_there_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let error = checked(folder.path()).unwrap_err().to_string();
        assert!(
            error.contains("no `hg_perf_server`") && error.contains("BUILD_TESTING"),
            "{error}"
        );
        for program in PROGRAMS {
            std::fs::write(folder.path().join(program), "").unwrap();
        }
        assert_eq!(checked(folder.path()).unwrap(), folder.path());
    }

    #[test]
    fn they_are_told_what_the_row_does() {
        let words = |id| arguments(Sweep::of(id).unwrap(), Path::new("/f")).join(" ");
        let all = "-c ofi -p shm -b -y 4096 -z 4096 -x 16 -w 1 -M -f /f";
        assert_eq!(words("sweep.ofi_shm.read.x16.4k"), all);
        assert!(words("sweep.sm.rate.x1.8").starts_with("-c na -p sm "));
        assert!(words("sweep.ofi_rxm.rate.x1.8").starts_with("-c ofi -p tcp "));
    }
}

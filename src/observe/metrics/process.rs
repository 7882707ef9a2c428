//! The figures that the operating system keeps of this process.

use std::fs;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, Timespec, clock_gettime};

use super::ProcessMetrics;

pub(crate) fn read() -> ProcessMetrics {
    /// Found out once: the clock of the system may be set later.
    static STARTED: OnceLock<f64> = OnceLock::new();
    read_with(Stat::read(), |ticks| *STARTED.get_or_init(|| started(ticks)))
}

/// Reads the figures of a child process that was forked off: what its parent has found out is not
/// true of it, and takes a lock.
pub(crate) fn read_forked() -> ProcessMetrics {
    read_with(Stat::read(), started)
}

/// Without `stat`, what it has is 0, which none of it ever is.
fn read_with(stat: Option<Stat>, started: impl FnOnce(u64) -> f64) -> ProcessMetrics {
    let start_sec = stat.as_ref().map_or(0.0, |stat| started(stat.start_ticks));
    let stat = stat.unwrap_or_default();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    ProcessMetrics {
        id: std::process::id(),
        start_sec,
        cpu_sec: seconds(clock_gettime(ClockId::ProcessCPUTime)),
        resident_bytes: stat.resident_pages * rustix::param::page_size() as u64,
        virtual_bytes: stat.virtual_bytes,
        open_fds: open_fds(),
        max_fds: limit.current,
        threads: stat.threads,
    }
}

fn seconds(time: Timespec) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "microseconds are enough")]
    let seconds = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
    seconds
}

fn started(start_ticks: u64) -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let since_boot = seconds(clock_gettime(ClockId::Boottime));
    #[expect(clippy::cast_precision_loss, reason = "ticks of some years fit")]
    let started = start_ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
    now - (since_boot - started).max(0.0)
}

fn open_fds() -> Option<u64> {
    let entries = fs::read_dir("/proc/self/fd").ok()?;
    // One of them is for reading the list.
    Some((entries.count() as u64).saturating_sub(1))
}

/// The fields of `/proc/self/stat` that the metrics use.
#[derive(Debug, Default, PartialEq)]
struct Stat {
    threads: u64,
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    /// `None`: the system does not tell, at the moment.
    fn read() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/self/stat").ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The name of the program, in parentheses, may have anything in it.
        let (_, fields) = text.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        // The first of them is the third of the manual.
        let field = |number: usize| fields.get(number - 3)?.parse().ok();
        Some(Self {
            threads: field(20)?,
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_program_confuses_nobody() {
        let text = "7 (a) b (c) S 1 7 7 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 11 0 1234 5678 90 0 0";
        let stat = Stat { threads: 11, start_ticks: 1234, virtual_bytes: 5678, resident_pages: 90 };
        assert_eq!(Stat::parse(text), Some(stat));
        assert_eq!(Stat::parse("7 (a) S 1"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn what_the_system_does_not_tell_is_nowhere() {
        let unknown = read_with(None, |ticks| panic!("it started at {ticks}"));
        assert_eq!((unknown.id, unknown.start_sec), (std::process::id(), 0.0));
        let families = |process| crate::Metrics { process, ..Default::default() }.prometheus();
        let all = [
            "process_resident_memory_bytes",
            "process_virtual_memory_bytes",
            "process_start_time_seconds",
            "process_threads",
        ];
        let (without, with) = (families(unknown), families(read()));
        for name in all {
            assert!(!without.contains(name) && with.contains(name), "{name}");
        }
        assert!(without.contains("process_cpu_seconds_total"));
    }

    #[test]
    fn this_process_has_what_every_process_has() {
        let own = read();
        assert_eq!(own.id, std::process::id());
        assert!(own.resident_bytes > 100_000 && own.virtual_bytes >= own.resident_bytes);
        assert!(own.threads >= 1 && own.open_fds.unwrap() >= 1 && own.cpu_sec > 0.0, "{own:?}");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        assert!(own.start_sec > now - 86_400.0 && own.start_sec <= now + 1.0, "{own:?}");
        let _kept = fs::File::open("/proc/self/stat").unwrap();
        assert!(read().start_sec.to_bits() == own.start_sec.to_bits());
    }
}

//! Statistics, time series, monitors and traces of an instance.

use std::sync::Arc;
use std::time::Duration;

use margo_config::MonitoringOptions;
use serde_json::{Value, json};

use crate::InstanceMonitoring;
use crate::observe::monitor::{self, dump, read};
use crate::support::log::log;
use crate::{Instance, Tick, TimerSpec};
use monitor::{AttachedMonitor, Monitor, Statistics};

impl InstanceMonitoring<'_> {
    /// Returns the statistics of calls, requests and transfers since they were switched on or
    /// reset: a snapshot, by call path (which RPC, on behalf of which) and peer. Empty if they
    /// never were on. Rows stay when an RPC is deregistered or a peer is gone.
    ///
    /// They are switched on by `monitoring` in the configuration, by the environment
    /// (`MARGO_ENABLE_MONITORING`), or by [`start_statistics`](Self::start_statistics).
    ///
    /// In a child process that was forked off there are none: they are the parent's.
    ///
    /// A snapshot can be written as JSON, or sent in an RPC; for the layout of C Margo's files see
    /// [`monitor_dump`](Self::monitor_dump). It takes some microseconds per row; calls go on
    /// meanwhile, so its rows are not of one moment.
    ///
    /// ```
    /// use margo::monitor::CallOutcome;
    /// use margo::{Instance, ProviderHandle, Rpc};
    ///
    /// const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let instance = margo::init(r#"{
    ///     "monitoring": { "config": { "filename_prefix": "/tmp/sum" } }
    /// }"#)?;
    /// instance.serve(SUM).function(|(a, b)| a + b)?;
    /// let target = ProviderHandle::from(instance.self_addr());
    /// for n in 0..1000 {
    ///     instance.forward(SUM, &target, &(n, n))?;
    /// }
    /// let statistics = instance.monitoring().statistics();
    /// let calls = statistics.origin.iter().find(|row| row.rpc.name == "sum").expect("called");
    /// assert_eq!((calls.calls, calls.outcomes[&CallOutcome::Ok]), (1000, 1000));
    /// println!("99 % within {} ns", calls.figures.total.p99);
    /// # instance.finalize_and_wait()?;
    /// # for entry in std::fs::read_dir("/tmp")? {
    /// #     let name = entry?.file_name().into_string().unwrap_or_default();
    /// #     if name.starts_with("sum.") && name.contains(&std::process::id().to_string()) {
    /// #         std::fs::remove_file(format!("/tmp/{name}"))?;
    /// #     }
    /// # }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Counterpart: `margo_monitor_dump`.
    pub fn statistics(&self) -> Statistics {
        read(&self.inner().statistics_source(), false)
    }

    /// As [`statistics`](Self::statistics), and begins anew: each call, request and transfer is
    /// either in this snapshot or in a later one. Those in flight stay so. (A call that is told as
    /// `ok` here, and whose result turns out to be undecodable afterwards, is `decode` in a later
    /// one, which has an `ok` less to make up for it.)
    ///
    /// Counterpart: `margo_monitor_dump` with `reset`.
    pub fn reset_statistics(&self) -> Statistics {
        read(&self.inner().statistics_source(), true)
    }

    /// Switches statistics on, or goes on with them, and looks at the times of one in
    /// `sample_rpcs_every` calls of a path; 1: of all; 0: of none. All calls that begin from now on
    /// are counted. Writes no files at the end, unless the configuration asks for them.
    ///
    /// With the default of 256 they cost an RPC without arguments over shared memory 10 to 14 ns,
    /// at both ends together, which is 1 to 3 % of its time; with 1 some 300 ns. On some processors
    /// it is more: see `docs/monitoring.md`.
    ///
    /// In a child process that was forked off it has no effect.
    pub fn start_statistics(&self, sample_rpcs_every: u32) {
        if self.inner().is_forked() {
            return;
        }
        let options = self.inner().resolved.monitor.clone().unwrap_or_default().statistics;
        let (rows_max, progress) = (options.rows_max as usize, options.sample_progress_every);
        self.inner().monitoring.count(rows_max, sample_rpcs_every, progress);
    }

    /// Switches statistics off: calls that begin from now on are not counted. The counts so far can
    /// be read, and [`start_statistics`](Self::start_statistics) goes on with them.
    pub fn stop_statistics(&self) {
        self.inner().monitoring.stop_counting();
    }

    /// Statistics and time series in the layout of C Margo's default monitor: an object with
    /// `stats` and `series`. If `reset`, both begin anew. Times are in seconds.
    ///
    /// Where C is wrong, this is not: `var` is the variance, and a series keeps more than 256
    /// entries. `num` is the number of calls, and `sum` that times the average, also if only some
    /// of the calls were looked at. See `docs/monitoring.md` for what each key says here.
    ///
    /// Counterpart: `margo_monitor_dump`.
    pub fn monitor_dump(&self, reset: bool) -> Value {
        let (stats, series) = dump(&self.inner().statistics_source(), reset);
        json!({ "stats": stats, "series": series })
    }

    /// Writes the files of the default monitor now, in place of those that it has written: under
    /// the names, and in the form, that the configuration says. They are written anyway when the
    /// instance ends, if the configuration has switched the monitor on.
    ///
    /// Each file is complete or not there: it gets its name when all of it is written.
    ///
    /// # Errors
    ///
    /// That of the system, with the file's name. [`io::ErrorKind::Unsupported`] in a child process
    /// that was forked off, whose parent has the statistics.
    ///
    /// [`io::ErrorKind::Unsupported`]: std::io::ErrorKind::Unsupported
    pub fn write_monitor_files(&self) -> std::io::Result<Vec<std::path::PathBuf>> {
        if self.inner().is_forked() {
            let text = "this process was forked off: the statistics belong to its parent process";
            return Err(std::io::Error::new(std::io::ErrorKind::Unsupported, text));
        }
        let inner = self.inner().clone();
        ult::integration::blocking_reserved(move || {
            monitor::files::write(&inner.statistics_source())
        })
    }

    /// The file in which this instance records calls; `None`: it does not (`margo.trace`). It is
    /// complete when [`finalize`](crate::Instance::finalize) has come to its end, and readable
    /// before. Once it is full, or cannot be written, which the log says, nothing more is recorded.
    #[must_use]
    pub fn trace_file(&self) -> Option<std::path::PathBuf> {
        self.inner().monitoring.tracer().map(|tracer| tracer.path().to_owned())
    }

    /// Attaches a monitor: it is told of all calls, requests and transfers that begin from now on.
    /// Several may be attached. It must not own a clone of this instance, which would keep that
    /// from ending by itself.
    ///
    /// In a child process that was forked off, where nothing happens, it is dropped.
    ///
    /// Counterpart: `monitor` of `margo_init_info`.
    pub fn add_monitor(&self, monitor: Arc<dyn Monitor>) -> AttachedMonitor {
        if self.inner().is_forked() {
            return AttachedMonitor { detach: None, number: 0 };
        }
        let number = self.inner().monitoring.attach(monitor);
        let own = Arc::downgrade(self.inner());
        let detach = move |number| {
            // In a child process that was forked off the list is the parent's.
            if let Some(inner) = own.upgrade().filter(|inner| !inner.is_forked()) {
                inner.monitoring.detach(number);
            }
        };
        AttachedMonitor { detach: Some(Box::new(detach)), number }
    }
}

/// Starts the statistics and the time series that the configuration asks for.
pub(crate) fn start(instance: &Instance) {
    let inner = instance.inner();
    let Some(MonitoringOptions { statistics, time_series, .. }) = &inner.resolved.monitor else {
        return;
    };
    if !statistics.disable || !time_series.disable {
        // The series of RPCs come from the counts.
        let every = if statistics.disable { 0 } else { statistics.sample_rpcs_every };
        instance.monitoring().start_statistics(every);
    }
    if !time_series.disable {
        let interval = Duration::from_secs_f64(time_series.time_interval_sec);
        inner.monitoring.keep_series(time_series.entries_max as usize);
        sample_every(instance, interval);
    }
}

fn sample_every(instance: &Instance, interval: Duration) {
    // Not a count of the instance, which would keep it running.
    let own = Arc::downgrade(instance.inner());
    let sample = move |_: &mut Tick| {
        if let Some(inner) = own.upgrade() {
            inner.sample_series();
        }
    };
    let timer = instance.timer_with(TimerSpec::new().name("margo time series"), sample);
    if let Err(error) = timer.start_every(interval) {
        log!(instance.inner().log, WARN, %error, "no time series");
    }
    let _ = instance.inner().sampling.set(timer);
}

//! The progress bar; invisible when standard error is no terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::files::Files;
use crate::support::output;

const TEMPLATE: &str = "{msg} [{bar:30}] {bytes}/{total_bytes} {elapsed}";

/// How often the elapsed time is drawn.
const TICK: Duration = Duration::from_millis(200);

/// Shows how far a transfer is. Gone from the screen when dropped.
#[derive(Debug)]
pub(super) struct Bar {
    transport: &'static str,
    bar: ProgressBar,
    files: u64,
}

impl Bar {
    pub(super) fn new(transport: &'static str, files: &Files) -> Self {
        let target = ProgressDrawTarget::stderr();
        let bar = ProgressBar::with_draw_target(Some(files.bytes()), target);
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style.progress_chars("=> "));
        }
        if !bar.is_hidden() {
            // One large file gives no other sign of life.
            bar.enable_steady_tick(TICK);
        }
        Self { transport, bar, files: files.list.len() as u64 }
    }

    /// Begins from zero, with another verb.
    pub(super) fn begin(&self, verb: &str) {
        self.bar.set_message(format!("{} {verb} {}", self.transport, self.of(0)));
        self.bar.set_position(0);
    }

    /// One more file is through: the `done`-th, of `bytes` bytes.
    pub(super) fn advance(&self, verb: &str, done: usize, bytes: u64) {
        self.bar.inc(bytes);
        self.bar.set_message(format!("{} {verb} {}", self.transport, self.of(done)));
    }

    fn of(&self, done: usize) -> String {
        format!("{}/{} files", output::thousands(done as u64), output::thousands(self.files))
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

//! A progress bar of keys; invisible when standard error is no terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shows how many keys are through. Gone from the screen when dropped.
pub(super) struct KeyBar(ProgressBar);

impl KeyBar {
    /// `total`: how many there will be, if that is known.
    pub(super) fn new(verb: &'static str, total: Option<u64>) -> Self {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
        let template = match total {
            Some(_) => "{msg} [{bar:30}] {human_pos}/{human_len} keys, {per_sec}",
            None => "{msg} {human_pos} keys, {per_sec}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(verb);
        Self(bar)
    }

    /// So many more are through.
    pub(super) fn advance(&self, keys: u64) {
        self.0.inc(keys);
    }
}

impl Drop for KeyBar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

//! `tracing` as the crates of this workspace use it, under that name: all of it, and `warn!`,
//! `error!` and `event!` with a last resort. In a program that has no subscriber, warnings and
//! errors go to standard error, a line each:
//!
//! ```text
//! margo: warning: peer refused peer="na+tcp://10.1.2.3:7000" count=1
//! ```
//!
//! Each event looks for a subscriber, of the calling thread and of the program, so a subscriber
//! that is installed later gets the events from then on. Events below warnings, and all events of
//! other crates, are handled by `tracing` alone.
//!
//! The caller never waits for standard error, which may be a pipe that nobody reads: a thread of
//! its own writes (`stderr.rs`).

use std::fmt::Write;
use std::sync::OnceLock;

#[doc(hidden)]
pub use tracing as original;
pub use tracing::*;

mod instance;
mod stderr;

pub use instance::Log;
#[doc(hidden)]
pub use instance::tell;
pub use stderr::flush;

/// As `tracing::warn!`; to standard error where nobody listens.
#[macro_export]
macro_rules! warn {
    ($($event:tt)+) => {
        $crate::or_to_stderr(|| $crate::original::warn!($($event)+))
    };
}

/// As `tracing::error!`; to standard error where nobody listens.
#[macro_export]
macro_rules! error {
    ($($event:tt)+) => {
        $crate::or_to_stderr(|| $crate::original::error!($($event)+))
    };
}

/// As `tracing::event!` with a level, or a target and a level, first; warnings and errors to
/// standard error where nobody listens.
#[macro_export]
macro_rules! event {
    (target: $target:expr, $level:expr, $($event:tt)+) => {{
        if $level <= $crate::Level::WARN {
            $crate::or_to_stderr(|| {
                $crate::original::event!(target: $target, $level, $($event)+);
            });
        } else {
            $crate::original::event!(target: $target, $level, $($event)+);
        }
    }};
    ($level:expr, $($event:tt)+) => {{
        if $level <= $crate::Level::WARN {
            $crate::or_to_stderr(|| $crate::original::event!($level, $($event)+));
        } else {
            $crate::original::event!($level, $($event)+);
        }
    }};
}

/// Makes an event, for the last resort if the calling thread and the program have no subscriber.
#[doc(hidden)]
#[cold]
pub fn or_to_stderr(event: impl FnOnce()) {
    let nobody = dispatcher::get_default(|there| there.is::<subscriber::NoSubscriber>());
    if nobody {
        static LAST: OnceLock<Dispatch> = OnceLock::new();
        dispatcher::with_default(LAST.get_or_init(|| Dispatch::new(LastResort)), event);
    } else {
        event();
    }
}

/// A subscriber for the moment of one event, where there is no other.
struct LastResort;

impl Subscriber for LastResort {
    fn enabled(&self, about: &Metadata<'_>) -> bool {
        about.is_event() && *about.level() <= Level::WARN
    }

    fn max_level_hint(&self) -> Option<level_filters::LevelFilter> {
        Some(level_filters::LevelFilter::WARN)
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let how_bad = if *event.metadata().level() == Level::ERROR { "error" } else { "warning" };
        let mut line = Line::default();
        event.record(&mut line);
        let Line { message, fields } = line;
        stderr::write(one_line(&format!("margo: {how_bad}: {message}{fields}")));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// The parts of a line.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl field::Visit for Line {
    fn record_str(&mut self, field: &field::Field, value: &str) {
        // The text itself comes as its arguments; this is a field that somebody has called so.
        let _ = write!(self.fields, " {}={value:?}", field.name());
    }

    fn record_debug(&mut self, field: &field::Field, value: &dyn std::fmt::Debug) {
        // A `String` takes everything.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

/// Replaces characters that move the cursor or begin another line: a peer may have chosen some of
/// the text.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len() + 1);
    for char in text.chars() {
        match char.is_control() {
            true => line.extend(char.escape_default()),
            false => line.push(char),
        }
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_whatever_is_in_it() {
        assert_eq!(one_line("a\nb\u{1b}[2J\tc ä"), "a\\nb\\u{1b}[2J\\tc ä\n");
    }
}

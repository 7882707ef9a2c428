//! The log of one instance, in a process that may have several.
//!
//! Messages are events of `tracing`, so the program's subscriber decides where they go. Beside that
//! each instance has a level of its own, for two instances in one process of which one is to be
//! quieter: [`log!`](crate::log!) looks at it before it makes an event. Events carry the address of
//! the instance in the field `instance`, so a subscriber can tell them apart as well.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use tracing::Level;
use tracing::level_filters::LevelFilter;

/// The log of one instance. Clones are the same log.
///
/// ```
/// use margo_log::level_filters::LevelFilter;
/// use margo_log::{Level, Log, log};
///
/// let log = Log::new(LevelFilter::WARN);
/// log.set_name("na+sm://7-1");
/// assert!(log.allows(Level::ERROR) && !log.allows(Level::INFO));
/// log!(log, INFO, peers = 3, "connected"); // nothing, until somebody wants it:
/// log.set(LevelFilter::INFO);
/// assert!(log.allows(Level::INFO));
/// ```
#[derive(Debug, Clone, Default)]
pub struct Log(Arc<State>);

#[derive(Debug)]
struct State {
    /// The least severe level that is let in, by its rank in [`LEVELS`].
    most: AtomicU8,
    /// The address of the instance, once that is known.
    name: OnceLock<String>,
}

const LEVELS: [LevelFilter; 6] = [
    LevelFilter::OFF,
    LevelFilter::ERROR,
    LevelFilter::WARN,
    LevelFilter::INFO,
    LevelFilter::DEBUG,
    LevelFilter::TRACE,
];

impl Default for State {
    fn default() -> Self {
        Self { most: AtomicU8::new(LEVELS.len() as u8 - 1), name: OnceLock::new() }
    }
}

/// Two logs are equal if their levels are.
impl PartialEq for Log {
    fn eq(&self, other: &Self) -> bool {
        self.level() == other.level()
    }
}

impl Eq for Log {}

impl Log {
    /// A log that lets in messages of this level and more severe ones.
    pub fn new(level: LevelFilter) -> Self {
        let log = Self::default();
        log.set(level);
        log
    }

    /// From now on lets in messages of this level and more severe ones.
    pub fn set(&self, level: LevelFilter) {
        let rank = LEVELS.iter().position(|known| *known == level);
        self.0.most.store(rank.unwrap_or(LEVELS.len() - 1) as u8, Ordering::Relaxed);
    }

    /// The level that was set last; all messages if none was.
    pub fn level(&self) -> LevelFilter {
        let rank = usize::from(self.0.most.load(Ordering::Relaxed));
        LEVELS.get(rank).copied().unwrap_or(LevelFilter::TRACE)
    }

    /// Answers whether messages of that level may go on to the subscriber.
    #[inline]
    pub fn allows(&self, level: Level) -> bool {
        let rank = match level {
            Level::ERROR => 1,
            Level::WARN => 2,
            Level::INFO => 3,
            Level::DEBUG => 4,
            Level::TRACE => 5,
        };
        rank <= self.0.most.load(Ordering::Relaxed)
    }

    /// Names the instance; the first name stays.
    pub fn set_name(&self, name: &str) {
        let _ = self.0.name.set(name.to_owned());
    }

    /// The name that the events of this log carry.
    pub fn name(&self) -> &str {
        self.0.name.get().map_or("starting", String::as_str)
    }
}

/// Makes an event in the name of an instance, if the level of its [`Log`] allows that:
/// `log!(inner.log, WARN, %error, "what happened")`. A subscriber that panics harms nobody here.
/// `target: "...",` in front names another target than the module.
#[macro_export]
macro_rules! log {
    (target: $target:expr, $log:expr, $level:ident, $($event:tt)+) => {{
        let log: &$crate::Log = &$log;
        if log.allows($crate::Level::$level) {
            $crate::tell(|| {
                $crate::event!(
                    target: $target, $crate::Level::$level, instance = log.name(), $($event)+
                );
            });
        }
    }};
    ($log:expr, $level:ident, $($event:tt)+) => {
        $crate::log!(target: ::core::module_path!(), $log, $level, $($event)+)
    };
}

/// Runs what makes an event, for [`log!`](crate::log!). The subscriber is code of the program, and
/// the panic hook alone hears of its panics: there is no log for them.
#[doc(hidden)]
pub fn tell(event: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(event)) {
        prim::panic::discard_panic(panic);
    }
}

//! Numbers and strings with limits, and the two environment variables.

use std::fmt::Display;
use std::str::FromStr;

use super::Findings;
use crate::document::config::Argobots;
use crate::document::margo::{LogLevel, MargoOptions};

/// Smallest ULT stack, in bytes: less cannot hold a handler's call into the network.
pub const STACK_BYTES_MIN: usize = 16 << 10;
/// Largest ULT stack, in bytes.
pub const STACK_BYTES_MAX: usize = 1 << 34;
/// Smallest `margo.eager_size`, in bytes: room for the headers and a descriptor.
pub const EAGER_SIZE_MIN: usize = 256;
/// Largest `margo.eager_size`, in bytes: no transport takes more.
pub const EAGER_SIZE_MAX: usize = 1 << 20;

/// Stack sizes are whole pages of this many bytes; a runtime with larger pages rounds again.
const PAGE_BYTES: usize = 4096;

const ENV_STACK_BYTES: &str = "ABT_THREAD_STACKSIZE";
const ENV_STACK_CACHE: &str = "ABT_MEM_MAX_NUM_STACKS";
const ENV_LOG_LEVEL: &str = "MARGO_LOG_LEVEL";

pub(super) struct Stacks {
    pub(super) bytes: usize,
    pub(super) cache_max: u32,
}

/// Stack size and cache, from the environment or else the document.
pub(super) fn stacks(
    argobots: &Argobots,
    env: &dyn Fn(&str) -> Option<String>,
    found: &mut Findings,
) -> Stacks {
    let default = Argobots::default();
    let (path, given) = ("argobots.abt_thread_stacksize", argobots.abt_thread_stacksize);
    // Wrong is wrong, also while the environment hides it: the next process may see it.
    let written = stack_size(path, given, found);
    let name = ENV_STACK_BYTES;
    let bytes = from_env(env, name, (path, given, default.abt_thread_stacksize), found)
        .map_or(written, |bytes| stack_size(&format!("environment {name}"), bytes, found));
    let (path, given) = ("argobots.abt_mem_max_num_stacks", argobots.abt_mem_max_num_stacks);
    let cache_max =
        from_env(env, ENV_STACK_CACHE, (path, given, default.abt_mem_max_num_stacks), found);
    Stacks { bytes, cache_max: cache_max.unwrap_or(given) }
}

pub(super) fn overridden(name: &str, value: impl Display) -> String {
    format!("is ignored because the environment variable {name} says {value}")
}

/// A number from the environment, which wins over the document's. A variable that is set to nothing
/// counts as not set.
fn from_env<T: FromStr + PartialEq + Display>(
    env: &dyn Fn(&str) -> Option<String>,
    name: &str,
    (path, given, default): (&str, T, T),
    found: &mut Findings,
) -> Option<T> {
    let value = number(&env(name)?)?;
    let value =
        value.map_err(|message| found.error(format!("environment {name}"), message)).ok()?;
    if given != value && given != default {
        found.warn(path, overridden(name, &value));
    }
    Some(value)
}

/// The number that a variable is set to; `None`: to nothing.
pub(super) fn number<T: FromStr>(text: &str) -> Option<Result<T, String>> {
    let text = text.trim();
    let wrong = |_| format!("{text:?} is no number from 0 that fits");
    (!text.is_empty()).then(|| text.parse().map_err(wrong))
}

/// Checks a stack size and rounds it up to whole pages.
pub(super) fn stack_size(path: &str, bytes: usize, found: &mut Findings) -> usize {
    if !(STACK_BYTES_MIN..=STACK_BYTES_MAX).contains(&bytes) {
        let message = format!(
            "a stack of {bytes} bytes is not allowed: from {STACK_BYTES_MIN} to {STACK_BYTES_MAX}"
        );
        found.error(path, message);
        return STACK_BYTES_MIN;
    }
    bytes.next_multiple_of(PAGE_BYTES)
}

/// `margo.log_level`, or what the environment says.
pub(super) fn log_level(
    margo: &MargoOptions,
    env: &dyn Fn(&str) -> Option<String>,
    found: &mut Findings,
) -> Option<LogLevel> {
    let Some(name) = env(ENV_LOG_LEVEL).filter(|name| !name.trim().is_empty()) else {
        return margo.log_level;
    };
    let level = LogLevel::from_name(&name);
    match (level, margo.log_level) {
        (None, _) => {
            let message = format!(
                "{name:?} is no level: \"off\", \"error\", \"warning\", \"info\", \"debug\", \
                 \"trace\""
            );
            found.error(format!("environment {ENV_LOG_LEVEL}"), message);
        }
        (Some(said), Some(given)) if said != given => {
            found.warn("margo.log_level", overridden(ENV_LOG_LEVEL, name.trim()));
        }
        (Some(_), _) => {}
    }
    level
}

/// Returns true if `text` could be address and port; the operating system knows more at the start.
fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_one_host = host.starts_with('[') == host.ends_with(']')
        && (host.starts_with('[') || !host.contains(':'));
    let is_clean = !host.contains(|c: char| c.is_whitespace() || c == '/');
    // A sign would parse.
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    !host.is_empty() && is_one_host && is_clean && is_number && port.parse::<u16>().is_ok()
}

/// A unit that runs for less is nothing to tell, and looking more often would cost something.
const STALL_LIMIT_MSEC_MIN: u32 = 10;
/// Largest `margo.blocking_threads_max`.
const BLOCKING_THREADS_MAX: u32 = 4096;

/// Checks the plain values of the `margo` object.
pub(super) fn check_options(margo: &MargoOptions, found: &mut Findings) {
    let address = &margo.address;
    let blank = |c: char| c.is_whitespace() || c.is_control();
    if address.is_empty() {
        found.error("margo.address", "is empty; for one node write \"na+sm://\"");
    } else if address.contains(blank) {
        found.error("margo.address", format!("{address:?} contains blanks, which no URI may"));
    }
    if margo.address_file.as_deref().is_some_and(|path| path.is_empty() || path.contains('\0')) {
        found.error("margo.address_file", "is no path; leave the key out to write no file");
    } else if margo.address_file.is_some() && !margo.listen {
        found.warn("margo.address_file", "is not written, because `margo.listen` is false");
    }
    if let Some(listen) = &margo.metrics.listen
        && !is_host_and_port(listen)
    {
        let message = format!(
            "{listen:?} is no address and port; write \"127.0.0.1:9100\", or \"[::1]:0\" for any \
             free port"
        );
        found.error("margo.metrics.listen", message);
    }
    if let Some(size) = margo.eager_size
        && !(EAGER_SIZE_MIN..=EAGER_SIZE_MAX).contains(&size)
    {
        let message =
            format!("{size} bytes are not allowed: from {EAGER_SIZE_MIN} to {EAGER_SIZE_MAX}");
        found.error("margo.eager_size", message);
    }
    if !(1..=BLOCKING_THREADS_MAX).contains(&margo.blocking_threads_max) {
        let message = format!(
            "{} threads are not allowed: from 1 to {BLOCKING_THREADS_MAX}",
            margo.blocking_threads_max
        );
        found.error("margo.blocking_threads_max", message);
    }
    if (1..STALL_LIMIT_MSEC_MIN).contains(&margo.stall_limit_msec) {
        let message = format!(
            "{} ms is too short: from {STALL_LIMIT_MSEC_MIN}, or 0 for none",
            margo.stall_limit_msec
        );
        found.error("margo.stall_limit_msec", message);
    }
    if margo.listen && margo.progress_when_needed {
        let message = "is for clients: this instance listens, and each request after a pause waits \
                       for a wake-up by the kernel; set `margo.listen` to false if it serves \
                       nothing";
        found.warn("margo.progress_when_needed", message);
    }
    if !margo.listen && !margo.providers.is_empty() {
        let message = "nobody can reach these providers because `margo.listen` is false";
        found.warn("margo.providers", message);
    }
}

//! `margo kv bench`: rates of single calls, of which some are under way at a time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use margo::ForwardError;
use margo::daemon::Failure;
use margo_provider_kv::{KvClient, KvRequest};
use serde::de::DeserializeOwned;

use super::failed;
use super::progress::KeyBar;
use crate::support::output;

/// The calls that a store gets.
pub(super) struct Load {
    pub(super) keys: u64,
    pub(super) value_bytes: u32,
    /// Calls that are under way at a time.
    pub(super) window: u16,
}

impl Load {
    pub(super) fn run(&self, kv: &KvClient, limit: Duration) -> Result<(), Failure> {
        // Of this run alone, so that nothing of others is erased.
        let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        let prefix = format!("margo kv bench {} {now}/", std::process::id());
        let measured = self.measure(kv, &prefix, limit);
        let end = format!("{prefix}~");
        let erased = kv.erase_range(prefix.as_bytes()..end.as_bytes(), limit);
        measured.and(erased.map(drop).map_err(failed))
    }

    fn measure(&self, kv: &KvClient, prefix: &str, limit: Duration) -> Result<(), Failure> {
        let value = vec![0x5a; self.value_bytes as usize];
        let key = |number: u64| format!("{prefix}{number:010}");
        self.each("put", |number| kv.start_put(key(number).as_bytes(), &value, limit))?;
        let most = u64::from(self.value_bytes);
        self.each("get", |number| kv.start_get(key(number).as_bytes(), most, limit))
    }

    /// Makes one call for each key.
    fn each<R: DeserializeOwned + Send + 'static>(
        &self,
        verb: &'static str,
        start: impl Fn(u64) -> Result<KvRequest<R>, ForwardError>,
    ) -> Result<(), Failure> {
        let bar = KeyBar::new(verb, Some(self.keys));
        let (begun, mut under_way) = (Instant::now(), VecDeque::new());
        let end = |request: KvRequest<R>| request.wait().map(|_| bar.advance(1)).map_err(failed);
        for number in 0..self.keys {
            if under_way.len() >= usize::from(self.window) {
                under_way.pop_front().map_or(Ok(()), &end)?;
            }
            under_way.push_back(start(number).map_err(|error| failed(error.into()))?);
        }
        under_way.into_iter().try_for_each(&end)?;
        let time = begun.elapsed().as_secs_f64();
        drop(bar);
        #[expect(clippy::cast_precision_loss, reason = "it is shown without decimals")]
        let keys = self.keys as f64;
        let (rate, each) = (keys / time, time / keys * f64::from(self.window));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is shown without decimals"
        )]
        let rate = output::thousands(rate as u64);
        output::line(format_args!(
            "{verb}: {} of {} in {}, {rate}/s, {} each with {} under way",
            output::count(self.keys, "key"),
            output::bytes(self.value_bytes.into()),
            output::time(time),
            output::time(each),
            self.window
        ))
    }
}

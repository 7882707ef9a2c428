//! Long results that are kept until their origins are done with them.
//!
//! The results of an origin that lives and fetches nothing are kept for as long as it lives, see
//! `fetch.rs`, and so are those of an origin that is gone where nothing shows that. So their
//! bytes are counted, for all shards together, and have a limit. At the limit those
//! that have waited for longer than [`PATIENCE`] give way to others, oldest first. A result that
//! fits into its message is not looked at here.
//!
//! Arguments of calls that were given up are counted in the same way, where they stay exposed
//! because no owner is asked before they are fetched: see `State::give_up`.

#[cfg(test)]
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use na::{Addr, MsgBuf};
use prim::sync::lock;

use crate::core::state::Op;
use crate::memory::{ExposedPayload, Kept, spare};
use crate::{Core, HgError, OpRef, RpcId};

/// Most bytes of results of [`HgOptions::results_apart`](crate::HgOptions::results_apart).
const APART_BYTES_MAX: usize = 16 << 20;

/// How long a result is kept while others find no room for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How long nothing is looked for after a look in vain.
const PAUSE: Duration = Duration::from_millis(100);

impl<T> Core<T> {
    /// [`expose_overflow`](Self::expose_overflow) for a result, unless too much is kept. `rpc`: of
    /// which RPC, where that is known.
    ///
    /// # Errors
    ///
    /// Also [`HgError::Unfetched`].
    pub(crate) fn expose_result(
        &self,
        origin: &Addr,
        start: usize,
        buf: MsgBuf,
        bytes: Vec<u8>,
        message_max: usize,
        rpc: Option<RpcId>,
    ) -> Result<(MsgBuf, ExposedPayload), HgError> {
        let is_apart = rpc.is_some() && rpc == self.options.results_apart;
        let (kept, max) = match is_apart {
            true => (&self.class.kept_apart, APART_BYTES_MAX),
            false => (&self.class.kept, self.options.overflow_held_max),
        };
        let len = bytes.len();
        let mut share = kept.keep(len as u64, max as u64);
        if share.is_none() {
            self.make_room_for_result(kept, len as u64, max as u64);
            share = kept.keep(len as u64, max as u64);
        }
        let Some(share) = share else {
            self.buffers.put(buf);
            spare::give(bytes);
            return Err(HgError::Unfetched { len, max });
        };
        let (buf, exposed) = self.expose_overflow(origin, start, buf, bytes, message_max)?;
        Ok((buf, exposed.counted(share)))
    }

    /// A result of `len` bytes finds no room: gives up answers that have waited for [`PATIENCE`],
    /// oldest first, until it would. Their origins cannot fetch them any more.
    #[cold]
    fn make_room_for_result(&self, kept: &Kept, len: u64, max: u64) {
        let now = kept.now();
        let mut all_wait_until = lock(&kept.0.all_wait_until);
        if all_wait_until.is_some_and(|until| now < until) {
            return;
        }
        #[cfg(test)]
        kept.0.looks.fetch_add(1, Ordering::Relaxed);
        let mut waiting = self.answers_that_keep(kept);
        waiting.sort_unstable_by_key(|(since, ..)| *since);
        let is_old =
            |(since, ..): &(Instant, u64, OpRef)| now.saturating_duration_since(*since) >= PATIENCE;
        let old = waiting.partition_point(is_old);
        // Those that give way leave so much.
        let left_by = |count: usize| {
            waiting[..count]
                .iter()
                .fold(kept.bytes(), |sum, (_, bytes, _)| sum.saturating_sub(*bytes))
        };
        let fits = |left: u64| left == 0 || left.saturating_add(len) <= max;
        if old > 0 && !fits(left_by(old)) {
            // In vain: what is younger has the room.
            *all_wait_until = Some(now + PAUSE);
            return;
        }
        let mut sum = kept.bytes();
        let enough = waiting[..old].iter().position(|(_, bytes, _)| {
            let fitted = fits(sum);
            sum = sum.saturating_sub(*bytes);
            fitted
        });
        // More at a time than this one needs: each look goes over all there are.
        let gone = match enough {
            Some(0) => 0,
            enough => enough.unwrap_or(old).max(old / 8),
        };
        // What is kept from now on is younger than all of these.
        let next = waiting.get(gone).map_or(now, |(since, ..)| *since);
        *all_wait_until = Some(next + PATIENCE);
        drop(all_wait_until);
        for (since, bytes, op) in waiting.drain(..gone) {
            let (len, waited) = (bytes as usize, now.saturating_duration_since(since));
            self.give_answer_up(op, HgError::GaveWay { len, waited });
        }
    }

    /// Answers of all shards whose results are counted there: since when, and their bytes.
    fn answers_that_keep(&self, kept: &Kept) -> Vec<(Instant, u64, OpRef)> {
        let mut found = Vec::new();
        for shard in self.class.all() {
            let state = shard.state();
            let answers = state.ops.iter().filter_map(|(name, op)| match op {
                Op::Response(answer) if !answer.has_failed() => Some((name, answer.share()?)),
                _ => None,
            });
            let its = answers.filter(|(_, share)| share.is_of(kept));
            found.extend(its.map(|(name, share)| (share.since, share.len, name)));
        }
        found
    }
}

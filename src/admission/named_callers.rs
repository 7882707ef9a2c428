//! The rules about callers that prove a name by a certificate.
//!
//! Names are no ranges of numbers. A name gets its verdict when it calls for the first time, and
//! keeps it at the place of its number; who issues certificates says how many names there are.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use margo_config::Who;
use prim::glob;

use crate::PeerName;

/// The rules about names of one RPC of one provider.
#[derive(Default)]
pub(super) struct NamedCallers {
    allow: Vec<Arc<str>>,
    deny: Vec<Arc<str>>,
    /// Anyone is allowed, or denied.
    anyone: [bool; 2],
    verdicts: Verdicts,
}

impl NamedCallers {
    pub(super) fn add(&mut self, who: &Who, is_deny: bool) {
        match who {
            Who::Anyone => self.anyone[usize::from(is_deny)] = true,
            Who::Name(glob) if is_deny => self.deny.push(glob.clone()),
            Who::Name(glob) => self.allow.push(glob.clone()),
            _ => {}
        }
    }

    pub(super) fn has_patterns(&self) -> bool {
        !self.allow.is_empty() || !self.deny.is_empty()
    }

    pub(super) fn may(&self, name: PeerName) -> bool {
        let is_like = |globs: &[Arc<str>]| globs.iter().any(|g| glob::matches(g, name.as_str()));
        self.verdicts.of(name.number(), || {
            let [is_allowed, is_denied] = self.anyone;
            (is_allowed || is_like(&self.allow)) && !is_denied && !is_like(&self.deny)
        })
    }
}

/// The verdicts about names that have called, by their numbers: chunks of which each has room for
/// twice as many as the one before it.
#[derive(Default)]
struct Verdicts([OnceLock<Box<[AtomicU8]>>; 32 - CHUNK_BITS as usize + 1]);

/// Names in the first chunk: two to this power.
const CHUNK_BITS: u32 = 6;

impl Verdicts {
    fn of(&self, number: u32, decide: impl FnOnce() -> bool) -> bool {
        let place = u64::from(number) + (1 << CHUNK_BITS);
        let (chunk, first) = (place.ilog2() - CHUNK_BITS, 1 << place.ilog2());
        let make = || (0..first).map(|_| AtomicU8::new(0)).collect();
        let verdict = &self.0[chunk as usize].get_or_init(make)[(place - first) as usize];
        // Relaxed: a verdict says all, and whoever decides at the same time decides the same.
        match verdict.load(Ordering::Relaxed) {
            0 => {
                let may = decide();
                verdict.store(1 + u8::from(may), Ordering::Relaxed);
                may
            }
            verdict => verdict == 2,
        }
    }
}

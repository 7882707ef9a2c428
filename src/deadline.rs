//! Deadlines that go on from call to call.
//!
//! A request that came with a deadline lends it to the ULT of its handler: calls made there give up
//! by then, too, and tell their targets; transfers give up as well, and none is started later. So
//! nobody works for a caller that has given up, however long the chain. It is a value of that ULT
//! alone ([`ult::UltLocal`]): ULTs that a handler spawns have none, unless they call with a limit
//! of their own.

use std::cell::Cell;
use std::time::Instant;

use ult::UltLocal;

use crate::ForwardError;

static DEADLINE: UltLocal<Cell<Option<Instant>>> = UltLocal::new(|| Cell::new(None));

/// The caller is the unit of a handler whose request has this deadline.
pub(crate) fn begin(deadline: Instant) {
    DEADLINE.with(|own| own.set(Some(deadline)));
}

/// That of the request on whose behalf the caller runs.
fn inherited() -> Option<Instant> {
    DEADLINE.with_existing(Cell::get).flatten()
}

/// What a caller has to observe that is about to wait for a call of `rpc`: that deadline, or that
/// it cannot wait at all.
#[inline]
pub(crate) fn of_caller(rpc: &'static str) -> Result<Option<Instant>, ForwardError> {
    if ult::is_tasklet_or_has_locals() { of_special_caller(rpc) } else { Ok(None) }
}

/// What a caller has to observe that starts a call and does not wait for it.
#[inline]
pub(crate) fn of_starter() -> Option<Instant> {
    if ult::is_tasklet_or_has_locals() { inherited() } else { None }
}

#[cold]
fn of_special_caller(rpc: &'static str) -> Result<Option<Instant>, ForwardError> {
    match ult::is_tasklet() {
        true => Err(ForwardError::Tasklet { rpc, never_ran: true }),
        false => Ok(inherited()),
    }
}

/// Runs `work` without the deadline that the caller's ULT has from the request that it handles:
/// calls and transfers in it take as long as they do. For work that has to be completed although
/// the caller of the handler may give up: undoing, say, or what others wait for.
///
/// Outside of handlers, and in ULTs that they spawn, there is no such deadline anyway.
///
/// ```
/// assert_eq!(margo::without_deadline(|| 42), 42);
/// ```
pub fn without_deadline<R>(work: impl FnOnce() -> R) -> R {
    struct Restore(Option<Instant>);
    impl Drop for Restore {
        fn drop(&mut self) {
            if let Some(deadline) = self.0 {
                begin(deadline);
            }
        }
    }
    let _restore = Restore(DEADLINE.with_existing(Cell::take).flatten());
    work()
}

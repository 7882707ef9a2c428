//! What a ULT does when it is woken up only to be looked at.

use crate::descriptor::UltPtr;

/// Runs on the stack of `ult`, which stays suspended.
pub(crate) fn on_ult_stack(ult: UltPtr) {
    let _ = ult;
}

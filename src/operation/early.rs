//! The early end of calls, transfers and answers, by the instance that they belong to.

use hg::OpRef;

use crate::Addr;

/// Ends operations early. The end itself comes on the progress ULT, which is woken for it.
pub(crate) trait EndsEarly: Send + Sync {
    /// Answers whether this process is a child that was forked off, where the operations are the
    /// parent's.
    fn is_forked(&self) -> bool;

    /// Ends an operation.
    fn end(&self, op: OpRef);

    /// Ends a call, of which its target is told.
    fn end_call(&self, op: OpRef, to: &Addr);
}

//! The early end of operations, by the instance that they belong to.

use hg::OpRef;
use ult::PoolRef;

use crate::Addr;
use crate::support::log::Log;

/// Ends operations early. The end itself comes on the progress ULT, which is woken for it.
pub(crate) trait EndsEarly: Send + Sync + 'static {
    /// Answers whether this process is a child that was forked off, where the operations are the
    /// parent's.
    fn is_forked(&self) -> bool;

    /// Ends an operation.
    fn end(&self, op: OpRef);

    /// Ends a call, of which its target is told.
    fn end_call(&self, op: OpRef, to: &Addr);

    fn log(&self) -> &Log;

    /// The pools into which the caller may spawn the timer of an operation, the best first.
    fn timer_pools(&self) -> impl Iterator<Item = PoolRef>
    where
        Self: Sized;
}

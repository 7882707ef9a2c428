//! A pool of the user's own making.

use crate::current::in_no_unit;
use crate::pool::{Pool, PopBy, PushReason};
use crate::unit::Unit;

/// Its methods find themselves in no unit, so none of them suspends, whatever it does: the runtime
/// calls them in the middle of a switch, with nothing in hand that would keep the pool.
pub(crate) struct CustomPool(pub(crate) Box<dyn Pool>);

impl Pool for CustomPool {
    fn push(&self, unit: Unit, why: PushReason) {
        in_no_unit(|| self.0.push(unit, why));
    }

    fn pop(&self, who: PopBy) -> Option<Unit> {
        in_no_unit(|| self.0.pop(who))
    }

    fn len(&self) -> usize {
        in_no_unit(|| self.0.len())
    }

    fn is_empty(&self) -> bool {
        in_no_unit(|| self.0.is_empty())
    }

    fn for_each(&self, see: &mut dyn FnMut(&Unit)) {
        in_no_unit(|| self.0.for_each(see));
    }
}

//! Rarely used properties of a unit, kept apart so that the descriptors of all others stay small.

use crate::engine::run::timed::Timed;
use crate::engine::unit::inherited::Values;
use crate::engine::unit::local::Locals;
use crate::stack::user::UserStack;
use crate::sync::Arc;

/// Called when a unit has moved to another pool, with the name of that pool.
pub(crate) type OnMigrate = Box<dyn FnMut(&str) + Send>;

/// See the module documentation.
#[derive(Default)]
pub(crate) struct RareFields {
    /// Values of [`UltLocal`](crate::UltLocal)s.
    pub(crate) locals: Locals,
    /// The values that it hands on to the units it spawns.
    pub(crate) inherited: Values,
    /// Memory for the stack, until it starts.
    pub(crate) stack: Option<UserStack>,
    pub(crate) on_migrate: Option<OnMigrate>,
    /// The time for which the unit waits, while it is on its way to an xstream.
    pub(crate) timed: Option<Arc<Timed>>,
}

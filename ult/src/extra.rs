//! What few units have: kept apart, so that the others stay small.

use crate::local::Locals;
use crate::user_stack::UserStack;

/// Called when a unit has moved to another pool, with the name of that pool.
pub(crate) type OnMigrate = Box<dyn FnMut(&str) + Send>;

/// See the module documentation.
#[derive(Default)]
pub(crate) struct Extra {
    /// Values of [`UltLocal`](crate::UltLocal)s.
    pub(crate) locals: Locals,
    /// Memory for the stack, until it starts.
    pub(crate) stack: Option<UserStack>,
    pub(crate) on_migrate: Option<OnMigrate>,
}

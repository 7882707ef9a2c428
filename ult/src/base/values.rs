//! Values by key: those of one ULT, and those that units hand on to the units they spawn.

use std::any::Any;
use std::ptr;
use std::sync::Arc;

use crate::base::contain::contained_alone;

/// The name of what goes wrong when such a destructor panics, for the log.
pub(crate) const DROPPING_LOCAL: &str = "dropping a value of an `UltLocal`";

/// The values of one ULT, in the order of their creation.
#[derive(Default)]
pub(crate) struct Locals(pub(crate) Vec<(usize, Box<dyn Any>)>);

// SAFETY: only the ULT itself touches its values. They are `Send` if the ULT may move, which
// `UltLocal::with` asks for.
unsafe impl Send for Locals {}

/// Drops the values of an OS thread at its end, where an unwinding would abort. A unit's values are
/// [dropped](crate::engine::unit::local::drop_all) before.
impl Drop for Locals {
    fn drop(&mut self) {
        while let Some((_, value)) = self.0.pop() {
            contained_alone(DROPPING_LOCAL, || drop(value));
        }
    }
}

impl Locals {
    pub(crate) fn find(&self, key: usize) -> Option<*const dyn Any> {
        let (_, value) = self.0.iter().find(|(of, _)| *of == key)?;
        Some(ptr::from_ref(&**value))
    }
}

/// Values by key, shared by the units that have handed them on.
#[derive(Clone, Default)]
pub(crate) struct Values(pub(crate) Option<Arc<Vec<Value>>>);

type Value = (usize, Arc<dyn Any + Send + Sync>);

impl Values {
    pub(crate) fn find(&self, key: usize) -> Option<&(dyn Any + Send + Sync)> {
        let (_, value) = self.0.as_ref()?.iter().find(|(of, _)| *of == key)?;
        Some(&**value)
    }

    /// Returns what is to be dropped when nothing is borrowed any more.
    pub(crate) fn put(&mut self, key: usize, value: Option<Arc<dyn Any + Send + Sync>>) -> Self {
        let old = self.clone();
        let others = old.0.iter().flat_map(|list| list.iter()).filter(|(of, _)| *of != key);
        let list: Vec<Value> = others.cloned().chain(value.map(|value| (key, value))).collect();
        self.0 = (!list.is_empty()).then(|| Arc::new(list));
        old
    }
}

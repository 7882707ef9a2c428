//! Instances that share the pools and execution streams of another one.
//!
//! A child has its own network endpoint, progress ULT, handlers and timers; it runs in pools of its
//! parent. That is how one process serves two transports with the same execution streams.
//!
//! A child keeps its parent running, as a clone of it would. When the parent is finalized, which
//! any holder may ask for, its children end first: they could not run without it.

use margo_config::Config;

use crate::{InitError, Instance, InstanceBuilder};

/// The child's document with the layout of its parent.
pub(crate) fn adopt(config: &Config, parent: &Instance) -> Result<Config, InitError> {
    if parent.is_finalizing() {
        return Err(InitError::ParentClosing);
    }
    Ok(config.with_layout_of(&layout_of(parent))?)
}

/// The parent's document with the layout that it runs in: its own, or that of its parent.
fn layout_of(parent: &Instance) -> Config {
    parent.whole_config()
}

/// Makes a started instance known to its parent.
///
/// # Errors
///
/// The parent is shutting down; the child has been ended.
pub(crate) fn enter(child: &Instance, parent: &Instance) -> Result<(), InitError> {
    if !parent.inner().tree.admit(child.inner()) {
        child.finalize();
        return Err(InitError::ParentClosing);
    }
    let by = format!("child instance {}", child.self_addr());
    let hold = |pool: ult::PoolRef| {
        let gone = |_| InitError::PoolGone { pool: pool.name().to_owned() };
        parent.layout().hold_pool(&pool, by.as_str()).map_err(gone)
    };
    let holds: Result<Vec<_>, _> = child.layout().pools().into_iter().map(hold).collect();
    child.inner().tree.keep(holds.inspect_err(|_| child.finalize())?);
    Ok(())
}

impl Instance {
    /// Starts an instance with this one as its [parent](InstanceBuilder::parent), from a JSON
    /// document.
    ///
    /// # Errors
    ///
    /// As [`init`](crate::init), under the rules of [`InstanceBuilder::parent`].
    pub fn init_child(&self, json: &str) -> Result<Self, InitError> {
        let config = Config::from_json_with_parent(json, &layout_of(self))?;
        InstanceBuilder::from_config(config).parent(self).start()
    }
}

//! The configuration in effect, as a document.

use std::sync::atomic::Ordering;

use margo_config::{Config, ConfigFlags};

use crate::elastic::{Part, RuntimeOwner};
use crate::instance::inner::Inner;
use crate::{Instance, InstanceLayout};

/// A size as the document has it.
fn eager_size(bytes: usize) -> Option<u32> {
    Some(u32::try_from(bytes).unwrap_or(u32::MAX))
}

impl Inner {
    /// See [`InstanceLayout::config_as`].
    pub(crate) fn config_as(&self, flags: ConfigFlags) -> Config {
        let runtime_owner = self.runtime_owner;
        // All that is hidden of a program's layout is the layout: roles stay.
        let no_layout = runtime_owner == RuntimeOwner::Parent
            || (runtime_owner == RuntimeOwner::Program && flags.hide_external);
        let part = match no_layout {
            true => Part::All,
            false => Part::Printed { hide_external: flags.hide_external },
        };
        let mut document = self.elastic.document(&self.resolved, flags, part);
        document.argobots.external = false;
        self.print_state(&mut document);
        if no_layout { document.without_layout() } else { document }
    }

    /// Adds the keys that C prints of an instance that runs, and that no version reads: see
    /// `__margo_hg_to_json`; and what can be changed while it runs.
    fn print_state(&self, document: &mut Config) {
        let core = &self.core;
        let version = || Some(env!("CARGO_PKG_VERSION").to_owned());
        document.argobots.version = version();
        let mercury = &mut document.mercury;
        mercury.version = version();
        mercury.address = Some(core.self_addr().uri().to_owned());
        mercury.listening = Some(self.resolved.listen);
        mercury.input_eager_size = eager_size(core.input_eager_bytes());
        mercury.output_eager_size = eager_size(core.output_eager_bytes());
        let margo = &mut document.margo;
        margo.remote_shutdown = self.remote_shutdown.load(Ordering::Relaxed);
        margo.metrics.remote = self.metrics.remote.load(Ordering::Relaxed);
        margo.progress_when_needed = self.when_needed.is_on();
    }
}

impl Instance {
    /// The configuration in effect with the layout that a child would have.
    pub(crate) fn whole_config(&self) -> Config {
        self.elastic().document(&self.inner().resolved, ConfigFlags::default(), Part::All)
    }

    /// The configuration in effect: complete, with all defaults filled in, all changes of pools
    /// and xstreams made, and the address and eager sizes of the network; itself valid input. Pools
    /// are referred to by their place in it, which is their index unless one has been removed. Of
    /// providers that run it has what they tell
    /// ([`RunningProvider::config`](crate::component::RunningProvider::config)).
    ///
    /// An instance with a [parent](crate::InstanceBuilder::parent) leaves the layout out, for it
    /// is the parent's, and refers to pools by their index there. One in a
    /// [runtime](crate::InstanceBuilder::runtime) of the program's prints it, so that `init` makes
    /// the like; with [`ConfigFlags::hide_external`] it leaves it out, which is what starts such an
    /// instance again.
    ///
    /// Pools with a queue of the program's own ([`ult::PoolSpec::custom`]) are left out, with
    /// whatever refers to them, because a document has no word for them.
    ///
    /// Counterpart: `margo_get_config`.
    pub fn config(&self) -> Config {
        self.layout().config_as(ConfigFlags::default())
    }
}

impl InstanceLayout<'_> {
    /// As [`Instance::config`], printed as the flags say. Then
    /// [`to_json_pretty`](Config::to_json_pretty) or [`to_json`](Config::to_json).
    ///
    /// Counterpart: `margo_get_config_opt`.
    pub fn config_as(&self, flags: ConfigFlags) -> Config {
        let mut document = self.inner().config_as(flags);
        self.inner().provider_configs.print(&mut document);
        document
    }
}

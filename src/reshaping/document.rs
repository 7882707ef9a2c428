//! The configuration in effect, as a document.

use margo_config::{Config, ConfigFlags};

use crate::elastic::{Part, RuntimeOwner};
use crate::instance::inner::Inner;

/// A size as the document has it.
fn eager_size(bytes: usize) -> Option<u32> {
    Some(u32::try_from(bytes).unwrap_or(u32::MAX))
}

impl Inner {
    /// See [`Instance::config_as`](crate::Instance::config_as).
    pub(crate) fn config_as(&self, flags: ConfigFlags) -> Config {
        let landlord = self.landlord;
        // All that is hidden of a program's layout is the layout: roles stay.
        let no_layout = landlord == RuntimeOwner::Parent
            || (landlord == RuntimeOwner::Program && flags.hide_external);
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
    /// `__margo_hg_to_json`.
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
    }
}

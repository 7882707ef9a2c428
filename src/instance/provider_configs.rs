//! The settings of running providers, as each of them tells what they come to.

use std::fmt;
use std::sync::{Arc, Mutex};

use margo_config::Config;
use prim::sync::lock;
use serde_json::Value;

/// Asks a provider, which may be gone, or have nothing to tell.
type Ask = Arc<dyn Fn() -> Option<Value> + Send + Sync>;

/// The providers that tell, by name.
#[derive(Default)]
pub(crate) struct ProviderConfigs(Mutex<Vec<(String, Ask)>>);

impl ProviderConfigs {
    /// In place of an earlier provider of that name.
    pub(crate) fn insert(
        &self,
        name: &str,
        ask: impl Fn() -> Option<Value> + Send + Sync + 'static,
    ) {
        let mut all = lock(&self.0);
        all.retain(|(own, _)| own != name);
        all.push((name.to_owned(), Arc::new(ask)));
    }

    /// Puts into a document what they tell. Calls code of the providers, without a lock.
    pub(crate) fn print(&self, document: &mut Config) {
        let all = lock(&self.0).clone();
        for (name, ask) in all {
            let mut providers = document.margo.providers.iter_mut();
            let is_it = |own: &&mut margo_config::Provider| own.name.as_ref() == Some(&name);
            let Some(provider) = providers.find(is_it) else { continue };
            match ask() {
                None => {}
                Some(Value::Object(config)) => provider.config = config,
                Some(_) => {
                    tracing::warn!(provider = name, "its configuration is no object; passed over");
                }
            }
        }
    }
}

impl fmt::Debug for ProviderConfigs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(lock(&self.0).iter().map(|(name, _)| name)).finish()
    }
}

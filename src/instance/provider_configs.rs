//! The settings of running providers, as each of them tells what they come to; and which providers
//! have come and gone since the start.

use std::fmt;
use std::sync::{Arc, Mutex};

use margo_config::{Config, PoolRef, Provider};
use prim::sync::lock;
use serde_json::Value;

/// Asks a provider, which may be gone, or have nothing to tell.
type Ask = Arc<dyn Fn() -> Option<Value> + Send + Sync>;

/// The providers of the document in effect.
#[derive(Default)]
pub(crate) struct ProviderConfigs(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// The providers that tell, by name.
    told: Vec<(String, Ask)>,
    /// Providers that were started after the instance.
    added: Vec<Provider>,
    /// The names of those of the first document that were stopped.
    gone: Vec<String>,
    /// The pools of those that were moved, by name.
    moved: Vec<(String, String)>,
}

impl Known {
    /// The entry of a provider is none of the document any more.
    fn forget(&mut self, name: &str) {
        self.moved.retain(|(own, _)| own != name);
        let count = self.added.len();
        self.added.retain(|own| own.name.as_deref() != Some(name));
        if self.added.len() == count {
            self.gone.push(name.to_owned());
        }
    }
}

impl ProviderConfigs {
    /// In place of an earlier provider of that name.
    pub(crate) fn insert(
        &self,
        name: &str,
        ask: impl Fn() -> Option<Value> + Send + Sync + 'static,
    ) {
        let told = &mut lock(&self.0).told;
        told.retain(|(own, _)| own != name);
        told.push((name.to_owned(), Arc::new(ask)));
    }

    /// A provider was started that no document had, or in place of an earlier one of its name.
    pub(crate) fn enter(&self, entry: Provider, is_back: bool) {
        let mut known = lock(&self.0);
        if let Some(name) = entry.name.as_deref().filter(|_| is_back) {
            known.forget(name);
        }
        known.added.push(entry);
    }

    /// A provider was stopped.
    pub(crate) fn leave(&self, name: &str) {
        let mut known = lock(&self.0);
        known.told.retain(|(own, _)| own != name);
        known.forget(name);
    }

    /// A provider's pool is another one now.
    pub(crate) fn moved(&self, name: &str, pool: &str) {
        let moved = &mut lock(&self.0).moved;
        moved.retain(|(own, _)| own != name);
        moved.push((name.to_owned(), pool.to_owned()));
    }

    /// Puts into a document what they tell. Calls code of the providers, without a lock.
    pub(crate) fn print(&self, document: &mut Config) {
        let told = {
            let Known { told, added, gone, moved } = &*lock(&self.0);
            let is_gone = |own: &Provider| own.name.as_ref().is_some_and(|own| gone.contains(own));
            document.margo.providers.retain(|own| !is_gone(own));
            document.margo.providers.extend(added.iter().cloned());
            let pools: Vec<_> =
                document.argobots.pools.iter().filter_map(|pool| pool.name.clone()).collect();
            for own in &mut document.margo.providers {
                let pool = moved.iter().find(|(name, _)| own.name.as_ref() == Some(name));
                if let Some((_, pool)) = pool {
                    own.pool = Some(PoolRef::Name(pool.clone()));
                }
                // One that is stopped, and is to come back, keeps no pool.
                if let Some(PoolRef::Name(pool)) = &own.pool
                    && !pools.is_empty()
                    && !pools.contains(pool)
                {
                    own.pool = None;
                }
            }
            told.clone()
        };
        for (name, ask) in told {
            let mut providers = document.margo.providers.iter_mut();
            let is_it = |own: &&mut Provider| own.name.as_ref() == Some(&name);
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
        f.debug_list().entries(lock(&self.0).told.iter().map(|(name, _)| name)).finish()
    }
}

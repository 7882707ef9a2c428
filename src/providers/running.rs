//! Providers that run: what can be asked of each, and of all that one document has started.

use std::any::Any;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hg::ProviderId;
use margo_config::ResolvedProvider;
use serde_json::Value;
use ult::PoolRef;

use crate::instance::provider_configs::ProviderConfigs;
use crate::providers::dependency::ProviderPlace;
use crate::{Provider, ProviderError};

/// An error of a component, for people.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The error of a [`RunningProvider`] that cannot do what is asked of it.
///
/// ```
/// use std::path::Path;
///
/// use margo::component::{RunningProvider, Unsupported};
///
/// struct Plain;
///
/// impl RunningProvider for Plain {}
///
/// let error = Plain.snapshot(Path::new("there")).unwrap_err();
/// assert!(error.is::<Unsupported>());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("providers of this type do not support it")]
pub struct Unsupported;

/// A provider that was started; dropping it stops it.
///
/// A [`Provider`] is one, which drains and lends its object. What a type does not support, each
/// method says by default.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
///
/// use margo::{Provider, component::RunningProvider};
///
/// /// Serves for as long as it holds the provider.
/// struct Counter(Provider<AtomicU64>);
///
/// impl RunningProvider for Counter {
///     fn config(&self) -> Option<serde_json::Value> {
///         let count = self.0.object().load(Relaxed);
///         Some(serde_json::json!({ "start": count }))
///     }
/// }
/// # let instance = margo::Instance::builder("na+sm://").start()?;
/// # let pool = instance.layout().rpc_pool();
/// # let three = AtomicU64::new(3);
/// # let counter = Counter(instance.provider_of(margo::ProviderId::new(1), &pool, three));
/// # assert_eq!(counter.config().unwrap()["start"], 3);
/// # drop(counter);
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: Bedrock's component, whose `getConfig`, `snapshot` and `restore` these are.
pub trait RunningProvider: Send + Sync {
    /// Returns the object that providers of the same document may use without an RPC if they depend
    /// on this one ([`Dependency::object`](crate::component::Dependency::object)). Default: none. A
    /// [`Provider`] lends the object that its handlers share.
    fn shared_object(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }

    /// The `config` as it is now, for [`Instance::config`](crate::Instance::config): an object
    /// that would start such a provider, with the defaults filled in, and with what has changed
    /// since the start. It may be asked at any time, on any thread, so it does not wait. Default:
    /// none, and so what the document has.
    fn config(&self) -> Option<Value> {
        None
    }

    /// Takes no more requests, and returns when those in hand are answered, within `limit`.
    ///
    /// # Errors
    ///
    /// Some are not; or [`Unsupported`], the default.
    fn drain(&self, _limit: Duration) -> Result<(), BoxError> {
        Err(Unsupported.into())
    }

    /// Has requests that come from now on handled in that pool.
    ///
    /// # Errors
    ///
    /// The pool is none of the instance, or cannot be used; or [`Unsupported`], the default.
    fn move_to(&self, _pool: &PoolRef) -> Result<(), BoxError> {
        Err(Unsupported.into())
    }

    /// Writes what it holds to the folder `to`, which it makes: all that is stored when this
    /// begins, and of what is changed meanwhile the old or the new state. May block the thread.
    ///
    /// # Errors
    ///
    /// The folder is there already, or cannot be written; or [`Unsupported`], the default.
    fn snapshot(&self, _to: &Path) -> Result<(), BoxError> {
        Err(Unsupported.into())
    }

    /// Takes over what [`snapshot`](Self::snapshot) has written to the folder `from`, and leaves it
    /// there. For a provider that holds nothing yet. May block the thread.
    ///
    /// # Errors
    ///
    /// The folder cannot be read, or the provider holds something; or [`Unsupported`], the default.
    fn restore(&self, _from: &Path) -> Result<(), BoxError> {
        Err(Unsupported.into())
    }
}

impl<T: Any + Send + Sync> RunningProvider for Provider<T> {
    fn shared_object(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.object().clone())
    }

    fn drain(&self, limit: Duration) -> Result<(), BoxError> {
        Ok(self.drain(limit)?)
    }

    fn move_to(&self, pool: &PoolRef) -> Result<(), BoxError> {
        Ok(self.set_pool(pool)?)
    }
}

/// The providers that [`Instance::start_providers`](crate::Instance::start_providers) started.
/// Dropping it stops them, the last one first, without waiting for handlers that run: what those
/// call meanwhile may be stopped already. To let them end in peace drop it when the instance has
/// ended ([`Instance::wait_for_finalize`](crate::Instance::wait_for_finalize)), as `margo serve`
/// does, or [drain](Self::drain) them before.
///
/// ```
/// use std::time::Duration;
///
/// # use margo::component::{Component, ProviderSpec, RunningProvider};
/// # struct Echo;
/// # impl Component for Echo {
/// #     fn type_name(&self) -> &'static str {
/// #         "echo"
/// #     }
/// #     fn start(
/// #         &self,
/// #         instance: &margo::Instance,
/// #         spec: &ProviderSpec,
/// #     ) -> Result<Box<dyn RunningProvider>, Box<dyn std::error::Error + Send + Sync>> {
/// #         Ok(Box::new(spec.provider(instance)))
/// #     }
/// # }
/// let document = r#"{ "margo": { "providers": [
///     { "name": "a", "type": "echo", "provider_id": 1 },
///     { "name": "b", "type": "echo", "provider_id": 2 }] } }"#;
/// let instance = margo::init(document)?;
/// let providers = instance.start_providers(&[&Echo])?;
/// assert_eq!(providers.names().collect::<Vec<_>>(), ["a", "b"]);
/// providers.drain(Duration::from_secs(10))?;
/// drop(providers);
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping this stops the providers"]
#[derive(Default)]
pub struct RunningProviders {
    running: Vec<Running>,
    /// Providers that were stopped while others work with them, and are to come back.
    awaited: Vec<Awaited>,
}

struct Running {
    name: String,
    type_name: String,
    /// The names of those of this process that it works with.
    needs: Vec<String>,
    /// Where others find it.
    place: Arc<ProviderPlace>,
    provider: Arc<dyn RunningProvider>,
}

struct Awaited {
    name: String,
    type_name: String,
    place: Arc<ProviderPlace>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.place.leave();
    }
}

impl Running {
    fn failed(&self, what: &'static str) -> impl Fn(BoxError) -> ProviderError {
        let (name, type_name) = (self.name.clone(), self.type_name.clone());
        move |source| ProviderError::Asked {
            name: name.clone(),
            type_name: type_name.clone(),
            what,
            source,
        }
    }
}

impl RunningProviders {
    pub(super) fn push(
        &mut self,
        configs: &ProviderConfigs,
        wanted: &ResolvedProvider,
        needs: Vec<String>,
        provider: Box<dyn RunningProvider>,
    ) {
        let provider: Arc<dyn RunningProvider> = provider.into();
        let asked = Arc::downgrade(&provider);
        configs.insert(&wanted.name, move || asked.upgrade()?.config());
        let (name, type_name) = (wanted.name.clone(), wanted.type_name.clone());
        let (id, object) = (ProviderId::new(wanted.provider_id), provider.shared_object());
        let place = match self.awaited.iter().position(|one| one.name == name) {
            Some(at) => {
                let place = self.awaited.remove(at).place;
                place.take(id, object);
                place
            }
            None => Arc::new(ProviderPlace::new(id, object)),
        };
        // One that comes back ends after those that work with it, too, and before those that it
        // works with itself.
        let first = self.running.iter().position(|one| one.needs.contains(&name));
        let last = self.running.iter().rposition(|one| needs.contains(&one.name));
        let at = first.unwrap_or(self.running.len()).max(last.map_or(0, |last| last + 1));
        self.running.insert(at, Running { name, type_name, needs, place, provider });
    }

    /// Names, in the order in which they were started: that of the configuration, but each after
    /// those that it depends on.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.running.iter().map(|one| one.name.as_str())
    }

    /// Where others find a provider that runs.
    pub(super) fn place_of(&self, name: &str) -> Option<Arc<ProviderPlace>> {
        self.running.iter().find(|one| one.name == name).map(|one| one.place.clone())
    }

    /// The type of a provider that is to come back.
    pub(super) fn awaited_type(&self, name: &str) -> Option<&str> {
        self.awaited.iter().find(|one| one.name == name).map(|one| &*one.type_name)
    }

    /// The names of those that were [stopped](Self::stop_needed) while others work with them, and
    /// have not been started again.
    pub fn awaited(&self) -> impl Iterator<Item = &str> {
        self.awaited.iter().map(|one| one.name.as_str())
    }

    /// The names of those that work with a provider, as errors say them.
    fn needing(&self, name: &str) -> String {
        let needing = self.running.iter().filter(|other| other.needs.iter().any(|it| it == name));
        needing.map(|other| format!("`{}`", other.name)).collect::<Vec<_>>().join(", ")
    }

    fn find(&self, name: &str) -> Result<&Running, ProviderError> {
        let found = self.running.iter().find(|one| one.name == name);
        found.ok_or_else(|| ProviderError::UnknownName {
            name: name.to_owned(),
            known: self.names().collect::<Vec<_>>().join(", "),
        })
    }

    /// Has the providers take no more requests, the last one first, and returns when those in hand
    /// are answered, within `limit` for all of them. Each one is asked, also if another one fails;
    /// all of them stay until this is dropped.
    ///
    /// # Errors
    ///
    /// [`ProviderError::Asked`], of the first that fails: requests are left, or its type cannot
    /// [drain](RunningProvider::drain).
    pub fn drain(&self, limit: Duration) -> Result<(), ProviderError> {
        let begun = Instant::now();
        let drained = self.running.iter().rev().map(|one| {
            let left = limit.saturating_sub(begun.elapsed());
            one.provider.drain(left).map_err(one.failed("drain"))
        });
        drained.fold(Ok(()), Result::and)
    }

    /// Has one provider take no more requests, and returns when those in hand are answered, within
    /// `limit`.
    ///
    /// # Errors
    ///
    /// [`ProviderError::UnknownName`], and [`ProviderError::Asked`].
    pub fn drain_one(&self, name: &str, limit: Duration) -> Result<(), ProviderError> {
        let one = self.find(name)?;
        one.provider.drain(limit).map_err(one.failed("drain"))
    }

    /// Has one provider's requests handled in another pool from now on.
    ///
    /// # Errors
    ///
    /// [`ProviderError::UnknownName`], and [`ProviderError::Asked`].
    pub fn move_to(&self, name: &str, pool: &PoolRef) -> Result<(), ProviderError> {
        let one = self.find(name)?;
        one.provider.move_to(pool).map_err(one.failed("move to another pool"))
    }

    /// Stops one provider, after it was drained for at most `limit` if its type can be. Its name
    /// and id are free again. One that is [awaited](Self::awaited) is so no more.
    ///
    /// # Errors
    ///
    /// [`ProviderError::UnknownName`]; [`ProviderError::Needed`] if others work with it;
    /// [`ProviderError::Asked`] if requests are left: it runs on, and takes none.
    pub fn stop(&mut self, name: &str, limit: Duration) -> Result<(), ProviderError> {
        let by = self.needing(name);
        if !by.is_empty() {
            return Err(ProviderError::Needed { name: name.to_owned(), by });
        }
        if self.awaited_type(name).is_some() {
            self.awaited.retain(|one| one.name != name);
            return Ok(());
        }
        self.end(name, limit)
    }

    /// As [`stop`](Self::stop), also if others work with it. They find nothing in its place until
    /// one of its name and type is started: see [`Dependency`](crate::component::Dependency).
    ///
    /// # Errors
    ///
    /// [`ProviderError::UnknownName`]; [`ProviderError::Asked`] if requests are left: it runs on,
    /// and takes none.
    pub fn stop_needed(&mut self, name: &str, limit: Duration) -> Result<(), ProviderError> {
        if self.needing(name).is_empty() {
            return self.stop(name, limit);
        }
        let one = self.find(name)?;
        let (type_name, place) = (one.type_name.clone(), one.place.clone());
        self.end(name, limit)?;
        self.awaited.push(Awaited { name: name.to_owned(), type_name, place });
        Ok(())
    }

    fn end(&mut self, name: &str, limit: Duration) -> Result<(), ProviderError> {
        let one = self.find(name)?;
        match one.provider.drain(limit) {
            Err(error) if !error.is::<Unsupported>() => return Err(one.failed("drain")(error)),
            _ => {}
        }
        self.running.retain(|one| one.name != name);
        Ok(())
    }

    /// Has one provider write what it holds to the folder `to`; see [`RunningProvider::snapshot`].
    ///
    /// # Errors
    ///
    /// [`ProviderError::UnknownName`], and [`ProviderError::Asked`], whose source is
    /// [`Unsupported`] if its type has no snapshots.
    pub fn snapshot(&self, name: &str, to: &Path) -> Result<(), ProviderError> {
        let one = self.find(name)?;
        one.provider.snapshot(to).map_err(one.failed("snapshot"))
    }

    /// Has one provider take over what a snapshot has; see [`RunningProvider::restore`].
    ///
    /// # Errors
    ///
    /// As [`snapshot`](Self::snapshot).
    pub fn restore(&self, name: &str, from: &Path) -> Result<(), ProviderError> {
        let one = self.find(name)?;
        one.provider.restore(from).map_err(one.failed("restore"))
    }
}

impl Drop for RunningProviders {
    fn drop(&mut self) {
        while let Some(last) = self.running.pop() {
            drop(last);
        }
    }
}

impl fmt::Debug for RunningProviders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

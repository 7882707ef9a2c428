//! Providers that are started from the configuration.

use std::sync::Arc;

use hg::ProviderId;
use margo_config::{DependencyTarget, Error as ConfigError, Errors, Resolved, ResolvedProvider};
use ult::{PoolRef, Priority};

use crate::providers::dependency::{self, At, Dependencies, Dependency, Need};
use crate::providers::running::{RunningProvider, RunningProviders};
use crate::{ElasticityError, Instance, Provider, ProviderError, ProviderHandle};

/// An error of a component, for people.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

// The document and the wire mean the same by it.
const _: () = assert!(ProviderId::DEFAULT.get() == margo_config::PROVIDER_ID_DEFAULT);

/// A kind of provider that can be started from `margo.providers` of the configuration.
///
/// Counterpart: Bedrock's component class.
///
/// ```
/// use margo::component::{Component, ProviderSpec, RunningProvider};
/// use margo::{Instance, Rpc, config::provider_config};
///
/// const GREET: Rpc<String, String> = Rpc::new("greeter_greet");
///
/// /// The `config` object.
/// #[derive(serde::Deserialize)]
/// #[serde(default)]
/// struct Settings {
///     greeting: String,
/// }
///
/// impl Default for Settings {
///     fn default() -> Self {
///         Self { greeting: "Hello".to_owned() }
///     }
/// }
///
/// struct Greeter;
///
/// type BoxError = Box<dyn std::error::Error + Send + Sync>;
///
/// impl Component for Greeter {
///     fn type_name(&self) -> &'static str {
///         "greeter"
///     }
///
///     fn schema(&self) -> Option<serde_json::Value> {
///         Some(serde_json::json!({
///             "type": "object",
///             "properties": {
///                 "greeting": { "type": ["string", "null"], "description": "Default `Hello`." }
///             },
///             "additionalProperties": false
///         }))
///     }
///
///     fn check(&self, config: &serde_json::Value) -> Result<(), BoxError> {
///         provider_config::<Settings>(config)?;
///         Ok(())
///     }
///
///     fn start(
///         &self,
///         instance: &Instance,
///         spec: &ProviderSpec,
///     ) -> Result<Box<dyn RunningProvider>, BoxError> {
///         let settings: Settings = provider_config(&spec.config)?;
///         let provider = spec.provider_of(instance, settings);
///         provider.serve(GREET).returning_method(|settings: &Settings, request| {
///             format!("{}, {}", settings.greeting, request.args())
///         })?;
///         Ok(Box::new(provider))
///     }
/// }
///
/// let document = r#"{ "margo": { "providers": [
///     { "type": "greeter", "provider_id": 1, "config": { "greeting": "Good morning" } }] } }"#;
/// let instance = margo::init(document)?;
/// let providers = instance.start_providers(&[&Greeter])?;
/// # drop(providers);
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Component: Send + Sync {
    /// Returns the name of this type in the configuration (`type`).
    fn type_name(&self) -> &'static str;

    /// Which other providers one of this type works with: the keys of its `dependencies` in the
    /// configuration, in which others are an error. Default: none.
    ///
    /// Counterpart: `GetDependencies` of Bedrock's components.
    fn needs(&self) -> &[Need] {
        &[]
    }

    /// The JSON Schema (draft 2020-12) of the `config` of a provider, for editors and for checks in
    /// other languages: complete in itself, so that `$ref` refers to its own parts. It is part of
    /// the schema of whole documents then ([`document_schema`](crate::component::document_schema)).
    /// [`check`](Self::check) decides; the schema may be wider, but refuses nothing that `check`
    /// accepts. A key that need not be given may also be `null`. Default: none, so any object is
    /// valid.
    fn schema(&self) -> Option<serde_json::Value> {
        None
    }

    /// Checks whether the `config` of a provider can be meant, whatever the machine, for programs
    /// that check a document without starting anything, as `margo config check` does. Default: it
    /// can.
    ///
    /// # Errors
    ///
    /// The errors that [`start`](Self::start) would have with it on any machine. Those of
    /// [`provider_config`](crate::config::provider_config), or other
    /// [`Errors`](crate::config::Errors) with paths such as `config.path`, are told with the place
    /// of each key in the document; any other error with that of the object.
    fn check(&self, _config: &serde_json::Value) -> Result<(), BoxError> {
        Ok(())
    }

    /// Starts one provider.
    ///
    /// # Errors
    ///
    /// The reason that keeps it from starting, in words that help the author of the configuration.
    fn start(
        &self,
        instance: &Instance,
        spec: &ProviderSpec,
    ) -> Result<Box<dyn RunningProvider>, BoxError>;
}

impl<C: Component + ?Sized> Component for Box<C> {
    fn type_name(&self) -> &'static str {
        (**self).type_name()
    }

    fn needs(&self) -> &[Need] {
        (**self).needs()
    }

    fn schema(&self) -> Option<serde_json::Value> {
        (**self).schema()
    }

    fn check(&self, config: &serde_json::Value) -> Result<(), BoxError> {
        (**self).check(config)
    }

    fn start(
        &self,
        instance: &Instance,
        spec: &ProviderSpec,
    ) -> Result<Box<dyn RunningProvider>, BoxError> {
        (**self).start(instance, spec)
    }
}

/// One entry of `margo.providers`, resolved; or what a program makes up for a [`Component`] that it
/// starts itself.
///
/// ```
/// use margo::{Instance, ProviderId, Rpc, component::ProviderSpec};
///
/// const GET: Rpc<(), u32> = Rpc::new("get");
///
/// let instance = Instance::builder("na+sm://").start()?;
/// // In a component's `start` it comes from the document.
/// let spec = ProviderSpec::new("counter", ProviderId::new(7), &instance.layout().rpc_pool());
/// let provider = spec.provider_of(&instance, 42);
/// provider.serve(GET).returning_method(|count: &u32, _| *count)?;
/// assert_eq!(provider.id(), spec.id);
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ProviderSpec {
    /// The name; unique in the instance.
    pub name: String,
    /// The id.
    pub id: ProviderId,
    /// The pool in which its handlers are to run.
    pub pool: PoolRef,
    /// The priority of its requests.
    pub priority: Priority,
    /// The providers that it works with.
    pub dependencies: Dependencies,
    /// The own configuration, for the component to check.
    pub config: serde_json::Value,
}

impl ProviderSpec {
    /// One of normal priority, without dependencies, whose configuration is `{}`.
    pub fn new(name: impl Into<String>, id: ProviderId, pool: &PoolRef) -> Self {
        Self {
            name: name.into(),
            id,
            pool: pool.clone(),
            priority: Priority::Normal,
            dependencies: Dependencies::default(),
            config: serde_json::Value::Object(serde_json::Map::new()),
        }
    }

    /// An empty provider as it is described here: with that id, in that pool, of that priority.
    pub fn provider(&self, instance: &Instance) -> Provider {
        self.provider_of(instance, ())
    }

    /// Makes a provider as it is described here, with an object; see [`Instance::provider_of`].
    pub fn provider_of<T>(&self, instance: &Instance, object: impl Into<Arc<T>>) -> Provider<T> {
        instance.provider_of(self.id, &self.pool, object).with_priority(self.priority)
    }
}

/// Looks whether the settings and dependencies of the providers of a document are what
/// `components` take ([`Component::check`], [`Component::needs`]), without starting anything.
/// Providers of other types are passed over.
///
/// # Errors
///
/// All of the providers that would start nowhere, with their paths, and all that is wrong with the
/// dependencies of each.
pub fn check_providers(resolved: &Resolved, components: &[&dyn Component]) -> Result<(), Errors> {
    let wrong = resolved.providers.iter().enumerate().flat_map(|(index, wanted)| {
        let Some(component) = of_type(components, &wanted.type_name) else { return Vec::new() };
        let at = format!("margo.providers[{index}]");
        let config = component.check(&wanted.config).err();
        let config = config.map_or_else(Vec::new, |error| of_config(&at, error));
        let needs = check_needs(*component, wanted, resolved).into_iter();
        let needs = needs.map(|error| ConfigError::new(format!("{at}.dependencies"), error));
        config.into_iter().chain(needs).collect()
    });
    Errors::none_of(wrong)
}

/// Returns the errors that a component finds in the `config` of the provider at a path, by key
/// where the component names one.
fn of_config(at: &str, error: BoxError) -> Vec<ConfigError> {
    match error.downcast::<Errors>() {
        Ok(errors) => {
            let moved = errors.into_iter().map(|mut error| {
                error.path = match error.path.as_str() {
                    "" => format!("{at}.config"),
                    path => format!("{at}.{path}"),
                };
                error
            });
            moved.collect()
        }
        Err(error) => vec![ConfigError::new(format!("{at}.config"), error.to_string())],
    }
}

fn of_type<'s, 'a>(
    components: &'s [&'a dyn Component],
    type_name: &str,
) -> Option<&'s &'a dyn Component> {
    components.iter().find(|component| component.type_name() == type_name)
}

fn check_needs(
    component: &dyn Component,
    wanted: &ResolvedProvider,
    resolved: &Resolved,
) -> Vec<String> {
    // Of a document in which more is wrong: some that it means was not found, or what that is.
    let is_found = |one: &margo_config::ResolvedDependency| {
        let is_known = |target| !type_of(target, resolved).is_empty();
        one.targets.len() == one.given.texts().len() && one.targets.iter().all(is_known)
    };
    if !wanted.dependencies.iter().all(is_found) {
        return Vec::new();
    }
    let given = wanted.dependencies.iter().map(|one| {
        let types = one.targets.iter().map(|target| type_of(target, resolved));
        (&*one.key, types.collect())
    });
    dependency::check(component.needs(), given)
}

fn type_of<'a>(target: &'a DependencyTarget, resolved: &'a Resolved) -> &'a str {
    match target {
        DependencyTarget::Local(place) => &resolved.providers[*place].type_name,
        DependencyTarget::Remote { type_name, .. } => type_name,
    }
}

/// Finds the component of a provider, which gets what it needs.
fn plan<'a>(
    components: &[&'a dyn Component],
    wanted: &ResolvedProvider,
    resolved: &Resolved,
) -> Result<&'a dyn Component, ProviderError> {
    let component = of_type(components, &wanted.type_name).ok_or_else(|| {
        let known: Vec<_> = components.iter().map(|one| one.type_name()).collect();
        ProviderError::UnknownType {
            name: wanted.name.clone(),
            type_name: wanted.type_name.clone(),
            known: known.join(", "),
        }
    })?;
    let reasons = check_needs(*component, wanted, resolved);
    match reasons.is_empty() {
        true => Ok(*component),
        false => Err(wrong_dependency(wanted, reasons.join("; "))),
    }
}

/// Returns whether an entry is for the place of `old`, a provider that others wait for: it has the
/// same name, given or made up, and type.
fn is_successor(
    entry: &margo_config::Provider,
    old: &margo_config::Provider,
    started: &RunningProviders,
) -> bool {
    let made_up = || Some(format!("{}_{}", entry.type_name, entry.provider_id?));
    let name = entry.name.clone().or_else(made_up);
    name.is_some_and(|name| {
        old.name.as_ref() == Some(&name) && started.awaited_type(&name) == Some(&*entry.type_name)
    })
}

fn wrong_dependency(wanted: &ResolvedProvider, reason: String) -> ProviderError {
    let (name, type_name) = (wanted.name.clone(), wanted.type_name.clone());
    ProviderError::Dependency { name, type_name, reason }
}

impl Instance {
    /// Starts the providers that the configuration lists, in its order, but each after those that
    /// it depends on.
    ///
    /// # Errors
    ///
    /// [`ProviderError`]; the providers that had been started were stopped.
    pub fn start_providers(
        &self,
        components: &[&dyn Component],
    ) -> Result<RunningProviders, ProviderError> {
        let resolved = &self.inner().resolved;
        // What can be told without starting anything is told before.
        let mut planned = Vec::with_capacity(resolved.providers.len());
        for place in resolved.start_order() {
            let wanted = &resolved.providers[place];
            planned.push((plan(components, wanted, resolved)?, wanted));
        }
        let mut started = RunningProviders::default();
        for (component, wanted) in planned {
            self.start_planned(component, wanted, resolved, &mut started)?;
        }
        Ok(started)
    }

    /// Starts one more provider, described as in `margo.providers`, and returns its name and id. It
    /// is part of the [configuration in effect](Self::config) then.
    pub(crate) fn start_provider(
        &self,
        components: &[&dyn Component],
        entry: margo_config::Provider,
        started: &mut RunningProviders,
    ) -> Result<(String, u16), String> {
        let mut document = self.whole_config();
        let configs = &self.inner().provider_configs;
        configs.print(&mut document);
        let all = &mut document.margo.providers;
        let before = all.len();
        // Of one that comes back, the entry is this one now.
        all.retain(|own| !is_successor(&entry, own, started));
        let (place, is_back) = (all.len(), all.len() < before);
        all.push(entry.clone());
        let resolved = document.resolve(&margo_config::process_env).map_err(|errors| {
            let text = errors.to_string().replace(&format!("margo.providers[{place}]"), "provider");
            text.trim_end().replace('\n', "; ")
        })?;
        let wanted = &resolved.providers[place];
        let component = plan(components, wanted, &resolved).map_err(|error| error.to_string())?;
        component.check(&wanted.config).map_err(|error| error.to_string())?;
        self.start_planned(component, wanted, &resolved, started)
            .map_err(|error| error.to_string())?;
        let pool = resolved.pools[wanted.pool].name.clone();
        let entry = margo_config::Provider {
            name: Some(wanted.name.clone()),
            pool: Some(margo_config::PoolRef::Name(pool)),
            ..entry
        };
        configs.enter(entry, is_back);
        Ok((wanted.name.clone(), wanted.provider_id))
    }

    fn start_planned(
        &self,
        component: &dyn Component,
        wanted: &ResolvedProvider,
        resolved: &Resolved,
        started: &mut RunningProviders,
    ) -> Result<(), ProviderError> {
        let dependencies = self
            .dependencies_of(wanted, resolved, started)
            .map_err(|reason| wrong_dependency(wanted, reason))?;
        let local = |target: &DependencyTarget| match target {
            DependencyTarget::Local(place) => Some(resolved.providers[*place].name.clone()),
            DependencyTarget::Remote { .. } => None,
        };
        let needs = wanted.dependencies.iter().flat_map(|one| one.targets.iter().filter_map(local));
        let needs = needs.collect();
        let spec = self.spec_of(wanted, resolved, dependencies)?;
        let provider = component.start(self, &spec).map_err(|source| ProviderError::Start {
            name: wanted.name.clone(),
            type_name: wanted.type_name.clone(),
            source,
        })?;
        started.push(&self.inner().provider_configs, wanted, needs, provider);
        Ok(())
    }

    fn spec_of(
        &self,
        wanted: &ResolvedProvider,
        resolved: &Resolved,
        dependencies: Dependencies,
    ) -> Result<ProviderSpec, ProviderError> {
        let refused = |source: ElasticityError| ProviderError::Start {
            name: wanted.name.clone(),
            type_name: wanted.type_name.clone(),
            source: Box::new(source),
        };
        Ok(ProviderSpec {
            name: wanted.name.clone(),
            id: ProviderId::new(wanted.provider_id),
            pool: self
                .layout()
                .find_pool(&*resolved.pools[wanted.pool].name)
                .map_err(refused)?
                .pool,
            priority: match wanted.priority {
                margo_config::Priority::High => Priority::High,
                margo_config::Priority::Normal => Priority::Normal,
                margo_config::Priority::Low => Priority::Low,
            },
            dependencies,
            config: wanted.config.clone(),
        })
    }

    /// Returns the providers that one works with. Those of this document have been started; those
    /// elsewhere have not been asked.
    fn dependencies_of(
        &self,
        wanted: &ResolvedProvider,
        resolved: &Resolved,
        started: &RunningProviders,
    ) -> Result<Dependencies, String> {
        let find = |target: &DependencyTarget| match target {
            DependencyTarget::Local(place) => {
                let there = &resolved.providers[*place];
                let place = started.place_of(&there.name);
                let stopped = || format!("`{}` is stopped: start it first", there.name);
                Ok(Dependency {
                    name: there.name.clone(),
                    type_name: there.type_name.clone(),
                    at: At::Here(self.self_addr(), place.ok_or_else(stopped)?),
                })
            }
            DependencyTarget::Remote { type_name, provider_id, address } => {
                let addr = self.lookup(address).map_err(|error| error.to_string())?;
                Ok(Dependency {
                    name: format!("{type_name}:{provider_id}@{address}"),
                    type_name: type_name.clone(),
                    at: At::Elsewhere(ProviderHandle::new(addr, ProviderId::new(*provider_id))),
                })
            }
        };
        let mut all = Vec::with_capacity(wanted.dependencies.len());
        for one in &wanted.dependencies {
            let providers: Result<_, String> = one.targets.iter().map(find).collect();
            let providers = providers.map_err(|error| format!("`{}`: {error}", one.key))?;
            all.push((one.key.clone(), providers));
        }
        Ok(Dependencies { all })
    }
}

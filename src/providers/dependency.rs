//! Dependencies: the other providers that a provider of the configuration gets.
//!
//! A provider of this process is found through its [`ProviderPlace`], which stays when it is
//! stopped and is taken by its successor. One elsewhere is found by its address, whoever serves
//! there.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex};

use hg::ProviderId;
use prim::sync::lock;

use crate::{Addr, ProviderHandle};

/// A need that providers of one type have of others: see
/// [`Component::needs`](crate::component::Component::needs).
///
/// ```
/// use margo::component::Need;
///
/// /// Matches `"dependencies": { "store": "a", "peers": ["b", "c"] }`.
/// const NEEDS: [Need; 2] =
///     [Need::one("store").of_type("blob"), Need::several("peers").optional()];
///
/// // A component's `needs` returns `&NEEDS`.
/// assert_eq!(NEEDS.map(|need| need.key()), ["store", "peers"]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    key: &'static str,
    type_name: Option<&'static str>,
    optional: bool,
    several: bool,
}

impl Need {
    /// One provider under `key` of `dependencies`, of whatever type.
    pub const fn one(key: &'static str) -> Self {
        Self { key, type_name: None, optional: false, several: false }
    }

    /// One or more.
    pub const fn several(key: &'static str) -> Self {
        Self { several: true, ..Self::one(key) }
    }

    /// Accepts providers of that type only, by the type in the document. A provider elsewhere can
    /// be asked for its identity
    /// ([`InstanceNetwork::check_identity`](crate::groups::InstanceNetwork::check_identity)).
    #[must_use]
    pub const fn of_type(self, type_name: &'static str) -> Self {
        Self { type_name: Some(type_name), ..self }
    }

    /// Or none.
    #[must_use]
    pub const fn optional(self) -> Self {
        Self { optional: true, ..self }
    }

    /// The key.
    pub const fn key(&self) -> &'static str {
        self.key
    }
}

/// Why what a provider's `dependencies` say is not what its type needs: all of it.
///
/// `given`: the keys, each with the types of those that are meant.
pub(crate) fn check<'a>(
    needs: &[Need],
    given: impl IntoIterator<Item = (&'a str, Vec<&'a str>)>,
) -> Vec<String> {
    let mut missing: Vec<_> = needs.iter().filter(|need| !need.optional).collect();
    let mut wrong = Vec::new();
    for (key, types) in given {
        let Some(need) = needs.iter().find(|need| need.key == key) else {
            let keys: Vec<_> = needs.iter().map(|need| need.key).collect();
            let known = if keys.is_empty() { "none".to_owned() } else { keys.join(", ") };
            wrong.push(format!("`{key}` is no dependency of this type (it has: {known})"));
            continue;
        };
        if !types.is_empty() {
            missing.retain(|other| other.key != key);
        }
        if types.len() > 1 && !need.several {
            wrong.push(format!("`{key}` is one provider, and {} are given", types.len()));
        }
        let is_wrong = |found: &&&str| need.type_name.is_some_and(|wanted| wanted != **found);
        if let Some(found) = types.iter().find(is_wrong) {
            let wanted = need.type_name.unwrap_or_default();
            wrong.push(format!("`{key}` is to be of type `{wanted}`, and `{found}` is given"));
        }
    }
    wrong.extend(missing.into_iter().map(|need| {
        let of_type = need.type_name.map_or(String::new(), |name| format!(" of type `{name}`"));
        format!("`{}` is missing: name a provider{of_type} there", need.key)
    }));
    wrong
}

/// An object that a provider lends to others.
pub(crate) type SharedObject = Arc<dyn Any + Send + Sync>;

/// The place of a provider of this process: its id, and the object that it lends while it runs.
pub(crate) struct ProviderPlace(Mutex<(ProviderId, Option<SharedObject>)>);

impl ProviderPlace {
    pub(crate) fn new(id: ProviderId, object: Option<SharedObject>) -> Self {
        Self(Mutex::new((id, object)))
    }

    /// A successor runs.
    pub(crate) fn take(&self, id: ProviderId, object: Option<SharedObject>) {
        *lock(&self.0) = (id, object);
    }

    /// The provider is stopped. Its object lives for as long as somebody uses it.
    pub(crate) fn leave(&self) {
        let object = lock(&self.0).1.take();
        drop(object);
    }
}

/// Where a dependency is.
#[derive(Clone)]
pub(crate) enum At {
    /// In the process whose address this is.
    Here(Addr, Arc<ProviderPlace>),
    Elsewhere(ProviderHandle),
}

/// A provider that another one works with, which may be stopped and come back meanwhile.
///
/// Keep this, and ask it for the handle or the object at each use: one of this process that was
/// stopped and started again (`margo admin ADDRESS stop NAME --needed`) is found by its name,
/// whatever its id and object are then. Until it is back, calls end with
/// [`NotRegistered`](crate::ForwardError::NotRegistered). One elsewhere is found by its address:
/// when its process has been started again there, the next call reaches it.
///
/// ```
/// use margo::{Instance, Rpc, component::ProviderSpec};
///
/// const GET: Rpc<String, u64> = Rpc::new("get");
///
/// /// Asks the store, directly if it is in this process.
/// fn get(instance: &Instance, spec: &ProviderSpec, key: &String) -> Option<u64> {
///     let store = spec.dependencies.get("store")?;
///     println!("asks `{}`, which is a `{}`", store.name(), store.type_name());
///     match store.object::<std::collections::HashMap<String, u64>>() {
///         Some(here) => here.get(key).copied(),
///         None => instance.forward(GET, &store.handle(), key).ok(),
///     }
/// }
/// # let instance = Instance::builder("na+sm://").start()?;
/// # let pool = instance.layout().rpc_pool();
/// # let alone = ProviderSpec::new("alone", margo::ProviderId::new(1), &pool);
/// # assert_eq!(get(&instance, &alone, &"a".to_owned()), None);
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Dependency {
    pub(crate) name: String,
    pub(crate) type_name: String,
    pub(crate) at: At,
}

impl Dependency {
    /// The name in the document, or `type:id@address` of one elsewhere.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type, as the document says it.
    pub fn type_name(&self) -> &str {
        &self.type_name
    }

    /// Returns a handle to call it, wherever it is now.
    pub fn handle(&self) -> ProviderHandle {
        match &self.at {
            At::Here(own, place) => ProviderHandle::new(own.clone(), lock(&place.0).0),
            At::Elsewhere(handle) => handle.clone(),
        }
    }

    /// The object that its handlers share, of a provider of this process: to call without an RPC.
    /// `None`: it is elsewhere, stopped, has none that it shows
    /// ([`RunningProvider::shared_object`](crate::component::RunningProvider::shared_object)), or
    /// one of another type.
    pub fn object<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let At::Here(_, place) = &self.at else { return None };
        let object = lock(&place.0).1.clone();
        object?.downcast().ok()
    }
}

impl fmt::Debug for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dependency({} of type {} at {:?})", self.name, self.type_name, self.handle())
    }
}

/// The providers that one of the configuration works with, by key.
///
/// ```
/// use margo::component::{Dependencies, Dependency};
///
/// /// The names of all that a provider works with.
/// fn names(dependencies: &Dependencies) -> Vec<&str> {
///     let store = dependencies.get("store").into_iter();
///     store.chain(dependencies.all("peers")).map(Dependency::name).collect()
/// }
/// assert!(names(&Dependencies::default()).is_empty());
/// ```
#[derive(Debug, Clone, Default)]
pub struct Dependencies {
    pub(crate) all: Vec<(String, Vec<Dependency>)>,
}

impl Dependencies {
    /// The provider under that key, the first one if there are several; `None`: there is none,
    /// which a [`Need`] that is not optional excludes.
    pub fn get(&self, key: &str) -> Option<&Dependency> {
        self.all(key).first()
    }

    /// All providers under that key, in the order of the document.
    pub fn all(&self, key: &str) -> &[Dependency] {
        let found = self.all.iter().find(|(own, _)| own == key);
        found.map_or(&[], |(_, providers)| providers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDS: [Need; 3] = [
        Need::one("store").of_type("blob"),
        Need::several("peers").optional(),
        Need::one("log").optional(),
    ];

    #[test]
    fn what_is_given_is_what_is_needed() {
        type Given<'a> = &'a [(&'a str, &'a [&'a str])];
        let cases: [(Given<'_>, &[&str]); 9] = [
            (&[("store", &["blob"])], &[]),
            (&[("store", &["blob"]), ("peers", &["a", "b"]), ("log", &["c"])], &[]),
            (&[("store", &["blob"]), ("peers", &[])], &[]),
            (&[], &["`store` is missing: name a provider of type `blob` there"]),
            (&[("store", &[])], &["`store` is missing"]),
            (&[("store", &["echo"])], &["of type `blob`, and `echo` is given"]),
            (&[("store", &["blob", "blob"])], &["one provider, and 2 are given"]),
            (
                &[("stroe", &["blob"])],
                &["`stroe` is no dependency of this type (it has: store", "`store` is missing"],
            ),
            (
                &[("store", &["blob", "echo"]), ("log", &["c", "c"]), ("x", &["y"])],
                &["one provider", "and `echo` is given", "`log` is one provider", "`x` is no"],
            ),
        ];
        for (given, told) in cases {
            let list = given.iter().map(|(key, types)| (*key, types.to_vec()));
            let found = check(&NEEDS, list);
            assert_eq!(found.len(), told.len(), "{given:?}: {found:?}");
            for (error, told) in found.iter().zip(told) {
                assert!(error.contains(told), "{error}");
            }
        }
        let found = check(&[], [("x", vec!["y"])]);
        assert!(found.len() == 1 && found[0].contains("(it has: none)"), "{found:?}");
    }
}

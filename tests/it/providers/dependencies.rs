//! Providers of a document that work with others of it, and with some elsewhere.

use std::any::Any;
use std::error::Error;
use std::sync::{Arc, Mutex};

use margo::{
    Instance, Provider, ProviderHandle, ProviderId, Rpc, component::Component, component::Need,
    component::ProviderSpec, component::RunningProvider, component::check_providers,
};

const GET: Rpc<(), String> = Rpc::new("store_get");
const ALL: Rpc<(), Vec<String>> = Rpc::new("index_all");

type Log = Arc<Mutex<Vec<String>>>;

/// The provider kinds of this test, and the log of what happened: each test runs in a process of
/// its own.
#[derive(Default)]
struct Kinds {
    log: Log,
}

struct Store(String);

struct Stores(Log);
struct Indexes(Log);

/// A running provider that logs its end.
struct Running<T> {
    name: String,
    log: Log,
    provider: Provider<T>,
}

impl<T: Any + Send + Sync> RunningProvider for Running<T> {
    fn shared_object(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.provider.shared_object()
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        self.log.lock().unwrap().push(format!("{} stops", self.name));
    }
}

fn running<T: Any + Send + Sync>(
    log: &Log,
    spec: &ProviderSpec,
    provider: Provider<T>,
) -> Box<dyn RunningProvider> {
    log.lock().unwrap().push(format!("{} starts", spec.name));
    Box::new(Running { name: spec.name.clone(), log: log.clone(), provider })
}

impl Component for Stores {
    fn type_name(&self) -> &'static str {
        "store"
    }

    fn start(
        &self,
        instance: &Instance,
        spec: &ProviderSpec,
    ) -> Result<Box<dyn RunningProvider>, Box<dyn Error + Send + Sync>> {
        let provider = spec.provider_of(instance, Store(spec.name.clone()));
        provider.serve(GET).returning_method(|store: &Store, _| store.0.clone())?;
        Ok(running(&self.0, spec, provider))
    }
}

impl Component for Indexes {
    fn type_name(&self) -> &'static str {
        "index"
    }

    fn needs(&self) -> &[Need] {
        &const { [Need::one("store").of_type("store"), Need::several("others").optional()] }
    }

    fn start(
        &self,
        instance: &Instance,
        spec: &ProviderSpec,
    ) -> Result<Box<dyn RunningProvider>, Box<dyn Error + Send + Sync>> {
        let store = spec.dependencies.get("store").ok_or("no store")?;
        let object = store.object::<Store>().ok_or("not of this process")?;
        assert!(store.object::<String>().is_none(), "of another type");
        assert_eq!((store.name(), store.type_name()), (&*object.0, "store"));
        let others: Vec<_> = spec.dependencies.all("others").to_vec();
        assert!(spec.dependencies.get("nothing").is_none());
        let store = store.clone();
        let provider = spec.provider_of::<Store>(instance, object);
        let caller = instance.downgrade();
        provider.serve(ALL).returning(move |_| {
            let instance = caller.upgrade().expect("it serves");
            let mut found = vec![instance.forward(GET, &store.handle(), &()).unwrap()];
            let told = others.iter().map(|one| instance.forward(GET, &one.handle(), &()).unwrap());
            found.extend(told);
            found
        })?;
        Ok(running(&self.0, spec, provider))
    }
}

impl Kinds {
    fn start(
        &self,
        document: &str,
    ) -> Result<(Instance, margo::component::RunningProviders), margo::errors::ProviderError> {
        let instance = margo::init(document).unwrap();
        let (stores, indexes) = (Stores(self.log.clone()), Indexes(self.log.clone()));
        match instance.start_providers(&[&stores, &indexes]) {
            Ok(running) => Ok((instance, running)),
            Err(error) => {
                instance.finalize_and_wait().unwrap();
                Err(error)
            }
        }
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut *self.log.lock().unwrap())
    }
}

fn document(providers: &str) -> String {
    format!(r#"{{ "margo": {{ "address": "na+sm://", "providers": [{providers}] }} }}"#)
}

#[test]
fn providers_start_after_those_they_need_and_call_them() {
    let far = Kinds::default();
    let (elsewhere, serving) =
        far.start(&document(r#"{"type": "store", "name": "far", "provider_id": 9}"#)).unwrap();
    let address = elsewhere.self_addr().uri().to_owned();

    let kinds = Kinds::default();
    let (instance, providers) = kinds
        .start(&document(&format!(
            r#"{{"type": "index", "provider_id": 1,
                 "dependencies": {{"store": "near", "others": ["store:3", "store:9@{address}"]}}}},
               {{"type": "store", "name": "near", "provider_id": 2}},
               {{"type": "store", "provider_id": 3}}"#
        )))
        .unwrap();
    assert_eq!(providers.names().collect::<Vec<_>>(), ["near", "store_3", "index_1"]);
    let index = ProviderHandle::new(instance.self_addr(), ProviderId::new(1));
    assert_eq!(instance.forward(ALL, &index, &()).unwrap(), ["near", "store_3", "far"]);
    // What is printed is accepted again, and says the same.
    let printed = instance.config().to_json();
    let again = margo::config::Config::from_json(&printed).unwrap().resolve(&|_| None).unwrap();
    assert_eq!(again.start_order(), [1, 2, 0]);

    drop(providers);
    let starts = ["near starts", "store_3 starts", "index_1 starts"];
    let stops = ["index_1 stops", "store_3 stops", "near stops"];
    assert_eq!(kinds.log(), [starts, stops].concat());
    instance.finalize_and_wait().unwrap();
    drop(serving);
    elsewhere.finalize_and_wait().unwrap();
}

#[test]
fn dependencies_that_do_not_fit_are_told_and_nothing_stays() {
    let cases = [
        (r#"{"others": "near"}"#, "`store` is missing: name a provider of type `store` there"),
        (r#"{"store": "index_2", "others": []}"#, "of type `store`, and `index` is given"),
        (r#"{"store": "near", "stroe": "near"}"#, "`stroe` is no dependency of this type"),
        (r#"{"store": ["near", "near"]}"#, "one provider, and 2 are given"),
        (r#"{"store": "near", "others": "store:1@nowhere://x"}"#, "`others`: "),
    ];
    for (dependencies, told) in cases {
        let kinds = Kinds::default();
        let document = document(&format!(
            r#"{{"type": "store", "name": "near", "provider_id": 2}},
               {{"type": "index", "provider_id": 2, "dependencies": {{"store": "near"}}}},
               {{"type": "index", "provider_id": 1, "dependencies": {dependencies}}}"#
        ));
        let error = kinds.start(&document).unwrap_err().to_string();
        let name = "provider `index_1` of type `index`: dependencies: ";
        assert!(error.starts_with(name) && error.contains(told), "{error}");
        // Where one is, is looked up when it is its turn.
        let expected: &[&str] = match told {
            "`others`: " => &["near starts", "index_2 starts", "index_2 stops", "near stops"],
            _ => &[],
        };
        assert_eq!(kinds.log(), expected, "{told}");
        // Who only looks is told the same, but for addresses.
        let resolved = margo::config::Config::from_json(&document).unwrap();
        let resolved = resolved.resolve(&|_| None).unwrap();
        let (stores, indexes) = (Stores(kinds.log.clone()), Indexes(kinds.log.clone()));
        let checked = check_providers(&resolved, &[&stores, &indexes]);
        match told {
            "`others`: " => checked.unwrap(),
            told => {
                let error = checked.unwrap_err().to_string();
                assert!(error.starts_with("margo.providers[2].dependencies: "), "{error}");
                assert!(error.contains(told), "{error}");
            }
        }
    }
}

#[test]
fn all_that_does_not_fit_is_told_at_once() {
    let kinds = Kinds::default();
    let document = document(
        r#"{"type": "store", "provider_id": 1, "dependencies": {"x": "store_2"}},
           {"type": "store", "provider_id": 2},
           {"type": "index", "provider_id": 3, "dependencies": {"stroe": "store_1"}}"#,
    );
    let resolved = margo::config::Config::from_json(&document).unwrap();
    let resolved = resolved.resolve(&|_| None).unwrap();
    let (stores, indexes) = (Stores(kinds.log.clone()), Indexes(kinds.log.clone()));
    let errors = check_providers(&resolved, &[&stores, &indexes]).unwrap_err();
    let told: Vec<_> = errors.iter().map(|error| (&*error.path, &*error.message)).collect();
    assert_eq!(
        told,
        [
            ("margo.providers[0].dependencies", "`x` is no dependency of this type (it has: none)"),
            (
                "margo.providers[2].dependencies",
                "`stroe` is no dependency of this type (it has: store, others)"
            ),
            (
                "margo.providers[2].dependencies",
                "`store` is missing: name a provider of type `store` there"
            ),
        ]
    );
    check_providers(&resolved, &[]).unwrap();
    // Who starts them is told all of the first.
    let lone = document.replace(r#", "dependencies": {"x": "store_2"}"#, "");
    let error = kinds.start(&lone).unwrap_err().to_string();
    assert!(error.contains("(it has: store, others); `store` is missing"), "{error}");
}

#[test]
fn a_program_starts_a_component_itself() {
    let kinds = Kinds::default();
    let instance = margo::init("{}").unwrap();
    let spec = ProviderSpec::new("mine", ProviderId::new(4), &instance.layout().rpc_pool());
    let running = Stores(kinds.log.clone()).start(&instance, &spec).unwrap();
    let to = ProviderHandle::new(instance.self_addr(), ProviderId::new(4));
    assert_eq!(instance.forward(GET, &to, &()).unwrap(), "mine");
    drop(running);
    instance.finalize_and_wait().unwrap();
}

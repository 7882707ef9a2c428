//! Identities: the answers of providers that are asked what they are.

use crate::common::{builder, on_each};
use margo::{ProviderHandle, ProviderId, RegisterError, Rpc, errors::IdentityError};

const ID: ProviderId = ProviderId::new(42);

#[test]
fn an_identity_is_registered_replaced_and_taken_back() {
    on_each(|pair| {
        let (client, service) = (&pair.client, &pair.service);
        let target = ProviderHandle::new(pair.target().addr().clone(), ID);
        let local = ProviderHandle::new(service.self_addr(), ID);
        let asked = || {
            let told = client.network().identity_of(&target).unwrap();
            assert_eq!(service.network().identity_of(&local).unwrap(), told, "of oneself");
            assert_eq!(service.network().identity(ID), told, "without asking");
            told
        };
        assert_eq!(asked(), None);
        assert!(!service.network().deregister_identity(ID));
        for identity in ["yokan", "bake", "", "with a longer name than most; größer"] {
            service.network().register_identity(ID, identity).unwrap();
            assert_eq!(asked().as_deref(), Some(identity));
        }
        assert_eq!(
            client.network().identity_of(&pair.target()).unwrap(),
            None,
            "of another provider"
        );
        assert!(service.network().deregister_identity(ID));
        assert_eq!(asked(), None);
        service.network().register_identity(ID, "again").unwrap();
        assert_eq!(asked().as_deref(), Some("again"));
        pair.end();
    });
}

#[test]
fn the_identity_of_a_provider_goes_with_it() {
    on_each(|pair| {
        let (client, service) = (&pair.client, &pair.service);
        let target = ProviderHandle::new(pair.target().addr().clone(), ID);
        let provider = service.provider(ID, &service.layout().rpc_pool());
        assert!(matches!(
            client.network().check_identity(&target, "kv"),
            Err(IdentityError::None { .. })
        ));
        provider.set_identity("blob").unwrap();
        provider.set_identity("kv").unwrap();
        client.network().check_identity(&target, "kv").unwrap();
        let error = client.network().check_identity(&target, "blob").unwrap_err();
        assert!(matches!(&error, IdentityError::Other { .. }));
        assert!(error.to_string().ends_with("is `kv`, not `blob`"), "{error}");
        drop(provider);
        assert!(matches!(
            client.network().check_identity(&target, "kv"),
            Err(IdentityError::None { .. })
        ));
        assert_eq!(service.network().identity(ID), None);
        pair.end();
    });
}

#[test]
fn what_cannot_be_asked_is_an_error() {
    on_each(|pair| {
        let target = pair.target();
        let result = pair.client.network().register_identity(ID, "nobody can ask");
        assert!(matches!(result, Err(RegisterError::NotListening { .. })), "{result:?}");
        assert_eq!(pair.client.network().identity(ID), None);
        pair.service.finalize_and_wait().unwrap();
        assert!(pair.client.network().identity_of(&target).is_err());
        let checked = pair.client.network().check_identity(&target, "kv");
        assert!(matches!(checked, Err(IdentityError::Forward(_))), "{checked:?}");
        pair.client.finalize_and_wait().unwrap();
    });
}

/// C Margo has no type of ours; this is what it sends and expects.
#[test]
fn the_query_is_that_of_c_margo() {
    const QUERY: Rpc<(), String> = Rpc::new("__identity__");
    let own = builder("na+sm://").start().unwrap();
    own.network().register_identity(ID, "kv").unwrap();
    let target = ProviderHandle::new(own.self_addr(), ID);
    assert_eq!(own.forward(QUERY, &target, &()).unwrap(), "kv");
    own.finalize_and_wait().unwrap();
}

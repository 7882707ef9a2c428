//! The service over a simulated network, in one process, and the document of its daemon.

use std::time::Duration;

use margo::config::{Config, ConfigFlags, process_env};
use margo::encoding::Bytes;
use margo::na::sim::{LinkOptions, Network};
use margo::{CallError, Instance, ProviderHandle, ProviderId, component::check_providers};
use template_name::{TemplateNameClient, TemplateNameError, component};

/// Far beyond what a call takes; only a hang reaches it.
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn values_come_back_over_a_network_that_loses_packets() {
    // Each packet is lost, repeated or late with this probability; the seed makes a run repeatable.
    let link = LinkOptions::unreliable(0.1);
    let _network = Network::builder("lossy").seed(7).link(link).build().unwrap();
    let document = r#"{ "margo": { "address": "na+sim://lossy/server", "providers": [
        { "type": "template_name", "provider_id": 1, "config": { "value_bytes_max": 8 } }] } }"#;
    let server = margo::init(document).unwrap();
    let providers = server.start_providers(&[&component()]).unwrap();

    let client = Instance::builder("na+sim://lossy/client").listen(false).start().unwrap();
    let target = client.lookup(server.self_addr().uri()).unwrap();
    let target = ProviderHandle::new(target, ProviderId::new(1));
    let service = TemplateNameClient::new(&client, target).with_timeout(LIMIT);
    for n in 0..100 {
        service.put(&format!("key {n}"), Bytes(vec![n; 8])).unwrap();
    }
    for n in 0..100 {
        assert_eq!(service.get(&format!("key {n}")).unwrap(), Bytes(vec![n; 8]));
    }
    let error = service.get("another").unwrap_err();
    let expected = TemplateNameError::NoKey { key: "another".to_owned() };
    assert!(matches!(error, CallError::Service(error) if error == expected));
    let error = service.put("long", Bytes(vec![0; 9])).unwrap_err();
    assert_eq!(error.to_string(), "9 bytes are more than the 8 that a value may have");

    client.finalize_and_wait().unwrap();
    drop(providers);
    server.finalize_and_wait().unwrap();
}

/// Checks a document as the daemon does.
fn check(document: &str) -> Result<(), String> {
    let checked = Config::check_with(document, &process_env, ConfigFlags::default(), |resolved| {
        check_providers(resolved, &[&component()])
    });
    checked.map(drop).map_err(|errors| errors.to_string())
}

#[test]
fn the_document_of_the_daemon_is_valid() {
    check(include_str!("../template-name.json")).unwrap();
}

#[test]
fn wrong_settings_are_told_with_their_place() {
    let document = r#"{ "margo": { "providers": [
        { "type": "template_name", "provider_id": 1,
          "config": { "value_bytes_max": 0 } }] } }"#;
    let error = check(document).unwrap_err();
    assert!(error.contains("config.value_bytes_max: 0 bytes leave no value at line 3"), "{error}");
    let misspelt = document.replace("bytes_max", "byte_max");
    let error = check(&misspelt).unwrap_err();
    assert!(error.contains("did you mean \"value_bytes_max\"? at line 3"), "{error}");
}

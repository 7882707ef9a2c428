//! The echo provider over every transport, started by hand and from the configuration.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use std::time::Duration;

use margo::{
    ForwardError, Instance, ProviderHandle, ProviderId, config::Config, errors::IdentityError,
};
use margo_provider_echo::{EchoClient, EchoComponent, EchoProvider};

/// Far beyond what a loaded machine needs; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

fn client_of(service: &Instance, id: u16) -> (Instance, EchoClient) {
    let address = service.self_addr().uri().to_owned();
    let transport = address.split("://").next().unwrap();
    let client = Instance::builder(format!("{transport}://")).listen(false).start().unwrap();
    let target = ProviderHandle::new(client.lookup(&address).unwrap(), ProviderId::new(id));
    let echo = EchoClient::new(&client, target);
    (client, echo)
}

#[test]
fn answers_what_it_is_sent() {
    for address in ["na+sm://", "na+tcp://127.0.0.1:0"] {
        let service = Instance::builder(address).start().unwrap();
        let provider = service.provider(ProviderId::new(7), &service.layout().rpc_pool());
        let running = EchoProvider::start(provider).unwrap();
        let (client, echo) = client_of(&service, 7);
        let long = "né".repeat(100_000);
        for text in ["", "hello", &long] {
            assert_eq!(echo.echo(text, PATIENCE).unwrap(), text);
        }
        drop(running);
        let error = echo.echo("hello?", PATIENCE).unwrap_err();
        assert!(matches!(error, ForwardError::NotRegistered { .. }), "{error}");
        client.finalize_and_wait().unwrap();
        service.finalize_and_wait().unwrap();
    }
}

fn service_with(provider: &str) -> Instance {
    let json = format!(r#"{{ "margo": {{ "address": "na+sm://", "providers": [{provider}] }} }}"#);
    Instance::from_config(&Config::from_json(&json).unwrap()).unwrap()
}

#[test]
fn starts_from_the_configuration() {
    let service = service_with(r#"{ "type": "echo", "provider_id": 3 }"#);
    let running = service.start_providers(&[&EchoComponent]).unwrap();
    assert_eq!(running.names().collect::<Vec<_>>(), ["echo_3"]);
    let (client, echo) = client_of(&service, 3);
    assert_eq!(echo.echo("hello", PATIENCE).unwrap(), "hello");
    let nowhere = std::path::Path::new("/nowhere");
    let error = running.snapshot("echo_3", nowhere).unwrap_err().to_string();
    let said =
        "provider `echo_3` of type `echo`: snapshot: providers of this type do not support it";
    assert_eq!(error, said);
    running.drain(PATIENCE).unwrap();
    let error = echo.echo("hello?", PATIENCE).unwrap_err();
    assert!(matches!(error, ForwardError::NotRegistered { .. }), "{error}");
    client.finalize_and_wait().unwrap();
    drop(running);
    service.finalize_and_wait().unwrap();
}

#[test]
fn settings_that_it_does_not_have_are_errors() {
    let service = service_with(r#"{ "type": "echo", "provider_id": 3, "config": { "loud": 1 } }"#);
    let error = service.start_providers(&[&EchoComponent]).unwrap_err().to_string();
    assert!(error.contains("echo_3") && error.contains("config.loud: unknown key"), "{error}");
    service.finalize_and_wait().unwrap();
}

#[test]
fn a_client_connects_to_an_echo_provider_and_to_nothing_else() {
    let service = Instance::builder("na+sm://").start().unwrap();
    let [id, other] = [1, 2].map(ProviderId::new);
    let running = EchoProvider::start(service.provider(id, &service.layout().rpc_pool())).unwrap();
    let connect =
        |id| EchoClient::connect(&service, ProviderHandle::new(service.self_addr(), id), PATIENCE);
    assert_eq!(connect(id).unwrap().echo("hello", PATIENCE).unwrap(), "hello");
    let error = connect(other).unwrap_err();
    assert!(matches!(error, IdentityError::None { .. }), "{error}");
    service.network().register_identity(other, "kv").unwrap();
    let error = connect(other).unwrap_err();
    assert!(error.to_string().ends_with("is `kv`, not `echo`"), "{error}");
    drop(running);
    let error = connect(id).unwrap_err();
    assert!(matches!(error, IdentityError::None { .. }), "{error}");
    service.finalize_and_wait().unwrap();
}

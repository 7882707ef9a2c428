//! A key-value service: a trait, a type that implements it, and a client, in one program.
//!
//! ```text
//! cargo run --example kv_service
//! cargo run --example kv_service -- na+tcp://127.0.0.1:7000
//! ```
//!
//! Without an address it calls itself once, and ends. With one it serves there until Ctrl-C, and
//! `margo describe ADDRESS`, `margo call ADDRESS kv.put --json '{"key": "a", "value": "1"}'` and
//! `margo call ADDRESS kv.get --json '{"key": "a"}'` call it.

use std::collections::BTreeMap;
use std::time::Duration;

use margo::service::RequestContext;
use margo::{Instance, ProviderHandle, ProviderId, encoding::Bytes};
use serde::{Deserialize, Serialize};

// What both sides share: usually a crate of its own.

/// The reason why there is no result.
#[derive(Debug, Serialize, Deserialize, thiserror::Error)]
enum KvError {
    #[error("there is no key `{key}`")]
    NoKey { key: String },
}

/// Keys and their values.
#[margo::service]
trait Kv {
    /// Stores a value, in place of the one that was there.
    fn put(&self, key: &str, value: Bytes) -> Result<(), KvError>;
    /// The value of a key.
    fn get(&self, key: &str) -> Result<Bytes, KvError>;
    /// The keys that begin so, in their order.
    #[margo(deadline = "5s")]
    fn keys(&self, request: &RequestContext, prefix: &str) -> Vec<String>;
    /// Forgets a key; nobody waits for that.
    #[margo(one_way)]
    fn forget(&self, key: &str);
}

// The service.

#[derive(Default)]
struct Store(ult::Mutex<BTreeMap<String, Bytes>>);

impl Kv for Store {
    fn put(&self, key: &str, value: Bytes) -> Result<(), KvError> {
        self.0.lock().insert(key.to_owned(), value);
        Ok(())
    }

    fn get(&self, key: &str) -> Result<Bytes, KvError> {
        let found = self.0.lock().get(key).cloned();
        found.ok_or_else(|| KvError::NoKey { key: key.to_owned() })
    }

    fn keys(&self, request: &RequestContext, prefix: &str) -> Vec<String> {
        let all = self.0.lock();
        let wanted = all.keys().take_while(|_| !request.is_canceled());
        wanted.filter(|key| key.starts_with(prefix)).cloned().collect()
    }

    fn forget(&self, key: &str) {
        self.0.lock().remove(key);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let id = ProviderId::new(1);
    let address = std::env::args().nth(1);
    let service = Instance::builder(address.as_deref().unwrap_or("na+sm://")).start()?;
    let provider = KvService::serve(&service, id, Store::default())?;
    if address.is_some() {
        println!("listening on {}", service.self_addr().uri());
        return Ok(service.wait_for_finalize()?);
    }

    let client = Instance::builder("na+sm://").listen(false).start()?;
    let target = ProviderHandle::new(client.lookup(service.self_addr().uri())?, id);
    let kv = KvClient::new(&client, target).with_timeout(Duration::from_secs(10));
    kv.put("fruit/apple", Bytes(b"red".to_vec()))?;
    kv.put("fruit/pear", Bytes(b"green".to_vec()))?;
    println!("apple: {}", String::from_utf8_lossy(&kv.get("fruit/apple")?));
    println!("keys: {:?}", kv.keys("fruit/")?);
    // Both are on their way at once; each could be awaited.
    let (there, missing) = (kv.get_start("fruit/pear")?, kv.get_start("fruit/fig")?);
    println!("pear: {}", String::from_utf8_lossy(&there.wait()??));
    if let Err(error) = missing.wait()? {
        println!("fig: {error}");
    }

    client.finalize_and_wait()?;
    drop(provider);
    service.finalize_and_wait()?;
    Ok(())
}

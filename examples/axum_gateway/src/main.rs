//! An HTTP server on axum in front of a key-value service of margo: tokio serves HTTP, and its
//! tasks await RPCs.
//!
//! ```text
//! cargo run -p margo-axum-gateway              # with a service of its own
//! cargo run -p margo-axum-gateway -- ADDRESS   # or in front of `kv_service`
//! curl -X PUT --data red http://127.0.0.1:PORT/kv/apple
//! curl http://127.0.0.1:PORT/kv/apple
//! ```
//!
//! Prints where it listens. A key that is not there is a `404 Not Found`; a service that cannot be
//! reached, or takes more than five seconds, is a `502 Bad Gateway` with the error in words.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use margo::encoding::Bytes;
use margo::{ForwardError, Instance, Provider, ProviderHandle, ProviderId};
use serde::{Deserialize, Serialize};

const ID: ProviderId = ProviderId::new(1);
const LIMIT: Duration = Duration::from_secs(5);

/// As in `examples/kv_service.rs`.
#[derive(Debug, Serialize, Deserialize, thiserror::Error)]
enum KvError {
    #[error("there is no key `{key}`")]
    NoKey { key: String },
}

/// Likewise: the methods that the gateway calls.
#[margo::service]
trait Kv {
    fn put(&self, key: &str, value: Bytes) -> Result<(), KvError>;
    fn get(&self, key: &str) -> Result<Bytes, KvError>;
}

type HttpError = (StatusCode, String);

/// There is no answer of the service.
fn bad_gateway(error: ForwardError) -> HttpError {
    (StatusCode::BAD_GATEWAY, format!("{error}\n"))
}

/// The service answered with an error.
fn not_found(error: KvError) -> HttpError {
    (StatusCode::NOT_FOUND, format!("{error}\n"))
}

// A call goes out at once, and the task waits for its result. If the HTTP client goes away, axum
// drops the future, and that cancels the call.

async fn put_value(
    State(kv): State<KvClient>,
    Path(key): Path<String>,
    value: axum::body::Bytes,
) -> Result<(), HttpError> {
    let call = kv.put_start(&key, Bytes(value.into())).map_err(bad_gateway)?;
    call.await.map_err(bad_gateway)?.map_err(not_found)
}

async fn get_value(
    State(kv): State<KvClient>,
    Path(key): Path<String>,
) -> Result<Vec<u8>, HttpError> {
    let call = kv.get_start(&key).map_err(bad_gateway)?;
    let value = call.await.map_err(bad_gateway)?.map_err(not_found)?;
    Ok(value.0)
}

#[derive(Default)]
struct Store(std::sync::Mutex<BTreeMap<String, Bytes>>);

impl Store {
    fn values(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Bytes>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Kv for Store {
    fn put(&self, key: &str, value: Bytes) -> Result<(), KvError> {
        self.values().insert(key.to_owned(), value);
        Ok(())
    }

    fn get(&self, key: &str) -> Result<Bytes, KvError> {
        self.values().get(key).cloned().ok_or_else(|| KvError::NoKey { key: key.to_owned() })
    }
}

fn start_service() -> Result<(Instance, Provider<Store>), Box<dyn Error>> {
    let service = Instance::builder("na+sm://").start()?;
    let provider = KvService::serve(&service, ID, Store::default())?;
    Ok((service, provider))
}

async fn serve(kv: KvClient) -> Result<(), Box<dyn Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    let router = Router::new().route("/kv/{key}", get(get_value).put(put_value)).with_state(kv);
    axum::serve(listener, router).await?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let (address, _service) = match std::env::args().nth(1) {
        Some(address) => (address, None),
        None => {
            let service = start_service()?;
            (service.0.self_addr().uri().to_owned(), Some(service))
        }
    };
    // The same transport: `na+sm://`, `na+tcp://` and so on.
    let transport = address.split_inclusive("//").next().unwrap_or_default();
    let client = Instance::builder(transport).listen(false).start()?;
    let target = ProviderHandle::new(client.lookup(&address)?, ID);
    let kv = KvClient::new(&client, target).with_timeout(LIMIT);
    let tokio =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    tokio.block_on(serve(kv))
}

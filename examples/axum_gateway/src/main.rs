//! An HTTP server on axum that calls a service of margo: tokio serves HTTP, and its tasks await
//! RPCs.
//!
//! ```text
//! cargo run -p margo-axum-gateway              # with a service of its own
//! cargo run -p margo-axum-gateway -- ADDRESS   # or in front of `sum_server`
//! curl http://127.0.0.1:PORT/sum/40/2
//! ```
//!
//! Prints where it listens. `/sum/40/2` answers `42`; a service that cannot be reached, or takes
//! more than five seconds, is a `502 Bad Gateway` with the error in words.

use std::error::Error;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use margo::{ForwardError, Instance, ProviderHandle, Rpc};

/// As in `examples/sum_server.rs`.
const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");

const LIMIT: Duration = Duration::from_secs(5);

#[derive(Clone)]
struct Gateway {
    client: Instance,
    target: ProviderHandle,
}

impl Gateway {
    /// The call goes out at once; the task waits for its result. If the HTTP client goes away, axum
    /// drops the future, and that cancels the call.
    async fn sum(&self, a: i64, b: i64) -> Result<i64, ForwardError> {
        self.client.rpc(SUM, &self.target, &(a, b)).timeout(LIMIT).start()?.await
    }
}

async fn sum(
    State(gateway): State<Gateway>,
    Path((a, b)): Path<(i64, i64)>,
) -> Result<String, (StatusCode, String)> {
    let sum = gateway.sum(a, b).await;
    let sum = sum.map_err(|error| (StatusCode::BAD_GATEWAY, format!("{error}\n")))?;
    Ok(format!("{sum}\n"))
}

fn start_service() -> Result<Instance, Box<dyn Error>> {
    let service = Instance::builder("na+sm://").start()?;
    service.serve(SUM).function(|(a, b): (i64, i64)| a.wrapping_add(b))?;
    Ok(service)
}

async fn serve(gateway: Gateway) -> Result<(), Box<dyn Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    let router = Router::new().route("/sum/{a}/{b}", get(sum)).with_state(gateway);
    axum::serve(listener, router).await?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let (address, _service) = match std::env::args().nth(1) {
        Some(address) => (address, None),
        None => {
            let service = start_service()?;
            (service.self_addr().uri().to_owned(), Some(service))
        }
    };
    // The same transport: `na+sm://`, `na+tcp://` and so on.
    let transport = address.split_inclusive("//").next().unwrap_or_default();
    let client = Instance::builder(transport).listen(false).start()?;
    let target = ProviderHandle::from(client.lookup(&address)?);
    let tokio =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    tokio.block_on(serve(Gateway { client, target }))
}

//! Handlers that await tokio: the future runs as a task of a tokio runtime with threads of its own,
//! and the handler's ULT is suspended until it is done. And the other way round: a tokio task that
//! awaits RPCs.
//!
//! ```text
//! cargo run --example tokio_in_handler
//! ```
//!
//! Prints two answers. Each fetch waits for the other one, so both handlers are under way at once,
//! on one execution stream.

use std::sync::Arc;
use std::time::Duration;

use margo::{Instance, ProviderHandle, Rpc};
use tokio::sync::Barrier;

const FETCH: Rpc<String, Result<String, String>> = Rpc::new("fetch");

/// Stands for an HTTP client or a database driver of tokio: it needs tokio's timers or sockets.
async fn fetch(key: String, both: Arc<Barrier>) -> String {
    both.wait().await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    format!("the value of {key}")
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tokio =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let service = Instance::builder("na+sm://").start()?;
    let (tasks, both) = (tokio.handle().clone(), Arc::new(Barrier::new(2)));
    service.serve(FETCH).function(move |key: String| {
        // Neither `tasks.enter()` nor `tasks.block_on()`: both belong to the OS thread, which this
        // ULT shares with others.
        let task = tasks.spawn(fetch(key, both.clone()));
        ult::block_on(task).map_err(|error| error.to_string())
    })?;

    let client = Instance::builder("na+sm://").listen(false).start()?;
    let target = ProviderHandle::from(client.lookup(service.self_addr().uri())?);
    // A call is a future, for any executor.
    let answers = tokio.block_on(async {
        let first = client.rpc(FETCH, &target, &"a".to_owned()).start()?;
        let second = client.rpc(FETCH, &target, &"b".to_owned()).start()?;
        Ok::<_, margo::ForwardError>([first.await?, second.await?])
    })?;
    for answer in answers {
        println!("{}", answer?);
    }
    client.finalize_and_wait()?;
    service.finalize_and_wait()?;
    Ok(())
}

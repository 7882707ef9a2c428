//! A service that gets more cores while it runs, and gives them back; no call fails meanwhile.
//!
//! ```text
//! cargo run --example elastic
//! ```
//!
//! Prints on which execution stream a handler runs before, during and after, and what the
//! configuration has become.

use margo::{Instance, ProviderHandle, ProviderId, Rpc, config::ConfigFlags};

const WHERE: Rpc<(), String> = Rpc::new("where");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let service = margo::init("{}")?;
    println!("at first: {}", ask(&service, "__primary__")?);

    // More work: a pool and an execution stream for it, described as in a document.
    service.layout().add_pool_from_json(r#"{ "name": "work", "kind": "prio_wait" }"#)?;
    service
        .layout()
        .add_xstream_from_json(r#"{ "name": "extra", "scheduler": { "pools": ["work"] } }"#)?;
    println!("with more: {}", ask(&service, "work")?);

    // The network, too, gets an execution stream of its own.
    service.layout().add_pool_from_json(r#"{ "name": "net" }"#)?;
    service
        .layout()
        .add_xstream_from_json(r#"{ "name": "network", "scheduler": { "pools": ["net"] } }"#)?;
    service.layout().migrate_progress("net")?;
    println!("progress: {}", service.layout().progress_pool().name());

    // What is in use is not removed, and the error says by whom.
    if let Err(error) = service.layout().remove_pool("work") {
        println!("not yet: {error}");
    }
    service.layout().remove_xstream("extra")?;
    service.layout().remove_pool("work")?;
    println!("at last: {}", ask(&service, "__primary__")?);

    // The outcome is a document: the next start can have it from the beginning.
    let flags = ConfigFlags { use_names: true, ..ConfigFlags::default() };
    let document = service.layout().config_as(flags);
    println!("pools: {}", names(document.argobots.pools.iter().map(|pool| &pool.name)));
    println!("xstreams: {}", names(document.argobots.xstreams.iter().map(|xstream| &xstream.name)));
    service.finalize_and_wait()?;
    Ok(())
}

/// Serves `WHERE` in a pool for one call. Dropping the provider gives the pool free again.
fn ask(service: &Instance, pool: &str) -> Result<String, Box<dyn std::error::Error>> {
    let provider = service.provider(ProviderId::new(1), &service.layout().find_pool(pool)?.pool);
    provider.register(WHERE, |request| {
        let here = margo::ult::current().map(|ult| ult.xstream);
        let _ = request.respond(&here.unwrap_or_default());
    })?;
    let target = ProviderHandle::new(service.self_addr(), provider.id());
    Ok(service.forward(WHERE, &target, &())?)
}

fn names<'n>(all: impl Iterator<Item = &'n Option<String>>) -> String {
    all.flatten().map(String::as_str).collect::<Vec<_>>().join(", ")
}

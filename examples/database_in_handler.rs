//! A provider over an embedded database whose calls block: redb here; rusqlite, RocksDB or plain
//! files work the same way. Each transaction runs in `ult::blocking`, and the execution stream
//! serves other requests while the disk works.
//!
//! ```text
//! cargo run --example database_in_handler
//! ```
//!
//! Prints values that were put and read back, and a key that is not there.

use std::sync::Arc;

use margo::{Instance, ProviderHandle, Rpc};
use redb::{Database, ReadableDatabase, TableDefinition};

const PUT: Rpc<(String, u64), Result<(), String>> = Rpc::new("db_put");
const GET: Rpc<String, Result<Option<u64>, String>> = Rpc::new("db_get");

const COUNTS: TableDefinition<'_, &str, u64> = TableDefinition::new("counts");

fn put(database: &Database, key: &str, value: u64) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    transaction.open_table(COUNTS)?.insert(key, value)?;
    // Waits for the disk.
    transaction.commit()?;
    Ok(())
}

fn get(database: &Database, key: &str) -> Result<Option<u64>, redb::Error> {
    let table = database.begin_read()?.open_table(COUNTS)?;
    Ok(table.get(key)?.map(|value| value.value()))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let database = Arc::new(Database::create(folder.path().join("counts.redb"))?);
    let service = Instance::builder("na+sm://").start()?;
    // The closure owns what it uses: a handler that is canceled leaves it behind.
    let own = database.clone();
    service.serve(PUT).function(move |(key, value): (String, u64)| {
        let database = own.clone();
        ult::blocking(move || put(&database, &key, value)).map_err(|error| error.to_string())
    })?;
    service.serve(GET).function(move |key: String| {
        let database = database.clone();
        ult::blocking(move || get(&database, &key)).map_err(|error| error.to_string())
    })?;

    let client = Instance::builder("na+sm://").listen(false).start()?;
    let target = ProviderHandle::from(client.lookup(service.self_addr().uri())?);
    for (key, value) in [("apples", 5), ("pears", 7)] {
        client.forward(PUT, &target, &(key.to_owned(), value))??;
    }
    for key in ["apples", "pears", "plums"] {
        println!("{key}: {:?}", client.forward(GET, &target, &key.to_owned())??);
    }
    client.finalize_and_wait()?;
    service.finalize_and_wait()?;
    Ok(())
}

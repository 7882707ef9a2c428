//! Names that are made at run time: of the streams of graphs, and of the RPCs of each stream.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

/// Names that were made. Each is leaked, once in the life of the process: an RPC's name lives that
/// long. Names of streams are definitions of the program, not data of peers, so there are few.
static MADE: LazyLock<Mutex<HashMap<(String, &'static str), &'static str>>> =
    LazyLock::new(Mutex::default);

/// A name that is kept for the life of the process.
pub(crate) fn kept(name: String) -> &'static str {
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    made.entry((name.clone(), "")).or_insert_with(|| name.leak())
}

/// The name of the RPC `part` of the stream `stream`.
pub(crate) fn rpc_name(stream: &str, part: &'static str) -> &'static str {
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    made.entry((stream.to_owned(), part))
        .or_insert_with(|| format!("margo_stream.{stream}.{part}").leak())
}

//! Calls of code of the program that are about one unit; see [`contain`](crate::base::contain).

use crate::base::contain::{caught, log};
use crate::engine::model::unit::UltPtr;

/// Runs `code`. `None`: it panicked, and that has been logged with `what` and the unit that it is
/// about.
#[cold]
pub(crate) fn contained<R>(ult: Option<UltPtr>, what: &str, code: impl FnOnce() -> R) -> Option<R> {
    let message = match caught(code) {
        Ok(value) => return Some(value),
        Err(message) => message,
    };
    match ult {
        Some(ult) => {
            let (id, name, pool) = (ult.id.get(), ult.name(), &*ult.pool().name);
            log!(ERROR, id, name, pool, message, "{what} panicked");
        }
        None => log!(ERROR, message, "{what} panicked"),
    }
    None
}

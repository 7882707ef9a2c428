//! Raw declarations of UCP, the protocol layer of UCX, and the library itself, opened at run time.
//!
//! Nothing of UCX is needed to build this. The declarations are those of UCX 1.13 (Debian 12);
//! later versions only append to its structures, each of which says in its `field_mask` what is
//! filled in, so the same program runs with any later 1.x.
//!
//! # Safety
//!
//! Every function of [`Ucp`] is the C function of that name, with the contract that UCX documents.

#[allow(
    missing_docs,
    missing_debug_implementations,
    non_camel_case_types,
    unreachable_pub,
    unused_imports,
    unnameable_types,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::missing_safety_doc,
    clippy::too_many_lines,
    clippy::missing_errors_doc,
    reason = "generated; see the crate's documentation"
)]
mod bindings;

use std::fmt;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

pub use self::bindings::*;

/// Names under which the library is looked for, in this order.
pub const LIBRARY_NAMES: [&str; 2] = ["libucp.so.0", "libucp.so"];

/// The variable that names another library.
const PATH_VARIABLE: &str = "MARGO_LIBUCP";

/// The reason why there is no library: the names that were tried, and the message of the dynamic
/// linker for each.
#[derive(Debug, Clone)]
pub struct OpenError(String);

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OpenError {}

impl fmt::Debug for Ucp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ucp")
    }
}

/// Returns the library: the one that the environment variable `MARGO_LIBUCP` names, else the
/// installed one. It is opened by the first call and never closed, because it starts threads and
/// registers handlers that refer to its code.
///
/// Opening it leaves the process's signal handlers, and the calling thread's stack for them, as
/// they are, though the library installs its own (for fatal signals, and for SIGHUP:
/// `UCX_DEBUG_SIGNO`): stack overflows of user-level threads are reported by our handlers.
///
/// # Errors
///
/// [`OpenError`] when no library of the [names](LIBRARY_NAMES) can be loaded, or one lacks a
/// function; the same at every call.
pub fn library() -> Result<&'static Ucp, OpenError> {
    static LIBRARY: OnceLock<Result<Ucp, OpenError>> = OnceLock::new();
    let opened = LIBRARY.get_or_init(|| match std::env::var(PATH_VARIABLE) {
        Ok(path) => open(&[&path]),
        Err(_) => open(&LIBRARY_NAMES),
    });
    opened.as_ref().map_err(Clone::clone)
}

fn open(names: &[&str]) -> Result<Ucp, OpenError> {
    let mut tried = Vec::new();
    for name in names {
        let library = kept_signals::keep(|| {
            // SAFETY: runs the initialisers of the library and of those it needs. They are UCX's,
            // which are made to be run by `dlopen`; what they do to the process's signal handlers
            // is undone next.
            unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }
        });
        match library {
            Ok(library) => {
                // SAFETY: the declarations are those of the library's own headers, whose functions
                // keep their signatures within the major version that the names stand for.
                let ucp = unsafe { Ucp::from_library(library) };
                return ucp.map_err(|error| {
                    OpenError(format!("{name} is older than UCX 1.13, or not UCX: {error}"))
                });
            }
            Err(error) => tried.push(error.to_string()),
        }
    }
    Err(OpenError(format!("UCX cannot be loaded: {}", tried.join("; "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_told_with_all_names() {
        let error = open(&["libno-such-ucx.so.7", "libnor-this.so"]).unwrap_err().to_string();
        assert!(error.contains("libno-such-ucx.so.7") && error.contains("libnor-this.so"));
    }

    #[test]
    fn a_library_without_the_functions_is_told() {
        let error = open(&["libc.so.6"]).unwrap_err().to_string();
        assert!(error.contains("libc.so.6") && error.contains("uc"), "{error}");
    }
}

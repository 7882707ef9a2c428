//! The attribute `margo::service`; use it from there. Its documentation is at the function.
//!
//! `model.rs` reads the trait and says what is wrong with it, at the place where that is written;
//! `generate.rs` writes the code. Neither knows the types of arguments: what it writes is checked
//! by the compiler like code that is written by hand, and looks like it (`cargo expand`).
#![forbid(unsafe_code)]

mod generate;
mod model;

#[cfg(test)]
mod tests;

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;

use self::model::{Service, ServiceOptions};

/// Makes a service of a trait: its methods are RPCs.
///
/// For `trait Kv` it writes, beside the trait:
///
/// | item | for |
/// |---|---|
/// | `KvService::PUT`, … | the RPC of each method, for calls that the client does not have |
/// | `KvService::serve`, `KvService::serve_on` | the target: serves a value that implements the trait |
/// | `KvClient` | the origin: the methods of the trait, each also as `put_start`, which does not wait |
///
/// An example is at the module `margo::service`, more is on the page `docs/services.md`.
///
/// # Options
///
/// For the trait, in `#[margo::service(…)]`:
///
/// | option | default | meaning |
/// |---|---|---|
/// | `name = "kv"` | the trait's name in lower case | the service's name: its identity, and the first part of the names of its RPCs, as in `kv.put` |
///
/// For a method, in `#[margo(…)]`:
///
/// | option | meaning |
/// |---|---|
/// | `one_way` | no response: the client's method returns when the request is sent |
/// | `chunks` | the result comes in chunks, for which the client has `export_chunks` beside `export`; the last argument is the position of a chunk, and `Option<(T, P)>` a chunk with the position of the next one |
/// | `deadline = "2s"` | a limit for calls of a client that has no timeout; with `ms`, `s`, `m` or `h` |
/// | `pool = "slow"` | handlers run in the pool of this name, instead of the provider's |
/// | `admission = 64` | at most so many requests of it in hand; further ones are told "busy" |
/// | `rpc = "sum"` | the name of the RPC, for programs that define it otherwise |
///
/// # Arguments
///
/// Anything that implements serde's `Serialize` and `DeserializeOwned`, and references to it. The
/// client sends `&str`, `&[T]`, `&[u8]` and `&T` without a copy. At the target, `&str` and `&[u8]`
/// lie where they have arrived, unless the method is one-way; of the others a `Vec<T>` or a `T` is
/// decoded, and the method borrows that. An argument of type
/// `&RequestContext` does not travel: it says who calls, and until when the answer is waited for.
///
/// The arguments travel as a tuple; a single one as itself.
#[proc_macro_attribute]
pub fn service(options: TokenStream, item: TokenStream) -> TokenStream {
    expand(options.into(), item.into()).unwrap_or_else(|error| error.into_compile_error()).into()
}

fn expand(options: Tokens, item: Tokens) -> syn::Result<Tokens> {
    let options = ServiceOptions::read(options)?;
    let service = Service::read(options, syn::parse2(item)?)?;
    Ok(generate::service(&service))
}

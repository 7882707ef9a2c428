//! Services: traits whose methods are RPCs, by the attribute [`service`](macro@crate::service).
//!
//! ```
//! use std::collections::HashMap;
//!
//! use margo::{encoding::Bytes, Instance, ProviderHandle, ProviderId};
//!
//! #[margo::service]
//! trait Kv {
//!     /// Stores a value.
//!     fn put(&self, key: &str, value: Bytes);
//!     /// The value of a key.
//!     fn get(&self, key: &str) -> Option<Bytes>;
//! }
//!
//! #[derive(Default)]
//! struct Store(ult::Mutex<HashMap<String, Bytes>>);
//!
//! impl Kv for Store {
//!     fn put(&self, key: &str, value: Bytes) {
//!         self.0.lock().insert(key.to_owned(), value);
//!     }
//!     fn get(&self, key: &str) -> Option<Bytes> {
//!         self.0.lock().get(key).cloned()
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let service = Instance::builder("na+sm://").start()?;
//! let provider = KvService::serve(&service, ProviderId::new(1), Store::default())?;
//!
//! let client = Instance::builder("na+sm://").listen(false).start()?;
//! let target = client.lookup(service.self_addr().uri())?;
//! let kv = KvClient::new(&client, ProviderHandle::new(target, ProviderId::new(1)));
//! kv.put("a", Bytes(vec![1, 2]))?;
//! assert_eq!(kv.get("a")?, Some(Bytes(vec![1, 2])));
//! assert_eq!(kv.get("b")?, None);
//! # client.finalize_and_wait()?;
//! # drop(provider);
//! # service.finalize_and_wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! The page `docs/services.md` has the options, and says what goes over the wire.
//!
//! May import the folders up to `api`. `client.rs` is what the clients of services share,
//! `chunks.rs` what they do for results in chunks. Read `description.rs` (what is told of a
//! service), `probe.rs` (how types are found), `describe.rs` (how peers ask) and `json.rs` (calls
//! by a description).

mod chunks;
mod client;
mod describe;
mod description;
mod json;
mod probe;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Handle, NoResponse};

pub use self::chunks::ResultChunks;
#[doc(hidden)]
pub use self::client::ServiceClient;
pub use self::describe::services_of;
pub use self::description::{
    FieldDescription, MethodDescription, ServiceDescription, TypeDescription,
};

/// The context of a request, for methods of services that have an argument of the type
/// `&RequestContext`: the peer that calls, its deadline, a token that fires when the answer is not
/// waited for any more, and transfers with that peer's memory.
///
/// ```
/// use margo::service::RequestContext;
///
/// #[margo::service]
/// trait Search {
///     fn first(&self, request: &RequestContext, from: u64) -> Option<u64>;
/// }
///
/// struct Primes;
///
/// impl Search for Primes {
///     fn first(&self, request: &RequestContext, from: u64) -> Option<u64> {
///         let canceled = request.cancel_token();
///         let is_prime = |n: &u64| *n > 1 && (2..*n).all(|part| n % part > 0);
///         (from..).take_while(|_| !canceled.is_canceled()).find(is_prime)
///     }
/// }
/// ```
///
/// The answer is what the method returns. [`Handle::fail_with`] answers with a code before that;
/// what is returned is dropped then.
pub type RequestContext = Handle<(), NoResponse>;

/// A type of arguments and results.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument or a result of a service",
    label = "not encoded or not decoded",
    note = "what peers tell each other implements `serde::Serialize` and `serde::Deserialize`, and \
            owns all that it has"
)]
pub trait Carried: Serialize + DeserializeOwned {}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned> Carried for T {}

#[doc(hidden)]
pub fn assert_carried<T: Carried>() {}

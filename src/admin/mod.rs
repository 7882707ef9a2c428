//! Changing an instance from another process, where its rules allow it: the RPC `__admin__`, which
//! `margo admin` calls.
//!
//! A program lets its providers be administered with [`Instance::administer`], as `margo serve`
//! does; the document has to allow it (`margo.remote_admin`). Then those may whom
//! `margo.security.allow` lets call `__admin__`, which is never `anyone`. Without rules only a
//! process of the instance's own user may, over `na+sm`.
//!
//! ```
//! use std::time::Duration;
//!
//! use margo::admin::AdminRequest;
//! # use margo::component::{Component, ProviderSpec, RunningProvider};
//! # struct Echo;
//! # impl Component for Echo {
//! #     fn type_name(&self) -> &'static str {
//! #         "echo"
//! #     }
//! #     fn start(
//! #         &self,
//! #         instance: &margo::Instance,
//! #         spec: &ProviderSpec,
//! #     ) -> Result<Box<dyn RunningProvider>, Box<dyn std::error::Error + Send + Sync>> {
//! #         Ok(Box::new(spec.provider(instance)))
//! #     }
//! # }
//!
//! let service = margo::init(r#"{ "margo": { "address": "na+sm://", "remote_admin": true } }"#)?;
//! let providers = service.start_providers(&[&Echo])?;
//! let providers = service.administer(providers, [Box::new(Echo) as Box<dyn Component>])?;
//!
//! let client = margo::Instance::builder("na+sm://").listen(false).start()?;
//! let peer = client.lookup(service.self_addr().uri())?;
//! let limit = Duration::from_secs(10);
//! let start = AdminRequest::StartProvider {
//!     provider: serde_json::json!({ "type": "echo", "provider_id": 7 }),
//! };
//! client.network().administer(&peer, &start, limit)?;
//! assert_eq!(providers.names(), ["echo_7"]);
//! # client.finalize_and_wait()?;
//! # service.finalize_and_wait()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! On the wire a request is JSON, as is an answer: a 32-bit number, 0 for "done", -1 for "not
//! allowed", -2 for "it cannot be done", and what is told, or the reason.
//!
//! Clients of Bedrock find its RPCs as well, as far as they mean the same, with its encoding and
//! its provider id, 0; the page about C Mercury and C Margo has the list (docs/interop.md).
//!
//! Read `request.rs`, `serve.rs`, `bedrock.rs`, `ask.rs`.
//!
//! Counterpart: Bedrock's RPCs `bedrock_get_config`, `bedrock_start_provider`, `bedrock_add_pool`
//! and so on.
//!
//! [`Instance::administer`]: crate::Instance::administer

mod ask;
mod bedrock;
mod request;
mod serve;

pub use self::ask::AdminError;
pub use self::request::AdminRequest;
pub use self::serve::AdministeredProviders;

use crate::Rpc;
use crate::support::own_rpcs;

const ADMIN: Rpc<String, (i32, String)> = Rpc::new(own_rpcs::ADMIN);

const DONE: i32 = 0;
const NOT_ALLOWED: i32 = -1;
const FAILED: i32 = -2;

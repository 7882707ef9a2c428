//! The values that answers are made of, so that the compiler says in words what is none.

use serde::Serialize;

/// A value that a handler can answer with: all that serde can encode.
///
/// ```
/// use margo::{Instance, RegisterError, Respondable, Rpc};
///
/// /// Serves one value to all who ask.
/// fn serve_value<R>(service: &Instance, rpc: Rpc<(), R>, value: R) -> Result<(), RegisterError>
/// where
///     R: Respondable + Clone + Send + Sync + 'static,
/// {
///     service.serve(rpc).function(move |()| value.clone())
/// }
/// # let service = Instance::builder("na+sm://").start()?;
/// # const VERSION: Rpc<(), String> = Rpc::new("version");
/// serve_value(&service, VERSION, "1.2".to_owned())?;
/// # let target = service.self_addr().into();
/// assert_eq!(service.forward(VERSION, &target, &())?, "1.2");
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "a handler cannot answer with `{Self}`",
    label = "no answer can be made of `{Self}`",
    note = "an RPC without a response (`OneWay`) is served with `handler` or `method`, which \
            answer nothing; the callers of others get what implements `serde::Serialize`"
)]
pub trait Respondable: Serialize {}

#[diagnostic::do_not_recommend]
impl<R: Serialize + ?Sized> Respondable for R {}

//! The values that answers are made of, so that the compiler says in words what is none.

use serde::Serialize;

/// A value that a handler can answer with: all that serde can encode.
#[diagnostic::on_unimplemented(
    message = "a handler cannot answer with `{Self}`",
    label = "no answer can be made of `{Self}`",
    note = "an RPC without a response (`OneWay`) is served with `handler` or `method`, which \
            answer nothing; the callers of others get what implements `serde::Serialize`"
)]
pub trait Respondable: Serialize {}

#[diagnostic::do_not_recommend]
impl<R: Serialize + ?Sized> Respondable for R {}

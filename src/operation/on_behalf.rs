//! Calls that a handler makes on behalf of somebody: who that is travels with them.
//!
//! It is a value of the ULT or thread that makes the calls ([`ult::UltLocal`]), as a token that
//! cancels them is, so other calls look at nothing more than whether there are such values.

use std::cell::RefCell;
use std::sync::Arc;

use hg::OnBehalfOf;
use ult::UltLocal;

static ON_BEHALF_OF: UltLocal<RefCell<Option<Arc<OnBehalfOf>>>> =
    UltLocal::new(|| RefCell::new(None));

/// Runs `work`, and lets the calls that are made in it say that they are made on behalf of `who`:
/// as a rule the [principal](crate::Handle::principal) of the request that is handled, or who that
/// one speaks for. Their targets find it as [`Handle::on_behalf_of`](crate::Handle::on_behalf_of),
/// beside the principal, which is this instance's; rules can ask for it (`on_behalf_of` in
/// `margo.security`). Nobody signs it: a target believes it as far as it believes us.
///
/// ```
/// use margo::delegation::on_behalf_of;
/// use margo::{Handle, Instance, ProviderHandle, Rpc};
///
/// const READ: Rpc<String, String> = Rpc::new("read");
/// const SHOW: Rpc<String, String> = Rpc::new("show");
///
/// let service = Instance::builder("na+sm://").start()?;
/// let store = ProviderHandle::from(service.self_addr());
/// service.serve(READ).returning(|call: &Handle<String, String>| match call.on_behalf_of() {
///     Some(who) => format!("{} for {who}", call.args()),
///     None => format!("{} for {}", call.args(), call.principal()),
/// })?;
/// service.serve(SHOW).returning(move |call: &Handle<String, String>| {
///     let read = || call.instance().forward(READ, &store, call.args());
///     on_behalf_of(call.principal(), read).unwrap_or_default()
/// })?;
/// let client = Instance::builder("na+sm://").listen(false).start()?;
/// let front = ProviderHandle::from(client.lookup(service.self_addr().uri())?);
/// assert!(client.forward(SHOW, &front, &"a page".to_owned())?.starts_with("a page for user "));
/// # client.finalize_and_wait()?;
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It holds for every kind of call, made by this ULT or thread in `work`, and not for ULTs that are
/// spawned there. If several are nested, the innermost counts. A call to a target that may be a C
/// program fails with [`ForwardError::Network`](crate::ForwardError::Network), and was not sent: it
/// would take the call for one of our own.
///
/// Counterpart: none.
pub fn on_behalf_of<R>(who: impl Into<OnBehalfOf>, work: impl FnOnce() -> R) -> R {
    let who = Some(Arc::new(who.into()));
    let _restore = RestoreOnBehalf(ON_BEHALF_OF.with(|own| own.replace(who)));
    work()
}

/// Puts back what counted before.
struct RestoreOnBehalf(Option<Arc<OnBehalfOf>>);

impl Drop for RestoreOnBehalf {
    fn drop(&mut self) {
        let before = self.0.take();
        drop(ON_BEHALF_OF.with_existing(|own| own.replace(before)));
    }
}

/// Returns on whose behalf the caller makes calls.
#[inline]
pub(crate) fn of_caller() -> Option<Arc<OnBehalfOf>> {
    if ult::integration::is_tasklet_or_has_locals() { look() } else { None }
}

#[inline(never)]
fn look() -> Option<Arc<OnBehalfOf>> {
    ON_BEHALF_OF.with_existing(|own| own.borrow().clone()).flatten()
}

//! Ending calls, transfers and answers from anywhere: [`Canceler`].

use std::sync::{Arc, Weak};

use hg::OpRef;
use na::shared::WeakShared;

use crate::ProviderHandle;
use crate::operation::bulk_call::BulkCall;
use crate::operation::call::Call;
use crate::operation::early::EndsEarly;
use crate::operation::pending_response::PendingResponse;
use crate::support::why_over::GaveUp;

/// Ends a call, a bulk transfer or an answer early, from anywhere; see
/// [`ForwardRequest::cancel`](crate::ForwardRequest::cancel). Cheap to clone. Keeps neither that
/// nor its instance alive, and does nothing when they are over.
///
/// ```
/// use margo::{ForwardError, Instance, ProviderHandle, Rpc};
///
/// const LONG: Rpc<(), ()> = Rpc::new("long");
///
/// let service = Instance::builder("na+sm://").start()?;
/// service.register(LONG, |request| {
///     request.cancel_token().wait();
/// })?;
/// let call = service.rpc(LONG, &ProviderHandle::from(service.self_addr()), &()).start()?;
/// let canceler = call.canceler();
/// let other = std::thread::spawn(move || canceler.cancel());
/// assert!(matches!(call.wait(), Err(ForwardError::Canceled { .. })));
/// # other.join().unwrap();
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Canceler {
    by: Weak<dyn EndsEarly>,
    what: CancelTarget,
    op: OpRef,
}

/// The operation that a [`Canceler`] ends.
#[derive(Debug, Clone)]
pub(crate) enum CancelTarget {
    Call(WeakShared<Call>, ProviderHandle),
    Bulk(Weak<BulkCall>),
    Response(Weak<PendingResponse>),
}

impl Canceler {
    pub(crate) fn new(by: &Arc<impl EndsEarly>, op: OpRef, what: CancelTarget) -> Self {
        Self { by: Arc::downgrade(by) as _, what, op }
    }

    /// Ends the call with [`ForwardError::Canceled`](crate::ForwardError::Canceled), the transfer
    /// with [`BulkError::Canceled`](crate::BulkError::Canceled), the answer with
    /// [`RespondError::Canceled`](crate::RespondError::Canceled), unless it is over. Never waits.
    pub fn cancel(&self) {
        let Some(by) = self.by.upgrade() else { return };
        match &self.what {
            CancelTarget::Call(call, to) => {
                if let Some(call) = call.upgrade() {
                    call.cancel(&*by, self.op, to);
                }
            }
            CancelTarget::Bulk(call) => {
                if let Some(call) = call.upgrade() {
                    call.give_up(&*by, self.op, GaveUp::Canceled);
                }
            }
            CancelTarget::Response(answer) => {
                if let Some(answer) = answer.upgrade() {
                    answer.give_up(&*by, self.op, GaveUp::Canceled);
                }
            }
        }
    }

    /// Cancels the call, if it is one, because those for whom it is made have given up.
    pub(crate) fn give_up(&self) {
        if let CancelTarget::Call(call, to) = &self.what
            && let Some((by, call)) = self.by.upgrade().zip(call.upgrade())
        {
            call.give_up(&*by, self.op, to);
        }
    }
}

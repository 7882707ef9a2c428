//! Data that is lent to a receiver until it has read it: [`Lent`].

use std::fmt;
use std::sync::{Arc, Weak};

use margo::bulk_memory::Exposable;
use margo::{Bulk, Exposed};
use prim::lock::Lock;
use ult::Eventual;

use crate::sender::state::Shared;

/// Data that was sent with an item, until its receiver has acknowledged it
/// ([`Sender::send_with`](crate::Sender::send_with)).
///
/// Dropping it gives the data up: it is freed when the receiver has read it.
///
/// ```
/// use margo::Instance;
/// use margo_stream::{Receiver, ReceiveSpec, Route, SendSpec, Sender, Stream};
///
/// const BLOCKS: Stream<u64> = Stream::new("blocks");
///
/// let service = Instance::builder("na+sm://").start()?;
/// let mut receiver = Receiver::serve(&[&service], BLOCKS, &ReceiveSpec::new())?;
/// let here = service.self_addr();
/// let mut sender = Sender::connect(
///     &[&service], BLOCKS, &[here.uri()], &SendSpec::new(), Route::RoundRobin,
/// )?;
/// let lent = sender.send_with(&1, vec![7; 100_000])?;
/// assert_eq!(receiver.recv_batch()?.unwrap().data().unwrap().len(), 100_000);
/// let block = lent.wait().expect("nobody uses it any more");
/// assert_eq!(block.len(), 100_000);
/// sender.finish()?;
/// # drop(receiver);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Lent<B: Exposable> {
    memory: Arc<Lock<Option<Exposed<B>>>>,
    returned: Arc<Eventual<()>>,
    /// The sender, and the link by which it was sent.
    sender: Weak<Shared>,
    link: usize,
}

impl<B: Exposable> Lent<B> {
    /// Waits until the receiver has acknowledged the item, or the sender has failed or ended, and
    /// takes the data back. `None` if a peer that is stopped in the midst of a transfer may still
    /// read it: then it is freed later.
    pub fn wait(self) -> Option<B> {
        while !self.returned.is_ready() {
            let Some(sender) = self.sender.upgrade() else { break };
            // An error is for the sender's next call; the data has come back then.
            let _ = sender.wait_for_answer(self.link);
            sender.state.lock().links[self.link].give_back();
        }
        self.returned.wait();
        self.memory.lock().take()?.release().ok()
    }

    /// Returns whether [`wait`](Self::wait) would not wait for the receiver.
    pub fn is_returned(&self) -> bool {
        self.returned.is_ready()
    }
}

impl<B: Exposable> fmt::Debug for Lent<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("is_returned", &self.is_returned()).finish()
    }
}

/// The sender's part: keeps the data for the receiver, and gives it back when it is dropped.
pub(super) struct Loan {
    pub(super) bulk: Bulk,
    /// Keeps the memory if the program has given it up.
    _memory: Box<dyn Send + Sync>,
    returned: Arc<Eventual<()>>,
}

impl Drop for Loan {
    fn drop(&mut self) {
        let _ = self.returned.set(());
    }
}

pub(super) fn lend<B: Exposable>(
    exposed: Exposed<B>,
    sender: &Arc<Shared>,
    link: usize,
) -> (Loan, Lent<B>)
where
    Exposed<B>: Send,
{
    let bulk = exposed.bulk().clone();
    let memory = Arc::new(Lock::new(Some(exposed)));
    let returned = Arc::new(Eventual::new());
    let sender = Arc::downgrade(sender);
    let lent = Lent { memory: memory.clone(), returned: returned.clone(), sender, link };
    (Loan { bulk, _memory: Box::new(memory), returned }, lent)
}

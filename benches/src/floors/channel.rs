//! The roles of a floor of round trips: a caller, and a responder that says hello when it begins a
//! round, answers each message, and ends the round with the message that says so.

use crate::base::{Deadline, Result, Samples, fail};

/// The kinds of messages.
pub(crate) const CALL: u8 = 0;
const STOP: u8 = 1;
pub(crate) const HELLO: u8 = 2;

/// One end of a channel on which one message is under way at a time.
pub(crate) trait Channel: Send {
    /// Sends a message of this kind.
    fn put(&mut self, kind: u8, deadline: Deadline) -> Result<()>;

    /// The kind of the message that has come, if one has.
    fn try_take(&mut self) -> Result<Option<u8>>;

    /// From now on calls carry so many bytes, at most 1 KiB, if they are cache lines; those over a
    /// connection stay as long as they are.
    fn carry(&mut self, _bytes: usize) {}

    /// Waits for the next message.
    #[inline]
    fn take(&mut self, deadline: Deadline) -> Result<u8> {
        deadline.spin_for("the other side's message", || self.try_take())
    }

    /// Returns true if the responder has begun a round that was not asked about yet.
    fn greeted(&mut self) -> Result<bool> {
        match self.try_take()? {
            None => Ok(false),
            Some(HELLO) => Ok(true),
            Some(other) => fail!("expected a hello, got {other}"),
        }
    }

    /// Waits for the responder to begin a round; `idle` runs meanwhile.
    fn wait_for_hello(&mut self, deadline: Deadline, idle: fn()) -> Result<()> {
        while !self.greeted()? {
            idle();
            deadline.check("the responder's hello")?;
        }
        Ok(())
    }

    /// One round trip.
    #[inline]
    fn round_trip(&mut self, deadline: Deadline) -> Result<()> {
        self.put(CALL, deadline)?;
        self.take(deadline)?;
        Ok(())
    }

    /// Ends the responder's round.
    fn stop(&mut self, deadline: Deadline) -> Result<()> {
        self.put(STOP, deadline)?;
        self.take(deadline)?;
        Ok(())
    }

    /// Serves one round: says hello, answers until the caller stops.
    fn answer(&mut self, deadline: Deadline) -> Result<()> {
        self.put(HELLO, deadline)?;
        loop {
            let kind = self.take(deadline)?;
            self.put(kind, deadline)?;
            if kind == STOP {
                return Ok(());
            }
        }
    }
}

/// One round of round trips with a responder that begins to serve.
///
/// # Errors
///
/// When an answer does not come in time.
pub(crate) fn round(
    caller: &mut dyn Channel,
    samples: &mut Samples,
    deadline: Deadline,
    idle: fn(),
) -> Result<()> {
    caller.wait_for_hello(deadline, idle)?;
    samples.each(|| caller.round_trip(deadline))?;
    caller.stop(deadline)
}

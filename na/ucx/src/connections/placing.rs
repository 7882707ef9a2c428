//! The endpoints of a group, seen from their connections: a caller gets a place at one of them, and
//! is sent on to it; and another one takes the door when the one that had it is closed.

use std::time::{Duration, Instant};

use ucx_sys::ucp_ep_h;

use crate::operations::slots::Work;
use crate::state::driver::{Driver, Stranger};
use crate::state::group::{CallerPermit, Door};
use crate::state::peer::{Phase, SentOn};
use crate::wire::{Control, Hello};
use na_core::group::placement::NotAdmitted;

/// How often a call may be sent on before it is given up. Once is usual; more often if endpoints
/// are closed meanwhile.
const DETOURS_MAX: u32 = 8;

/// How long a group waits until it tries again to listen at its address.
const DOOR_PAUSE: Duration = Duration::from_millis(100);

impl Driver {
    /// Gives a caller that has said hello a place here. `None`: it was sent on, or turned away.
    pub(crate) fn place(
        &mut self,
        link: ucp_ep_h,
        stranger: &Stranger,
        hello: &Hello,
    ) -> Option<CallerPermit> {
        let (own, most) = (self.facts.shard, self.facts.connections_max);
        match self.facts.group.admit(own, stranger.client, hello, most, Instant::now()) {
            Ok(permit) if permit.shard() == own => Some(permit),
            Ok(permit) => {
                self.send_on(link, stranger, permit);
                None
            }
            Err(bound) => {
                let reason = match bound {
                    NotAdmitted::TooMany => "its group has as many as it takes",
                    NotAdmitted::TooManyOfCaller => "the caller has as many as it may have",
                    NotAdmitted::Closed => "the group is closed",
                };
                self.turned_away(reason);
                self.drop_link(link);
                None
            }
        }
    }

    /// Tells a caller where its place is. It ends the connection; if it does not, its time does.
    fn send_on(&mut self, link: ucp_ep_h, stranger: &Stranger, permit: CallerPermit) {
        let (port, token) = self.facts.group.keep(permit, Instant::now());
        let Stranger { client, came, since, .. } = *stranger;
        let stranger = Stranger { client, came, since, is_sent_on: true };
        self.strangers.insert(link as usize, stranger);
        self.tell_as(link, &Control::Elsewhere { port, token }, Work::Elsewhere);
    }

    /// Handles the word of the other side of a call that another endpoint of its group has our
    /// place.
    ///
    /// # Errors
    ///
    /// The rule that it breaks.
    pub(crate) fn sent_on(
        &mut self,
        link: ucp_ep_h,
        port: u16,
        token: u32,
    ) -> Result<(), &'static str> {
        let index = self.owner(link).ok_or("it sends on who has not called it")?;
        let Some(peer) = self.peer(index) else { return Ok(()) };
        if peer.phase != Phase::Connecting {
            return Err("it sends on who is connected");
        }
        if port == 0 {
            return Err("it sends on to no port");
        }
        peer.detours += 1;
        if peer.detours > DETOURS_MAX {
            self.end_session_for(index, "its endpoints send calls on in circles".to_owned());
            return Ok(());
        }
        peer.sent_on = Some(SentOn { port, token });
        self.dial_anew(index);
        Ok(())
    }

    /// Listens at the address of the group, too, once the endpoint that did is closed.
    #[inline]
    pub(crate) fn look_at_door(&mut self) {
        let is_due = self.door_at.is_some_and(|at| at <= Instant::now());
        if is_due || self.facts.group.takes_door(self.facts.shard) {
            self.take_door();
        }
    }

    #[cold]
    fn take_door(&mut self) {
        let (Some(address), Some(worker)) = (self.facts.group.door, &mut self.worker) else {
            return;
        };
        self.has_door = true;
        let was_refused = self.door_at.take().is_some();
        if let Err(error) = worker.listen(address, self.facts.own.uri()) {
            // A child of this process may have the listener's descriptor until it runs a program of
            // its own, or ends.
            self.door_at = Some(Instant::now() + DOOR_PAUSE);
            if !was_refused {
                tracing::warn!(
                    %error,
                    "ucx: the group of a closed endpoint cannot listen; it tries again every \
                     {DOOR_PAUSE:?}"
                );
            }
        }
    }

    /// Gives the door to another endpoint of the group, if this one has it; it is closed.
    pub(crate) fn leave_group(&mut self) {
        let door = std::mem::take(&mut self.has_door).then_some(Door);
        self.facts.group.close(self.facts.shard, door);
    }
}

#[cfg(test)]
mod tests;

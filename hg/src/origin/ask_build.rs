//! The build of Mercury that a peer is, asked before the first call to it.
//!
//! A request is read wrongly by the other build, whose headers have another length: its handler
//! runs with arguments that are off by four bytes. Nothing tells the build of a peer that has sent
//! nothing. So with [`HgOptions::ask_build`](crate::HgOptions::ask_build), a call to a peer that
//! may be a C program waits for an answer to a question first: a request of an RPC that no peer
//! has. Both builds read it alike, and both answer `HG_NOENTRY`, each in its own format:
//!
//! | answer | build |
//! |---|---|
//! | has flag `0x80` | with checksum support |
//! | ends with the mark of our own peers behind two headers of 12 bytes | without |
//! | `HG_NOENTRY` of 32 bytes: two headers | with, before Mercury 2.4.1 |
//! | other | without |
//!
//! The question goes by the call's own tag, as its first message, so whatever ends a call ends one
//! that still asks. Calls that begin before the first answer each ask. When a call ends with an
//! error of the network, all peers are forgotten: another process may come in the place of one.

use na::{Addr, Arrival, MsgBuf, Tag};

use crate::core::builds::{LONGER_BY, QUESTION};
use crate::core::state::Op;
use crate::ops::{Asking, Event, Role, Told};
use crate::wire::format::flags;
use crate::wire::header::{RequestHeader, ResponseHeader};
use crate::{Build, Core, Format, HgError, OpRef, ReturnCode, WireError, wire};

/// Returns the build of the peer that has answered the question with `message`.
fn build_of(message: &[u8]) -> Result<Build, WireError> {
    // As builds without checksum support have it, where both are alike.
    let need = Build::Plain.core_bytes();
    let Some(&[_, said, ..]) = message.first_chunk::<12>() else {
        return Err(WireError::Short { what: "response", len: message.len(), need });
    };
    if said & flags::HAS_CHECKSUMS != 0 {
        return Ok(Build::Checksum);
    }
    let (header, _) = ResponseHeader::read(Build::Plain, message)?;
    let is_older = header.code == ReturnCode::NoEntry
        && message.len() == 2 * Build::Checksum.core_bytes()
        && !wire::is_own_refusal(Build::Plain, message);
    Ok(if is_older { Build::Checksum } else { Build::Plain })
}

/// Makes a request of a build without checksum support one of a build with.
fn widen(message: &mut MsgBuf) -> Result<(), WireError> {
    let (header, _) = RequestHeader::read(Build::Plain, message.as_slice())?;
    let (from, len) = (Build::Plain.header_bytes(), message.len());
    let out = message.spare_mut();
    out.copy_within(from..len, from + LONGER_BY);
    RequestHeader { format: Format::from(Build::Checksum), ..header }.write(out);
    message.set_len(len + LONGER_BY);
    Ok(())
}

impl<T> Core<T> {
    /// Returns whether peers may be C programs, which are asked for their build.
    #[inline]
    pub(crate) fn asks(&self) -> bool {
        self.may_ask && self.endpoint.may_meet_mercury()
    }

    /// Returns whether calls may have asked something first.
    #[inline]
    pub(crate) fn may_have_asked(&self) -> bool {
        self.options.membership.is_some() || self.asks()
    }

    /// In which format a call to `to` is written; `None`: that is to be asked.
    pub(crate) fn format_for(&self, to: &Addr) -> Option<Format> {
        if self.endpoint.carries_extensions(to) {
            return Some(self.accept.format);
        }
        self.class.builds.of(to).map(Format::from)
    }

    /// Sends the question, or introduces us, and sends `message` when that was answered.
    pub(crate) fn ask_and_launch(
        &self,
        to: &Addr,
        op: OpRef,
        (tag, introduces): (Tag, bool),
        receive: Option<Role>,
        message: MsgBuf,
    ) -> Result<OpRef, Box<(HgError, T)>> {
        let mut question = self.buffers.take();
        let introduces = match self.options.membership.as_ref().filter(|_| introduces) {
            Some(membership) => match self.write_introduction(membership, &mut question) {
                Ok(nonce) => Some(nonce),
                Err(error) => {
                    self.buffers.put(question);
                    self.buffers.put(message);
                    return self.withdraw(op, true, error);
                }
            },
            None => {
                let header = RequestHeader { cookie: self.id, ..RequestHeader::new(QUESTION) };
                header.write_for_any_build(&mut question);
                None
            }
        };
        let asking = Asking { to: to.clone(), tag, message, receive, introduces, told: None };
        if let Some(Op::Call(call)) = self.state().ops.get_mut(op) {
            call.ask(asking);
        }
        self.launch(to, op, tag, Some(Role::Response), question)
    }

    /// The format in which the response of a call is to be read; `None`: it answers the question.
    pub(crate) fn format_of_response(&self, op: OpRef) -> Option<Format> {
        match self.state().ops.get_mut(op) {
            Some(Op::Call(call)) if call.asking.is_some() => None,
            Some(Op::Call(call)) if self.asks() => Some(Format::from(call.build)),
            _ => Some(self.accept.format),
        }
    }

    /// The question of a call was answered.
    #[inline(never)]
    pub(crate) fn on_told(&self, op: OpRef, buf: MsgBuf, arrival: &Arrival) -> Option<Event<T>> {
        let told = self.read_told(op, buf.as_slice(), &arrival.from);
        self.buffers.put(buf);
        let mut state = self.state();
        let Some(Op::Call(call)) = state.ops.get_mut(op) else { return None };
        match told {
            Ok(told) => call.told(told),
            Err(error) => call.received(Err(error)),
        }
        if call.asking.is_none() {
            return self.settle(state, op);
        }
        drop(state);
        self.go_on(op)
    }

    fn read_told(&self, op: OpRef, message: &[u8], peer: &Addr) -> Result<Told, HgError> {
        let introduces = match self.state().ops.get_mut(op) {
            Some(Op::Call(call)) => call.asking.as_ref().and_then(|asking| asking.introduces),
            _ => None,
        };
        let build = if self.asks() { build_of(message)? } else { self.accept.format.build() };
        if self.asks() {
            self.class.builds.learn(peer, build);
        }
        match introduces {
            Some(nonce) => self.read_challenge(peer, (build, nonce), message),
            None => Ok(Told { build, is_member: false }),
        }
    }

    /// Sends the message of a call whose question was answered and has left.
    pub(crate) fn go_on(&self, op: OpRef) -> Option<Event<T>> {
        let asking = {
            let mut state = self.state();
            let Some(Op::Call(call)) = state.ops.get_mut(op) else { return None };
            call.take_told()?
        };
        let Asking { to, tag, mut message, receive, introduces, told } = *asking;
        let told = told?;
        if self.asks()
            && told.build == Build::Checksum
            && let Err(error) = widen(&mut message)
        {
            // It is our own.
            debug_assert!(false, "a request of ours cannot be read: {error}");
        }
        let is_ready = match introduces {
            Some(_) => self.prove_as_told(&to, told, &mut message),
            None => Ok(()),
        };
        let launched = match is_ready {
            Ok(()) => self.launch(&to, op, tag, receive, message),
            Err(error) => {
                self.buffers.put(message);
                self.withdraw(op, true, error)
            }
        };
        match launched {
            Ok(_) => None,
            Err(refused) => {
                let (error, token) = *refused;
                Some(Event::Response { token, result: Err(error) })
            }
        }
    }
}

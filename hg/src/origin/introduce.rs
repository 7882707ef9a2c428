//! Proofs that we are a member of the cluster of a peer, at the origin: the introduction before the
//! first call, and the proof of each request. `core/members.rs` says what they are.
//!
//! An introduction goes the way of the question of `ask_build.rs`, and in its place: a C program
//! answers both alike, so its build is known afterwards. The call waits with its message, which has
//! room for a proof; that is filled in when the peer has proven something, and taken out of the
//! message for one that may be called without ([`Membership::calling_strangers`]) and would not
//! understand it.
//!
//! [`Membership::calling_strangers`]: crate::Membership::calling_strangers

use std::sync::Arc;
use std::time::Duration;

use na::{Addr, MsgBuf, secret};

use crate::base::membership::{Membership, Nonce, SessionKey, code};
use crate::core::own_sessions::OwnSession;
use crate::ops::Told;
use crate::origin::forward::not_told;
use crate::wire::extension::Proof;
use crate::wire::header::{RequestHeader, ResponseHeader};
use crate::wire::introduction::{Challenge, INTRODUCTION, Introduction};
use crate::wire::{self, Body};
use crate::{Build, Core, Extension, Format, HgError, ReturnCode};

/// Where we stand with the target of a call.
pub(crate) enum Standing {
    /// Nothing is proven to it by messages.
    Plain,
    /// We have a session.
    Known(Arc<OwnSession>),
    /// We introduce ourselves first.
    Unknown,
}

impl Standing {
    pub(crate) fn is_proven(&self) -> bool {
        !matches!(self, Self::Plain)
    }
}

/// Says why a peer is not called. Nothing was sent to its handlers.
fn not_called(peer: &Addr, reason: &str) -> HgError {
    let (peer, reason) = (peer.uri().to_owned(), reason.to_owned());
    HgError::Na(na::Error::Unreachable { peer, reason })
}

impl<T> Core<T> {
    /// Returns where we stand with `to`.
    #[inline(never)]
    pub(crate) fn standing_with(&self, to: &Addr) -> Standing {
        if self.endpoint.knows_principals(to) {
            return Standing::Plain;
        }
        let session = self.own_sessions.with_target(to, self.class.members.now());
        session.map_or(Standing::Unknown, Standing::Known)
    }

    /// Writes an introduction. Returns its nonce.
    pub(crate) fn write_introduction(
        &self,
        membership: &Membership,
        message: &mut MsgBuf,
    ) -> Result<Nonce, HgError> {
        let nonce: Nonce = secret::draw().ok_or_else(|| {
            let what = "cannot get random bytes for a session with a member of our cluster";
            HgError::Na(na::Error::io(what, std::io::ErrorKind::Unsupported))
        })?;
        let keys = membership.keys(&self.options.log);
        let code = code(keys.own(), "introduction", &[&nonce]);
        let header = RequestHeader { cookie: self.id, ..RequestHeader::new(INTRODUCTION) };
        header.write_for_any_build(message);
        let (from, to) = (message.len(), message.len() + Introduction::BYTES);
        let bytes = Introduction { nonce, code }.to_bytes();
        message.spare_mut()[from..to].copy_from_slice(&bytes);
        message.set_len(to);
        Ok(nonce)
    }

    /// Reads the answer to an introduction, from a peer of that build.
    pub(crate) fn read_challenge(
        &self,
        peer: &Addr,
        (build, nonce): (Build, Nonce),
        message: &[u8],
    ) -> Result<Told, HgError> {
        let Some(membership) = &self.options.membership else {
            return Ok(Told { build, is_member: false });
        };
        let format = Format::from(build);
        let (header, _) = ResponseHeader::read(format, message)?;
        match header.code {
            ReturnCode::Success => {}
            ReturnCode::Permission if wire::is_own_refusal(format, message) => {
                return Err(not_called(
                    peer,
                    "it does not believe that we know the secret of its \
                     cluster (margo.security.fabrics)",
                ));
            }
            _ if membership.calls_strangers => return Ok(Told { build, is_member: false }),
            _ => {
                return Err(not_called(
                    peer,
                    "it has not proven that it knows the secret of our \
                     cluster (margo.security.fabrics): it is a C program, or asks for no proof",
                ));
            }
        }
        let read = match wire::decode_response(format, message)?.1 {
            Body::Inline(payload) => Challenge::read(payload),
            Body::Overflow(_) => None,
        };
        let keys = membership.keys(&self.options.log);
        let proves = |said: &Challenge| {
            let is_right =
                |key: &&[u8; 32]| secret::is_same(&said.code_under(key, &nonce), &said.code);
            keys.all().find(is_right).map(|key| SessionKey::new(key, &nonce, &said.challenge))
        };
        let Some((said, key)) = read.and_then(|said| Some((said, proves(&said)?))) else {
            return Err(not_called(
                peer,
                "what it says of itself does not prove that it knows the \
                 secret of our cluster (margo.security.fabrics)",
            ));
        };
        if !self.endpoint.is_at(peer, said.address) {
            let reason = format!(
                "a member has answered that says it is at {:?}: whoever is at the address that \
                 was called leads calls on to it, or addresses are changed on the way (NAT), or it \
                 has several; call it by the one that it says (margo.security.fabrics)",
                said.address
            );
            return Err(not_called(peer, &reason));
        }
        let times = (self.class.members.now(), Duration::from_millis(said.lifetime_msec.into()));
        let (who, names) = ((peer, self.member_at(peer)), (said.epoch, nonce, key));
        self.own_sessions.learn(peer, OwnSession::new(who, build, names, times));
        Ok(Told { build, is_member: true })
    }

    /// Makes the message of a call that has introduced us what its target is to get.
    pub(crate) fn prove_as_told(
        &self,
        to: &Addr,
        told: Told,
        message: &mut MsgBuf,
    ) -> Result<(), HgError> {
        if told.is_member {
            return match self.own_sessions.known_target(to) {
                Some(session) => {
                    self.seal(&session, message);
                    Ok(())
                }
                None => Err(not_called(to, "the session with it was forgotten: call again")),
            };
        }
        if !self.endpoint.carries_extensions(to)
            && let Ok((header, _)) = RequestHeader::read(self.accept, message.as_slice())
        {
            let said = header.read_extension(message.as_slice()).unwrap_or_default();
            if said.on_behalf_of.is_some() {
                return Err(not_told(to));
            }
            let (from, len) = (header.payload_at(), message.len());
            let at = header.format.header_bytes();
            let out = message.spare_mut();
            out.copy_within(from..len, at);
            RequestHeader { extension_bytes: 0, ..header }.write(out);
            message.set_len(len - (from - at));
        }
        Ok(())
    }

    /// Fills in the proof of a message, which has room for one.
    #[inline(never)]
    pub(crate) fn seal(&self, session: &OwnSession, message: &mut MsgBuf) {
        let header = RequestHeader::read(self.accept, message.as_slice()).ok();
        let len = message.len();
        let sealed = header.map(|(header, _)| header).and_then(|header| {
            let (epoch, nonce) = (session.epoch, session.nonce);
            let number = session.next_number();
            let proof = Proof { epoch, nonce, number, ..Proof::default() };
            let code_of = |before: &[u8], behind: &[u8]| session.key.code_of(before, behind);
            proof.seal(&header, &mut message.spare_mut()[..len], code_of)
        });
        debug_assert!(sealed.is_some(), "a request of ours has no room for its proof");
    }

    /// Fills in the proof of a message that is sent in another way than it was to be.
    pub(crate) fn seal_again(&self, to: &Addr, message: &mut MsgBuf) {
        if self.options.membership.is_none() {
            return;
        }
        let has_proof = RequestHeader::read(self.accept, message.as_slice())
            .and_then(|(header, _)| header.read_extension(message.as_slice()))
            .is_ok_and(|Extension { proof, .. }| proof.is_some());
        if has_proof && let Some(session) = self.own_sessions.known_target(to) {
            self.seal(&session, message);
        }
    }

    /// A call has met the end of a peer, which takes its sessions with all shards along.
    pub(crate) fn forget_gone(&self, error: &na::Error) {
        self.class.builds.forget();
        if let na::Error::PeerGone { peer, .. } | na::Error::Unreachable { peer, .. } = error {
            self.class.all().for_each(|shard| shard.own_sessions.forget_peer(peer));
        }
    }

    /// A target has refused a proof of ours: it does not know the session. The error of the call
    /// says that its handler did not run.
    pub(crate) fn was_not_believed(&self, peer: &Addr) -> HgError {
        self.own_sessions.forget(peer);
        not_called(
            peer,
            "it does not know our session: it has started again, or the request was on \
             its way for too long, or was changed; call again",
        )
    }
}

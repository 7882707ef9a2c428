//! Proofs of peers that they are members of our cluster, at the target: the answer to an
//! introduction, and who has sent a request. `core/members.rs` says what they are.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use na::{Addr, Principal, SessionChange, secret};

use crate::base::log::log;
use crate::base::membership::{Membership, SessionKey, code};
use crate::core::members::{MemberSession, NoSession};
use crate::ops::{Ack, ResponsePath};
use crate::proc::Written;
use crate::wire::extension::Proof;
use crate::wire::header::{RequestHeader, ResponseHeader};
use crate::wire::introduction::{ADDRESS_BYTES_MAX, Challenge, Introduction, NOT_PROVEN};
use crate::{Core, Extension, RawRequest, ReturnCode, wire};

/// Returns the host in an address such as `ofi+tcp://10.0.0.7:7000`.
fn host_in(address: &str) -> Option<IpAddr> {
    let (_, rest) = address.split_once("://")?;
    let host = match rest.strip_prefix('[') {
        Some(rest) => rest.split(']').next()?,
        None => rest.split([':', '/']).next()?,
    };
    host.parse().ok()
}

impl<T> Core<T> {
    /// Answers an introduction, unless it is refused, with the code that is returned.
    pub(crate) fn answer_introduction(
        &self,
        origin: &Addr,
        request: &mut RawRequest,
    ) -> Result<(), ReturnCode> {
        let bytes = self.challenge(origin, request.payload())?;
        let ResponsePath::Network(tag) = request.path else { return Err(ReturnCode::NoEntry) };
        if std::mem::replace(&mut request.answered, true) {
            return Ok(());
        }
        let header = ResponseHeader::answering(&request.header, ReturnCode::Success);
        let (buf, max) = (self.buffers.take(), self.limits.expected_bytes_max);
        let limits = self.writer_limits(max);
        match wire::encode_response(header, buf, max, limits, |writer| writer.put(&bytes)) {
            Ok(Written::Fits(buf)) => self.send_loose(origin, tag, buf),
            // No message is that short: `ADDRESS_BYTES_MAX` is what the shortest has room for.
            Ok(Written::Overflow(buf, _)) => self.buffers.put(buf),
            Err(unencoded) => drop(self.unencoded(unencoded)),
        }
        Ok(())
    }

    fn challenge(&self, origin: &Addr, payload: &[u8]) -> Result<Vec<u8>, ReturnCode> {
        let membership = self.options.membership.as_ref();
        let membership = membership.filter(|_| !self.endpoint.knows_principals(origin));
        // A peer that has no membership, or an earlier one, says the same.
        let (membership, introduction) =
            membership.zip(Introduction::read(payload)).ok_or(ReturnCode::NoEntry)?;
        let Introduction { nonce, code: said } = introduction;
        let keys = membership.keys(&self.options.log);
        let knows = |key: &&[u8; 32]| secret::is_same(&code(key, "introduction", &[&nonce]), &said);
        let Some(key) = keys.all().find(knows) else {
            self.is_no_member(membership, origin, "it does not know the secret of our cluster");
            return Err(ReturnCode::Permission);
        };
        let made = self.class.members.challenge(membership.epoch, &nonce, origin.uri());
        let (epoch, lifetime_msec, challenge) = made.ok_or(ReturnCode::Again)?;
        // Of several by which we are reached, that of this network stands last.
        let address = self.self_addr.uri().rsplit('#').next().unwrap_or_default();
        let address = if address.len() > ADDRESS_BYTES_MAX { "" } else { address };
        let unsigned = Challenge { epoch, lifetime_msec, challenge, code: [0; 16], address };
        let code = unsigned.code_under(key, &nonce);
        Ok(Challenge { code, ..unsigned }.to_bytes())
    }

    /// Returns who has proven, by a message that has just come from `origin`, to be behind it;
    /// `None`: it proves nothing, or need not. An error is the answer to one that is not right.
    pub(crate) fn proven_by(
        &self,
        origin: &Addr,
        header: &RequestHeader,
        extension: &Extension,
        message: &[u8],
    ) -> Result<Option<Principal>, ReturnCode> {
        let membership = self.options.membership.as_ref().filter(|_| extension.proof.is_some());
        let Some(membership) = membership.filter(|_| !self.endpoint.knows_principals(origin))
        else {
            return Ok(None);
        };
        let said = Proof::in_message(header, message).ok_or(ReturnCode::ProtocolError)?;
        let (proof, before, behind) = said;
        let is_right =
            |key: &SessionKey| secret::is_same(&key.code_of(before, behind), &proof.code);
        let known = self.class.members.session(&proof);
        let session = match known.filter(|known| known.connection == origin.connection()) {
            Some(known) if is_right(&known.key) => known,
            Some(_) => return Err(self.is_forged(membership, origin)),
            None => self.begin_session(membership, origin, &proof, is_right)?,
        };
        if !session.takes(proof.number) {
            return Err(self.is_forged(membership, origin));
        }
        Ok(Some(session.principal))
    }

    /// The first request of a session, or one by another connection of its peer.
    #[cold]
    fn begin_session(
        &self,
        membership: &Membership,
        origin: &Addr,
        proof: &Proof,
        is_right: impl Fn(&SessionKey) -> bool,
    ) -> Result<Arc<MemberSession>, ReturnCode> {
        let members = &self.class.members;
        let challenge = members.challenge_of(membership.epoch, proof, origin.uri());
        let key = challenge.and_then(|challenge| {
            let keys = membership.keys(&self.options.log);
            let of_session = |key| SessionKey::new(key, &proof.nonce, &challenge);
            keys.all().map(of_session).find(is_right)
        });
        let Some(key) = key else { return Err(self.is_forged(membership, origin)) };
        let principal = self.member_at(origin);
        let session = MemberSession::new(key, origin, principal);
        match members.begin(membership.epoch, proof, session) {
            Ok((session, is_new)) => {
                if is_new && let Some(observer) = &membership.observer {
                    let change = SessionChange::Begun { dialed: false };
                    observer.tell(self.endpoint.transport(), origin.uri(), principal, change);
                }
                if session.principal == principal {
                    Ok(session)
                } else {
                    Err(self.is_forged(membership, origin))
                }
            }
            Err(NoSession::Full) => Err(ReturnCode::Busy),
            Err(NoSession::Over) => Err(NOT_PROVEN),
        }
    }

    /// The member at an address that has received our challenge. Its host is that of the connection
    /// if the transport knows it, or else the one in the address, or none.
    pub(crate) fn member_at(&self, peer: &Addr) -> Principal {
        let host = match self.endpoint.principal(peer) {
            Principal::Host(host) => Some(host),
            _ => host_in(peer.uri()),
        };
        Principal::member_at(host.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)))
    }

    #[cold]
    fn is_forged(&self, membership: &Membership, origin: &Addr) -> ReturnCode {
        let reason = "a proof of another session, or before we were started, or of a message that \
                      was changed or has come before";
        self.is_no_member(membership, origin, reason);
        NOT_PROVEN
    }

    fn is_no_member(&self, membership: &Membership, origin: &Addr, reason: &str) {
        let principal = self.endpoint.principal(origin);
        if let Some(observer) = &membership.observer {
            let change = SessionChange::Refused { reason };
            observer.tell(self.endpoint.transport(), origin.uri(), principal, change);
        }
        // A peer that sends nothing else must not fill the log.
        let count = self.counts.not_proven.bump();
        if count.is_power_of_two() {
            let log = &self.options.log;
            log!(log, WARN, %origin, %principal, reason, count, "a peer is no member of ours");
        }
    }

    /// Refuses a request that has just come because of its proof.
    #[cold]
    pub(crate) fn refuse_proof(
        &self,
        origin: &Addr,
        tag: na::Tag,
        header: &RequestHeader,
        code: ReturnCode,
    ) {
        let claim = self.state().receives.released();
        self.request_released(claim, None);
        match (header.no_response, header.more_data) {
            (false, _) => self.send_refusal(origin, tag, code, header),
            // Its origin keeps the arguments until it is told.
            (true, true) => self.send_ack(origin, tag, Ack::Done),
            (true, false) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_an_address_is_the_one_in_it() {
        for (address, host) in [
            ("ofi+tcp;ofi_rxm://10.0.0.7:7000", Some("10.0.0.7")),
            ("ucx+all://[fd00::7]:7000", Some("fd00::7")),
            ("ofi+tcp://10.0.0.7", Some("10.0.0.7")),
            ("ofi+cxi://0x012c", None),
            ("na+sim://net/a", None),
            ("nothing", None),
        ] {
            assert_eq!(host_in(address), host.map(|host| host.parse().unwrap()), "{address}");
        }
    }
}

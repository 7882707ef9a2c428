//! Messages whose end nobody waits for: acknowledgements, and refusals of requests.

use na::{Addr, MsgBuf, Tag};

use crate::base::log::log;
use crate::ops::{Ack, Role};
use crate::wire::Unencoded;
use crate::wire::header::RequestHeader;
use crate::{Core, HgError, OpRef, ReturnCode, wire};

pub(crate) const NOT_SENT: &str = "an acknowledgement or refusal was not sent";

impl<T> Core<T> {
    /// Drops a request that cannot be handed up, and tells its origin if that can be told.
    pub(crate) fn reject(
        &self,
        header: Option<RequestHeader>,
        origin: &Addr,
        tag: Tag,
        code: ReturnCode,
        error: &HgError,
    ) {
        // A peer that sends nothing else must not fill the log.
        if self.counts.malformed(error).is_power_of_two() {
            let (log, caller) = (&self.options.log, self.endpoint.principal(origin));
            let what = "a request cannot be read or fetched; dropped";
            log!(log, WARN, %origin, %caller, %error, "{what}");
        }
        let claim = self.state().receives.released();
        self.request_released(claim, None);
        if let Some(header) = header.filter(|header| !header.no_response) {
            self.send_refusal(origin, tag, code, &header);
        }
    }

    /// Sends a message whose end is not waited for.
    pub(crate) fn send_loose(&self, to: &Addr, tag: Tag, buf: MsgBuf) {
        if self.endpoint.send_expected_now(to, tag, buf.as_slice()) {
            self.buffers.put(buf);
            return;
        }
        let op = OpRef::single(Role::Loose, self.id, self.counts.loose.bump());
        if let Err(refused) = self.endpoint.send_expected(op, to, tag, buf) {
            log!(self.options.log, DEBUG, error = %refused.error, "{NOT_SENT}");
            self.buffers.put(refused.buf);
        }
    }

    /// Sends an error response whose end is not waited for.
    pub(crate) fn send_refusal(
        &self,
        origin: &Addr,
        tag: Tag,
        code: ReturnCode,
        request: &RequestHeader,
    ) {
        let mut buf = self.buffers.take();
        wire::encode_refusal(request, code, &mut buf);
        self.state().hot.rpc_resp_sent += 1;
        self.send_loose(origin, tag, buf);
    }

    pub(crate) fn send_ack(&self, to: &Addr, tag: Tag, ack: Ack) {
        let mut buf = self.buffers.take();
        // It cannot fail, because no message is that short.
        let _ = buf.try_extend(&[ack as u8]);
        self.send_loose(to, tag, buf);
    }

    /// Keeps the buffer of a message that could not be encoded.
    pub(crate) fn unencoded(&self, Unencoded { error, buf }: Unencoded) -> HgError {
        self.buffers.put(buf);
        error.into()
    }
}

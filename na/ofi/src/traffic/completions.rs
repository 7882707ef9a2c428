//! Completions that libfabric reports.
//!
//! They may come in any order; each is identified by its context, which is a slot.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a structure of libfabric's is filled in, or handed over, as one thing"
)]

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;

use ofi_sys::{call, raw};

use crate::buffers::unexpected::Waiting;
use crate::fabrics::fabric::{failed, zeroed};
use crate::providers::{address::RAW_BYTES_MAX, address::RawAddr, failures::Meaning};
use crate::state::core::Core;
use crate::state::peers::{Peer, unreachable};
use crate::state::slots::OpSlot;
use na_core::matching::{Arrived, Kind};
use na_core::{Addr, Arrival, Completion, Error, Tag};

/// Entries read at a time, as in C Mercury.
const BATCH: usize = 16;

/// Bytes of libfabric's words for an error.
const WORDS_BYTES: usize = 256;

/// The data of a message, which is none unless the flags say so (`fi_cq.3`); as in C.
fn data(flags: u64, data: u64) -> u64 {
    if flags & raw::FI_REMOTE_CQ_DATA != 0 { data } else { 0 }
}

impl Core {
    /// Takes completions until there are none, or enough to report.
    pub(crate) fn progress(&mut self, enough: usize) -> Result<(), Error> {
        // Left as they are: a poll that finds nothing shall cost nothing but the question.
        let mut entries = [const { MaybeUninit::<raw::fi_cq_tagged_entry>::uninit() }; BATCH];
        let mut sources = [const { MaybeUninit::<raw::fi_addr_t>::uninit() }; BATCH];
        let tells_source = self.header.is_empty();
        loop {
            let Some(ep) = &self.ep else { return Ok(()) };
            // SAFETY: the queue is open; so many entries of its format are there, and as many
            // sources.
            let count = unsafe {
                match tells_source {
                    true => call::cq_readfrom(
                        ep.cq,
                        entries.as_mut_ptr().cast(),
                        BATCH,
                        sources.as_mut_ptr().cast(),
                    ),
                    false => call::cq_read(ep.cq, entries.as_mut_ptr().cast(), BATCH),
                }
            };
            match usize::try_from(count) {
                Ok(count) => {
                    for (entry, source) in entries[..count.min(BATCH)].iter().zip(&sources) {
                        // SAFETY: libfabric has written so many entries.
                        let entry = unsafe { entry.assume_init_ref() };
                        // SAFETY: as many sources, where it was asked for them.
                        let source = tells_source.then(|| unsafe { source.assume_init() });
                        self.completed(entry, source);
                    }
                    if count < BATCH || self.done.len() >= enough {
                        return Ok(());
                    }
                }
                Err(_) if -count == raw::FI_EAGAIN as isize => {
                    if self.peers.are_many() {
                        self.peers.sweep(&self.domain);
                    }
                    return Ok(());
                }
                Err(_) if -count == raw::FI_EAVAIL as isize => {
                    if !self.take_error()? {
                        // The next call asks again.
                        return Ok(());
                    }
                }
                Err(_) => return Err(self.broken((-count) as c_int)),
            }
        }
    }

    /// The queue is of no use any more, as after an overrun, so that nothing that libfabric has in
    /// hand will be reported as over: all of it ends, and the endpoint is closed.
    fn broken(&mut self, errno: c_int) -> Error {
        let error = failed(self.domain.lib, "the completion queue cannot be read", errno);
        self.close(&error);
        error
    }

    fn completed(&mut self, entry: &raw::fi_cq_tagged_entry, source: Option<raw::fi_addr_t>) {
        let Some(index) = self.slots.index_of(entry.op_context) else { return };
        match self.slots.get(index) {
            OpSlot::Unexpected { buffer } => {
                let buffer = *buffer;
                if entry.flags & raw::FI_RECV != 0
                    && let Some(start) = self.start_of_message(entry.buf, entry.len)
                {
                    let from = source.and_then(|source| self.peers.of_fi_addr(source));
                    let data = data(entry.flags, entry.data);
                    self.arrived(buffer, start, entry.len, data, from);
                }
                self.given_back(index, buffer, entry.flags);
            }
            OpSlot::Part { transfer } => {
                let transfer = *transfer;
                self.slots.take(index);
                self.part_ended(transfer, Ok(()));
            }
            OpSlot::Send { to, .. } => {
                if let Some(peer) = to.state::<Peer>() {
                    peer.set_reached(true);
                    peer.set_torn(false);
                    peer.load.has_taken();
                }
                self.end_slot(index, Ok(()));
            }
            OpSlot::Injected { to, .. } => {
                if let Some(peer) = to.state::<Peer>() {
                    peer.set_reached(true);
                }
                self.end_slot(index, Ok(()));
            }
            OpSlot::Recv { .. } => {
                let slot = self.slots.take(index);
                let OpSlot::Recv { mut op, from, tag, mut buf, number, given_up, .. } = slot else {
                    return;
                };
                let len = match self.registers_all {
                    true => self.locals.read(index, &mut buf, entry.len),
                    false => entry.len.min(buf.capacity()),
                };
                buf.set_len(len);
                if let Some(peer) = from.state::<Peer>() {
                    peer.set_reached(true);
                }
                if given_up {
                    self.sinks.remove(number);
                    let Some(heir) = self.heir(&from, tag) else { return };
                    op = heir;
                }
                let result = Ok(Arrival { from, tag });
                self.done.push_back(Completion::Recv { op, buf, result });
            }
            OpSlot::Free => {}
        }
    }

    /// Returns where in its buffer a message is by libfabric's word; null: at the start. `None` if
    /// it has given a buffer for many messages back, and tells of no message. It says nothing about
    /// buffers for one message (`buf` in `fi_cq.3`).
    fn start_of_message(&self, buf: *mut c_void, len: usize) -> Option<*const u8> {
        match self.unexpected.multi {
            true if buf.is_null() && len == 0 => None,
            true => Some(buf.cast::<u8>().cast_const()),
            false => Some(std::ptr::null()),
        }
    }

    /// An unexpected message is in a buffer.
    fn arrived(
        &mut self,
        buffer: u32,
        start: *const u8,
        len: usize,
        data: u64,
        from: Option<Addr>,
    ) {
        let header_len = self.header.len();
        let Some(mut place) = self.unexpected.locate(buffer, start, len) else {
            tracing::warn!(len, "libfabric reports a message outside of its buffer");
            return;
        };
        if len < header_len || len > self.message_bytes_max {
            tracing::warn!(len, "dropped a request whose length is not allowed");
            return;
        }
        let header = place.start..place.start + header_len;
        place.start += header_len;
        let from = match header_len {
            0 => from,
            _ => {
                let header = self.unexpected.bytes(buffer, &header);
                self.peers.of_header(&self.domain, &self.own_raw, header)
            }
        };
        let Some(from) = from else {
            tracing::warn!("dropped a request that does not say who sends it");
            return;
        };
        if let Some(peer) = from.state::<Peer>() {
            peer.set_reached(true);
        }
        let tag = Tag(data as u32);
        if self.unexpected.holds(from.peer_id()) {
            return self.unexpected.keep(Waiting { buffer, from, tag, place });
        }
        let bytes = self.unexpected.bytes(buffer, &place);
        let fill = |room: &mut [u8]| room.copy_from_slice(bytes);
        if let Some(claimed) = self.matcher.claim(Kind::Unexpected, &from, tag, bytes.len()) {
            let (op, buf, from) = claimed.fill(|| from, bytes.len(), fill);
            self.done.push_back(Completion::Recv { op, buf, result: Ok(Arrival { from, tag }) });
        } else if let Arrived::Full =
            self.matcher.keep(Kind::Unexpected, &from, tag, bytes.len(), fill)
        {
            self.unexpected.keep(Waiting { buffer, from, tag, place });
        }
    }

    /// Delivers what waits in buffers, as far as there is room.
    pub(crate) fn deliver_waiting(&mut self) {
        let Self { unexpected, matcher, done, .. } = self;
        unexpected.deliver(|from, tag, bytes| {
            match matcher.arrive(Kind::Unexpected, from, tag, bytes) {
                Arrived::Completed(completion) => done.push_back(completion),
                Arrived::Held | Arrived::Discarded => {}
                Arrived::Full => return false,
            }
            true
        });
    }

    /// Takes an error from the queue; whether there was one.
    ///
    /// # Errors
    ///
    /// When it is that of the queue itself.
    fn take_error(&mut self) -> Result<bool, Error> {
        // Room behind it, for a library that writes more than it says.
        #[repr(C)]
        struct Entry(raw::fi_cq_err_entry, [u64; 8]);
        let mut data = [0u64; RAW_BYTES_MAX / 8];
        let mut entry = Entry(zeroed(), [0; 8]);
        entry.0.err_data = data.as_mut_ptr().cast();
        entry.0.err_data_size = RAW_BYTES_MAX;
        let Some(ep) = &self.ep else { return Ok(false) };
        // SAFETY: the queue is open; the entry is there, with room for its data.
        let count = unsafe { call::cq_readerr(ep.cq, &raw mut entry.0, 0) };
        let entry = entry.0;
        if count != 1 {
            return Ok(false);
        }
        if entry.err == raw::FI_EOVERRUN as c_int && entry.op_context.is_null() {
            return Err(self.broken(entry.err));
        }
        let mut words = [0; WORDS_BYTES];
        // SAFETY: the queue is open; the buffer has so many bytes; the data is what was just read.
        let detail = unsafe {
            let (buf, len) = (words.as_mut_ptr(), WORDS_BYTES);
            call::cq_strerror(ep.cq, entry.prov_errno, entry.err_data, buf, len)
        };
        let detail = match detail.is_null() {
            true => String::new(),
            // SAFETY: a text with an end, of the provider's tables or in `words`.
            false => unsafe { CStr::from_ptr(detail) }.to_string_lossy().into_owned(),
        };
        let index = self.slots.index_of(entry.op_context);
        // Somebody whom the address vector does not know: the data is the address.
        let stranger = (entry.err == libc::EADDRNOTAVAIL && self.header.is_empty()).then(|| {
            let bytes: Vec<u8> = data.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let len = entry.err_data_size.min(RAW_BYTES_MAX);
            RawAddr::of_source(self.provider, &self.own_raw, &bytes[..len])
        });
        let Some(index) = index else {
            // As for a message that was injected.
            let peer = stranger.map(|address| address.uri(self.provider));
            tracing::warn!(
                peer,
                error = self.domain.lib.strerror(entry.err),
                detail,
                "libfabric reports an error of no operation: a message may be lost"
            );
            return Ok(true);
        };
        match (stranger, self.slots.get(index)) {
            (Some(address), OpSlot::Unexpected { buffer }) => {
                let buffer = *buffer;
                self.stranger(buffer, &entry, &address);
                self.given_back(index, buffer, entry.flags);
            }
            _ => self.failed(index, &entry, &detail),
        }
        Ok(true)
    }

    /// A message in a buffer, from a sender at `address` that is not known yet.
    fn stranger(&mut self, buffer: u32, entry: &raw::fi_cq_err_entry, address: &RawAddr) {
        match self.peers.at(&self.domain, address) {
            Ok(from) => {
                if let Some(start) = self.start_of_message(entry.buf, entry.len) {
                    let data = data(entry.flags, entry.data);
                    self.arrived(buffer, start, entry.len, data, Some(from));
                }
            }
            Err(error) => tracing::warn!(
                %error,
                "dropped a request: libfabric does not take the address that it says it is from"
            ),
        }
    }

    /// A completion of a buffer for requests, with these flags: whether it was the last one, so
    /// that libfabric does not have the buffer any more. Until then it may write to the rest.
    fn given_back(&mut self, index: u32, buffer: u32, flags: u64) -> bool {
        let last = !self.unexpected.multi || flags & raw::FI_MULTI_RECV != 0;
        if last {
            self.slots.take(index);
            self.unexpected.given_back(buffer);
        }
        last
    }

    fn failed(&mut self, index: u32, entry: &raw::fi_cq_err_entry, detail: &str) {
        let meaning = self.provider.meaning(entry.err, entry.prov_errno);
        let is_gone = meaning == Some(Meaning::Gone);
        let breaks = self.provider.breaks_on_errors();
        let is_lost = is_gone || entry.err == libc::ECANCELED || (breaks && entry.err == libc::EIO);
        if self.sends_again(index, is_lost) {
            return;
        }
        let Some(with) = self.with(index, entry, detail) else { return };
        let (part, answer) = match self.slots.get(index) {
            OpSlot::Part { transfer } => (Some(*transfer), None),
            OpSlot::Injected { answer, .. } => (None, *answer),
            _ => (None, None),
        };
        // Else it is of an operation with a predecessor, with which all has ended already.
        let is_current =
            with.state::<Peer>().is_some_and(|peer| peer.life() == self.slots.life(index));
        let error = self.error_for(&with, entry.err, detail, meaning, part.is_some());
        match part {
            Some(transfer) => {
                self.slots.take(index);
                if let Some(peer) = with.state::<Peer>()
                    && (is_lost || breaks)
                {
                    peer.set_torn(true);
                }
                self.part_ended(transfer, Err(error));
            }
            None => {
                if let Some(number) = answer {
                    self.cancel_receive(number, &error);
                } else if matches!(self.slots.get(index), OpSlot::Injected { .. }) {
                    tracing::warn!(%error, "an answer was lost");
                }
                self.end_slot(index, Err(error));
            }
        }
        if is_gone && is_current {
            let reason = self.reason(entry.err, Some(detail));
            self.lose(&with, reason);
        }
    }

    /// The error of an operation: what libfabric's number `errno` and what it says of the peer make
    /// of it.
    pub(crate) fn error_for(
        &self,
        with: &Addr,
        errno: c_int,
        detail: &str,
        meaning: Option<Meaning>,
        is_transfer: bool,
    ) -> Error {
        match meaning {
            Some(Meaning::Gone) => unreachable(with, self.reason(errno, Some(detail))),
            Some(Meaning::Denied(reason)) if is_transfer => {
                let peer = with.uri().to_owned();
                tracing::debug!(peer, detail, "a transfer was refused");
                Error::Denied { peer, reason }
            }
            _ => match self.error_of(with, errno, Some(detail)) {
                // Not by us: some providers end what was on its way over a connection in this way,
                // and close the connection when the other side refuses a transfer.
                Error::Canceled => Error::PeerGone {
                    peer: with.uri().to_owned(),
                    reason: "libfabric gave the operation up, as for a connection that was closed \
                             (by a peer that is gone, or one that refuses a transfer)"
                        .to_owned(),
                },
                error => error,
            },
        }
    }

    /// Returns the peer of an operation that failed; `None` if there was none: then it was a buffer
    /// for requests, which is dealt with here.
    fn with(&mut self, index: u32, entry: &raw::fi_cq_err_entry, detail: &str) -> Option<Addr> {
        match self.slots.get(index) {
            OpSlot::Unexpected { buffer } => {
                let buffer = *buffer;
                tracing::warn!(
                    error = self.domain.lib.strerror(entry.err),
                    detail,
                    "dropped a request that did not arrive whole"
                );
                if !self.given_back(index, buffer, entry.flags) {
                    self.unexpected.doubt(buffer);
                }
                None
            }
            OpSlot::Part { transfer } => {
                let transfer = *transfer;
                self.transfer_with(transfer)
            }
            OpSlot::Send { to, .. } | OpSlot::Injected { to, .. } => Some(to.clone()),
            OpSlot::Recv { from, .. } => Some(from.clone()),
            OpSlot::Free => None,
        }
    }
}

//! Frames that wait to be sent to one peer, and the transfers with it that are under way.
//!
//! | what | window | order |
//! |---|---|---|
//! | requests, answers, cancels, credit | not charged | first |
//! | messages | charged | in turn with data |
//! | data of our puts, and of the gets that we serve | charged | each transfer in turn |

use std::collections::{BTreeMap, VecDeque};

use super::packet::{Frame, Request};
use na_core::matching::Kind;
use na_core::{Completion, DeniedReason, Error, LocalMem, MsgBuf, OpId, Tag, Transfer};

/// Transfers that we have at one peer at most; the others wait.
const STARTED_MAX: usize = 64;

/// A message that waits for the window.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) op: OpId,
    pub(crate) kind: Kind,
    pub(crate) tag: Tag,
    pub(crate) buf: MsgBuf,
}

impl Queued {
    pub(crate) fn end(self, result: Result<(), Error>) -> Completion {
        Completion::Send { op: self.op, buf: self.buf, result }
    }
}

/// A transfer of ours.
#[derive(Debug)]
struct Requested {
    op: OpId,
    put: bool,
    started: bool,
    transfer: Transfer,
    /// Bytes of a get that have arrived.
    done: u64,
}

/// Data to send.
#[derive(Debug)]
struct Source {
    put: bool,
    id: u64,
    memory: LocalMem,
    at: u64,
    left: u64,
}

/// The destination of the data of a peer's put.
#[derive(Debug)]
struct Sink {
    memory: LocalMem,
    at: u64,
    left: u64,
}

/// Completions and memory that the end of operations with a peer leaves behind.
#[derive(Default)]
pub(crate) struct Ends {
    pub(crate) completions: Vec<Completion>,
    /// To be released when no lock is held.
    pub(crate) memories: Vec<LocalMem>,
}

impl Ends {
    fn transfer(&mut self, requested: Requested, result: Result<(), Error>) {
        self.completions.push(Completion::Transfer { op: requested.op, result });
        self.memories.push(requested.transfer.local);
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    control: VecDeque<Frame>,
    messages: VecDeque<Queued>,
    sources: VecDeque<Source>,
    data_is_next: bool,
    requests: BTreeMap<u64, Requested>,
    waiting: VecDeque<u64>,
    next_id: u64,
    sinks: BTreeMap<u64, Sink>,
}

impl Outgoing {
    /// Returns whether the peer owes us the end of a transfer.
    pub(crate) fn awaits_answers(&self) -> bool {
        !self.requests.is_empty()
    }

    pub(crate) fn push_message(&mut self, message: Queued) {
        self.messages.push_back(message);
    }

    pub(crate) fn push_control(&mut self, frame: Frame) {
        self.control.push_back(frame);
    }

    pub(crate) fn push_first(&mut self, frame: Frame) {
        self.control.push_front(frame);
    }

    pub(crate) fn push_transfer(&mut self, op: OpId, put: bool, transfer: Transfer) {
        let id = self.next_id;
        self.next_id += 1;
        self.requests.insert(id, Requested { op, put, started: false, transfer, done: 0 });
        self.waiting.push_back(id);
    }

    /// The next frame to send, if `room` says that the window is open or if it needs none.
    pub(crate) fn next(&mut self, room: bool, bytes_max: usize, ends: &mut Ends) -> Option<Frame> {
        self.start_waiting();
        if let Some(frame) = self.control.pop_front() {
            return Some(frame);
        }
        if !room {
            return None;
        }
        let data = !self.sources.is_empty() && (self.data_is_next || self.messages.is_empty());
        self.data_is_next = !data;
        if data {
            return self.next_data(bytes_max, ends);
        }
        let message = self.messages.pop_front()?;
        let Queued { kind, tag, .. } = message;
        let frame = Frame::Message { kind, tag, bytes: message.buf.as_slice().to_vec().into() };
        ends.completions.push(message.end(Ok(())));
        Some(frame)
    }

    fn start_waiting(&mut self) {
        while self.requests.len() - self.waiting.len() < STARTED_MAX
            && let Some(id) = self.waiting.pop_front()
        {
            let Some(requested) = self.requests.get_mut(&id) else { continue };
            requested.started = true;
            let Transfer { remote, remote_offset: offset, len, local, local_offset } =
                &requested.transfer;
            let request =
                Request { put: requested.put, id, key: remote.key, offset: *offset, len: *len };
            self.control.push_back(Frame::Request(request));
            if requested.put && *len > 0 {
                let (memory, at, left) = (local.clone(), *local_offset, *len);
                self.sources.push_back(Source { put: true, id, memory, at, left });
            }
        }
    }

    fn next_data(&mut self, bytes_max: usize, ends: &mut Ends) -> Option<Frame> {
        let mut source = self.sources.pop_front()?;
        let Source { put, id, .. } = source;
        let len = source.left.min(bytes_max as u64);
        let mut bytes = vec![0; len as usize];
        let read = source.memory.read_at(source.at, &mut bytes);
        debug_assert!(read, "the range was checked when the transfer began");
        source.at += len;
        source.left -= len;
        if source.left > 0 {
            self.sources.push_back(source);
        } else {
            ends.memories.push(source.memory);
            if !put {
                self.control.push_back(Frame::Done { id, status: Ok(()) });
            }
        }
        Some(Frame::Data { put, id, bytes: bytes.into() })
    }

    // ---- what the peer asks for ----

    /// Serves a request whose memory is `lease`.
    pub(crate) fn serve(
        &mut self,
        request: Request,
        lease: Result<LocalMem, DeniedReason>,
        ends: &mut Ends,
    ) {
        let Request { put, id, offset: at, len: left, .. } = request;
        match lease {
            Err(reason) => self.control.push_back(Frame::Done { id, status: Err(reason) }),
            Ok(memory) if left == 0 => {
                ends.memories.push(memory);
                self.control.push_back(Frame::Done { id, status: Ok(()) });
            }
            Ok(memory) if put => drop(self.sinks.insert(id, Sink { memory, at, left })),
            Ok(memory) => self.sources.push_back(Source { put, id, memory, at, left }),
        }
    }

    /// Data for a put of the peer, or a get of ours. Without either, it was canceled or denied.
    pub(crate) fn data(&mut self, put: bool, id: u64, bytes: &[u8], ends: &mut Ends) {
        let len = bytes.len() as u64;
        if !put {
            if let Some(requested) = self.requests.get_mut(&id) {
                let transfer = &requested.transfer;
                let at = transfer.local_offset + requested.done;
                let written = transfer.local.write_at(at, bytes);
                debug_assert!(written, "the range was checked when the transfer began");
                requested.done += len;
            }
            return;
        }
        let Some(sink) = self.sinks.get_mut(&id) else { return };
        let written = sink.memory.write_at(sink.at, bytes);
        debug_assert!(written, "the range was checked when the transfer began");
        sink.at += len;
        sink.left -= len;
        if sink.left == 0 {
            ends.memories.extend(self.sinks.remove(&id).map(|sink| sink.memory));
            self.control.push_back(Frame::Done { id, status: Ok(()) });
        }
    }

    /// The peer gives up a transfer.
    pub(crate) fn canceled_by_peer(&mut self, put: bool, id: u64, ends: &mut Ends) {
        match put {
            true => ends.memories.extend(self.sinks.remove(&id).map(|sink| sink.memory)),
            false => self.drop_source(put, id, ends),
        }
    }

    /// The owner's last word on a transfer of ours.
    pub(crate) fn done(&mut self, id: u64, result: Result<(), Error>, ends: &mut Ends) {
        // Without a request, it was canceled.
        let Some(requested) = self.requests.remove(&id) else { return };
        if requested.put {
            self.drop_source(true, id, ends);
        }
        ends.transfer(requested, result);
    }

    fn drop_source(&mut self, put: bool, id: u64, ends: &mut Ends) {
        if let Some(at) = self.sources.iter().position(|s| s.put == put && s.id == id) {
            ends.memories.extend(self.sources.remove(at).map(|source| source.memory));
        }
    }

    // ---- ends ----

    /// Gives up one operation of ours. `false`: it is not here.
    pub(crate) fn cancel(&mut self, op: OpId, ends: &mut Ends) -> bool {
        if let Some(at) = self.messages.iter().position(|message| message.op == op) {
            let message = self.messages.remove(at);
            ends.completions.extend(message.map(|message| message.end(Err(Error::Canceled))));
            return true;
        }
        let Some(id) = self.requests.iter().find(|(_, r)| r.op == op).map(|(id, _)| *id) else {
            return false;
        };
        let Some(requested) = self.requests.remove(&id) else { return false };
        if requested.started {
            self.drop_source(true, id, ends);
            self.control.push_back(Frame::Cancel { put: requested.put, id });
        } else {
            self.waiting.retain(|waiting| *waiting != id);
        }
        ends.transfer(requested, Err(Error::Canceled));
        true
    }

    /// Gives up messages that are longer than the peer takes.
    pub(crate) fn refuse_longer(&mut self, max: usize, ends: &mut Ends) {
        for message in std::mem::take(&mut self.messages) {
            match message.buf.len() {
                len if len > max => {
                    ends.completions.push(message.end(Err(Error::TooLong { len, max })));
                }
                _ => self.messages.push_back(message),
            }
        }
    }

    /// Ends everything, because the connection is over.
    pub(crate) fn fail(&mut self, error: &Error, ends: &mut Ends) {
        let all = std::mem::take(self);
        self.next_id = all.next_id;
        let sends = all.messages.into_iter();
        ends.completions.extend(sends.map(|message| message.end(Err(error.clone()))));
        for requested in all.requests.into_values() {
            ends.transfer(requested, Err(error.clone()));
        }
        ends.memories.extend(all.sources.into_iter().map(|source| source.memory));
        ends.memories.extend(all.sinks.into_values().map(|sink| sink.memory));
    }
}

//! The child behind a [proxy](super::remote): carries out what the parent calls.

use std::collections::HashMap;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::Duration;

use super::Case;
use super::process;
use super::remote::{NOBODY, ROLE, call, shared_memory};
use super::wire::{Reader, Writer, recv_fd, send_fd};
use crate::{
    Access, Addr, Arrival, Completion, Endpoint, LargeBuffers, LocalMem, MsgBuf, OpId, OpenOptions,
    Tag, Transfer,
};
use prim::sync::Arc;

/// If the process was started as a child with an endpoint, serves it until the parent drops it.
pub(super) fn serve_if_asked(case: &Case<'_>) -> bool {
    let Some((role, argument)) = process::role() else { return false };
    if role != ROLE {
        return false;
    }
    let fd: i32 = argument.parse().expect("a descriptor");
    // SAFETY: inherited for this purpose, and nobody else in this process uses it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    Served::open(case, UnixStream::from(fd)).serve();
    true
}

/// The child's side.
struct Served {
    socket: UnixStream,
    endpoint: Arc<dyn Endpoint>,
    addrs: Vec<Addr>,
    numbers: HashMap<Addr, u64>,
    memories: HashMap<u64, LocalMem>,
    buffers: LargeBuffers,
    released: (mpsc::Sender<u64>, mpsc::Receiver<u64>),
}

impl Served {
    fn open(case: &Case<'_>, socket: UnixStream) -> Self {
        let fd: OwnedFd = socket.into();
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC).expect("an open descriptor");
        let socket = UnixStream::from(fd);
        let mut asked = Reader::receive(&socket).expect("the parent's options");
        let mut options = OpenOptions::listening(asked.flag());
        options.message_bytes_max = asked.word() as usize;
        options.connect_timeout = Duration::from_nanos(asked.word());
        options.liveness_limit = Duration::from_nanos(asked.word());
        options.left_bytes_max = asked.word() as usize;
        let endpoint = (case.opener)(&options);
        let buffers = LargeBuffers::new(1, 64 << 10, endpoint.limits().unexpected_bytes_max);
        let mut this = Self {
            socket,
            endpoint,
            buffers,
            addrs: Vec::new(),
            numbers: HashMap::new(),
            memories: HashMap::new(),
            released: mpsc::channel(),
        };
        let (endpoint, own) = (this.endpoint.clone(), this.endpoint.self_addr());
        let limits = endpoint.limits();
        let fd = endpoint.wait_fd();
        Writer::default()
            .text(endpoint.transport())
            .word(limits.unexpected_bytes_max as u64)
            .word(limits.expected_bytes_max as u64)
            .word(this.number(&own))
            .text(own.uri())
            .text(&endpoint.bulk_path())
            .word(fd.is_some().into())
            .send(&this.socket);
        fd.into_iter().for_each(|fd| send_fd(&this.socket, fd));
        this
    }

    fn number(&mut self, addr: &Addr) -> u64 {
        if let Some(number) = self.numbers.get(addr) {
            return *number;
        }
        let number = self.addrs.len() as u64;
        self.addrs.push(addr.clone());
        self.numbers.insert(addr.clone(), number);
        number
    }

    fn serve(mut self) {
        while let Some(mut request) = Reader::receive(&self.socket) {
            let reply = match request.word() {
                call::LOOKUP => match self.endpoint.lookup(&request.text()) {
                    Ok(addr) => Writer::default().word(0).word(self.number(&addr)).text(addr.uri()),
                    Err(error) => Writer::default().result::<()>(Err(&error)),
                },
                start @ (call::SEND | call::RECV) => self.message(start, &mut request),
                call::REGISTER => self.register(&mut request),
                call::REVOKE => {
                    let key = request.word();
                    let sender = self.released.0.clone();
                    let memory = self.memories.remove(&key).expect("registered");
                    memory.revoke(move |memory| {
                        drop(memory);
                        // At the end of the process nobody listens any more.
                        let _ = sender.send(key);
                    });
                    Writer::default()
                }
                call::DESCRIBE => {
                    let bytes = self.endpoint.mem_to_bytes(&self.memories[&request.word()]);
                    Writer::default().bytes(&bytes)
                }
                call::READ_DESCRIPTION => match self.endpoint.mem_from_bytes(&request.bytes()) {
                    Ok(remote) => Writer::default().word(0).remote(&remote),
                    Err(error) => Writer::default().result::<()>(Err(&error)),
                },
                call::TRANSFER => self.transfer(&mut request),
                call::CANCEL => {
                    self.endpoint.cancel(OpId(request.word()));
                    Writer::default()
                }
                call::POLL => self.poll(request.word() as usize),
                call::PREPARE_WAIT => Writer::default().word(self.endpoint.prepare_wait().into()),
                call::MULTI_RECV => {
                    let (op, count) = (OpId(request.word()), request.word() as usize);
                    let buffers = &self.buffers;
                    let posted = self.endpoint.multi_recv_unexpected(op, count, buffers);
                    Writer::default().result(posted.as_ref())
                }
                call::CLOSE => {
                    self.endpoint.close();
                    Writer::default()
                }
                other => panic!("unknown call {other}"),
            };
            reply.send(&self.socket);
        }
    }

    fn message(&self, start: u64, request: &mut Reader) -> Writer {
        let (expected, op, number) = (request.flag(), OpId(request.word()), request.word());
        let (tag, capacity) = (Tag(request.word() as u32), request.word() as usize);
        let mut buf = MsgBuf::with_capacity(capacity);
        assert!(buf.try_extend(&request.bytes()));
        let endpoint = &self.endpoint;
        let started = match (start, expected, self.addrs.get(number as usize)) {
            (call::SEND, false, Some(to)) => endpoint.send_unexpected(op, to, tag, buf),
            (call::SEND, true, Some(to)) => endpoint.send_expected(op, to, tag, buf),
            (_, true, Some(from)) => endpoint.recv_expected(op, from, tag, buf),
            _ => endpoint.recv_unexpected(op, buf),
        };
        Writer::default().result(started.as_ref().map_err(|refused| &refused.error))
    }

    fn register(&mut self, request: &mut Reader) -> Writer {
        let key = request.word();
        let access = Access::from_bits(request.word() as u8).expect("an access");
        let lens: Vec<usize> = (0..request.word()).map(|_| request.word() as usize).collect();
        let memory = shared_memory(&recv_fd(&self.socket), &lens);
        match self.endpoint.register(memory, access) {
            Ok(memory) => {
                self.memories.insert(key, memory);
                Writer::default().word(0)
            }
            Err(error) => Writer::default().result::<()>(Err(&error)),
        }
    }

    fn transfer(&self, request: &mut Reader) -> Writer {
        let (put, op) = (request.flag(), OpId(request.word()));
        let peer = &self.addrs[request.word() as usize];
        let transfer = Transfer {
            local: self.memories[&request.word()].clone(),
            local_offset: request.word(),
            remote: request.remote(),
            remote_offset: request.word(),
            len: request.word(),
        };
        let started = match put {
            true => self.endpoint.put(op, peer, transfer),
            false => self.endpoint.get(op, peer, transfer),
        };
        Writer::default().result(started.as_ref())
    }

    fn poll(&mut self, budget: usize) -> Writer {
        let mut completions = Vec::new();
        let endpoint = self.endpoint.clone();
        if let Err(error) = endpoint.poll(budget, &mut |completion| completions.push(completion)) {
            return Writer::default().result::<()>(Err(&error));
        }
        let mut reply = Writer::default().word(0).word(completions.len() as u64);
        for completion in completions {
            reply = match completion {
                Completion::Send { op, buf, result } => reply
                    .word(call::SEND)
                    .word(op.0)
                    .result(result.as_ref())
                    .word(buf.capacity() as u64)
                    .bytes(buf.as_slice()),
                Completion::Recv { op, buf, result } => {
                    let (number, uri, tag) = match &result {
                        Ok(Arrival { from, tag }) => (self.number(from), from.uri(), tag.0),
                        Err(_) => (NOBODY, "", 0),
                    };
                    reply
                        .word(call::RECV)
                        .word(op.0)
                        .result(result.as_ref())
                        .word(buf.capacity() as u64)
                        .bytes(buf.as_slice())
                        .word(number)
                        .text(uri)
                        .word(tag.into())
                }
                Completion::Transfer { op, result } => {
                    reply.word(call::TRANSFER).word(op.0).result(result.as_ref())
                }
            };
        }
        let released: Vec<u64> = self.released.1.try_iter().collect();
        released.iter().fold(reply.word(released.len() as u64), |reply, key| reply.word(*key))
    }
}

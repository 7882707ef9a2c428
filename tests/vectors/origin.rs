//! The captured responses, sent as they are to a caller of ours by an endpoint that knows nothing
//! of the RPC layer: the caller gets what C's caller got, and its requests are those of C.
//!
//! Over every transport, whatever C used: the content of the messages is the same. Only descriptors
//! of memory differ: those in requests are of our caller's memory, those in results that overflow
//! of the endpoint's.

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Instant;

use margo::{ForwardError, ForwardRequest, Instance, OneWay, ProviderHandle, Rpc};
use na::{Access, Arrival, Completion, Endpoint, LocalMem, Memory, OpId, OpenOptions, Transfer};
use serde::de::DeserializeOwned;

use super::live::{BULK_SUM, NULL, SUM, level_name};
use super::*;
use crate::common::{PATIENCE, all_asked_for};

pub(super) type AllOfThem = (u8, i16, u32, i64, ConstStr, bool);

pub(super) const ALL_TYPES: Rpc<AllOfThem, (i32, String)> = Rpc::new("all_types");
pub(super) const NOT_REGISTERED: Rpc<(u32, u32), u64> = Rpc::new("not_registered_at_server");
const BIG_STRING: Rpc<String, u64> = Rpc::new("big_string");
pub(super) const SHUTDOWN: Rpc<(), i32> = Rpc::new("__shutdown__");
pub(super) const BIG_OUT: Rpc<u64, ConstStr> = Rpc::new("big_out");
const PUSH: Rpc<(u64, Bulk), u64> = Rpc::new("push");
const ONE_WAY: OneWay<ConstStr> = OneWay::new("oneway");

pub(super) const TCP: &str = "na+tcp://127.0.0.1:0";

/// A message of the caller.
pub(super) struct Asked {
    pub(super) arrival: Arrival,
    pub(super) bytes: Vec<u8>,
}

/// An endpoint where C's server was.
pub(super) struct Server {
    endpoint: Arc<dyn Endpoint>,
    next: Cell<u64>,
    ended: RefCell<Vec<Completion>>,
}

impl Server {
    fn open(transport: &str) -> Self {
        let endpoint = na::open(transport, &OpenOptions::listening(true)).unwrap();
        Self { endpoint, next: Cell::new(0), ended: RefCell::default() }
    }

    fn op(&self) -> OpId {
        self.next.set(self.next.get() + 1);
        OpId(self.next.get())
    }

    /// Polls until `done` says what came of it.
    fn until<T>(&self, what: &str, mut done: impl FnMut() -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            if let Some(value) = done() {
                return value;
            }
            assert!(begin.elapsed() < PATIENCE, "{what}: does not happen");
            self.endpoint.poll(8, &mut |end| self.ended.borrow_mut().push(end)).unwrap();
        }
    }

    fn is_of(end: &Completion, op: OpId) -> bool {
        match end {
            Completion::Send { op: of, .. }
            | Completion::Recv { op: of, .. }
            | Completion::Transfer { op: of, .. } => *of == op,
        }
    }

    /// How an operation ended: what came, if it is a receive.
    pub(super) fn end(&self, what: &str, op: OpId) -> Option<Asked> {
        let end = self.until(what, || {
            let mut ended = self.ended.borrow_mut();
            let at = ended.iter().position(|end| Self::is_of(end, op))?;
            Some(ended.swap_remove(at))
        });
        match end {
            Completion::Send { result, .. } | Completion::Transfer { result, .. } => {
                result.unwrap();
                None
            }
            Completion::Recv { result, buf, .. } => {
                Some(Asked { arrival: result.unwrap(), bytes: buf.as_slice().to_vec() })
            }
        }
    }

    pub(super) fn next_request(&self) -> Asked {
        let op = self.op();
        self.endpoint.recv_unexpected(op, self.endpoint.alloc_msg()).unwrap();
        self.end("a request", op).unwrap()
    }

    pub(super) fn respond(&self, to: &Arrival, bytes: &[u8]) {
        let (op, mut message) = (self.op(), self.endpoint.alloc_msg());
        assert!(message.try_extend(bytes));
        self.endpoint.send_expected(op, &to.from, to.tag, message).unwrap();
        self.end("a response", op);
    }

    /// Posts the receive of an acknowledgement.
    pub(super) fn await_ack(&self, of: &Arrival) -> OpId {
        let op = self.op();
        self.endpoint.recv_expected(op, &of.from, of.tag, self.endpoint.alloc_msg()).unwrap();
        op
    }

    /// It will not come.
    pub(super) fn give_up(&self, op: OpId) {
        self.endpoint.cancel(op);
        self.until("a cancel", || {
            let mut ended = self.ended.borrow_mut();
            let at = ended.iter().position(|end| Self::is_of(end, op))?;
            let end = ended.swap_remove(at);
            let canceled = matches!(end, Completion::Recv { result: Err(na::Error::Canceled), .. });
            assert!(canceled, "{end:?}");
            Some(())
        });
    }

    /// Bytes that the caller describes.
    fn get(&self, from: &Arrival, desc: &BulkDesc<'_>) -> Vec<u8> {
        let memory = Memory::zeroed(desc.len as usize).unwrap();
        let local = self.endpoint.register_local(memory, Access::WriteOnly).unwrap();
        self.transfer(from, desc, &local, |op, transfer| {
            self.endpoint.get(op, &from.from, transfer).unwrap();
        });
        let mut bytes = vec![0; desc.len as usize];
        assert!(local.read_at(0, &mut bytes));
        bytes
    }

    fn put(&self, to: &Arrival, desc: &BulkDesc<'_>, bytes: Vec<u8>) {
        let memory = Memory::from_vec(bytes);
        let local = self.endpoint.register_local(memory, Access::ReadOnly).unwrap();
        self.transfer(to, desc, &local, |op, transfer| {
            self.endpoint.put(op, &to.from, transfer).unwrap();
        });
    }

    /// For each memory handle of a descriptor.
    fn transfer(
        &self,
        peer: &Arrival,
        desc: &BulkDesc<'_>,
        local: &LocalMem,
        start: impl Fn(OpId, Transfer),
    ) {
        let handles: Vec<_> = match &desc.handles {
            Handles::One(handle) => vec![(handle.unwrap(), desc.len)],
            Handles::PerSegment(handles) => handles
                .iter()
                .zip(&desc.segments)
                .map(|(handle, segment)| (handle.unwrap(), segment.len))
                .collect(),
        };
        let mut local_offset = 0;
        for (handle, len) in handles {
            let remote = self.endpoint.mem_from_bytes(handle).unwrap();
            let op = self.op();
            let local = local.clone();
            start(op, Transfer { local, local_offset, remote, remote_offset: 0, len });
            self.end(&format!("a transfer with {:?}", peer.from), op);
            local_offset += len;
        }
        assert_eq!(local_offset, desc.len);
    }

    /// Memory with these bytes, and the descriptor of it.
    pub(super) fn expose(&self, bytes: &[u8]) -> (LocalMem, Vec<u8>) {
        let memory = Memory::from_vec(bytes.to_vec());
        let memory = self.endpoint.register(memory, Access::ReadOnly).unwrap();
        let desc = match self.endpoint.mem_parts(&memory) {
            Some(parts) => BulkDesc::of_parts(&parts, flags::READ, None).to_bytes(),
            None => {
                let handle = self.endpoint.mem_to_bytes(&memory);
                BulkDesc::opaque(bytes.len() as u64, flags::READ, &handle).to_bytes()
            }
        };
        (memory, desc)
    }
}

/// A caller of ours, and where its calls go.
pub(super) struct World {
    caller: Instance,
    pub(super) server: Server,
    pub(super) format: Format,
}

impl World {
    /// The caller is told of its target what a user has to say of C's.
    pub(super) fn new(transport: &str, format: Format) -> Self {
        let server = Server::open(transport);
        let own = transport.split("://").next().unwrap();
        let level = level_name(format.level());
        let build = if format.build() == Build::Plain { "plain" } else { "checksums" };
        let caller = margo::init(&format!(
            r#"{{ "mercury": {{ "checksum_level": "{level}" }},
                  "margo": {{ "address": "{own}://", "listen": false,
                              "mercury_build": "{build}" }} }}"#
        ));
        Self { caller: caller.unwrap(), server, format }
    }

    fn target(&self, provider: u16) -> ProviderHandle {
        let addr = self.caller.lookup(self.server.endpoint.self_addr().uri()).unwrap();
        ProviderHandle::new(addr, ProviderId::new(provider))
    }

    pub(super) fn start<A: Serialize, R: DeserializeOwned>(
        &self,
        rpc: Rpc<A, R>,
        provider: u16,
        args: &A,
    ) -> (ForwardRequest<R>, Asked) {
        let call = self.caller.rpc(rpc, &self.target(provider), args).start().unwrap();
        (call, self.server.next_request())
    }

    pub(super) fn result<R: DeserializeOwned>(
        &self,
        call: ForwardRequest<R>,
    ) -> Result<R, ForwardError> {
        let rpc = call.rpc_name();
        // By polling: some networks move when both sides do.
        self.server.until(rpc, || call.test().then_some(()));
        call.wait()
    }

    /// Calls, and is answered with these bytes.
    pub(super) fn call<A: Serialize, R: DeserializeOwned>(
        &self,
        rpc: Rpc<A, R>,
        provider: u16,
        args: &A,
        response: &[u8],
    ) -> (Asked, Result<R, ForwardError>) {
        let (call, asked) = self.start(rpc, provider, args);
        self.server.respond(&asked.arrival, response);
        (asked, self.result(call))
    }

    /// A captured call whose request describes no memory.
    fn check<A, R>(&self, call: &Call, rpc: Rpc<A, R>, provider: u16, args: &A, result: &R)
    where
        A: Serialize,
        R: DeserializeOwned + PartialEq + Debug,
    {
        let (asked, found) = self.call(rpc, provider, args, &call.response);
        assert_eq!(asked.bytes, call.request, "{}", call.title);
        assert_eq!(found.unwrap(), *result, "{}", call.title);
    }

    pub(super) fn end(self) {
        self.caller.finalize_and_wait().unwrap();
        self.server.endpoint.close();
    }
}

/// On every transport, with each file.
fn on_each(captures: impl Fn() -> Vec<Capture>, check: impl Fn(&World, &Capture)) {
    for transport in all_asked_for() {
        for capture in captures() {
            let world = World::new(transport, capture.format);
            check(&world, &capture);
            world.end();
        }
    }
}

pub(super) fn all_types() -> AllOfThem {
    (0xab, -2, 0xdead_beef, -1_234_567_890_123, ConstStr("hello".to_owned()), true)
}

#[test]
fn a_caller_gets_what_c_answers() {
    on_each(
        || all().collect(),
        |world, capture| {
            let call = |number, title| capture.call(number, title);
            world.check(call(0, "sum"), SUM, DEFAULT, &(40, 2), &42);
            world.check(call(1, "sum"), SUM, 42, &(u32::MAX, 1), &(1 << 32));
            let pong = (-7, "pong".to_owned());
            world.check(call(2, "all_types"), ALL_TYPES, DEFAULT, &all_types(), &pong);
            world.check(call(3, "null_rpc"), NULL, DEFAULT, &(), &());
            world.check(call(8, "shutdown"), SHUTDOWN, DEFAULT, &(), &0);

            let refused = call(4, "not_registered");
            let (asked, result) = world.call(NOT_REGISTERED, DEFAULT, &(1, 2), &refused.response);
            assert_eq!(asked.bytes, refused.request);
            let Err(ForwardError::NotRegistered { rpc, provider, .. }) = result else {
                panic!("{result:?}")
            };
            assert_eq!((rpc, provider), ("not_registered_at_server", ProviderId::DEFAULT));
        },
    );
}

#[test]
fn a_caller_whose_memory_was_read_gets_what_c_answers() {
    on_each(
        || all().collect(),
        |world, capture| {
            for (number, pieces, access) in [
                (5, vec![(0..64).collect::<Vec<u8>>()], Access::ReadOnly),
                (6, vec![(0..=255).cycle().take(4096).collect(); 2], Access::ReadWrite),
            ] {
                let call = capture.call(number, "bulk_sum");
                let all = pieces.concat();
                let memory = world.caller.expose(pieces, access).unwrap();
                let args = (all.len() as u64, memory.bulk().clone());
                let (request, asked) = world.start(BULK_SUM, DEFAULT, &args);
                let ours = Call { request: asked.bytes, ..call.clone() };
                let args = |call| capture.args(call, "bulk_sum", ProviderId::DEFAULT);
                let (n, bulk): (u64, Bulk) = proc::from_slice(args(&ours)).unwrap();
                let (n_of_c, bulk_of_c): (u64, Bulk) = proc::from_slice(args(call)).unwrap();
                assert_eq!((n, bulk.len()), (n_of_c, bulk_of_c.len()));
                assert_eq!(bulk.eager_data(), bulk_of_c.eager_data());
                let desc = BulkDesc::from_bytes(bulk.as_bytes()).unwrap();
                let read = match desc.eager {
                    Some(bytes) => bytes.to_vec(),
                    None => world.server.get(&asked.arrival, &desc),
                };
                assert_eq!(read, all);
                world.server.respond(&asked.arrival, &call.response);
                let sum: u64 = all.iter().map(|byte| u64::from(*byte)).sum();
                assert_eq!(world.result(request).unwrap(), sum);
            }
        },
    );
}

/// The arguments of a request that overflowed, fetched by the server.
fn fetched(world: &World, asked: &Asked) -> Vec<u8> {
    let (header, body) = wire::decode_request(world.format, &asked.bytes).unwrap();
    let Body::Overflow(desc) = body else { panic!("{header:?} has not overflowed") };
    let stream = world.server.get(&asked.arrival, &desc);
    header.verify(&stream).unwrap();
    stream
}

#[test]
fn a_caller_with_long_arguments_gets_what_c_answers() {
    on_each(
        || all().collect(),
        |world, capture| {
            let call = capture.call(7, "big_string");
            let text = "x".repeat(10_000);
            let (request, asked) = world.start(BIG_STRING, DEFAULT, &text);
            let stream = fetched(world, &asked);
            let (parent, args) = prefix::split_request(&stream).unwrap();
            assert_eq!(parent, prefix::NO_PARENT);
            assert_eq!(proc::from_slice::<&str>(args).unwrap(), text);
            world.server.respond(&asked.arrival, &call.response);
            assert_eq!(world.result(request).unwrap(), 10_000);
        },
    );
}

/// Runs `check` for each transport with each of the files in `more`.
fn on_each_more(check: impl Fn(&World, &more::More)) {
    for transport in all_asked_for() {
        for capture in more::all() {
            let world = World::new(transport, capture.format);
            check(&world, &capture);
            world.end();
        }
    }
}

#[test]
fn a_caller_whose_memory_was_written_gets_what_c_answers() {
    on_each_more(|world, capture| {
        for (number, n, pieces) in [(1, 64, 1), (2, 8192, 2)] {
            let [_, response] = capture.messages(number, "push", 1)[..] else { unreachable!() };
            let empty = vec![vec![0; n / pieces]; pieces];
            let memory = world.caller.expose(empty, Access::WriteOnly).unwrap();
            let args = (n as u64, memory.bulk().clone());
            let (request, asked) = world.start(PUSH, DEFAULT, &args);
            let (_, body) = wire::decode_request(world.format, &asked.bytes).unwrap();
            let Body::Inline(payload) = body else { panic!("overflowed") };
            let (_, args) = prefix::split_request(payload).unwrap();
            let (_, bulk): (u64, Bulk) = proc::from_slice(args).unwrap();
            let desc = BulkDesc::from_bytes(bulk.as_bytes()).unwrap();
            let data: Vec<u8> = (0..=255).cycle().take(n).collect();
            world.server.put(&asked.arrival, &desc, data.clone());
            world.server.respond(&asked.arrival, response);
            assert_eq!(world.result(request).unwrap(), 0);
            assert!(memory.release().unwrap().concat() == data, "{n} bytes");
        }
    });
}

/// Returns the stream of C's result of 10000 bytes, checked against the checksum of `response`.
pub(super) fn big_result(format: Format, response: &[u8]) -> Vec<u8> {
    let text = ConstStr("y".repeat(10_000));
    let stream = [&0i32.to_le_bytes()[..], &proc::to_vec(&text).unwrap()].concat();
    // By the checksum that C sent, where there is one.
    wire::decode_response(format, response).unwrap().0.verify(&stream).unwrap();
    stream
}

/// A response of C whose result is elsewhere: as captured, but for where that is.
pub(super) fn elsewhere(format: Format, response: &[u8], desc: &[u8]) -> Vec<u8> {
    [&response[..format.header_bytes()], &with_length(desc)].concat()
}

#[test]
fn a_caller_fetches_long_results_of_c_and_acknowledges_them() {
    on_each_more(|world, capture| {
        let messages = capture.messages(0, "big_out", 2);
        let [as_c, response, ack] = messages[..] else { unreachable!() };
        let (memory, desc) = world.server.expose(&big_result(world.format, response));
        let (request, asked) = world.start(BIG_OUT, DEFAULT, &10_000);
        assert_eq!(asked.bytes, as_c);
        let acknowledged = world.server.await_ack(&asked.arrival);
        world.server.respond(&asked.arrival, &elsewhere(world.format, response, &desc));
        assert_eq!(world.result(request).unwrap().0, "y".repeat(10_000));
        let ours = world.server.end("the acknowledgement", acknowledged).unwrap();
        assert_eq!(ours.bytes, ack);
        drop(memory);
    });
}

#[test]
fn one_way_calls_are_over_when_c_would_acknowledge_them() {
    on_each_more(|world, capture| {
        let send = |text: &str| {
            let text = ConstStr(text.to_owned());
            let call =
                world.caller.rpc(ONE_WAY, &world.target(DEFAULT), &text).start_send().unwrap();
            (call, world.server.next_request())
        };
        let [as_c] = capture.messages(3, "oneway", 0)[..] else { unreachable!() };
        let (call, asked) = send("abc");
        assert_eq!(asked.bytes, as_c);
        world.result(call).unwrap();

        let [_, ack] = capture.messages(4, "oneway", 1)[..] else { unreachable!() };
        let text = "x".repeat(10_000);
        let (call, asked) = send(&text);
        let stream = fetched(world, &asked);
        let (_, args) = prefix::split_request(&stream).unwrap();
        assert_eq!(proc::from_slice::<ConstStr<&str>>(args).unwrap().0, text);
        assert!(!call.test(), "the arguments are still C's to read");
        world.server.respond(&asked.arrival, ack);
        world.result(call).unwrap();
    });
}

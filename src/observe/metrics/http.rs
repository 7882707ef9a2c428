//! The server of `margo.metrics.listen`: one OS thread, which serves all clients in turn.
//!
//! It depends on nothing that a service can bring to a halt: no execution stream, no pool, no
//! progress. Nor can its clients stop it: there are at most [`CLIENTS_MAX`], and a client that
//! comes when there is no room takes the place of the one that has been there longest; each has
//! [`PATIENCE`], all in all, and [`HEAD_BYTES_MAX`] for its request. A descriptor is kept for one
//! of them, so that a process which has used up all others can still be looked at.
//!
//! | state | who |
//! |---|---|
//! | clients | the thread |
//! | `Server::running` | who starts and who ends it, under its lock |
//! | the bell, an eventfd | rung once, to end the thread |

use std::io::{ErrorKind, Read as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, thread};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::SendFlags;
use ult::Eventual;

use super::http_request::{self, Body, Content, HEAD_BYTES_MAX, ResponseKind, Status};
use crate::support::contain::contain;
use crate::support::log::{Log, log};

/// Clients at once.
const CLIENTS_MAX: usize = 32;
/// Time that a client has to ask and to take its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time that it has to close its end afterwards.
const LINGER: Duration = Duration::from_secs(1);
/// The time for which no client is let in when the process has no descriptor left.
const NO_FDS_PAUSE: Duration = Duration::from_millis(100);

/// A socket that listens, before there is a thread that serves it.
pub(crate) struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    bell: Arc<OwnedFd>,
    /// A descriptor, whose place a client gets when the process has no other.
    kept: Option<OwnedFd>,
}

impl Listener {
    /// Listens at `address` and port.
    pub(crate) fn bind(address: &str) -> io::Result<Self> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        Ok(Self { socket, address, bell, kept: spare() })
    }
}

/// The server of an instance, if it has one.
#[derive(Default)]
pub(crate) struct Server {
    running: Mutex<Option<HttpServerThread>>,
}

struct HttpServerThread {
    address: SocketAddr,
    bell: Arc<OwnedFd>,
    thread: JoinHandle<()>,
    /// Set when it is done.
    ended: Arc<Eventual<()>>,
}

/// Tells the end of the thread, also that by a panic.
struct TellEnd(Arc<Eventual<()>>);

impl Drop for TellEnd {
    fn drop(&mut self) {
        // Nobody else sets it.
        let _ = self.0.set(());
    }
}

impl Server {
    fn running(&self) -> MutexGuard<'_, Option<HttpServerThread>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to serve what `body` returns for each content at each time; `None`: there is nothing
    /// any more. It may panic: pools and schedulers of users are asked how they are.
    pub(crate) fn start(
        &self,
        listener: Listener,
        log: Log,
        body: impl Fn(Content) -> Option<Body> + Send + 'static,
    ) -> io::Result<()> {
        let (address, bell) = (listener.address, listener.bell.clone());
        let ended = Arc::new(Eventual::new());
        let tell_end = TellEnd(ended.clone());
        let thread = thread::Builder::new().name("margo-metrics".to_owned()).spawn(move || {
            let _tell_end = tell_end;
            let read_log = log.clone();
            let asked = "what is asked for metrics";
            let read = |content| match contain(&read_log, asked, || body(content)) {
                Some(Some(body)) => Read::Body(body),
                Some(None) => Read::Nothing,
                None => Read::Panicked,
            };
            Loop::new(listener, log, &read).run();
        })?;
        *self.running() = Some(HttpServerThread { address, bell, thread, ended });
        Ok(())
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.running().as_ref().map(|running| running.address)
    }

    /// Tells it to end, which it does soon, unless a pool of a user's does not answer how full it
    /// is; `wait` waits for that, for a limited time, and says whether it has ended. The port is
    /// free then. Returns what `wait` does; `true`: there is none.
    pub(crate) fn end(&self, wait: impl FnOnce(&Eventual<()>) -> bool) -> bool {
        let Some(HttpServerThread { bell, thread, ended, .. }) = self.running().take() else {
            return true;
        };
        na::lost::ring(&*bell, "the eventfd that ends the metrics port");
        let has_ended = wait(&ended);
        if has_ended {
            thread.join().unwrap_or_else(ult::integration::discard_panic);
        }
        has_ended
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Not waited for: its thread may be the one that held the instance to the last.
        self.end(|_| false);
    }
}

/// The body that there is for a client, if any.
enum Read {
    Body(Body),
    /// There will be none any more.
    Nothing,
    Panicked,
}

/// How far a client is.
enum ClientStage {
    Asking(Vec<u8>),
    /// The answer, and how much of it is sent.
    Answering(Vec<u8>, usize),
    /// It has the answer. If we closed first with something unread, the system would tell it to
    /// throw that away.
    Leaving,
}

struct Client {
    stream: TcpStream,
    stage: ClientStage,
    deadline: Instant,
}

/// The state of a client after a step.
#[derive(PartialEq)]
enum ClientFate {
    /// There is more to come.
    Stays,
    Gone,
}

struct Loop<'a> {
    listener: Listener,
    log: Log,
    read: &'a dyn Fn(Content) -> Read,
    /// In the order in which they came.
    clients: Vec<Client>,
    accepts_from: Option<Instant>,
}

impl<'a> Loop<'a> {
    fn new(listener: Listener, log: Log, read: &'a dyn Fn(Content) -> Read) -> Self {
        Self { listener, log, read, clients: Vec::new(), accepts_from: None }
    }

    fn run(mut self) {
        while let Some((may_accept, ready)) = self.wait() {
            self.serve(&ready);
            if self.listener.kept.is_none() {
                self.listener.kept = spare();
            }
            if may_accept {
                self.accept();
            }
        }
        // Closing ours would leave it to copies that processes have which were forked off, whom the
        // port would then belong to.
        let _ = rustix::net::shutdown(&self.listener.socket, rustix::net::Shutdown::Read);
    }

    /// Waits until there is something to do: whether a client wants to come in, and for which
    /// clients there is news. `None`: it is to end.
    fn wait(&mut self) -> Option<(bool, Vec<bool>)> {
        let now = Instant::now();
        if self.accepts_from.is_some_and(|time| time <= now) {
            self.accepts_from = None;
        }
        let deadlines = self.clients.iter().map(|client| client.deadline);
        let until = deadlines.chain(self.accepts_from).min();
        let limit = until.map(|time| timespec(time.saturating_duration_since(now)));
        let door = match self.accepts_from {
            None => PollFlags::IN,
            Some(_) => PollFlags::empty(),
        };
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.listener.bell.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.listener.socket.as_fd(), door),
        ];
        fds.extend(self.clients.iter().map(|client| {
            let wanted = match client.stage {
                ClientStage::Asking(_) | ClientStage::Leaving => PollFlags::IN,
                ClientStage::Answering(..) => PollFlags::OUT,
            };
            PollFd::from_borrowed_fd(client.stream.as_fd(), wanted)
        }));
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) => {}
            // As if nothing had happened.
            Err(rustix::io::Errno::INTR) => return Some((false, vec![false; self.clients.len()])),
            Err(error) => {
                let log = &self.log;
                log!(log, ERROR, %error, "the metrics server cannot wait for its clients; it ends");
                return None;
            }
        }
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        if ready.next()? {
            return None;
        }
        Some((ready.next()?, ready.collect()))
    }

    fn serve(&mut self, ready: &[bool]) {
        let (now, read) = (Instant::now(), self.read);
        let mut ready = ready.iter();
        self.clients.retain_mut(|client| {
            let is_ready = *ready.next().unwrap_or(&false);
            let next = if is_ready { client.go_on(read) } else { ClientFate::Stays };
            next == ClientFate::Stays && client.deadline > now
        });
    }

    fn accept(&mut self) {
        let Listener { socket, kept, .. } = &mut self.listener;
        let accepted = socket.accept().or_else(|error| {
            if is_passing(error.kind()) || kept.take().is_none() {
                return Err(error);
            }
            socket.accept()
        });
        match accepted {
            Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                if self.clients.len() >= CLIENTS_MAX {
                    self.clients.remove(0);
                }
                let (stage, deadline) =
                    (ClientStage::Asking(Vec::new()), Instant::now() + PATIENCE);
                self.clients.push(Client { stream, stage, deadline });
            }
            Ok(_) => {}
            Err(error) if is_passing(error.kind()) => {}
            Err(error) => {
                // No descriptors, no memory: whoever has been here longest gives some back.
                log!(self.log, DEBUG, %error, "the metrics server cannot let a client in");
                self.clients.drain(..self.clients.len().min(1));
                self.accepts_from = Some(Instant::now() + NO_FDS_PAUSE);
            }
        }
    }
}

/// A descriptor, if there is one.
fn spare() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC).ok()
}

/// Errors of one connection, or none at all.
fn is_passing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted)
}

fn timespec(time: Duration) -> Timespec {
    // Rounded up: a poll that ends early would be repeated.
    let time = time + Duration::from_millis(1);
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

impl Client {
    fn go_on(&mut self, read: &dyn Fn(Content) -> Read) -> ClientFate {
        let done = match &mut self.stage {
            ClientStage::Asking(_) => self.listen(read),
            ClientStage::Answering(..) => self.tell(),
            ClientStage::Leaving => self.see_off(),
        };
        match done {
            Ok(next) => next,
            Err(error) if is_passing(error.kind()) => ClientFate::Stays,
            Err(_) => ClientFate::Gone,
        }
    }

    fn listen(&mut self, read: &dyn Fn(Content) -> Read) -> io::Result<ClientFate> {
        let ClientStage::Asking(head) = &mut self.stage else { return Ok(ClientFate::Stays) };
        let mut bytes = [0; 2048];
        let room = (HEAD_BYTES_MAX - head.len()).min(bytes.len());
        let got = self.stream.read(&mut bytes[..room])?;
        if got == 0 {
            return Ok(ClientFate::Gone);
        }
        head.extend_from_slice(&bytes[..got]);
        let Some(asked) = http_request::parse(head) else { return Ok(ClientFate::Stays) };
        let answer = match asked {
            ResponseKind::Other(status) => status.response(),
            ResponseKind::Content(content, with_body) => match read(content) {
                Read::Body(body) => http_request::content(content, &body, with_body),
                Read::Nothing => return Ok(ClientFate::Gone),
                Read::Panicked => Status::InternalServerError.response(),
            },
        };
        self.stage = ClientStage::Answering(answer, 0);
        self.tell()
    }

    fn tell(&mut self) -> io::Result<ClientFate> {
        let ClientStage::Answering(answer, sent) = &mut self.stage else {
            return Ok(ClientFate::Stays);
        };
        while *sent < answer.len() {
            // The process may be a C program's, which a SIGPIPE would end.
            *sent += rustix::net::send(&self.stream, &answer[*sent..], SendFlags::NOSIGNAL)?;
        }
        self.stream.shutdown(Shutdown::Write)?;
        self.stage = ClientStage::Leaving;
        self.deadline = self.deadline.min(Instant::now() + LINGER);
        Ok(ClientFate::Stays)
    }

    fn see_off(&mut self) -> io::Result<ClientFate> {
        let got = self.stream.read(&mut [0; 2048])?;
        Ok(if got == 0 { ClientFate::Gone } else { ClientFate::Stays })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_panic_of_what_is_asked_is_an_error_for_who_asks_and_no_more() {
        let (server, asked) = (Server::default(), AtomicUsize::new(0));
        let body = move |_| match asked.fetch_add(1, Ordering::Relaxed) {
            1 => Some("a 1\n".to_owned().into()),
            _ => panic!("a pool of a user"),
        };
        server.start(Listener::bind("127.0.0.1:0").unwrap(), Log::default(), body).unwrap();
        let scrape = || {
            let mut stream = TcpStream::connect(server.address().unwrap()).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        };
        for status in ["500 Internal Server Error", "200 OK", "500 Internal Server Error"] {
            let answer = scrape();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{answer}");
        }
        let wait = |ended: &Eventual<()>| {
            ended.wait();
            true
        };
        assert!(server.end(wait));
    }
}

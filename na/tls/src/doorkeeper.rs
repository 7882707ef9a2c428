//! The thread that makes the handshakes of an endpoint, so that no poll waits for one.
//!
//! A poller hands over a socket ([`Doorkeeper::secure`]) and goes on. When the handshake has ended,
//! its outcome lies on the poller's [`Desk`], whose bell rings. The poller bounds how many
//! handshakes there are and how long each may take: it shuts a socket down that it has given up,
//! and the handshake ends with that.
//!
//! | state | written by | read by |
//! |---|---|---|
//! | `jobs` | pollers | the thread |
//! | a turn | the thread | its poller |
//! | a desk | the thread | its poller |
//! | handshakes | the thread | the thread |

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use na_core::Error;
use prim::fork::Process;
use prim::sync::{Arc, Mutex, lock};
use prim::{lost, signals};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use crate::handshake::{Failure, Handshake, Progress, Secured};
use crate::trust::settings::Settings;

/// Events that are taken by one call.
const EVENTS_MAX: usize = 64;

/// The key of the bell in the epoll set.
const BELL: u64 = u64::MAX;

/// How bells are called, should one be lost.
const BELL_NAME: &str = "an eventfd by which handshakes of TLS are handed over";

/// How long the end of the thread is waited for. It takes as long as one step of a handshake,
/// unless a file that it reads is on a server that does not answer.
const END_WITHIN: Duration = Duration::from_secs(1);

/// Which side of a handshake is ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The peer was dialed at this address.
    Dialer(IpAddr),
    /// The peer has dialed us.
    Acceptor,
}

/// A handshake to be made.
#[derive(Debug)]
pub struct Job {
    /// The connection, which exists.
    pub socket: Arc<OwnedFd>,
    /// Our side.
    pub role: Role,
    /// The number by which the poller knows the connection.
    pub key: u64,
    /// Where the outcome goes.
    pub desk: Arc<Desk>,
    /// The part of its state that the poller sees meanwhile.
    pub turn: Arc<Turn>,
}

/// Since when a handshake waits for its peer, and not for us: who has few places for handshakes
/// takes them from those that wait for longest.
#[derive(Debug, Default)]
pub struct Turn(Mutex<Option<Instant>>);

impl Turn {
    /// Since when the peer has all that we have to say; `None` while it is our turn.
    pub fn of_peer_since(&self) -> Option<Instant> {
        *lock(&self.0)
    }

    fn is_of_peer(&self) {
        *lock(&self.0) = Some(Instant::now());
    }
}

/// A handshake that has ended.
#[derive(Debug)]
pub struct Outcome {
    /// As in the job.
    pub key: u64,
    /// Both directions, or why there are none.
    pub result: Result<Box<Secured>, Failure>,
}

/// Where a poller finds the outcomes of its jobs.
#[derive(Debug)]
pub struct Desk {
    outcomes: Mutex<Vec<Outcome>>,
    bell: OwnedFd,
}

impl Desk {
    /// An empty one.
    ///
    /// # Errors
    ///
    /// The system has no descriptor for its bell.
    pub fn new() -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self { outcomes: Mutex::default(), bell: bell()? }))
    }

    /// A descriptor that can be read when there are outcomes.
    pub fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// Takes the outcomes that are there.
    pub fn take(&self) -> Vec<Outcome> {
        lost::silence(&self.bell, BELL_NAME);
        std::mem::take(&mut lock(&self.outcomes))
    }

    fn put(&self, outcome: Outcome) {
        lock(&self.outcomes).push(outcome);
        lost::ring(&self.bell, BELL_NAME);
    }
}

fn bell() -> Result<OwnedFd, Error> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| Error::io("cannot create an eventfd", errno))
}

struct Shared {
    settings: Arc<Settings>,
    /// `None`: the doorkeeper has gone.
    jobs: Mutex<Option<Vec<Job>>>,
    bell: OwnedFd,
}

/// See the module's documentation. Dropping it ends its thread, and every handshake that has not
/// ended.
pub struct Doorkeeper {
    shared: Arc<Shared>,
    /// The thread, and what is closed when it is about to end.
    thread: Mutex<Option<(JoinHandle<()>, Receiver<()>)>>,
    process: Process,
}

impl std::fmt::Debug for Doorkeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Doorkeeper")
            .field("settings", &self.shared.settings)
            .finish_non_exhaustive()
    }
}

impl Doorkeeper {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The system has no thread or no descriptor left.
    pub fn start(settings: Arc<Settings>) -> Result<Self, Error> {
        let failed = |errno| Error::io("cannot create an epoll instance", errno);
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
        let shared = Shared { settings, jobs: Mutex::new(Some(Vec::new())), bell: bell()? };
        epoll::add(&epoll, &shared.bell, EventData::new_u64(BELL), EventFlags::IN)
            .map_err(|errno| Error::io("cannot watch a descriptor", errno))?;
        let shared = Arc::new(shared);
        let own = shared.clone();
        let (runs, ends) = channel::<()>();
        let thread = std::thread::Builder::new().name("margo-tls".to_owned());
        let thread = thread
            .spawn(move || {
                let _runs = runs;
                Desks { shared: own, epoll, open: Vec::new() }.run();
            })
            .map_err(|error| Error::io("cannot start the thread for TLS handshakes", error))?;
        Ok(Self { shared, thread: Mutex::new(Some((thread, ends))), process: Process::current() })
    }

    /// The end of the certificate that we show, seconds since 1970, if it is one.
    pub fn certificate_expires(&self) -> Option<u64> {
        self.shared.settings.certificate_expires()
    }

    /// Reads files that have changed again, as the next handshake would.
    pub fn look_at_files(&self) {
        self.shared.settings.look_at_files();
    }

    /// Makes a handshake some time soon.
    pub fn secure(&self, job: Job) {
        if let Some(jobs) = &mut *lock(&self.shared.jobs) {
            jobs.push(job);
        }
        lost::ring(&self.shared.bell, BELL_NAME);
    }
}

impl Drop for Doorkeeper {
    fn drop(&mut self) {
        let Some((thread, ends)) = lock(&self.thread).take() else { return };
        // A child that was forked off has no thread, and its bell is its parent's.
        if self.process.is_other() {
            return std::mem::forget(thread);
        }
        lock(&self.shared.jobs).take();
        lost::ring(&self.shared.bell, BELL_NAME);
        if let Err(RecvTimeoutError::Timeout) = ends.recv_timeout(END_WITHIN) {
            tracing::warn!("the thread for TLS handshakes goes on: it waits for a file");
            return;
        }
        let ended = thread.join();
        debug_assert!(ended.is_ok(), "the thread for handshakes has panicked");
    }
}

/// A handshake that waits for its socket.
struct Open {
    job: Job,
    handshake: Box<Handshake>,
    /// It waits for room to write.
    writes: bool,
}

/// The work of the thread.
struct Desks {
    shared: Arc<Shared>,
    epoll: OwnedFd,
    /// By the number in their events.
    open: Vec<Option<Open>>,
}

impl Desks {
    fn run(mut self) {
        signals::block_all();
        let no_event = epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        loop {
            let mut events = [no_event; EVENTS_MAX];
            let count = match epoll::wait(&self.epoll, &mut events, None) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => 0,
                Err(errno) => {
                    tracing::error!(%errno, "the thread for TLS handshakes cannot wait: it ends");
                    return;
                }
            };
            for event in &events[..count] {
                match event.data.u64() {
                    BELL if !self.take_jobs() => return,
                    BELL => {}
                    at => self.go_on(at as usize),
                }
            }
        }
    }

    /// Returns `false` when there is nothing more to do.
    fn take_jobs(&mut self) -> bool {
        lost::silence(&self.shared.bell, BELL_NAME);
        let Some(jobs) = lock(&self.shared.jobs).as_mut().map(std::mem::take) else { return false };
        jobs.into_iter().for_each(|job| self.begin(job));
        true
    }

    fn begin(&mut self, job: Job) {
        let sides = self.shared.settings.sides();
        let handshake = match job.role {
            Role::Dialer(address) => Handshake::dial(sides, address),
            Role::Acceptor => Handshake::accept(sides, remote_ip(&job.socket)),
        };
        match handshake {
            Ok(handshake) => {
                let at = match self.open.iter().position(Option::is_none) {
                    Some(at) => at,
                    None => {
                        self.open.push(None);
                        self.open.len() - 1
                    }
                };
                self.advance(at, Open { job, handshake: Box::new(handshake), writes: false }, true);
            }
            Err(error) => end(job, Err(Failure::Refused(error.to_string()))),
        }
    }

    fn go_on(&mut self, at: usize) {
        if let Some(open) = self.open.get_mut(at).and_then(Option::take) {
            self.advance(at, open, false);
        }
    }

    /// Goes on with a handshake, and keeps it at its place if it has to wait.
    fn advance(&mut self, at: usize, open: Open, is_new: bool) {
        let Open { job, handshake, writes } = open;
        let (progress, handshake) = handshake.advance(&*job.socket);
        let result = match (progress, handshake) {
            (Progress::Waits(for_room), Some(mut handshake)) => {
                // Bytes of the peer do not count: it may send one at a time.
                if handshake.take_has_spoken() || is_new {
                    job.turn.is_of_peer();
                }
                let wanted = if for_room { EventFlags::OUT } else { EventFlags::IN };
                let data = EventData::new_u64(at as u64);
                let watched = match is_new {
                    true => epoll::add(&self.epoll, &*job.socket, data, wanted),
                    false if writes != for_room => {
                        epoll::modify(&self.epoll, &*job.socket, data, wanted)
                    }
                    false => Ok(()),
                };
                match watched {
                    Ok(()) => {
                        self.open[at] = Some(Open { job, handshake, writes: for_room });
                        return;
                    }
                    Err(errno) => {
                        Err(Failure::Ended(format!("its socket cannot be watched: {errno}")))
                    }
                }
            }
            (Progress::Done(secured), _) => Ok(secured),
            (Progress::Failed(failure), _) => Err(failure),
            (Progress::Waits(_), None) => Err(Failure::Ended("a handshake was lost".to_owned())),
        };
        if !is_new {
            let _ = epoll::delete(&self.epoll, &*job.socket);
        }
        end(job, result);
    }
}

fn end(job: Job, result: Result<Box<Secured>, Failure>) {
    job.desk.put(Outcome { key: job.key, result });
}

fn remote_ip(socket: impl AsFd) -> Option<IpAddr> {
    let address = rustix::net::getpeername(socket).ok()??;
    SocketAddr::try_from(address).ok().map(|address| address.ip())
}

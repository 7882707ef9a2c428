//! Row `na.tcp.handshakes`: connections that both sides make private in a second, on one core.
//!
//! One thread for handshakes dials and another one accepts, as those of two endpoints do, with 32
//! handshakes under way, between sockets on loopback. Both sides show a certificate's worth of
//! proof, the public keys that follow from a secret. No floor: rustls makes all of it. An endpoint
//! makes half of the work that is counted here.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use na_tls::{Desk, Doorkeeper, Job, Role, Settings};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::base::{Doing, Figure, OrFail, Result, Samples};
use crate::floors::tls;
use crate::process::Context;

/// Handshakes under way.
const UNDER_WAY: usize = 32;

/// Handshakes in one sample.
const SLICE: usize = 64;

/// One side of all handshakes.
struct Side {
    doorkeeper: Doorkeeper,
    desk: Arc<Desk>,
}

impl Side {
    fn new(settings: &Arc<Settings>) -> Result<Self> {
        let doorkeeper = Doorkeeper::start(settings.clone()).doing("starting a side")?;
        Ok(Self { doorkeeper, desk: Desk::new().doing("starting a side")? })
    }

    fn secure(&self, socket: OwnedFd, role: Role) {
        let (socket, desk) = (Arc::new(socket), self.desk.clone());
        self.doorkeeper.secure(Job { socket, role, key: 0, desk, turn: Arc::default() });
    }

    /// Handshakes that have ended, all of them well.
    fn ended(&self) -> Result<usize> {
        let outcomes = self.desk.take();
        let count = outcomes.len();
        for outcome in outcomes {
            outcome.result.map_err(|failure| format!("{failure:?}")).doing("a handshake")?;
        }
        Ok(count)
    }
}

/// The row.
pub(crate) fn rate(context: &Context) -> Result<Figure> {
    let (slices, limit) = if context.quick { (2, 500) } else { (200, 5_000) };
    let wanted = na::TcpSecurity::ClusterSecret(tls::secret_file()?);
    let settings = Settings::load(&wanted).doing("reading a secret")?.or_fail("no settings")?;
    let settings = Arc::new(settings);
    let (dialer, acceptor) = (Side::new(&settings)?, Side::new(&settings)?);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let begin = || -> Result<()> {
        let dialed = std::net::TcpStream::connect(address)?;
        let (accepted, _) = listener.accept()?;
        dialed.set_nonblocking(true)?;
        accepted.set_nonblocking(true)?;
        acceptor.secure(accepted.into(), Role::Acceptor);
        dialer.secure(dialed.into(), Role::Dialer(address.ip()));
        Ok(())
    };
    let mut samples = Samples::new(slices, SLICE as u32);
    let (mut begun, mut done, mut counted) = (0, [0, 0], 0);
    let end = Instant::now() + Duration::from_millis(limit);
    let (start, mut last) = (Instant::now(), Instant::now());
    while counted < slices * SLICE && Instant::now() < end {
        while begun - done[0].min(done[1]) < UNDER_WAY {
            begin()?;
            begun += 1;
        }
        let mut bells =
            [&dialer, &acceptor].map(|side| PollFd::new(side.desk.bell(), PollFlags::IN));
        let patience = Timespec { tv_sec: 1, tv_nsec: 0 };
        poll(&mut bells, Some(&patience)).doing("waiting for handshakes")?;
        done[0] += dialer.ended()?;
        done[1] += acceptor.ended()?;
        while done[0].min(done[1]) >= counted + SLICE {
            counted += SLICE;
            let now = Instant::now();
            samples.push(now - last);
            last = now;
        }
        context.deadline.check("handshakes")?;
    }
    let rate = counted as f64 / start.elapsed().as_secs_f64();
    Ok(Figure { value: Some(rate), ..Figure::median(samples.rate(), None) })
}

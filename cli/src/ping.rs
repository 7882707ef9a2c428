//! `margo ping`: calls a service again and again, and says how long each call takes.
//!
//! Each call is made by a ULT of this process, so that its time has no wake of an OS thread in it
//! on this side; the main thread waits for the answer, the next turn, or a signal.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use margo::{Addr, ForwardError, Instance};

use crate::args::PingArgs;
use crate::support::output;
use crate::support::peer::Callers;
use crate::support::signals::Caught;
use margo::daemon::Failure;

/// Times that the percentiles are of: the newest ones.
const TIMES_MAX: usize = 1 << 20;

/// The end of a wait of the main thread.
enum Event {
    /// A call has ended after so long.
    Ended(Duration, Result<(), ForwardError>),
    /// The user has seen enough.
    Stop,
}

pub(crate) fn run(args: &PingArgs) -> Result<(), Failure> {
    let signals = Caught::new()?;
    let mut callers = Callers::with(args.client.config.as_deref())?;
    let (instance, peer) = callers.reach(&args.address)?;
    let (events, heard) = channel();
    let stop = events.clone();
    // The main thread has ended if it hears of nothing any more.
    signals.handle(move || _ = stop.send(Event::Stop), || ());
    let pinged = Pinger { args, instance, peer, events, heard }.run();
    callers.end().and(pinged)
}

struct Pinger<'a> {
    args: &'a PingArgs,
    instance: Instance,
    peer: Addr,
    events: Sender<Event>,
    heard: Receiver<Event>,
}

impl Pinger<'_> {
    fn run(&self) -> Result<(), Failure> {
        let bytes = output::count(self.args.size.into(), "byte");
        output::line(format_args!("ping {}: {bytes} there and back", self.peer))?;
        let mut tally = PingTimes::default();
        let told = self.each(&mut tally);
        told.and_then(|()| output::line(tally.summary(&self.peer.to_string())))?;
        match tally.answered {
            0 => Err(Failure::Failed(format!("{} has not answered", self.peer))),
            _ => Ok(()),
        }
    }

    fn each(&self, tally: &mut PingTimes) -> Result<(), Failure> {
        let interval = Duration::from_secs_f64(self.args.interval);
        let count = self.args.count.unwrap_or(u64::MAX);
        while tally.sent < count {
            let begun = Instant::now();
            self.call()?;
            tally.sent += 1;
            match self.heard.recv() {
                Ok(Event::Ended(time, result)) => self.tell(tally, time, &result)?,
                Ok(Event::Stop) | Err(_) => {
                    // Nobody has waited for its answer to the end.
                    tally.sent -= 1;
                    return Ok(());
                }
            }
            if tally.sent == count {
                break;
            }
            match self.heard.recv_timeout(interval.saturating_sub(begun.elapsed())) {
                Err(RecvTimeoutError::Timeout) => {}
                _ => break,
            }
        }
        Ok(())
    }

    fn call(&self) -> Result<(), Failure> {
        let (instance, peer, events) =
            (self.instance.clone(), self.peer.clone(), self.events.clone());
        let limit = Duration::from_secs_f64(self.args.limit);
        let payload = vec![0x5a; self.args.size as usize];
        let call = move || {
            let begun = Instant::now();
            let result = instance.network().ping(&peer, &payload, limit);
            // Nobody listens any more after a signal.
            let _ = events.send(Event::Ended(begun.elapsed(), result));
        };
        let ult = self.instance.layout().rpc_pool().spawn(call);
        ult.map(drop).map_err(|error| Failure::new("cannot call", error))
    }

    fn tell(
        &self,
        tally: &mut PingTimes,
        time: Duration,
        result: &Result<(), ForwardError>,
    ) -> Result<(), Failure> {
        let seq = tally.sent;
        match result {
            Ok(()) => {
                tally.take(time);
                let time = output::time(time.as_secs_f64());
                output::line(format_args!("from {}: seq={seq} time={time}", self.peer))
            }
            Err(error) => {
                // It may repeat what the service has sent.
                let why = output::printable(&error.to_string());
                output::line(format_args!("lost: seq={seq} {why}"))
            }
        }
    }
}

/// The calls so far.
#[derive(Default)]
struct PingTimes {
    sent: u64,
    answered: u64,
    sum: Duration,
    min: Duration,
    max: Duration,
    /// The last [`TIMES_MAX`] times.
    times: VecDeque<Duration>,
}

impl PingTimes {
    fn take(&mut self, time: Duration) {
        self.min = if self.answered == 0 { time } else { self.min.min(time) };
        self.max = self.max.max(time);
        self.answered += 1;
        self.sum += time;
        if self.times.len() == TIMES_MAX {
            self.times.pop_front();
        }
        self.times.push_back(time);
    }

    fn summary(&self, peer: &str) -> String {
        let lost = self.sent - self.answered;
        #[expect(clippy::cast_precision_loss, reason = "a percentage")]
        let percent = if self.sent == 0 { 0.0 } else { 100.0 * lost as f64 / self.sent as f64 };
        let mut text = format!(
            "--- {peer} ---\n{} sent, {} answered, {} lost ({percent:.0} %)",
            self.sent, self.answered, lost
        );
        if self.answered == 0 {
            return text;
        }
        #[expect(clippy::cast_precision_loss, reason = "an average")]
        let avg = self.sum.as_secs_f64() / self.answered as f64;
        let mut sorted: Vec<_> = self.times.iter().copied().collect();
        sorted.sort_unstable();
        // The smallest time that no less than so many percent do not exceed.
        let at = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1];
        for (name, seconds) in [
            ("\nmin", self.min.as_secs_f64()),
            ("  avg", avg),
            ("  max", self.max.as_secs_f64()),
            ("  p50", at(50).as_secs_f64()),
            ("  p99", at(99).as_secs_f64()),
        ] {
            let _ = write!(text, "{name} {}", output::time(seconds));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let mut tally = PingTimes { sent: 200, ..PingTimes::default() };
        (1..=100).rev().for_each(|micros| tally.take(Duration::from_micros(micros)));
        assert_eq!(
            tally.summary("a"),
            "--- a ---\n200 sent, 100 answered, 100 lost (50 %)\n\
             min 1.0 us  avg 50 us  max 100 us  p50 50 us  p99 99 us"
        );
    }

    #[test]
    fn one_answer_and_none_have_a_summary() {
        let mut tally = PingTimes { sent: 1, ..PingTimes::default() };
        assert_eq!(tally.summary("a"), "--- a ---\n1 sent, 0 answered, 1 lost (100 %)");
        tally.take(Duration::from_millis(3));
        assert!(tally.summary("a").ends_with("max 3.0 ms  p50 3.0 ms  p99 3.0 ms"));
        let nothing = PingTimes::default().summary("a");
        assert_eq!(nothing, "--- a ---\n0 sent, 0 answered, 0 lost (0 %)");
    }
}

//! Floor of `ult.wake.parked`: two threads that wake each other through bare futexes, each sleeping
//! in the kernel between its turns.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex::{self, Flags};

use crate::base::{Cores, Deadline, Result, Samples};

/// One direction: a number that only grows.
#[derive(Debug, Default)]
struct Word(AtomicU32);

impl Word {
    fn publish(&self, number: u32) {
        // pair: FUTEX-WORD
        self.0.store(number, Ordering::Release);
        // Fails only for a bad address, and ours is good.
        let _ = futex::wake(&self.0, Flags::PRIVATE, 1);
    }

    /// Sleeps until `number` is there or `STOP`.
    fn take(&self, number: u32, deadline: Deadline) -> Result<u32> {
        loop {
            // pair: FUTEX-WORD
            let seen = self.0.load(Ordering::Acquire);
            if seen == number || seen == STOP {
                return Ok(seen);
            }
            deadline.check("the other thread's wake-up")?;
            let nap = futex::Timespec { tv_sec: 1, tv_nsec: 0 };
            // Every outcome means: look again.
            let _ = futex::wait(&self.0, Flags::PRIVATE, seen, Some(&nap));
        }
    }
}

const STOP: u32 = u32::MAX;

/// One round of round trips. Two wake-ups each, so `samples` is made for two operations.
///
/// # Errors
///
/// When there is one core only, or the other thread does not answer in time.
pub(crate) fn round(cores: Cores, samples: &mut Samples, deadline: Deadline) -> Result<()> {
    let (ping, pong) = (Word::default(), Word::default());
    let answering = || {
        for number in 1.. {
            if ping.take(number, deadline)? == STOP {
                break;
            }
            pong.publish(number);
        }
        Ok(())
    };
    let calling = || {
        let mut number = 0;
        let called = samples.each(|| {
            number += 1;
            ping.publish(number);
            pong.take(number, deadline).map(drop)
        });
        // However it went: the other one sleeps.
        ping.publish(STOP);
        called
    };
    cores.run_on_both(calling, answering)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Effort;
    use std::time::Duration;

    #[test]
    fn both_threads_end_and_every_trip_is_a_sample() {
        let Ok(cores) = Cores::first_allowed() else { return };
        let effort =
            Effort { rounds: 1, samples: 20, warmup: 2, round_max: Duration::from_secs(60) };
        let mut samples = effort.room(2);
        let result = round(cores, &mut samples, Deadline::after(Duration::from_secs(60)));
        match cores.target {
            Some(_) => {
                result.unwrap();
                assert_eq!(samples.latency().n, 20);
            }
            None => assert!(result.unwrap_err().to_string().contains("two cores")),
        }
    }
}

//! Floor of `ult.channel.*`: a ring of words from one thread to another, which cannot be closed,
//! and at which nobody sleeps. A word that is not zero is full, so the sides share the words alone.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::base::{Cores, Deadline, Failure, Result, Samples};

/// As many items as the channels of the rows hold.
const ROOM: usize = 1024;

/// Looks at a word between two looks at the clock.
const LOOKS: u32 = 1 << 16;

/// One round: the times in which the second thread takes items that the first one sends one by one.
///
/// # Errors
///
/// When there is one core only, an item is lost, or the first thread is not there in time.
pub(crate) fn round(cores: Cores, samples: &mut Samples, deadline: Deadline) -> Result<()> {
    let ring: Box<[AtomicU64]> = std::iter::repeat_with(AtomicU64::default).take(ROOM).collect();
    let over = AtomicBool::new(false);
    let send = || {
        for number in 1u64.. {
            let word = &ring[number as usize % ROOM];
            while word.load(Ordering::Relaxed) != 0 {
                if over.load(Ordering::Relaxed) {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            word.store(number, Ordering::Release); // pair: RING
        }
        Ok(())
    };
    let receive = || {
        let mut next = 0u64;
        let received = samples.batched(|| {
            next += 1;
            let word = &ring[next as usize % ROOM];
            let mut looks = 0;
            loop {
                let number = word.load(Ordering::Acquire); // pair: RING
                if number == next {
                    word.store(0, Ordering::Relaxed);
                    return Ok(());
                }
                if number != 0 {
                    return Err(Failure::new("an item was lost"));
                }
                looks += 1;
                if looks % LOOKS == 0 {
                    deadline.check("the next item")?;
                }
                std::hint::spin_loop();
            }
        });
        over.store(true, Ordering::Relaxed);
        received
    };
    cores.run_on_both(send, receive)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::base::Effort;

    #[test]
    fn all_items_arrive_in_order_and_both_threads_end() {
        let Ok(cores @ Cores { target: Some(_), .. }) = Cores::first_allowed() else { return };
        let effort =
            Effort { rounds: 1, samples: 20, warmup: 2, round_max: Duration::from_secs(60) };
        let mut samples = effort.room(200);
        round(cores, &mut samples, Deadline::after(Duration::from_secs(60))).unwrap();
        assert_eq!(samples.latency().n, 20);
    }
}

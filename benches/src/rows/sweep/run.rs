//! The measurement of a row of the sweep.

use std::time::{Duration, Instant};

use super::mercury;
use super::origin::Origin;
use super::spec::{Sweep, What};
use crate::base::{Effort, Figure, Result, Samples, ensure};
use crate::floors::transport::Transport;
use crate::process::Context;

/// Most memory of all calls in flight.
const BYTES_MAX: usize = 1 << 30;

impl Sweep {
    /// Measures it.
    pub(crate) fn run(self, context: &Context) -> Result<Figure> {
        let bytes = self.bytes.saturating_mul(self.in_flight);
        ensure!(bytes <= BYTES_MAX, "more than 1 GiB in flight; ask for less at a time");
        if let Transport::Fabric(fabric) = self.transport
            && let Some(lacks) = fabric.lacks()
        {
            return Ok(Figure::lacking(lacks));
        }
        let mut samples = self.measure(context)?;
        let Some(programs) = &context.mercury else { return Ok(self.figure(&mut samples)) };
        // By turns, so that both meet the same machine.
        let round = samples.mean().unwrap_or(f64::MAX);
        let theirs = || mercury::measure(self, programs, round, context);
        let first = theirs();
        let mut figure = self.figure(&mut samples);
        figure.value = mean(figure.value, self.figure(&mut self.measure(context)?).value);
        match first.and_then(|first| Ok((first, theirs()?))) {
            Ok((first, second)) => Ok(figure.beside("Mercury", mean(Some(first), Some(second)))),
            Err(failure) => {
                eprintln!("margo-bench: {}: beside Mercury: {failure}", self.id());
                Ok(figure)
            }
        }
    }

    /// Our side of it.
    fn measure(self, context: &Context) -> Result<Samples> {
        let mut peer = context.start_peer(())?;
        let address: String = peer.receive("the target's address")?;
        let mut origin = Origin::open(self, &address, context.deadline)?;
        let mut samples = warm_up(context, self.in_flight, &mut || origin.calls())?;
        samples.batched(|| origin.calls())?;
        let arrived = origin.end()?;
        peer.finish()?;
        ensure!(arrived, "the bytes that arrived are not those that were sent");
        Ok(samples)
    }

    /// A sample is of batches of `in_flight` calls; a rate counts calls, a bandwidth their bytes.
    fn figure(&self, samples: &mut Samples) -> Figure {
        let amount = match self.what {
            What::Rate => self.in_flight,
            What::Read | What::Write => self.in_flight * self.bytes,
        };
        let value = samples.mean().map(|ns| amount as f64 * 1e9 / ns);
        Figure { value, ..Figure::median(samples.bandwidth(amount), None) }
    }
}

/// The mean of two rates of the same work.
fn mean(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.zip(other).map(|(one, other)| 2.0 / (one.recip() + other.recip()))
}

/// Warms up, and finds out how many calls make a batch of some milliseconds.
fn warm_up(
    context: &Context,
    in_flight: usize,
    calls: &mut dyn FnMut() -> Result<()>,
) -> Result<Samples> {
    const BATCH: Duration = Duration::from_millis(2);
    let (warm, samples) = if context.quick { (5, 4) } else { (40, 120) };
    let warm = Duration::from_millis(warm);
    // Touches all buffers at both sides.
    calls()?;
    let (start, mut turns) = (Instant::now(), 0u32);
    while turns < 2 || start.elapsed() < warm {
        calls()?;
        turns += 1;
    }
    let per = BATCH.as_secs_f64() * f64::from(turns) / start.elapsed().as_secs_f64();
    let per = per.clamp(1.0, 1e6 / in_flight as f64) as u32;
    let round_max = if context.quick { warm * 4 } else { Duration::from_millis(600) };
    Ok(Effort { rounds: 1, samples, warmup: 0, round_max }.room(per))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_counts_calls_and_a_bandwidth_their_bytes() {
        let sweep = |id| Sweep::of(id).unwrap();
        let value = |id| {
            let mut samples = Samples::new(2, 1);
            [1000, 3000].iter().for_each(|ns| samples.push(Duration::from_nanos(*ns)));
            sweep(id).figure(&mut samples).value
        };
        assert_eq!(value("sweep.sm.rate.x16.8"), Some(8e6));
        assert_eq!(value("sweep.sm.read.x2.1k"), Some(1024e6));
    }
}

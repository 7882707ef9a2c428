//! The only source of randomness in simulated networks and in tests: a small generator with a seed,
//! so that a run can be repeated. No secret is made of it; keys come from the operating system.

/// Splitmix64: every bit of its output depends on the seed and on how often it was asked.
///
/// ```
/// use na_core::base::random::Random;
///
/// let (mut one, mut same) = (Random::new(7), Random::new(7));
/// assert_eq!(one.next(), same.next());
/// assert!(one.below(6) < 6);
/// ```
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    #[allow(clippy::should_implement_trait, reason = "it has no end")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `end`, about evenly.
    ///
    /// # Panics
    ///
    /// If `end` is zero.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// From 0 to below 1, evenly.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Exponential with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// Normal with mean 0 and deviation 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_sequence() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..8).map(|_| random.next()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn distributions_have_their_means() {
        const COUNT: u32 = 20_000;
        let mut random = Random::new(7);
        let mut mean = |draw: fn(&mut Random) -> f64| {
            (0..COUNT).map(|_| draw(&mut random)).sum::<f64>() / f64::from(COUNT)
        };
        assert!((mean(Random::unit) - 0.5).abs() < 0.02);
        assert!((mean(Random::exponential) - 1.0).abs() < 0.05);
        assert!(mean(Random::normal).abs() < 0.05);
    }
}

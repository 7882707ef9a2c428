//! Options of a network: its links, its limits, and how its clock moves.

use std::time::Duration;

use na_core::base::random::Random;
use na_core::{Error, OpenOptions};

/// The time that a packet is on its way, beside the time that its bytes take.
///
/// ```
/// use std::time::Duration;
///
/// use na_sim::{Latency, LinkOptions, Network};
///
/// let median = Duration::from_micros(5);
/// let link = LinkOptions::with_latency(Latency::LogNormal { median, sigma: 0.5 });
/// let network = Network::builder("doc-latency").seed(7).link(link).build()?;
/// network.set_link("a", "b", LinkOptions::with_latency(Latency::Constant(median)))?;
/// # Ok::<(), na_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Latency {
    /// One time for every packet.
    Constant(Duration),
    /// A time that is evenly spread between two bounds.
    Uniform {
        /// Shortest.
        min: Duration,
        /// Longest.
        max: Duration,
    },
    /// A floor plus an exponential part: many short, few long.
    Exponential {
        /// Shortest.
        min: Duration,
        /// Mean of what comes on top.
        mean: Duration,
    },
    /// Log-normal: a long tail, as real networks have.
    LogNormal {
        /// Half of the packets are faster.
        median: Duration,
        /// Deviation of the logarithm; 0.5 makes one of a hundred packets 3 times slower than the
        /// median, 1.0 ten times.
        sigma: f64,
    },
}

impl Latency {
    pub(crate) fn draw(self, random: &mut Random) -> Nanos {
        let scaled = |duration: Duration, by: f64| (nanos(duration) as f64 * by) as Nanos;
        match self {
            Self::Constant(always) => nanos(always),
            Self::Uniform { min, max } => {
                nanos(min) + scaled(max.saturating_sub(min), random.unit())
            }
            Self::Exponential { min, mean } => nanos(min) + scaled(mean, random.exponential()),
            Self::LogNormal { median, sigma } => scaled(median, (sigma * random.normal()).exp()),
        }
    }

    /// About the longest that a packet takes that was not held up otherwise.
    pub(crate) fn typical_max(self) -> Nanos {
        match self {
            Self::Constant(always) => nanos(always),
            Self::Uniform { max, .. } => nanos(max),
            Self::Exponential { min, mean } => nanos(min) + 4 * nanos(mean),
            Self::LogNormal { median, sigma } => {
                (nanos(median) as f64 * (2.0 * sigma).exp()) as u64
            }
        }
    }
}

/// Options of one direction between two nodes.
///
/// ```
/// use na_sim::{LinkOptions, Network};
///
/// let network = Network::builder("doc-link").link(LinkOptions::unreliable(0.1)).build()?;
/// let mut link = LinkOptions { loss: 0.5, ..LinkOptions::default() };
/// network.set_link("a", "b", link)?;
/// link.loss = 1.5;
/// assert!(network.set_link("a", "b", link).is_err(), "no probability");
/// # Ok::<(), na_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkOptions {
    /// Time on the way. Default constant, 10 us.
    pub latency: Latency,
    /// Bytes per second; zero is unlimited. Default 10^10. Packets of one direction leave one after
    /// the other.
    pub bandwidth: u64,
    /// Probability that a packet is lost. Default 0.
    pub loss: f64,
    /// Probability that a packet arrives twice. Default 0.
    pub duplicate: f64,
    /// Probability that a packet is held up by up to `reorder_delay`, so that others overtake it.
    /// Default 0.
    pub reorder: f64,
    /// Longest time that such a packet is held up. Default 100 us.
    pub reorder_delay: Duration,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            latency: Latency::Constant(Duration::from_micros(10)),
            bandwidth: 10_000_000_000,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_delay: Duration::from_micros(100),
        }
    }
}

impl LinkOptions {
    /// Returns a link with the given latency and default values for everything else.
    pub fn with_latency(latency: Latency) -> Self {
        Self { latency, ..Self::default() }
    }

    /// Returns a link that does everything to packets that a packet network may do, each with
    /// probability `p`, and with latencies that vary.
    pub fn unreliable(p: f64) -> Self {
        Self {
            latency: Latency::Exponential {
                min: Duration::from_micros(5),
                mean: Duration::from_micros(10),
            },
            loss: p,
            duplicate: p,
            reorder: p,
            ..Self::default()
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        for (name, value) in
            [("loss", self.loss), ("duplicate", self.duplicate), ("reorder", self.reorder)]
        {
            if !(0.0..=1.0).contains(&value) {
                let text = format!("`{name}` of a link is {value}; a probability is from 0 to 1");
                return Err(Error::InvalidArgument(text));
            }
        }
        if let Latency::LogNormal { sigma, .. } = self.latency
            && !(0.0..=4.0).contains(&sigma)
        {
            let text = format!("`sigma` of a latency is {sigma}; allowed is 0 to 4");
            return Err(Error::InvalidArgument(text));
        }
        Ok(())
    }
}

/// The rule by which the virtual clock moves.
///
/// ```
/// use std::time::Duration;
///
/// use na_sim::{Drive, Network};
///
/// let network = Network::builder("doc-drive").drive(Drive::Manual).build()?;
/// network.schedule(Duration::from_secs(3600), |network| network.partition("a", "b"));
/// assert!(network.step(), "an hour, in no time");
/// assert_eq!(network.now(), Duration::from_secs(3600));
/// # Ok::<(), na_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Drive {
    /// A poll that has nothing to report runs the next events, whatever their time. Programs that
    /// know nothing of virtual time run like this; a timer far in the future fires as soon as
    /// nothing else is left to happen.
    #[default]
    OnPoll,
    /// Only [`step`](crate::Network::step) and its like move the clock. This is for a driver that
    /// polls each endpoint until it has nothing left, then steps: the whole run follows from the
    /// seed.
    Manual,
}

/// Virtual time, in nanoseconds since the network was made.
pub(crate) type Nanos = u64;

/// The largest value of [`OpenOptions::message_bytes_max`] that this transport takes, bytes.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Refuses options that no node could have.
pub(crate) fn check(options: &OpenOptions) -> Result<(), Error> {
    options.check_message_bytes("sim", 1, MESSAGE_BYTES_MAX)
}

/// Settings of a whole network, made by [`NetworkBuilder`](crate::NetworkBuilder).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) seed: u64,
    pub(crate) link: LinkOptions,
    pub(crate) operation_cost: Nanos,
    pub(crate) window_bytes: u64,
    pub(crate) packet_bytes_max: usize,
    pub(crate) peer_limit: Nanos,
    pub(crate) trace_entries: usize,
    pub(crate) drive: Drive,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 0,
            link: LinkOptions::default(),
            operation_cost: 0,
            window_bytes: 512 << 10,
            packet_bytes_max: 64 << 10,
            peer_limit: nanos(Duration::from_secs(30)),
            trace_entries: 10_000,
            drive: Drive::OnPoll,
        }
    }
}

/// Saturates after 584 years.
pub(crate) fn nanos(duration: Duration) -> Nanos {
    Nanos::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX)
}

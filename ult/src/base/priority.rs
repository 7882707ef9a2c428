//! Priorities of units that wait to start.

/// The priority of a unit that waits to start, in a pool that knows priorities:
/// [`PoolKind::PrioWait`](crate::PoolKind::PrioWait), or a user's own, which asks
/// [`Unit::priority`](crate::Unit::priority). In other pools it has no effect.
///
/// Orders as one expects: `Low < Normal < High`.
///
/// ```
/// use ult::{PoolKind, PoolSpec, Priority, Runtime, XstreamSpec, channel};
///
/// let runtime = Runtime::builder()
///     .pool(PoolSpec::new("main").kind(PoolKind::PrioWait))
///     .xstream(XstreamSpec::new("x0").pools(["main"]))
///     .start()?;
/// let pool = runtime.pool("main").expect("defined above");
/// let inner = pool.clone();
/// let first = pool.spawn(move || {
///     let (sender, receiver) = channel::unbounded();
///     for priority in [Priority::Low, Priority::High] {
///         let sender = sender.clone();
///         let unit = inner.ult().priority(priority);
///         unit.spawn(move || sender.send(priority)).expect("the runtime runs");
///     }
///     // Both start when this ULT waits.
///     receiver.recv()
/// })?;
/// assert_eq!(first.join()??, Priority::High);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// After all others.
    Low,
    /// Between the two others. The default.
    #[default]
    Normal,
    /// Before all others.
    High,
}

impl Priority {
    /// For two bits of a descriptor, in which a new unit has zeros.
    #[inline]
    pub(crate) fn bits(self) -> u16 {
        match self {
            Self::Normal => 0,
            Self::High => 1,
            Self::Low => 2,
        }
    }

    pub(crate) fn from_bits(bits: u16) -> Self {
        match bits {
            1 => Self::High,
            2 => Self::Low,
            _ => Self::Normal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Priority::{self, High, Low, Normal};

    #[test]
    fn every_priority_survives_its_bits() {
        for priority in [Low, Normal, High] {
            assert_eq!(Priority::from_bits(priority.bits()), priority);
        }
        assert!(Low < Normal && Normal < High);
    }
}

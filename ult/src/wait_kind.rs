//! What a suspended ULT waits for, for diagnostics.

use std::fmt;

/// What a suspended ULT waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
#[repr(u8)]
pub enum WaitKind {
    /// Nothing that it has said.
    #[default]
    Unknown,
    /// A [`Mutex`](crate::Mutex).
    Mutex,
    /// A condition variable.
    Condvar,
    /// An [`Eventual`](crate::Eventual).
    Eventual,
    /// The end of a ULT.
    Join,
    /// A point in time.
    Sleep,
    /// An unpark.
    Park,
    /// Work from outside, in `idle`.
    Idle,
}

impl WaitKind {
    /// All kinds, each at the place of its number.
    const ALL: [Self; 8] = [
        Self::Unknown,
        Self::Mutex,
        Self::Condvar,
        Self::Eventual,
        Self::Join,
        Self::Sleep,
        Self::Park,
        Self::Idle,
    ];

    /// The kind with this number; the reverse of `as u8`.
    #[cfg_attr(loom, allow(dead_code, reason = "no model needs it"))]
    pub(crate) fn from_u8(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or_default()
    }
}

impl fmt::Display for WaitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "unknown",
            Self::Mutex => "mutex",
            Self::Condvar => "condvar",
            Self::Eventual => "eventual",
            Self::Join => "join",
            Self::Sleep => "sleep",
            Self::Park => "park",
            Self::Idle => "idle",
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::WaitKind;

    #[test]
    fn numbers_lead_back_to_their_kind() {
        for (number, kind) in WaitKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, number);
            assert_eq!(WaitKind::from_u8(kind as u8), kind);
        }
        assert_eq!(WaitKind::from_u8(u8::MAX), WaitKind::Unknown);
    }
}

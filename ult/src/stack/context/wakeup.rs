//! The word that a stack gets when it is switched to.

/// The reason why a ULT is switched to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Wakeup {
    /// Go on.
    Run,
    /// Write down where you are, and switch back as if nothing had happened.
    Inspect,
    /// Go on, after you have carried out the command of the ULT that ran before.
    After,
}

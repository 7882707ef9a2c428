//! Mercury's return codes, and which one stands for which error of ours.

use std::io::ErrorKind;

use na::{DeniedReason, Error};

use super::abi::Return;

/// A return code of Mercury's NA layer. Counterpart: `na_return_t`, whose names these are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Status {
    Success = 0,
    Permission = 1,
    NoMem = 5,
    Access = 6,
    Fault = 7,
    Busy = 8,
    NoDev = 10,
    InvalidArg = 11,
    ProtocolError = 12,
    Overflow = 13,
    MsgSize = 14,
    ProtoNoSupport = 15,
    OpNotSupported = 16,
    AddrInUse = 17,
    AddrNotAvail = 18,
    HostUnreach = 19,
    Timeout = 20,
    Canceled = 21,
    IoError = 22,
}

impl Status {
    pub(crate) fn code(self) -> Return {
        self as Return
    }
}

/// The code for the outcome of a callback.
pub(crate) fn code_of(outcome: Result<(), Status>) -> Return {
    outcome.err().unwrap_or(Status::Success).code()
}

impl From<&Error> for Status {
    /// A program sees no more than the number; the text goes to the log, where it is not about the
    /// usual end of a peer.
    fn from(error: &Error) -> Self {
        match error {
            Error::BadUri { .. } | Error::InvalidArgument(_) | Error::BadOption { .. } => {
                Self::InvalidArg
            }
            Error::Unavailable { .. } => Self::NoDev,
            Error::Unreachable { .. } | Error::PeerGone { .. } => Self::HostUnreach,
            Error::Denied { reason, .. } => match reason {
                DeniedReason::Access => Self::Access,
                DeniedReason::OutOfRange => Self::Overflow,
                DeniedReason::CopyFailed => Self::IoError,
                _ => Self::Fault,
            },
            Error::TooLong { .. } => Self::MsgSize,
            Error::Canceled => Self::Canceled,
            Error::Closed => Self::Permission,
            Error::Io { source, .. } => match source.kind() {
                ErrorKind::AddrInUse => Self::AddrInUse,
                ErrorKind::AddrNotAvailable => Self::AddrNotAvail,
                ErrorKind::OutOfMemory => Self::NoMem,
                ErrorKind::PermissionDenied => Self::Access,
                ErrorKind::TimedOut => Self::Timeout,
                _ => Self::IoError,
            },
            _ => Self::ProtocolError,
        }
    }
}

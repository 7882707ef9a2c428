//! Return codes in the form in which they travel.

use std::fmt;

/// The answer of a peer to a request, as a code: Mercury's `hg_return_t`, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReturnCode {
    /// `HG_SUCCESS`
    Success,
    /// `HG_PERMISSION`: refused; Margo: the instance is shutting down.
    Permission,
    /// `HG_NOENTRY`: no such RPC.
    NoEntry,
    /// `HG_INTERRUPT`
    Interrupt,
    /// `HG_AGAIN`: not now.
    Again,
    /// `HG_NOMEM`
    NoMem,
    /// `HG_ACCESS`
    Access,
    /// `HG_FAULT`; from us: the handler panicked.
    Fault,
    /// `HG_BUSY`
    Busy,
    /// `HG_EXIST`
    Exist,
    /// `HG_NODEV`
    NoDev,
    /// `HG_INVALID_ARG`
    InvalidArg,
    /// `HG_PROTOCOL_ERROR`; from us: the arguments cannot be decoded.
    ProtocolError,
    /// `HG_OVERFLOW`
    Overflow,
    /// `HG_MSGSIZE`
    MsgSize,
    /// `HG_PROTONOSUPPORT`
    ProtoNoSupport,
    /// `HG_OPNOTSUPPORTED`
    OpNotSupported,
    /// `HG_ADDRINUSE`
    AddrInUse,
    /// `HG_ADDRNOTAVAIL`
    AddrNotAvail,
    /// `HG_HOSTUNREACH`
    HostUnreach,
    /// `HG_TIMEOUT`
    Timeout,
    /// `HG_CANCELED`
    Canceled,
    /// `HG_IO_ERROR`
    IoError,
    /// `HG_HOSTFIREWALL`
    HostFirewall,
    /// `HG_CHECKSUM_ERROR`
    ChecksumError,
    /// `HG_NA_ERROR`
    NaError,
    /// `HG_OTHER_ERROR`
    OtherError,
    /// A number that has no name.
    Unknown(i32),
}

use ReturnCode as C;

/// In the order of their numbers.
const NAMED: [(ReturnCode, &str); 27] = [
    (C::Success, "HG_SUCCESS"),
    (C::Permission, "HG_PERMISSION"),
    (C::NoEntry, "HG_NOENTRY"),
    (C::Interrupt, "HG_INTERRUPT"),
    (C::Again, "HG_AGAIN"),
    (C::NoMem, "HG_NOMEM"),
    (C::Access, "HG_ACCESS"),
    (C::Fault, "HG_FAULT"),
    (C::Busy, "HG_BUSY"),
    (C::Exist, "HG_EXIST"),
    (C::NoDev, "HG_NODEV"),
    (C::InvalidArg, "HG_INVALID_ARG"),
    (C::ProtocolError, "HG_PROTOCOL_ERROR"),
    (C::Overflow, "HG_OVERFLOW"),
    (C::MsgSize, "HG_MSGSIZE"),
    (C::ProtoNoSupport, "HG_PROTONOSUPPORT"),
    (C::OpNotSupported, "HG_OPNOTSUPPORTED"),
    (C::AddrInUse, "HG_ADDRINUSE"),
    (C::AddrNotAvail, "HG_ADDRNOTAVAIL"),
    (C::HostUnreach, "HG_HOSTUNREACH"),
    (C::Timeout, "HG_TIMEOUT"),
    (C::Canceled, "HG_CANCELED"),
    (C::IoError, "HG_IO_ERROR"),
    (C::HostFirewall, "HG_HOSTFIREWALL"),
    (C::ChecksumError, "HG_CHECKSUM_ERROR"),
    (C::NaError, "HG_NA_ERROR"),
    (C::OtherError, "HG_OTHER_ERROR"),
];

impl ReturnCode {
    /// The code of that number.
    #[inline]
    pub fn from_number(number: i32) -> Self {
        usize::try_from(number)
            .ok()
            .and_then(|at| NAMED.get(at))
            .map_or(Self::Unknown(number), |(code, _)| *code)
    }

    /// The number.
    #[inline]
    pub fn number(self) -> i32 {
        if let Self::Unknown(number) = self {
            return number;
        }
        NAMED.iter().zip(0..).find(|((code, _), _)| *code == self).map_or(-1, |(_, number)| number)
    }
}

impl fmt::Display for ReturnCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMED.iter().find(|(code, _)| code == self) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "return code {}", self.number()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_codes_agree() {
        for number in -3..30 {
            assert_eq!(ReturnCode::from_number(number).number(), number);
        }
        assert_eq!(ReturnCode::NoEntry.number(), 2);
        assert_eq!(ReturnCode::OtherError.number(), 26);
        assert_eq!(ReturnCode::Unknown(99).to_string(), "return code 99");
    }
}

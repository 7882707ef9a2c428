//! Return codes in the form in which they travel.

use std::fmt;

macro_rules! codes {
    ($($code:ident $name:literal $($more:literal)?,)+) => {
        /// The answer of a peer to a request, as a code: Mercury's `hg_return_t`, by number.
        ///
        /// ```
        /// # use hg as margo;
        /// use margo::ReturnCode;
        ///
        /// assert_eq!(ReturnCode::from_number(2), ReturnCode::NoEntry);
        /// assert_eq!(ReturnCode::NoEntry.to_string(), "HG_NOENTRY");
        /// ```
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ReturnCode {
            $(#[doc = concat!("`", $name, "`", $($more)?)] $code,)+
            /// A number that has no name.
            Unknown(i32),
        }

        const NAMED: &[(ReturnCode, &str)] = &[$((ReturnCode::$code, $name),)+];
    };
}

// In the order of their numbers.
codes! {
    Success "HG_SUCCESS",
    Permission "HG_PERMISSION" ": refused; Margo: the instance is shutting down.",
    NoEntry "HG_NOENTRY" ": no such RPC.",
    Interrupt "HG_INTERRUPT",
    Again "HG_AGAIN" ": not now.",
    NoMem "HG_NOMEM",
    Access "HG_ACCESS",
    Fault "HG_FAULT" "; from us: the handler panicked.",
    Busy "HG_BUSY",
    Exist "HG_EXIST",
    NoDev "HG_NODEV",
    InvalidArg "HG_INVALID_ARG",
    ProtocolError "HG_PROTOCOL_ERROR" "; from us: the arguments cannot be decoded.",
    Overflow "HG_OVERFLOW",
    MsgSize "HG_MSGSIZE",
    ProtoNoSupport "HG_PROTONOSUPPORT",
    OpNotSupported "HG_OPNOTSUPPORTED",
    AddrInUse "HG_ADDRINUSE",
    AddrNotAvail "HG_ADDRNOTAVAIL",
    HostUnreach "HG_HOSTUNREACH",
    Timeout "HG_TIMEOUT",
    Canceled "HG_CANCELED",
    IoError "HG_IO_ERROR",
    HostFirewall "HG_HOSTFIREWALL",
    ChecksumError "HG_CHECKSUM_ERROR",
    NaError "HG_NA_ERROR",
    OtherError "HG_OTHER_ERROR",
}

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

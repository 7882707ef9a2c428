//! A subnet as text.

use std::net::IpAddr;

/// A subnet as it is written: `10.0.0.0/8`, `fd00::/8`. Bits beyond the first `bits` do not matter.
///
/// Without `/` all bits count; of an IPv4 address fewer than four numbers may be written, and then
/// 8 bits for each of them: `192.168` is `192.168.0.0/16`.
///
/// ```
/// use margo_config::{Config, IpSubnet};
///
/// let config = Config::from_json(r#"{ "mercury": { "ip_subnet": "10.1.0.0/16" } }"#)?;
/// let subnet = IpSubnet { ip: [10, 1, 0, 0].into(), bits: 16 };
/// assert_eq!(config.resolve(&|_| None)?.ip_subnet, Some(subnet));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Source: `na_ip_parse_subnet` in `na_ip.c`, which knows IPv4 only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpSubnet {
    /// An address of it.
    pub ip: IpAddr,
    /// How many of the address's first bits are the subnet's: 1 to 32, or to 128 for IPv6.
    pub bits: u8,
}

impl IpSubnet {
    /// Returns true if that address is in it.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        let apart = |one: u128, other: u128, bits: u8| (one ^ other).leading_zeros() < bits.into();
        match (self.ip, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                !apart(u32::from(own).into(), u32::from(other).into(), self.bits + 96)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => !apart(own.into(), other.into(), self.bits),
            _ => false,
        }
    }

    /// Reads one; what is wrong with it otherwise.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let expected = "expected a subnet such as \"10.0.0.0/8\" or \"fd00::/8\"";
        let (ip, written) = if address.contains(':') {
            let ip = address
                .parse()
                .map_err(|_| format!("{address:?} in {text:?} is no IPv6 address; {expected}"))?;
            (IpAddr::V6(ip), 128)
        } else {
            let numbers = address.split('.').count();
            let rest = ".0".repeat(4_usize.saturating_sub(numbers));
            let ip = format!("{address}{rest}")
                .parse()
                .map_err(|_| format!("{address:?} in {text:?} is no IPv4 address; {expected}"))?;
            (IpAddr::V4(ip), 8 * numbers as u8)
        };
        let most = if ip.is_ipv4() { 32 } else { 128 };
        let is_number = |bits: &&str| bits.bytes().all(|byte| byte.is_ascii_digit());
        let bits = match bits {
            None => Some(written),
            Some(bits) => Some(bits).filter(is_number).and_then(|bits| bits.parse().ok()),
        };
        let bits = bits.filter(|bits| (1..=most).contains(bits));
        let bits = bits.ok_or_else(|| {
            format!("what follows `/` in {text:?} is no number of bits from 1 to {most}")
        })?;
        Ok(Self { ip, bits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_c_takes_is_taken_and_ipv6_too() {
        for (text, ip, bits) in [
            ("192.168.0.0/24", "192.168.0.0", 24),
            ("10.1.2.3/8", "10.1.2.3", 8),
            ("10/8", "10.0.0.0", 8),
            ("192.168", "192.168.0.0", 16),
            ("127.0.0.1", "127.0.0.1", 32),
            ("fd00::/8", "fd00::", 8),
            ("::1", "::1", 128),
        ] {
            let expected = IpSubnet { ip: ip.parse().unwrap(), bits };
            assert_eq!(IpSubnet::parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, said) in [
            ("", "no IPv4 address"),
            ("/8", "no IPv4 address"),
            ("eth0", "no IPv4 address"),
            ("10.0.0.256/8", "no IPv4 address"),
            ("10.0.0.0.0/8", "no IPv4 address"),
            ("10..0/8", "no IPv4 address"),
            ("fd00:/8", "no IPv6 address"),
            ("10.0.0.0/0", "from 1 to 32"),
            ("10.0.0.0/33", "from 1 to 32"),
            ("10.0.0.0/", "from 1 to 32"),
            ("10.0.0.0/+8", "from 1 to 32"),
            ("10.0.0.0/999", "from 1 to 32"),
            ("fd00::/129", "from 1 to 128"),
        ] {
            let error = IpSubnet::parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}

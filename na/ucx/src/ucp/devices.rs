//! Devices that UCX finds on this machine, by the transports that an address can name.

use super::library;
use crate::addressing::address::Settings;
use na_core::hosts::interface;
use na_core::{Device, Error};

/// How the names of UCX's transports begin, what stands for them in addresses, and what they are.
/// Those that only copy memory, and `self`, are no addresses.
const TRANSPORTS: [(&str, &str, &str); 7] = [
    ("tcp", "tcp", "TCP"),
    ("rc_", "rc", "InfiniBand and RoCE, reliable connections"),
    ("dc_", "dc", "InfiniBand and RoCE, dynamic connections"),
    ("ud_", "ud", "InfiniBand and RoCE, datagrams"),
    ("posix", "posix", "shared memory within one host"),
    ("sysv", "sysv", "shared memory within one host"),
    ("xpmem", "xpmem", "shared memory within one host"),
];

pub(crate) fn devices() -> Result<Vec<Device>, Error> {
    let ucp = library::library()?;
    let (tls, device, class) = ("all".to_owned(), None, None);
    let settings = Settings {
        tls,
        device,
        detects_failure: true,
        wakes: false,
        class,
        remote_keys: false,
        families: None,
    };
    Ok(listed(&library::described(ucp, &settings)?))
}

/// Returns the devices in the lines `resource … transport/device`.
fn listed(description: &str) -> Vec<Device> {
    let mut devices = Vec::new();
    for line in description.lines().filter(|line| line.contains("resource")) {
        let Some((transport, name)) =
            line.split_whitespace().next_back().and_then(|last| last.split_once('/'))
        else {
            continue;
        };
        let known = TRANSPORTS.iter().find(|(begins, ..)| transport.starts_with(begins));
        let Some((_, protocol, summary)) = known else { continue };
        let ip = interface::addresses(name, 0).ok().and_then(|found| found.first().copied());
        let device = Device {
            protocol: format!("ucx+{protocol}"),
            name: name.to_owned(),
            address: ip.map_or_else(|| "no IP address".to_owned(), |ip| ip.ip().to_string()),
            summary,
            moves_device_memory: false,
        };
        // Of two implementations of a transport.
        if !devices.contains(&device) {
            devices.push(device);
        }
    }
    devices
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As UCX 1.13 prints them.
    #[test]
    fn transports_are_told_with_their_devices() {
        let description = "# UCP context\n\
            #     component 0  :  self\n\
            #            md 0  :  component 0  self \n\
            #      resource 0  :  md 0  dev 0  flags -- self/memory\n\
            #      resource 1  :  md 1  dev 1  flags -- tcp/no-such-interface\n\
            #      resource 2  :  md 2  dev 2  flags -- sysv/memory\n\
            #      resource 3  :  md 4  dev 3  flags -- rc_verbs/mlx5_0:1\n\
            #      resource 4  :  md 4  dev 3  flags -- rc_mlx5/mlx5_0:1\n\
            #      resource 5  :  md 5  dev 2  flags -- cma/memory\n";
        let found = listed(description);
        let found: Vec<_> =
            found.iter().map(|device| (&device.protocol[..], &device.name[..])).collect();
        let wanted =
            [("ucx+tcp", "no-such-interface"), ("ucx+sysv", "memory"), ("ucx+rc", "mlx5_0:1")];
        assert_eq!(found, wanted);
        assert!(listed("").is_empty());
    }
}

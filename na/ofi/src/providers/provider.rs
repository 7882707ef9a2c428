//! The providers of libfabric that are known here, and what is particular about each.
//!
//! The facts are those of C Mercury's table (`NA_OFI_PROV_TYPES` in `na_ofi.c`), so that both sides
//! of a connection ask libfabric for the same; `efa` is ours.

use std::ffi::c_int;

use ofi_sys::{Version, raw};

use super::failures::{self, Code, Meaning};
use super::opx;

/// Form of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// `sockaddr_in`, or `sockaddr_in6` if the host is one.
    Socket,
    /// A string with an end: `fi_shm://…`.
    Text,
    /// Slingshot's (`FI_ADDR_CXI`).
    Cxi,
    /// Omni-Path's (`FI_ADDR_OPX`).
    Opx(opx::Layout),
    /// A value of another fabric; as text, hexadecimal. The number is libfabric's for the format.
    Fabric(u32),
}

/// A provider.
#[derive(Debug)]
pub(crate) struct Provider {
    /// The name in URIs.
    pub(crate) name: &'static str,
    /// Other names in URIs.
    pub(crate) aliases: &'static [&'static str],
    /// The names that libfabric has for it, of which the first that is there is taken.
    pub(crate) known_as: &'static [&'static str],
    pub(crate) format: Format,
    /// Endpoint protocol.
    pub(crate) protocol: u32,
    pub(crate) progress: u32,
    /// One buffer may take many messages from that version of libfabric on; see
    /// [`multi_recv`](Self::multi_recv). (`shm` of 1.17 says that it does, and crashes when told
    /// how much room to leave.)
    pub(crate) multi_recv_since: Option<Version>,
    /// Is asked to tell the source of a message. Otherwise the sender's address goes before each
    /// unexpected one.
    pub(crate) source: bool,
    /// Waits on a descriptor.
    pub(crate) wait_fd: bool,
    /// Looks at the traffic class. The others take any, and do nothing with it (`tcp` of 1.18 and
    /// later would let the system gather what is sent, for bulk data, if it were told by the
    /// attributes of the endpoint; as in C it is not).
    pub(crate) classes: bool,
    /// Finds the peer's address in the context of an operation (`na_ofi_msg_send_common`).
    pub(crate) told_address: bool,
    /// Is offered memory that is registered for its own operations, too (`FI_MR_LOCAL`). Else it
    /// registers the memory of each part of a transfer once more, or copies it (`rxm_rma.c`,
    /// `efa_rdm_ope_try_fill_desc`).
    pub(crate) local_first: bool,
    /// Keeps memory registered that was taken back, within reach of peers, whatever they ask for:
    /// its cache (`vrb_mr_cache_close` in `verbs_mr.c`) has no other switch than the environment
    /// ([`keeps_registrations`](Self::keeps_registrations)).
    pub(crate) caches: bool,
    /// Is asked to move memory of devices by itself (`FI_HMEM`), if the program wants that. Not
    /// `shm`, which C asks: there the processes copy for each other, so that one which has not
    /// asked would be handed addresses of a device.
    pub(crate) hmem: bool,
    /// The devices lead to one fabric, so that processes which name none take those that are near
    /// (`nearest.rs`). Not so interfaces of IP networks; `opx` chooses by itself.
    pub(crate) spreads: bool,
    /// An injected message that does not arrive is an error of no operation (`fi_msg.3`), which is
    /// all that tells that the peer is gone: there is no connection whose end would. So short
    /// messages go with the context of an operation, as all do in C (`fi_senddata`, `fi_tsend`).
    ///
    /// Not where it would tell no more: connections end receives, too; RxM keeps such errors to
    /// itself; `opx` tries for ever.
    pub(crate) tells_lost: bool,
    /// When a message counts as sent: as soon as its buffer may be used again
    /// (`FI_INJECT_COMPLETE`), as in C. 0: when the provider thinks right. `efa` offers no such
    /// flag, and a search that asks for what is not offered finds nothing (`ofi_check_tx_attr`).
    pub(crate) complete: u64,
    /// The meanings that errors of its devices have for the peer.
    pub(crate) codes: &'static [Code],
    /// A line about it for people.
    pub(crate) summary: &'static str,
}

const fn version(major: u16, minor: u16) -> Option<Version> {
    Some(Version { major, minor })
}

impl Provider {
    /// Returns whether one buffer takes many messages, with that version of libfabric.
    ///
    /// The last completion of such a buffer says so, and the buffer is ours again. Two providers
    /// once said it of the last message that *began*, while earlier ones, on other connections or
    /// in several parts, were still being written: `tcp` (`net`) before 1.20 (`xnet_report_success`
    /// counts since then), and RxM before 2.0 (`rxm_adjust_multi_recv`; then `util_srx.c`). They
    /// get a buffer for each message.
    pub(crate) fn multi_recv(&self, version: Version) -> bool {
        self.multi_recv_since.is_some_and(|since| version >= since)
    }

    /// Returns whether memory stays within reach of peers after its key was taken back. `variable`
    /// reads the environment, by which the cache is turned off (`ofi_monitors_init` in
    /// `util_mem_monitor.c`).
    pub(crate) fn keeps_registrations(&self, variable: impl Fn(&str) -> Option<String>) -> bool {
        let is = |name: &str, off: fn(&str) -> bool| variable(name).is_some_and(|text| off(&text));
        self.caches
            && !is("FI_MR_CACHE_MONITOR", |text| text == "disabled")
            && !is("FI_MR_CACHE_MAX_COUNT", |text| text.trim().parse() == Ok(0))
    }

    /// Returns whether an error of a transfer, whatever it is, ends the connection with that peer:
    /// RxM, as over `verbs` the queue pair is in error then (`vrb_poll_cq`). RxM itself looks for
    /// that only every 10 ms (`cm_progress_interval`), and says nothing of messages that it injects
    /// until then.
    pub(crate) fn breaks_on_errors(&self) -> bool {
        self.protocol == raw::FI_PROTO_RXM
    }

    /// Returns the meaning that the error of an operation has for the peer, if any.
    pub(crate) fn meaning(&self, errno: c_int, device: c_int) -> Option<Meaning> {
        failures::meaning(self.codes, errno, device)
    }

    /// Returns the provider as it is in that version of libfabric.
    pub(crate) fn in_version(&'static self, version: Version) -> &'static Self {
        match self.format {
            Format::Opx(_) => match opx::Layout::of(version) {
                opx::Layout::Endpoints => self,
                opx::Layout::Contexts => &OPX_CONTEXTS,
                opx::Layout::Planes => &OPX_PLANES,
            },
            Format::Cxi if version < CXI_TELLS_SOURCE_SINCE => &CXI_WITHOUT_SOURCE,
            _ => self,
        }
    }
}

const BASE: Provider = Provider {
    name: "",
    aliases: &[],
    known_as: &[],
    format: Format::Socket,
    protocol: raw::FI_PROTO_UNSPEC,
    progress: raw::FI_PROGRESS_MANUAL,
    multi_recv_since: None,
    source: false,
    wait_fd: false,
    classes: false,
    told_address: false,
    local_first: false,
    caches: false,
    hmem: false,
    spreads: false,
    tells_lost: false,
    complete: raw::FI_INJECT_COMPLETE,
    codes: &[],
    summary: "",
};

const fn opx(layout: opx::Layout) -> Provider {
    Provider {
        name: "opx",
        known_as: &["opx"],
        format: Format::Opx(layout),
        protocol: raw::FI_PROTO_OPX,
        told_address: true,
        summary: "Cornelis Omni-Path",
        ..BASE
    }
}

/// As it is in later versions of libfabric than the table has.
static OPX_CONTEXTS: Provider = opx(opx::Layout::Contexts);
static OPX_PLANES: Provider = opx(opx::Layout::Planes);

/// The first version of libfabric whose `cxi` is asked for the source of messages, here and by C
/// (`na_ofi_getinfo`).
const CXI_TELLS_SOURCE_SINCE: Version = Version { major: 1, minor: 20 };

const CXI: Provider = Provider {
    name: "cxi",
    known_as: &["cxi"],
    format: Format::Cxi,
    protocol: raw::FI_PROTO_CXI,
    multi_recv_since: version(1, 0),
    source: true,
    wait_fd: true,
    classes: true,
    hmem: true,
    spreads: true,
    tells_lost: true,
    codes: &failures::CXI,
    summary: "HPE Slingshot",
    ..BASE
};

static CXI_WITHOUT_SOURCE: Provider = Provider { source: false, ..CXI };

/// All of them.
pub(crate) static PROVIDERS: [Provider; 8] = [
    Provider {
        name: "tcp",
        aliases: &["net", "tcp_exp"],
        // In libfabric 1.17 the reliable datagram endpoint over TCP is `net`; before and after it
        // is `tcp`, with the same protocol.
        known_as: &["tcp", "net"],
        protocol: raw::FI_PROTO_XNET,
        multi_recv_since: version(1, 20),
        wait_fd: true,
        summary: "TCP (before libfabric 1.18: `net`)",
        ..BASE
    },
    Provider {
        name: "tcp;ofi_rxm",
        aliases: &["tcp_rxm"],
        known_as: &["tcp;ofi_rxm"],
        protocol: raw::FI_PROTO_RXM,
        multi_recv_since: version(2, 0),
        wait_fd: true,
        summary: "TCP connections under libfabric's RxM layer",
        ..BASE
    },
    Provider {
        name: "verbs;ofi_rxm",
        aliases: &["verbs"],
        known_as: &["verbs;ofi_rxm"],
        protocol: raw::FI_PROTO_RXM,
        multi_recv_since: version(2, 0),
        wait_fd: true,
        local_first: true,
        caches: true,
        hmem: true,
        spreads: true,
        codes: &failures::VERBS,
        summary: "InfiniBand and RoCE",
        ..BASE
    },
    Provider {
        name: "shm",
        aliases: &["sm"],
        known_as: &["shm"],
        format: Format::Text,
        protocol: raw::FI_PROTO_SHM,
        summary: "shared memory within one host",
        ..BASE
    },
    CXI,
    Provider {
        name: "efa",
        known_as: &["efa"],
        format: Format::Fabric(raw::FI_ADDR_EFA),
        protocol: raw::FI_PROTO_EFA,
        classes: true,
        local_first: true,
        hmem: true,
        spreads: true,
        tells_lost: true,
        complete: 0,
        codes: &failures::EFA,
        summary: "AWS Elastic Fabric Adapter",
        ..BASE
    },
    opx(opx::Layout::Endpoints),
    Provider {
        name: "sockets",
        known_as: &["sockets"],
        protocol: raw::FI_PROTO_SOCK_TCP,
        multi_recv_since: version(1, 0),
        progress: raw::FI_PROGRESS_AUTO,
        wait_fd: true,
        summary: "sockets with a progress thread (deprecated by libfabric)",
        ..BASE
    },
];

/// The provider of that name in a URI.
pub(crate) fn named(protocol: &str) -> Option<&'static Provider> {
    PROVIDERS
        .iter()
        .find(|provider| provider.name == protocol || provider.aliases.contains(&protocol))
}

/// The names in URIs, for messages to people.
pub(crate) fn names() -> String {
    let names: Vec<_> = PROVIDERS.iter().map(|provider| provider.name).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_buffer_takes_many_messages_where_its_end_is_told_right() {
        let multi = |name: &str, major, minor| {
            let version = Version { major, minor };
            named(name).unwrap().multi_recv(version)
        };
        assert!(!multi("tcp", 1, 19) && multi("tcp", 1, 20) && multi("tcp", 2, 0));
        for rxm in ["tcp;ofi_rxm", "verbs"] {
            assert!(!multi(rxm, 1, 22) && multi(rxm, 2, 0), "{rxm}");
        }
        assert!(multi("cxi", 1, 17) && multi("sockets", 1, 17));
        assert!(!multi("shm", 2, 6) && !multi("efa", 2, 6) && !multi("opx", 2, 6));
    }

    #[test]
    fn the_environment_turns_the_cache_of_registrations_off() {
        let (count, monitor) = ("FI_MR_CACHE_MAX_COUNT", "FI_MR_CACHE_MONITOR");
        for (set, keeps) in [
            (None, true),
            (Some((count, "0")), false),
            (Some((count, "1024")), true),
            (Some((count, "")), true),
            (Some((monitor, "disabled")), false),
            (Some((monitor, "userfaultfd")), true),
            (Some(("FI_MR_CACHE_MAX_SIZE", "0")), true),
        ] {
            let variable =
                |name: &str| set.filter(|(own, _)| *own == name).map(|(_, value)| value.to_owned());
            let kept: Vec<_> = PROVIDERS
                .iter()
                .filter(|provider| provider.keeps_registrations(variable))
                .map(|provider| provider.name)
                .collect();
            assert_eq!(kept, ["verbs;ofi_rxm"][..usize::from(keeps)], "{set:?}");
        }
    }

    #[test]
    fn names_are_found_and_mean_one_provider() {
        assert_eq!(named("verbs").unwrap().name, "verbs;ofi_rxm");
        assert_eq!(named("net").unwrap().name, "tcp");
        assert!(named("quic").is_none() && named("").is_none());
        let mut all: Vec<_> = PROVIDERS
            .iter()
            .flat_map(|p| [p.name].into_iter().chain(p.aliases.iter().copied()))
            .collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}

//! From a URI to the device that serves it: the hints for libfabric, and the choice among the
//! devices that it offers.
//!
//! Source: `na_ofi_getinfo`, `na_ofi_verify_info`, `na_ofi_parse_hostname_info` in `na_ofi.c`.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a structure of libfabric's is filled in, or handed over, as one thing"
)]

use std::collections::HashSet;
use std::ffi::CString;
use std::net::SocketAddr;

use ofi_sys::{Library, raw};

use super::fabric::{
    Found, Info, allocated, domain_attr, fabric_attr, search, source, text, unavailable,
};
use super::nearest::{self, Machine, Pci};
use crate::providers::address::{Node, RawAddr, bad, resolve};
use crate::providers::opx;
use crate::providers::provider::{Format, PROVIDERS, Provider};
use na_core::hosts::{interface, own_address};
use na_core::{AddrFormat, Error, Uri};

/// The modes of registration that are dealt with in `memory.rs`; `local.rs` has the rest. Providers
/// take out what they do not need.
const MR_MODE: u32 =
    raw::FI_MR_VIRT_ADDR | raw::FI_MR_ALLOCATED | raw::FI_MR_PROV_KEY | raw::FI_MR_ENDPOINT;

/// The end of the name that an adapter of InfiniBand has for its domain with shared receives (XRC).
/// That domain is listed beside the other one if shared receives are switched on
/// (`FI_OFI_RXM_USE_SRX`), and before it if they are preferred (`verbs_msg_xrc_domain` in
/// `verbs_info.c`).
const XRC: &str = "-xrc";

/// The properties that are wanted of a provider.
#[derive(Debug, Default)]
struct Wanted {
    /// Our own address, if it was given.
    address: Option<RawAddr>,
    /// A device, if it was named, and a port of a fabric.
    node: Option<(Option<CString>, CString)>,
    /// The name of the device.
    domain: Option<String>,
    /// Why that name, which stood where a host may stand, is none.
    no_host: Option<String>,
    /// Which of the addresses of a named device goes first.
    own: own_address::Wanted,
    format: Option<u32>,
    mr_mode: u32,
    /// Memory of devices, moved by the provider (`FI_HMEM`).
    hmem: bool,
}

impl Wanted {
    /// Takes device, host and port from the text behind `://` of a provider with IP addresses.
    fn take_node(&mut self, uri: &Uri<'_>, own: &own_address::Wanted) -> Result<(), Error> {
        let Node { domain, mut host, port } = Node::parse(uri)?;
        self.own = *own;
        // `lo/:7000` is the address of that interface, as in C.
        if let Some(device) = domain.as_ref().filter(|_| host.is_empty())
            && interface::index(device).is_some()
        {
            host.clone_from(device);
        }
        self.domain = domain;
        self.format = Some(match own.format() {
            AddrFormat::Ipv6 => raw::FI_SOCKADDR_IN6,
            _ => raw::FI_SOCKADDR_IN,
        });
        if host.is_empty() {
            // A device that is no interface has addresses of its own, see `first_match`.
            if self.domain.is_some() {
                return Ok(());
            }
            if let Some(address) = own.in_subnet("ofi", port)? {
                self.take(address);
            }
            return Ok(());
        }
        match resolve(uri.text, &host, port) {
            Ok(mut found) => {
                // IPv4 first, as in C, unless an IPv6 address was written.
                found.sort_by_key(SocketAddr::is_ipv6);
                if found.is_empty() {
                    return Err(bad(uri.text, format!("host `{host}` has no address")));
                }
                let address = own.among(uri.text, &host, &found)?;
                // An endpoint of libfabric has one address, by which peers know it: `0.0.0.0` would
                // be nobody's.
                self.take(own_address::reachable("ofi", address, own)?);
            }
            // It may be the name of a device: `mlx5_0:7000`. Its address is asked for, see `find`.
            Err(error) if self.domain.is_none() => {
                self.domain = Some(host);
                self.no_host = match error {
                    Error::BadUri { reason, .. } => Some(reason),
                    other => Some(other.to_string()),
                };
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn take(&mut self, address: SocketAddr) {
        self.format = Some(match address {
            SocketAddr::V4(_) => raw::FI_SOCKADDR_IN,
            SocketAddr::V6(_) => raw::FI_SOCKADDR_IN6,
        });
        self.address = Some(RawAddr::from_socket(address));
    }
}

/// Returns whether endpoints of that provider can have addresses of that form.
///
/// Source: `na_ofi_prov_addr_format` in `na_ofi.c`. There, `native` of `verbs` is `FI_SOCKADDR_IB`.
fn check_format(provider: &Provider, format: AddrFormat) -> Result<(), Error> {
    let is_ip = provider.format == Format::Socket;
    let reason = match format {
        AddrFormat::Ipv4 | AddrFormat::Ipv6 if !is_ip => {
            format!("it has no {} addresses; use \"native\"", format.family())
        }
        AddrFormat::Native if provider.name == "verbs;ofi_rxm" => {
            "its native addresses, of InfiniBand, cannot be used here; use \"ipv4\" or \"ipv6\", \
             those of IP over InfiniBand"
                .to_owned()
        }
        _ => return Ok(()),
    };
    let reason = format!("for provider {}: {reason}", provider.name);
    Err(Error::BadOption { option: "addr_format", reason })
}

/// The largest number that an endpoint may ask for on a Slingshot device; the next one stands for
/// any (`na_ofi_parse_cxi_info` in `na_ofi.c`).
const CXI_PID_MAX: u16 = 510;

fn check_pid(uri: &Uri<'_>, pid: Option<&str>) -> Result<(), Error> {
    let fits = |pid: &str| pid.parse::<u16>().is_ok_and(|pid| pid <= CXI_PID_MAX);
    match pid.filter(|pid| !pid.is_empty() && !fits(pid)) {
        None => Ok(()),
        Some(pid) => Err(bad(
            uri.text,
            format!("`{pid}` is no PID; expected `cxi0:PID`, `:PID` or `cxi0`, PID 0 to 510"),
        )),
    }
}

/// Refuses what [`find`] refuses on any machine: a text of another form, or an address of a family
/// that is not wanted or that the provider has not. Names are not resolved.
///
/// # Errors
///
/// [`Error::BadUri`], [`Error::BadOption`].
pub(crate) fn check(
    provider: &Provider,
    uri: &Uri<'_>,
    own: &own_address::Wanted,
) -> Result<(), Error> {
    check_format(provider, own.format())?;
    if provider.format != Format::Socket {
        return wanted(provider, uri, own).map(drop);
    }
    let Node { host, port, .. } = Node::parse(uri)?;
    match host.parse() {
        Ok(ip) => own.among(uri.text, &host, &[SocketAddr::new(ip, port)]).map(drop),
        Err(_a_name) => Ok(()),
    }
}

/// The device for an endpoint of that URI, which [`check`] has found good. `hmem`: rather one that
/// moves memory of devices ([`moves_device_memory`]).
///
/// # Errors
///
/// [`Error::BadUri`] and [`Error::BadOption`] for what a name stands for here;
/// [`Error::Unavailable`] when the provider or the device is missing, with what there is.
pub(crate) fn find(
    library: &'static Library,
    provider: &'static Provider,
    uri: &Uri<'_>,
    own: &own_address::Wanted,
    machine: &impl Machine,
    hmem: bool,
) -> Result<Info, Error> {
    let mut wanted = wanted(provider, uri, own)?;
    let port = match provider.format {
        Format::Socket => Node::parse(uri)?.port,
        _ => 0,
    };
    let mut errno = 0;
    // Registering every buffer costs a copy of each message, so only where that spares the provider
    // more, or nothing else is found.
    let ways = match provider.local_first {
        true => [raw::FI_MR_LOCAL, 0],
        false => [0, raw::FI_MR_LOCAL],
    };
    let with_hmem = ways.into_iter().filter(|_| hmem && provider.hmem).map(|way| (true, way));
    let all = with_hmem.chain(ways.map(|way| (false, way)));
    for ((hmem, local), name) in
        all.flat_map(|way| provider.known_as.iter().map(move |name| (way, name)))
    {
        let of_devices = if hmem { raw::FI_MR_HMEM } else { 0 };
        (wanted.mr_mode, wanted.hmem) = (MR_MODE | local | of_devices, hmem);
        match first_match(library, provider, name, &wanted, machine)? {
            Ok(info) => {
                if wanted.address.is_some() || port == 0 {
                    return Ok(info);
                }
                // A port alone: of the device that would be taken anyway.
                let Some(mut address) = info.source().and_then(|source| source.socket()) else {
                    let device = text(domain_attr(info.first()).name);
                    return Err(bad(
                        uri.text,
                        format!("port {port} needs an address: device `{device}` has none"),
                    ));
                };
                address.set_port(port);
                wanted.domain = Some(text(domain_attr(info.first()).name));
                wanted.address = Some(RawAddr::from_socket(address));
                wanted.format = Some(info.first().addr_format);
                let found = first_match(library, provider, name, &wanted, machine)?;
                return found.map_err(|errno| nothing(library, provider, uri, &wanted, errno));
            }
            Err(number) => errno = number,
        }
    }
    Err(nothing(library, provider, uri, &wanted, errno))
}

/// Returns whether memory of devices may be registered there.
pub(crate) fn moves_device_memory(info: &raw::fi_info) -> bool {
    info.caps & raw::FI_HMEM != 0
}

fn wanted(provider: &Provider, uri: &Uri<'_>, own: &own_address::Wanted) -> Result<Wanted, Error> {
    let mut wanted = Wanted::default();
    match provider.format {
        Format::Socket => wanted.take_node(uri, own)?,
        Format::Text => {
            wanted.format = Some(raw::FI_ADDR_STR);
            if !uri.rest.is_empty() {
                wanted.address = Some(RawAddr::of_peer(provider, uri, &RawAddr::default())?);
            }
        }
        Format::Opx(layout) => {
            wanted.format = Some(raw::FI_ADDR_OPX);
            match opx::parse_own(uri.rest).map_err(|wrong| bad(uri.text, wrong))? {
                Some((adapter, number)) => {
                    let address = layout.wanted(adapter, number);
                    wanted.address = Some(RawAddr::from_library(&address));
                }
                None if !uri.rest.is_empty() => wanted.domain = Some(uri.rest.to_owned()),
                None => {}
            }
        }
        Format::Cxi | Format::Fabric(_) => {
            wanted.format = Some(match provider.format {
                Format::Fabric(format) => format,
                _ => raw::FI_ADDR_CXI,
            });
            let (device, port) = match uri.rest.split_once(':') {
                Some((device, port)) => (device, Some(port)),
                None => (uri.rest, None),
            };
            let text = |text: &str| {
                CString::new(text).map_err(|_| bad(uri.text, "a zero byte in an address"))
            };
            if provider.format == Format::Cxi {
                check_pid(uri, port)?;
            }
            match port.filter(|port| !port.is_empty() && *port != "0") {
                Some(port) => {
                    let device = (!device.is_empty()).then(|| text(device)).transpose()?;
                    wanted.node = Some((device, text(port)?));
                }
                None if !device.is_empty() => wanted.domain = Some(device.to_owned()),
                None => {}
            }
        }
    }
    Ok(wanted)
}

/// The device that fits, or that of several which is nearest; the number of the error when there is
/// none.
fn first_match(
    library: &'static Library,
    provider: &Provider,
    name: &str,
    wanted: &Wanted,
    machine: &impl Machine,
) -> Result<Result<Info, i32>, Error> {
    let hints = hints(library, provider, name, wanted)?;
    let mut address = wanted.address.as_ref().map(|address| address.bytes().to_vec());
    if let Some(address) = &mut address {
        // SAFETY: owned; the pointer is taken out again below, before `address` goes away.
        unsafe {
            (*hints.as_ptr()).src_addr = address.as_mut_ptr().cast();
            (*hints.as_ptr()).src_addrlen = address.len();
        }
    }
    let node = wanted.node.as_ref().map(|(node, service)| {
        (node.as_deref(), service.as_c_str(), raw::FI_SOURCE | raw::FI_NUMERICHOST)
    });
    let found = search(library, node, Some(&hints));
    // SAFETY: owned; not the library's to free.
    unsafe {
        (*hints.as_ptr()).src_addr = std::ptr::null_mut();
        (*hints.as_ptr()).src_addrlen = 0;
    }
    let found = match found {
        Found::Some(found) => found,
        Found::Nothing(errno) => return Ok(Err(errno)),
    };
    let fits = |info: &&raw::fi_info| {
        let of_format = wanted.format.is_none_or(|format| format == info.addr_format);
        let of_provider = text(fabric_attr(info).prov_name) == name;
        let domain = text(domain_attr(info).name);
        of_format && of_provider && wanted.domain.as_ref().is_none_or(|wanted| *wanted == domain)
    };
    let mut fitting: Vec<&raw::fi_info> = found.all().filter(fits).collect();
    let preferred = |info: &&&raw::fi_info| {
        let socket = source(info).and_then(|source| source.socket());
        socket.is_some_and(|socket| wanted.own.prefers(socket.ip()))
    };
    let first = fitting.iter().find(preferred).or(fitting.first());
    let Some(first) = first else { return Ok(Err(libc::ENODATA)) };
    let names_one = wanted.domain.is_some()
        || wanted.address.is_some()
        || matches!(wanted.node, Some((Some(_), _)));
    if names_one || !provider.spreads {
        return Info::copy_of(library, first).map(Ok);
    }
    // The first of each adapter. By its name: `verbs` tells no bus.
    let mut names = HashSet::new();
    fitting.retain(|info| {
        let name = text(domain_attr(info).name);
        names.insert(name.strip_suffix(XRC).unwrap_or(&name).to_owned())
    });
    let adapters: Vec<_> = fitting.iter().map(|info| Pci::of(info)).collect();
    let chosen = fitting[nearest::choose(&adapters, machine)];
    if fitting.len() > 1 {
        let device = text(domain_attr(chosen).name);
        tracing::debug!(device, among = fitting.len(), "chosen by the CPUs of the caller");
    }
    Info::copy_of(library, chosen).map(Ok)
}

fn hints(
    library: &'static Library,
    provider: &Provider,
    name: &str,
    wanted: &Wanted,
) -> Result<Info, Error> {
    let hints = Info::empty(library)?;
    let info = hints.as_ptr();
    let mut caps = raw::FI_MSG | raw::FI_TAGGED | raw::FI_RMA | raw::FI_DIRECTED_RECV;
    if provider.multi_recv(library.version()) {
        caps |= raw::FI_MULTI_RECV;
    }
    if provider.source {
        caps |= raw::FI_SOURCE | raw::FI_SOURCE_ERR;
    }
    if wanted.hmem {
        caps |= raw::FI_HMEM;
    }
    // SAFETY: owned, with all its parts, which nobody else refers to; the name is allocated as the
    // library frees it.
    unsafe {
        (*info).caps = caps;
        // There is room for either (`slots.rs`).
        (*info).mode = raw::FI_CONTEXT | raw::FI_CONTEXT2 | raw::FI_ASYNC_IOV;
        (*info).addr_format = wanted.format.unwrap_or(raw::FI_FORMAT_UNSPEC);
        (*(*info).ep_attr).type_ = raw::FI_EP_RDM;
        (*(*info).ep_attr).protocol = provider.protocol;
        (*(*info).tx_attr).op_flags = provider.complete;
        (*(*info).domain_attr).resource_mgmt = raw::FI_RM_ENABLED;
        (*(*info).domain_attr).threading = raw::FI_THREAD_SAFE;
        (*(*info).domain_attr).mr_mode = wanted.mr_mode as i32;
        (*(*info).domain_attr).control_progress = provider.progress;
        (*(*info).domain_attr).data_progress = provider.progress;
        (*(*info).fabric_attr).prov_name = allocated(name);
    }
    Ok(hints)
}

/// Why nothing was found.
fn nothing(
    library: &'static Library,
    provider: &Provider,
    uri: &Uri<'_>,
    wanted: &Wanted,
    errno: i32,
) -> Error {
    let version = library.version();
    let all = devices_of(library);
    let names = provider.known_as;
    let mut providers: Vec<_> = all.iter().map(|device| device.0.as_str()).collect();
    providers.sort_unstable();
    providers.dedup();
    let of_this: Vec<_> = all.iter().filter(|device| names.contains(&device.0.as_str())).collect();
    let advice = match provider.format {
        Format::Socket if of_this.iter().all(|device| device.2 == NO_IP) => advice(provider),
        _ => "",
    };
    if of_this.is_empty() {
        let (tried, there) = (names.join("`, `"), providers.join(", "));
        return unavailable(format!(
            "libfabric {version} ({}) finds no device for provider `{tried}` on this machine; it \
             finds {there}{advice}",
            library.name()
        ));
    }
    let mut there: Vec<String> = Vec::new();
    for (_, device, address, _) in &of_this {
        let described = format!("{device} ({address})");
        if !there.contains(&described) {
            there.push(described);
        }
    }
    let why = match &wanted.no_host {
        Some(reason) => format!("{reason}; nor is it a device"),
        None => library.strerror(errno),
    };
    unavailable(format!(
        "libfabric {version} has provider `{}`, but no device of it fits `{}`: {why}; there is \
         {}{advice}",
        of_this[0].0,
        uri.text,
        there.join(", ")
    ))
}

/// Returns advice for machines where no device of the provider has an IP address; empty if there is
/// none.
fn advice(provider: &Provider) -> &'static str {
    match provider.name {
        "verbs;ofi_rxm" => {
            ". Devices of InfiniBand need an IP address, of IP over InfiniBand (IPoIB), which must \
             be configured: native addresses of InfiniBand are not used"
        }
        _ => "",
    }
}

/// For a device without one.
const NO_IP: &str = "no IP address";

/// Provider, device and address of everything that libfabric finds, and whether it moves memory of
/// devices.
fn devices_of(library: &'static Library) -> Vec<(String, String, String, bool)> {
    let Found::Some(found) = search(library, None, None) else { return Vec::new() };
    let describe = |info: &raw::fi_info| {
        let address = source(info).map(|address| match address.socket() {
            Some(socket) => socket.ip().to_string(),
            None => String::new(),
        });
        (
            text(fabric_attr(info).prov_name),
            text(domain_attr(info).name),
            address.filter(|text| !text.is_empty()).unwrap_or_else(|| NO_IP.into()),
            moves_device_memory(info),
        )
    };
    let mut devices: Vec<_> = found.all().map(describe).collect();
    devices.dedup();
    devices
}

/// Returns the devices that can be opened here: each provider of the table with a device that
/// libfabric finds.
///
/// # Errors
///
/// [`Error::Unavailable`] without the library.
pub(crate) fn devices(library: &'static Library) -> Vec<na_core::Device> {
    let mut devices = Vec::new();
    for (name, domain, address, hmem) in devices_of(library) {
        let provider = PROVIDERS.iter().find(|known| known.known_as.contains(&&*name));
        let Some(provider) = provider else { continue };
        let device = na_core::Device {
            protocol: format!("ofi+{}", provider.name),
            name: domain,
            address,
            summary: provider.summary,
            moves_device_memory: provider.hmem && hmem,
        };
        if !devices.contains(&device) {
            devices.push(device);
        }
    }
    devices
}

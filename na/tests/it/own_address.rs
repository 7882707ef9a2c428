//! The address of this machine that an endpoint takes, and the traffic class of its packets: tcp,
//! and where they are asked for ucx (`MARGO_TEST_UCX=1`) and ofi (`MARGO_TEST_OFI=1`).

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use na::conformance::{Optional, PATIENCE};
use na::{
    Access, AddrFormat, Completion, Endpoint, Error, Memory, OpId, OpenOptions, Subnet, Tag,
    TrafficClass, Transfer,
};
use rustix::net::{AddressFamily, sockopt};

use crate::common::test_path;

const ROLE: &str = "NA_OWN_ADDRESS_ROLE";

fn options(change: impl FnOnce(&mut OpenOptions)) -> OpenOptions {
    let mut options = OpenOptions::listening(true);
    change(&mut options);
    options
}

fn in_subnet(net: &str, bits: u8) -> OpenOptions {
    options(|options| options.ip_subnet = Subnet::new(net.parse().unwrap(), bits))
}

fn of_format(format: AddrFormat) -> OpenOptions {
    options(|options| options.addr_format = format)
}

fn address_of(endpoint: &Arc<dyn Endpoint>) -> SocketAddr {
    let uri = endpoint.self_addr().uri().to_owned();
    let (_, address) = uri.split_once("://").unwrap();
    address.parse().unwrap_or_else(|_| panic!("{uri} is no IP address"))
}

fn opened_at(uri: &str, options: &OpenOptions) -> IpAddr {
    let endpoint = na::open(uri, options).unwrap_or_else(|error| panic!("{uri}: {error}"));
    address_of(&endpoint).ip()
}

fn has_address(ip: &str) -> bool {
    let ip: IpAddr = ip.parse().unwrap();
    let found = std::net::TcpListener::bind((ip, 0)).is_ok();
    if !found {
        println!("SKIPPED in part: there is no address {ip} here");
    }
    found
}

/// The ways to an IP address that are to be tried.
fn heads() -> impl Iterator<Item = &'static str> {
    let optional = [
        ("", "na+tcp"),
        ("MARGO_TEST_UCX", "ucx+tcp"),
        ("MARGO_TEST_OFI", "ofi+tcp"),
        ("MARGO_TEST_OFI", "ofi+tcp;ofi_rxm"),
    ];
    optional.into_iter().filter_map(|(variable, head)| {
        let lacks = match variable {
            "" => None,
            variable => Optional { variable, uri: head, open: na::open }.lacks(),
        };
        match lacks {
            None => Some(head),
            Some(lacks) => {
                println!("SKIPPED in part: {head}: {lacks}");
                None
            }
        }
    })
}

/// Returns whether data can go by the loopback address of IPv6: not over UCX before 1.14, which
/// says so.
fn has_loopback_v6(head: &str) -> bool {
    match na::open(&format!("{head}://[::1]:0"), &OpenOptions::listening(true)) {
        Err(Error::Unavailable { transport: "ucx", reason }) if head == "ucx+tcp" => {
            assert!(reason.contains("`[::1]:0`: this UCX sends no data by"), "{reason}");
            println!("SKIPPED in part: {reason}");
            false
        }
        other => {
            drop(other.unwrap());
            true
        }
    }
}

/// One message there and back, which shows that peers find both.
fn talk(one: &Arc<dyn Endpoint>, other: &Arc<dyn Endpoint>, to: &str) {
    let to = one.lookup(to).unwrap();
    let written = |endpoint: &Arc<dyn Endpoint>, text| {
        let mut message = endpoint.alloc_msg();
        assert!(message.try_extend(text));
        message
    };
    other.recv_unexpected(OpId(1), other.alloc_msg()).unwrap();
    one.recv_expected(OpId(4), &to, Tag(8), one.alloc_msg()).unwrap();
    one.send_unexpected(OpId(2), &to, Tag(7), written(one, b"hello")).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let (mut caller, mut answered) = (None, false);
    while !answered {
        assert!(Instant::now() < deadline, "{to} is not reached, or does not reach us");
        let mut sink = |done: Completion| {
            if let Completion::Recv { result, buf, .. } = done {
                assert_eq!((result.unwrap().tag, buf.as_slice()), (Tag(8), &b"there"[..]));
                answered = true;
            }
        };
        one.poll(8, &mut sink).unwrap();
        let mut sink = |done: Completion| {
            if let Completion::Recv { result, buf, .. } = done {
                let arrival = result.unwrap();
                assert_eq!((arrival.tag, buf.as_slice()), (Tag(7), &b"hello"[..]));
                caller = Some(arrival.from);
            }
        };
        other.poll(8, &mut sink).unwrap();
        if let Some(caller) = caller.take() {
            other.send_expected(OpId(3), &caller, Tag(8), written(other, b"there")).unwrap();
        }
    }
}

#[test]
fn the_subnet_chooses_the_address() {
    for head in heads() {
        let any = format!("{head}://");
        if has_address("127.0.0.1") {
            let endpoint = na::open(&any, &in_subnet("127.0.0.0", 8)).unwrap();
            assert!(address_of(&endpoint).ip().is_loopback() && address_of(&endpoint).is_ipv4());
            let peer = na::open(&any, &in_subnet("127.0.0.0", 8)).unwrap();
            talk(&peer, &endpoint, endpoint.self_addr().uri());
        }
        if has_address("::1") && has_loopback_v6(head) {
            assert_eq!(opened_at(&any, &in_subnet("::1", 128)).to_string(), "::1", "{head}");
        }
        // Nobody has these.
        let error = na::open(&any, &in_subnet("240.0.0.0", 4)).unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("ip_subnet 240.0.0.0/4; there is"), "{error}");
        // Who names a host means it.
        let named = format!("{head}://127.0.0.1:0");
        assert_eq!(opened_at(&named, &in_subnet("240.0.0.0", 4)).to_string(), "127.0.0.1");
    }
}

#[test]
fn the_form_chooses_the_family() {
    for head in heads() {
        let (any, v4, v6) =
            (format!("{head}://"), format!("{head}://127.0.0.1:0"), format!("{head}://[::1]:0"));
        for format in [AddrFormat::Unspec, AddrFormat::Ipv4, AddrFormat::Native] {
            assert!(opened_at(&any, &of_format(format)).is_ipv4(), "{head} {format:?}");
            assert!(opened_at(&v4, &of_format(format)).is_ipv4(), "{head} {format:?}");
        }
        if has_address("::1") && has_loopback_v6(head) {
            assert!(opened_at(&any, &of_format(AddrFormat::Ipv6)).is_ipv6(), "{head}");
            assert!(opened_at(&v6, &of_format(AddrFormat::Ipv6)).is_ipv6(), "{head}");
            assert!(opened_at(&v6, &of_format(AddrFormat::Unspec)).is_ipv6(), "{head}");
            let lo = format!("{head}://lo");
            assert!(opened_at(&lo, &of_format(AddrFormat::Ipv4)).is_ipv4(), "{head}");
            assert!(opened_at(&lo, &of_format(AddrFormat::Ipv6)).is_ipv6(), "{head}");
            let open = || na::open(&v6, &of_format(AddrFormat::Unspec)).unwrap();
            let (target, origin) = (open(), open());
            talk(&origin, &target, target.self_addr().uri());
            get(&origin, &target, target.self_addr().uri());
        }
        for (uri, format, said) in
            [(&v4, AddrFormat::Ipv6, "no IPv6 address"), (&v6, AddrFormat::Ipv4, "no IPv4 address")]
        {
            let error = na::open(uri, &of_format(format)).unwrap_err();
            assert!(matches!(error, Error::BadOption { option: "addr_format", .. }), "{error}");
            assert!(error.to_string().contains(said), "{error}");
        }
        let mut both = in_subnet("127.0.0.0", 8);
        both.addr_format = AddrFormat::Ipv6;
        let error = na::open(&any, &both).unwrap_err().to_string();
        assert!(error.contains("127.0.0.0/8") && error.contains("no IPv6 address"), "{error}");
    }
}

#[test]
fn a_provider_without_ip_addresses_has_no_such_form() {
    if let Some(lacks) =
        (Optional { variable: "MARGO_TEST_OFI", uri: "ofi+shm://", open: na::open }).lacks()
    {
        return println!("SKIPPED: {lacks}");
    }
    for (uri, format, said) in [
        ("ofi+shm://", AddrFormat::Ipv4, "no IPv4 addresses"),
        ("ofi+cxi://", AddrFormat::Ipv6, "no IPv6 addresses"),
        ("ofi+verbs://", AddrFormat::Native, "IP over InfiniBand"),
    ] {
        let error = na::open(uri, &of_format(format)).unwrap_err();
        assert!(matches!(error, Error::BadOption { option: "addr_format", .. }), "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
    for format in [AddrFormat::Unspec, AddrFormat::Native] {
        drop(na::open("ofi+shm://", &of_format(format)).unwrap());
    }
}

/// Several addresses on one interface, in a network namespace of this test's own.
fn within_a_namespace() {
    ip("address add 10.7.0.1/24 dev lo");
    ip("address add 10.8.0.1/16 dev lo");
    // What is down has addresses and is not chosen.
    let error = na::open("na+tcp://", &in_subnet("10.7.0.0", 24)).unwrap_err().to_string();
    assert!(error.contains("that is up has an address in ip_subnet 10.7.0.0/24"), "{error}");
    ip("link set lo up");
    // UCX lists there which interfaces it has.
    let sees = Command::new("mount").args(["-t", "sysfs", "sysfs", "/sys"]).status();
    let sees = sees.is_ok_and(|status| status.success());
    if !sees {
        println!("SKIPPED in part: this namespace cannot have a /sys of its own");
    }
    let has_v6 = std::path::Path::new("/proc/net/if_inet6").exists();
    if has_v6 {
        ip("link add veth0 type veth peer name veth1");
        ip("address add 10.9.0.1/24 dev veth0");
        ip("address add fd00:9::1/64 dev veth0 nodad");
        ip("link set veth0 up");
        ip("link set veth1 up");
        ip("-6 route add default dev veth0");
        ip("address add fd00:7::1/64 dev lo nodad");
    }
    for head in heads() {
        let any = format!("{head}://");
        for (net, bits, address) in [
            ("10.7.0.0", 24, "10.7.0.1"),
            ("10.8.9.9", 16, "10.8.0.1"),
            ("127.0.0.0", 8, "127.0.0.1"),
        ] {
            let endpoint = na::open(&any, &in_subnet(net, bits)).unwrap();
            assert_eq!(address_of(&endpoint).ip().to_string(), address, "{head}");
            let peer = na::open(&any, &in_subnet(net, bits)).unwrap();
            // UCX finds no way for the data where there is only loopback with several addresses.
            if head != "ucx+tcp" {
                talk(&peer, &endpoint, endpoint.self_addr().uri());
            }
            let lo = opened_at(&format!("{head}://lo"), &in_subnet(net, bits));
            assert_eq!(lo.to_string(), address, "{head}");
        }
        if has_v6 {
            let found = opened_at(&any, &in_subnet("fd00:7::", 64));
            assert_eq!(found.to_string(), "fd00:7::1", "{head}");
            if sees || head != "ucx+tcp" {
                v6_beside_v4(head);
            }
        }
    }
    for head in heads() {
        let all = format!("{head}://0.0.0.0:0");
        assert_eq!(opened_at(&all, &in_subnet("10.8.0.0", 16)).to_string(), "10.8.0.1", "{head}");
    }
}

/// One interface with addresses of both families. Whoever is called by IPv6 answers by IPv6, or
/// it is told who cannot be called: UCX has one address of each interface, and wrote beyond the end
/// of its memory when it was called by the other.
fn v6_beside_v4(head: &str) {
    let open = |host: &str| {
        na::open(&format!("{head}://{host}:0"), &OpenOptions::listening(true)).unwrap()
    };
    let (target, origin) = (open("[fd00:9::1]"), open("[fd00:9::1]"));
    talk(&origin, &target, target.self_addr().uri());
    get(&origin, &target, target.self_addr().uri());
    let (v4, all) = (open("10.9.0.1"), open("[::]"));
    assert_eq!(address_of(&all).ip().to_string(), "fd00:9::1", "{head}");
    talk(&origin, &all, all.self_addr().uri());
    if head == "ucx+tcp" {
        for (from, to) in [(&v4, &target), (&target, &v4)] {
            let error = refused_call(from, to.self_addr().uri());
            assert!(error.contains("this endpoint's data goes by IPv"), "{error}");
        }
        if !has_loopback_v6(head) {
            let error = refused_call(&target, "ucx+tcp://[::1]:7");
            assert!(error.contains("loopback address of IPv6"), "{error}");
        }
    }
}

/// Why a message to somebody cannot be sent.
fn refused_call(from: &Arc<dyn Endpoint>, to: &str) -> String {
    let to = from.lookup(to).unwrap();
    from.send_unexpected(OpId(1), &to, Tag(7), from.alloc_msg()).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let mut said = None;
    while said.is_none() {
        assert!(Instant::now() < deadline, "the message does not end");
        let mut sink = |done: Completion| {
            if let Completion::Send { result, .. } = done {
                said = Some(result.unwrap_err().to_string());
            }
        };
        from.poll(8, &mut sink).unwrap();
    }
    said.unwrap()
}

/// Runs `inside` in a network namespace of its own: this program again, with this test alone.
fn in_a_namespace(test: &str, inside: impl FnOnce()) {
    if std::env::var_os(ROLE).is_some() {
        let kill = Some(rustix::process::Signal::KILL);
        rustix::process::set_parent_process_death_signal(kill).unwrap();
        inside();
        return println!("passed");
    }
    na::conformance::hear_of_children();
    let may = Command::new("sh").args(["-c", "command -v ip && unshare -Urnm true"]).output();
    if !may.is_ok_and(|output| output.status.success()) {
        return println!("SKIPPED: no `ip`, or network namespaces are not permitted here");
    }
    let output = Command::new("unshare")
        .arg("-Urnm")
        .arg(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(ROLE, "inside")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("passed"), "{said}{why}");
    said.lines().filter(|line| line.contains("SKIPPED")).for_each(|line| println!("{line}"));
}

#[test]
fn of_several_networks_the_right_one_is_taken() {
    in_a_namespace(test_path!("of_several_networks_the_right_one_is_taken"), within_a_namespace);
}

fn ip(line: &str) {
    let output = Command::new("sh").args(["-c", &format!("ip {line}")]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "ip {line}: {said}");
}

/// A pair of interfaces, of which `veth0` has the addresses.
fn interface_with(addresses: &[&str]) {
    ip("link set lo up");
    ip("link add veth0 type veth peer name veth1");
    for address in addresses {
        let nodad = if address.contains("::") { "nodad" } else { "" };
        ip(&format!("address add {address} dev veth0 {nodad}"));
    }
    ip("link set veth0 up");
    ip("link set veth1 up");
    addresses.iter().for_each(|address| until_it_works(address));
}

/// The system takes a while to get an address of IPv6 going.
fn until_it_works(address: &str) {
    let (ip, _) = address.split_once('/').unwrap();
    let ip: IpAddr = ip.parse().unwrap();
    let deadline = Instant::now() + PATIENCE;
    let works = || {
        let listener = std::net::TcpListener::bind((ip, 0))?;
        std::net::TcpStream::connect(listener.local_addr()?)
    };
    while let Err(error) = works() {
        assert!(Instant::now() < deadline, "{address}: {error}");
        std::thread::yield_now();
    }
}

/// As Docker does it. `false`: that is not permitted here.
fn without_v6() -> bool {
    let done = ["all", "lo"].iter().all(|name| {
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1").is_ok()
    });
    if !done {
        println!("SKIPPED in part: IPv6 cannot be switched off here");
    }
    done
}

/// An endpoint that listens at `uri` tells others this address, by which it is reached.
fn is_published(uri: &str, address: &str) {
    let endpoint = na::open(uri, &OpenOptions::listening(true)).unwrap();
    assert_eq!(address_of(&endpoint).ip().to_string(), address, "{uri}");
    let caller = na::open("na+tcp://", &OpenOptions::default()).unwrap();
    talk(&caller, &endpoint, endpoint.self_addr().uri());
}

/// Which addresses are published where all interfaces are listened on.
fn are_published(addresses: &[(&str, &str)]) {
    for (host, address) in addresses {
        is_published(&format!("na+tcp://{host}:0"), address);
        for head in heads().filter(|head| *head != "na+tcp" && !address.contains("::")) {
            let found = opened_at(&format!("{head}://{host}:0"), &OpenOptions::listening(true));
            assert_eq!(found.to_string(), *address, "{head}, {host}");
        }
    }
}

#[test]
fn a_host_without_ipv6_is_published_by_ipv4() {
    in_a_namespace(test_path!("a_host_without_ipv6_is_published_by_ipv4"), || {
        interface_with(&["10.9.8.7/24"]);
        if without_v6() {
            // Though nothing leads outside.
            are_published(&[("[::]", "10.9.8.7"), ("0.0.0.0", "10.9.8.7")]);
            ip("route add default dev veth0");
            are_published(&[("[::]", "10.9.8.7"), ("0.0.0.0", "10.9.8.7")]);
            is_published("na+tcp://:0", "127.0.0.1");
        }
    });
}

#[test]
fn a_host_without_ipv4_is_published_by_ipv6() {
    in_a_namespace(test_path!("a_host_without_ipv4_is_published_by_ipv6"), || {
        if !std::path::Path::new("/proc/net/if_inet6").exists() {
            return println!("SKIPPED in part: there is no IPv6 here");
        }
        interface_with(&["fd00:9::1/64"]);
        ip("address del 127.0.0.1/8 dev lo");
        is_published("na+tcp://[::]:0", "fd00:9::1");
        is_published("na+tcp://:0", "::1");
        is_published("na+tcp://", "::1");
        let own = na::open("na+tcp://:0", &OpenOptions::listening(true)).unwrap();
        let port = address_of(&own).port();
        let caller = na::open("na+tcp://", &OpenOptions::default()).unwrap();
        talk(&caller, &own, &format!("na+tcp://:{port}"));
        // An address of this family is asked for.
        let v4 = na::open("na+tcp://:0", &of_format(AddrFormat::Ipv4)).unwrap_err();
        assert!(v4.to_string().contains("127.0.0.1"), "{v4}");
    });
}

#[test]
fn a_host_with_both_families_is_published_by_what_leads_outside() {
    let test = test_path!("a_host_with_both_families_is_published_by_what_leads_outside");
    in_a_namespace(test, || {
        if !std::path::Path::new("/proc/net/if_inet6").exists() {
            return println!("SKIPPED in part: there is no IPv6 here");
        }
        interface_with(&["10.9.8.7/24", "fd00:9::1/64"]);
        ip("route add default dev veth0");
        is_published("na+tcp://[::]:0", "10.9.8.7");
        let found = opened_at("na+tcp://[::]:0", &of_format(AddrFormat::Ipv6));
        assert_eq!(found.to_string(), "fd00:9::1");
        ip("address add 2a00:9::1/64 dev veth0 nodad");
        until_it_works("2a00:9::1/64");
        is_published("na+tcp://[::]:0", "2a00:9::1");
        is_published("na+tcp://0.0.0.0:0", "10.9.8.7");
        ip("address del 2a00:9::1/64 dev veth0");
        ip("-6 route add default dev veth0");
        is_published("na+tcp://[::]:0", "fd00:9::1");
    });
}

/// Counts warnings of an address that others cannot call.
#[derive(Clone, Default)]
struct Warnings(Arc<std::sync::atomic::AtomicUsize>);

impl tracing::field::Visit for Warnings {
    fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        let is_one = format!("{value:?}").contains("only this machine reaches");
        self.0.fetch_add(usize::from(is_one), std::sync::atomic::Ordering::Relaxed);
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::Id {
        tracing::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::Id, _: &tracing::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &tracing::Id) {}

    fn exit(&self, _: &tracing::Id) {}
}

/// Puts a line into an `/etc/hosts` of this namespace's own. `false`: that is not permitted here.
fn is_named_in_hosts(line: &str) -> bool {
    let mount = format!(
        "mount -t tmpfs tmpfs /mnt && printf '127.0.0.1 localhost\\n{line}\\n' >/mnt/hosts && \
         mount --bind /mnt/hosts /etc/hosts"
    );
    let done = Command::new("sh").args(["-c", &mount]).status();
    let done = done.is_ok_and(|status| status.success());
    if !done {
        println!("SKIPPED in part: there can be no /etc/hosts of this test's own");
    }
    done
}

#[test]
fn an_address_that_only_this_machine_reaches_is_warned_of() {
    in_a_namespace(test_path!("an_address_that_only_this_machine_reaches_is_warned_of"), || {
        ip("link set lo up");
        let warnings = Warnings::default();
        let warned = || warnings.0.load(std::sync::atomic::Ordering::Relaxed);
        tracing::subscriber::with_default(warnings.clone(), || {
            is_published("na+tcp://0.0.0.0:0", "127.0.0.1");
            assert_eq!(warned(), 1);
            if std::path::Path::new("/proc/net/if_inet6").exists() {
                is_published("na+tcp://[::]:0", "::1");
                assert_eq!(warned(), 2);
            }
            if without_v6() {
                is_published("na+tcp://[::]:0", "127.0.0.1");
                assert_eq!(warned(), 3);
            }
            let before = warned();
            // It listens where it says.
            is_published("na+tcp://:0", "127.0.0.1");
            is_published("na+tcp://localhost:0", "127.0.0.1");
            is_published("na+tcp://lo:0", "127.0.0.1");
            if is_named_in_hosts("127.0.1.1 this-host") {
                assert_eq!(warned(), before);
                is_published("na+tcp://this-host:0", "127.0.1.1");
                assert_eq!(warned(), before + 1);
            }
            let before = warned();
            ip("address add 10.9.8.7/24 dev lo");
            is_published("na+tcp://[::]:0", "10.9.8.7");
            assert_eq!(warned(), before);
        });
    });
}

/// The sockets of this process that listen at `at`, or are either end of a connection with it, as
/// (family, TOS, traffic class). Other tests may have the port at another address of this host, or
/// dial whoever had it before; no socket here is the other end of those.
fn sockets_of(at: SocketAddr) -> Vec<(AddressFamily, u8, Option<u32>)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let Ok(number) = entry.unwrap().file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        // SAFETY: used for calls that say so if it is not open any more, or no socket.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let plain = |address: rustix::net::SocketAddrAny| {
            let address = SocketAddr::try_from(address).ok()?;
            Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
        };
        let own = rustix::net::getsockname(fd).ok().and_then(plain);
        let peer = rustix::net::getpeername(fd).ok().flatten().and_then(plain);
        if let (Some(own), Ok(family)) = (own, sockopt::socket_domain(fd)) {
            let listens = sockopt::socket_acceptconn(fd).unwrap_or(false);
            let class = || sockopt::ipv6_tclass(fd).ok();
            let class = (family == AddressFamily::INET6).then(class).flatten();
            let tos = sockopt::ip_tos(fd).unwrap_or(0);
            all.push((own, peer, listens, (family, tos, class)));
        }
    }
    let is_at = |it: SocketAddr| it == at || it.ip().is_unspecified() && it.port() == at.port();
    let has_end = |own, peer| all.iter().any(|other| (other.0, other.1) == (peer, Some(own)));
    let found = all.iter().filter(|(own, peer, listens, _)| match *peer {
        Some(peer) => (is_at(*own) || is_at(peer)) && has_end(*own, peer),
        None => *listens && is_at(*own),
    });
    found.map(|(.., found)| *found).collect()
}

/// Two bits of the byte are not the class, but say what congestion there is.
fn class_of(byte: u8) -> u8 {
    byte & !3
}

/// Reads memory of `other`'s, of more than a message.
fn get(one: &Arc<dyn Endpoint>, other: &Arc<dyn Endpoint>, from: &str) {
    const LEN: usize = 100_000;
    let theirs = other.register(Memory::from_vec(vec![7; LEN]), Access::ReadOnly).unwrap();
    let local = one.register(Memory::from_vec(vec![0; LEN]), Access::ReadWrite).unwrap();
    let remote = one.mem_from_bytes(&other.mem_to_bytes(&theirs)).unwrap();
    let from = one.lookup(from).unwrap();
    let transfer = Transfer { local, local_offset: 0, remote, remote_offset: 0, len: LEN as u64 };
    one.get(OpId(3), &from, transfer).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let mut done = false;
    while !done {
        assert!(Instant::now() < deadline, "the transfer does not end");
        let mut sink = |completion: Completion| {
            if let Completion::Transfer { result, .. } = completion {
                result.unwrap();
                done = true;
            }
        };
        one.poll(8, &mut sink).unwrap();
        other.poll(8, &mut |_| ()).unwrap();
    }
}

#[test]
fn every_packet_of_a_tcp_endpoint_is_of_its_class() {
    use TrafficClass::*;
    let classes = [BestEffort, LowLatency, BulkData, DedicatedAccess, Scavenger, NetworkCtrl];
    // An IPv6 listener takes IPv4 as well, with a byte of its own.
    for (listens, dialed) in [("127.0.0.1", "127.0.0.1"), ("[::1]", "[::1]"), ("[::]", "127.0.0.1")]
    {
        if !has_address(listens.trim_matches(['[', ']'])) {
            continue;
        }
        for class in classes {
            let wanted = class.dscp().unwrap() << 2;
            let options = options(|options| options.traffic_class = class);
            let target = na::open(&format!("na+tcp://{listens}:0"), &options).unwrap();
            let port = address_of(&target).port();
            let origin = na::open("na+tcp://", &options).unwrap();
            let to = format!("na+tcp://{dialed}:{port}");
            talk(&origin, &target, &to);
            get(&origin, &target, &to);
            let found = sockets_of(format!("{dialed}:{port}").parse().unwrap());
            assert_eq!(found.len(), 3, "listening, dialed, accepted: {found:?}");
            for (family, tos, tclass) in found {
                assert_eq!(class_of(tos), wanted, "{class:?} {family:?}");
                if let Some(tclass) = tclass {
                    assert_eq!(class_of(tclass as u8), wanted, "{class:?} {family:?}");
                }
            }
        }
    }
}

#[test]
fn a_fabric_is_told_the_class() {
    if let Some(lacks) =
        (Optional { variable: "MARGO_TEST_OFI", uri: "ofi+tcp", open: na::open }).lacks()
    {
        return println!("SKIPPED: {lacks}");
    }
    // They do nothing with it, and work.
    let classes = [TrafficClass::BestEffort, TrafficClass::BulkData, TrafficClass::NetworkCtrl];
    for (head, class) in ["ofi+tcp", "ofi+tcp;ofi_rxm"]
        .into_iter()
        .flat_map(|head| classes.map(|class| (head, class)))
    {
        let options = options(|options| options.traffic_class = class);
        let open = || na::open(&format!("{head}://127.0.0.1:0"), &options).unwrap();
        let (one, other) = (open(), open());
        talk(&one, &other, other.self_addr().uri());
    }
}

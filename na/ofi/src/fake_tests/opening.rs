//! From a URI to a device: the search, and the error when there is no such device.

use std::ffi::CStr;
use std::process::Command;

use ofi_sys::{Library, LoadError, raw};

use super::*;
use crate::fabrics::{fabric::text, nearest::Made};
use crate::fake::{Call, Device, Fake, Opening, symbol};
use crate::{fabrics::search, providers::provider};
use na_core::hosts::own_address::Wanted;
use na_core::{Subnet, TrafficClass, Uri};

const URI: &str = "ofi+tcp://127.0.0.1:0";

/// Returns the text of the error when `uri` cannot be opened.
fn told(fake: &Fake, uri: &str) -> String {
    fake.open(uri).unwrap_err().to_string()
}

#[test]
fn what_is_not_found_is_told_with_what_was_tried_and_what_there_is() {
    let fake = Fake::of_version(1, 22, [Device::efa(), Device::shm()]);
    let error = told(&fake, "ofi+cxi://cxi0");
    for part in ["libfabric 1.22", "a library of a test", "`cxi`", "efa, shm"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let error = told(&fake, URI);
    assert!(error.contains("`tcp`, `net`"), "{error}");
    let fake = Fake::new(Device::tcp());
    for uri in ["ofi+tcp://127.0.0.2:0", "ofi+tcp://eth7/127.0.0.1:0"] {
        let error = told(&fake, uri);
        for part in [uri, "No data available", "lo (127.0.0.1)"] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
    let fake = Fake::of_version(1, 22, []);
    assert!(told(&fake, URI).contains("finds no device"));
}

/// libfabric offers such devices by native addresses, or not at all.
#[test]
fn infiniband_without_an_ip_address_is_told_what_it_needs() {
    let native = Device { format: raw::FI_SOCKADDR_IB, name_bytes: 48, ..Device::verbs() };
    let fake = Fake::new(native);
    for uri in ["ofi+verbs://", "ofi+verbs://mlx5_0/", "ofi+verbs://:7000", "ofi+verbs://127.0.0.1"]
    {
        let error = told(&fake, uri);
        for part in [uri, "mlx5_0 (no IP address)", "IP over InfiniBand (IPoIB)"] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
    let fake = Fake::new(Device::tcp());
    assert!(told(&fake, "ofi+verbs://").contains("finds no device"));
    assert!(told(&fake, "ofi+verbs://").contains("IPoIB"));
    // One that has an address.
    let fake = Fake::new(Device::verbs());
    assert!(!told(&fake, "ofi+verbs://mlx5_7/").contains("IPoIB"));
    assert!(!told(&Fake::new(Device::shm()), URI).contains("IPoIB"));
}

#[test]
fn devices_that_cannot_do_it_are_told_with_why() {
    let fake = Fake::new(Device { message_bytes: 2048, ..Device::tcp() });
    let error = told(&fake, URI);
    assert!(error.contains("message_bytes_max: 4096 bytes") && error.contains("2048"), "{error}");
    let mut options = OpenOptions::default();
    options.message_bytes_max = 2048;
    drop(fake.open_with(URI, &options).unwrap());
    let fake = Fake::new(Device { data_bytes: 2, ..Device::tcp() });
    let error = told(&fake, URI);
    assert!(error.contains("2 bytes of data"), "{error}");
}

#[test]
fn what_fails_while_an_endpoint_is_opened_is_named_and_all_is_closed() {
    let fake = Fake::new(Device::tcp());
    for (call, named) in [
        (Call::Domain, "domain `lo`"),
        (Call::CqOpen, "completion queue"),
        (Call::SetOpt, "least room"),
        (Call::Enable, "enable the endpoint"),
        (Call::AvInsert, "insert an address"),
    ] {
        fake.refuse(call, raw::FI_ENOMEM, usize::MAX);
        let error = told(&fake, URI);
        assert!(error.contains(named) && error.contains("Cannot allocate memory"), "{error}");
        assert_eq!(fake.count_open(), 0, "{call:?}");
        fake.relent();
    }
    let fake = Fake::new(Device { mr_mode: raw::FI_MR_LOCAL, ..Device::tcp() });
    fake.refuse(Call::Register, raw::FI_ENOMEM, usize::MAX);
    assert!(told(&fake, URI).contains("takes no buffer for requests"));
    assert_eq!(fake.count_open(), 0);
}

/// The driver of `efa` refuses a queue that is longer than the device has; the size for which there
/// is a wait descriptor is better than one without.
#[test]
fn a_device_with_a_short_completion_queue_is_opened() {
    for (device, uri, asked) in [
        (Device::efa(), "ofi+efa://", &[131_072, 65_536, 32_768][..]),
        (
            Device { cq_entries: 20_000, ..Device::efa() },
            "ofi+efa://",
            &[131_072, 65_536, 32_768, 16_384],
        ),
        // Not enough for what it takes of receives and messages: what it thinks right.
        (
            Device { cq_entries: 9000, ..Device::efa() },
            "ofi+efa://",
            &[131_072, 65_536, 32_768, 16_384, 0],
        ),
        (
            Device { cq_entries: 8192, ..Device::tcp() },
            URI,
            &[131_072, 65_536, 32_768, 16_384, 8192],
        ),
        (Device::tcp(), URI, &[131_072]),
    ] {
        let fake = Fake::new(device);
        let node = Node::open(&fake, uri);
        assert_eq!(fake.state().cq_sizes, asked);
        assert_eq!(node.endpoint.wait_fd().is_some(), uri == URI);
    }
    let fake = Fake::new(Device::tcp());
    fake.refuse(Call::CqOpen, raw::FI_EINVAL, usize::MAX);
    let error = told(&fake, URI);
    let sizes = "131072, 65536, 32768, 16384, 8192, the provider's default: ";
    assert!(error.contains(sizes) && error.contains("Invalid argument"), "{error}");
    // An error that is not about the size.
    fake.state().cq_sizes.clear();
    fake.refuse(Call::CqOpen, raw::FI_EACCES, usize::MAX);
    assert!(told(&fake, URI).contains("sizes tried: 131072: "));
    assert_eq!(fake.state().cq_sizes, [131_072; 2], "with a wait descriptor and without");
}

#[test]
fn an_address_that_is_not_taken_is_an_error_of_the_lookup_alone() {
    let fake = Fake::new(Device::tcp());
    let (a, b) = Node::pair(&fake, URI);
    let stranger = Node::open(&fake, URI);
    fake.refuse(Call::AvInsert, raw::FI_EINVAL, 1);
    let error = a.endpoint.lookup(stranger.endpoint.self_addr().uri()).unwrap_err();
    assert!(error.to_string().contains("insert an address"), "{error}");
    // Nor does a message from there do harm.
    let to_b = stranger.addr_of(&b);
    fake.refuse(Call::AvInsert, raw::FI_EINVAL, 1);
    let recv = b.recv_unexpected();
    sent(both(&stranger, &b, &stranger, stranger.send_unexpected(&to_b, 1, b"lost"))).unwrap();
    while b.poll().unwrap() > 0 {}
    sent(both(&a, &b, &a, a.send_unexpected(&a.addr_of(&b), 2, b"kept"))).unwrap();
    assert_eq!(received(b.wait(recv)), (2, b"kept".to_vec()));
}

/// `na_ofi_verify_info`: one of those that are near, by the caller's first CPU.
#[test]
fn of_several_adapters_each_process_takes_one_that_is_near() {
    let device = |of: &Device, domain, bus| Device { domain, bus: Some(bus), ..of.clone() };
    let devices = |of: &Device| {
        // Each twice, as libfabric lists what differs in other things.
        [("a", 1), ("a", 1), ("b", 2), ("c", 3), ("c", 3), ("d", 4)]
            .map(|(domain, bus)| device(of, domain, bus))
    };
    let buses = vec![(1, 0), (2, 0), (3, 1), (4, 1)];
    for (of, uri, cpus, wanted) in [
        (Device::verbs(), "ofi+verbs://", vec![0], "a"),
        (Device::verbs(), "ofi+verbs://", vec![1, 2], "b"),
        (Device::verbs(), "ofi+verbs://:7000", vec![4], "c"),
        (Device::verbs(), "ofi+verbs://c/", vec![1], "c"),
        (Device::verbs(), "ofi+verbs://127.0.0.1", vec![7], "a"),
        (Device::cxi(), "ofi+cxi://", vec![7], "d"),
        (Device::cxi(), "ofi+cxi://:7", vec![5], "d"),
        (Device::cxi(), "ofi+cxi://b", vec![7], "b"),
        (Device::efa(), "ofi+efa://", (0..8).collect(), "a"),
        (Device::efa(), "ofi+efa://", (3..8).collect(), "d"),
        // Interfaces need not lead to the same network.
        (Device::tcp(), "ofi+tcp://", vec![7], "a"),
    ] {
        let fake = Fake::of_version(1, 22, devices(&of));
        let (parsed, own) = (Uri::parse(uri).unwrap(), OpenOptions::default());
        let provider = provider::named(parsed.protocol).unwrap();
        let (own, machine) = (Wanted::of(&own).unwrap(), Made { cpus, buses: buses.clone() });
        let found =
            fake.with(|library| search::find(library, provider, &parsed, &own, &machine, false));
        let name = text(found.unwrap().domain_attr().name);
        assert_eq!(name, wanted, "{uri} {:?}", machine.cpus);
    }
}

/// An adapter of InfiniBand is listed once more for receives that endpoints share, and libfabric
/// does not say on which bus it is.
#[test]
fn an_adapter_of_two_domains_is_one() {
    let chosen = |domains: &[&'static str], bus: Option<u8>, cpu: usize| {
        let devices = domains.iter().map(|domain| Device { domain, bus, ..Device::verbs() });
        let fake = Fake::of_version(1, 22, devices);
        let uri = Uri::parse("ofi+verbs://").unwrap();
        let own = Wanted::of(&OpenOptions::default()).unwrap();
        let machine = Made { cpus: vec![cpu], buses: vec![(1, 0)] };
        let provider = provider::named("verbs").unwrap();
        let found =
            fake.with(|library| search::find(library, provider, &uri, &own, &machine, false));
        text(found.unwrap().domain_attr().name)
    };
    let one = ["mlx5_0", "mlx5_0-xrc"];
    let preferred = ["mlx5_0-xrc", "mlx5_0"];
    let two = ["mlx5_0", "mlx5_0-xrc", "mlx5_1", "mlx5_1-xrc"];
    for cpu in 0..4 {
        assert_eq!(chosen(&one, None, cpu), "mlx5_0");
        assert_eq!(chosen(&preferred, None, cpu), "mlx5_0-xrc", "FI_VERBS_PREFER_XRC");
        assert_eq!(chosen(&two, None, cpu), ["mlx5_0", "mlx5_1"][cpu % 2]);
        // Two ports of one function.
        assert_eq!(chosen(&["mlx5_0", "mlx5_1"], Some(1), cpu), ["mlx5_0", "mlx5_1"][cpu % 2]);
    }
}

/// Where [`search::find`] looks and what it takes: the device, and the address that is asked for.
fn found(fake: &Fake, uri: &str, subnet: Option<(&str, u8)>) -> Result<(String, String), Error> {
    let parsed = Uri::parse(uri).unwrap();
    let provider = provider::named(parsed.protocol).unwrap();
    let subnet = subnet.map(|(net, bits)| Subnet::new(net.parse().unwrap(), bits).unwrap());
    let mut options = OpenOptions::default();
    options.ip_subnet = subnet;
    let (own, machine) = (Wanted::of(&options)?, Made { cpus: vec![0], buses: Vec::new() });
    let info =
        fake.with(|library| search::find(library, provider, &parsed, &own, &machine, false))?;
    let address = info.source().and_then(|source| source.socket()).unwrap();
    Ok((text(info.domain_attr().name), address.to_string()))
}

/// `na_ofi_parse_sin_info` and `na_ofi_parse_hostname_info`. Interface `lo` is there on every
/// machine; the adapters are no interfaces, as those of InfiniBand are not.
#[test]
fn devices_hosts_and_ports_are_found_as_c_finds_them() {
    let at = |provider: fn() -> Device, domain, ip| Device { domain, ip, ..provider() };
    let adapters = [
        at(Device::verbs, "mlx5_0", [10, 0, 0, 1]),
        at(Device::verbs, "mlx5_1", [10, 1, 0, 1]),
        at(Device::verbs, "mlx5_1", [10, 2, 0, 1]),
        at(Device::verbs, "mlx5_lo", [127, 0, 0, 1]),
    ];
    let interfaces = [at(Device::tcp, "fake7", [10, 0, 0, 1]), Device::tcp()];
    let (adapters, interfaces) =
        (Fake::of_version(1, 22, adapters), Fake::of_version(1, 22, interfaces));
    let elsewhere = Some(("10.0.0.0", 24));
    for (uri, subnet, device, address) in [
        ("ofi+tcp://", None, "fake7", "10.0.0.1:0"),
        ("ofi+tcp://:7000", None, "fake7", "10.0.0.1:7000"),
        ("ofi+tcp://lo", None, "lo", "127.0.0.1:0"),
        ("ofi+tcp://lo:7000", None, "lo", "127.0.0.1:7000"),
        ("ofi+tcp://127.0.0.1:7000", None, "lo", "127.0.0.1:7000"),
        ("ofi+tcp://lo/", None, "lo", "127.0.0.1:0"),
        ("ofi+tcp://lo/:7000", None, "lo", "127.0.0.1:7000"),
        ("ofi+tcp://lo/lo:7000", None, "lo", "127.0.0.1:7000"),
        ("ofi+tcp://lo/127.0.0.1:7000", None, "lo", "127.0.0.1:7000"),
        // The subnet counts where neither host nor device is named.
        ("ofi+tcp://", Some(("127.0.0.0", 8)), "lo", "127.0.0.1:0"),
        ("ofi+tcp://:7000", Some(("127.0.0.0", 8)), "lo", "127.0.0.1:7000"),
        ("ofi+tcp://lo/:7000", elsewhere, "lo", "127.0.0.1:7000"),
        ("ofi+tcp://lo/", elsewhere, "lo", "127.0.0.1:0"),
        ("ofi+tcp://lo:7000", elsewhere, "lo", "127.0.0.1:7000"),
        // Names that are devices and nothing else. Here a port is taken; C leaves it out.
        ("ofi+tcp://fake7", None, "fake7", "10.0.0.1:0"),
        ("ofi+tcp://fake7:7000", None, "fake7", "10.0.0.1:7000"),
        ("ofi+verbs://mlx5_1", None, "mlx5_1", "10.1.0.1:0"),
        ("ofi+verbs://mlx5_1:7000", None, "mlx5_1", "10.1.0.1:7000"),
        ("ofi+verbs://mlx5_1/", None, "mlx5_1", "10.1.0.1:0"),
        ("ofi+verbs://mlx5_1/:7000", None, "mlx5_1", "10.1.0.1:7000"),
        ("ofi+verbs://mlx5_lo/lo:7000", None, "mlx5_lo", "127.0.0.1:7000"),
        ("ofi+verbs://lo:7000", None, "mlx5_lo", "127.0.0.1:7000"),
        // Of several addresses of such a device, the one in the subnet; another subnet is not its.
        ("ofi+verbs://mlx5_1", Some(("10.2.0.0", 16)), "mlx5_1", "10.2.0.1:0"),
        ("ofi+verbs://mlx5_1:7000", Some(("10.2.0.0", 16)), "mlx5_1", "10.2.0.1:7000"),
        ("ofi+verbs://mlx5_1/:7000", Some(("10.2.0.0", 16)), "mlx5_1", "10.2.0.1:7000"),
        ("ofi+verbs://mlx5_1/:7000", elsewhere, "mlx5_1", "10.1.0.1:7000"),
    ] {
        let fake = if uri.starts_with("ofi+tcp") { &interfaces } else { &adapters };
        let taken = found(fake, uri, subnet).unwrap_or_else(|error| panic!("{uri}: {error}"));
        assert_eq!(taken, (device.to_owned(), address.to_owned()), "{uri} {subnet:?}");
    }
    // C opens such a device all the same, at whatever port.
    for (uri, why) in [
        ("ofi+verbs://mlx5_7:7000", "`mlx5_7` is no interface here, and no host"),
        ("ofi+verbs://mlx5_1/no-such-host.invalid:7000", "`no-such-host.invalid` is no interface"),
        ("ofi+verbs://mlx5_1/lo:7000", "mlx5_1 (10.2.0.1)"),
        ("ofi+verbs://mlx5_1:70000", "the port must be a number"),
    ] {
        let error = found(&adapters, uri, None).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains(uri), "{uri}: {error}");
    }
}

/// C asks by `node` and `service`; without a device there is no node, not an empty one.
#[test]
fn ports_of_fabrics_are_asked_for_with_or_without_a_device() {
    for (uri, node, service) in [
        ("ofi+cxi://cxi0", None, None),
        ("ofi+cxi://cxi0:0", None, None),
        ("ofi+cxi://", None, None),
        ("ofi+cxi://cxi0:510", Some("cxi0"), Some("510")),
        ("ofi+cxi://:510", None, Some("510")),
    ] {
        let fake = Fake::new(Device::cxi());
        drop(Node::open(&fake, uri));
        let search = fake.state().searches[0].clone();
        assert_eq!((search.node.as_deref(), search.service.as_deref()), (node, service), "{uri}");
    }
    let fake = Fake::new(Device::cxi());
    assert!(told(&fake, "ofi+cxi://cxi1").contains("cxi0"));
    assert!(told(&fake, "ofi+cxi://cxi1:7").contains("cxi0"));
    // 511 stands for any.
    for pid in ["511", "65536", "-1", "x"] {
        let uri = format!("ofi+cxi://cxi0:{pid}");
        let error = told(&fake, &uri);
        for part in [&uri, &format!("`{pid}` is no PID"), "PID 0 to 510"] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}

/// Both go to the domain; the class to the endpoint, too, where the provider looks at it.
#[test]
fn authorisation_and_traffic_class_reach_the_device() {
    let class = raw::FI_TC_LOW_LATENCY as u32;
    let mut options = OpenOptions::default();
    options.auth_key = Some("7:258".to_owned());
    options.traffic_class = TrafficClass::LowLatency;
    let fake = Fake::new(Device::cxi());
    drop(Node::open_with(&fake, "ofi+cxi://cxi0", &options));
    let auth_key = [&7u32.to_ne_bytes()[..], &258u16.to_ne_bytes(), &[0; 2]].concat();
    let wanted = Opening { class, sends_class: class, auth_key };
    assert_eq!(fake.state().domains, std::slice::from_ref(&wanted));
    assert_eq!(fake.state().opened, [wanted]);
    let fake = Fake::new(Device::tcp());
    options.auth_key = None;
    drop(Node::open_with(&fake, URI, &options));
    let wanted = Opening { class, ..Opening::default() };
    assert_eq!(fake.state().opened, [wanted]);
    let fake = Fake::new(Device::cxi());
    drop(Node::open(&fake, "ofi+cxi://cxi0"));
    assert_eq!(fake.state().opened, [Opening::default()], "nobody asked");
}

/// Set in processes that open a device in the environment of a job.
const JOB: &str = "NA_OFI_TEST_JOB";

/// In a process of its own, for it is the environment that is wrong: networks of a job that cannot
/// be read, with the key that an instance asks for then.
///
/// Counterpart: `init-cxi-misconfig` of C Margo's tests.
#[test]
fn a_job_whose_networks_cannot_be_read_is_told_before_anything_is_opened() {
    if let Ok(wrong) = std::env::var(JOB) {
        return open_in_a_job(&wrong);
    }
    let this = module_path!().split_once("::").unwrap().1;
    let test = "a_job_whose_networks_cannot_be_read_is_told_before_anything_is_opened";
    for (networks, wrong) in [
        ("garbage,more", "has `more`, which is no such number"),
        ("16369,65536", "has `65536`, which is no such number"),
        ("1;2,", "has no item 1"),
        (",", "has no item 1"),
        ("16369,16324", ""),
    ] {
        na_core::conformance::hear_of_children();
        let output = Command::new(std::env::current_exe().unwrap())
            .args([&format!("{this}::{test}"), "--exact", "--nocapture"])
            .env(JOB, wrong)
            .env("SLINGSHOT_DEVICES", "cxi0")
            .env("SLINGSHOT_SVC_IDS", "5")
            .env("SLINGSHOT_VNIS", networks)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let told = String::from_utf8_lossy(&output.stderr);
        let is_right = output.status.success() && said.contains(OPENED_AS_WANTED);
        assert!(is_right, "{networks}: {said}{told}");
    }
}

/// Said by such a process, which might else have run no test at all.
const OPENED_AS_WANTED: &str = "it opens as it should";

fn open_in_a_job(wrong: &str) {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let mut options = OpenOptions::default();
    options.auth_key = Some("0:0:1".to_owned());
    let fake = Fake::new(Device::cxi());
    let opened = fake.open_with("ofi+cxi://cxi0", &options);
    match opened {
        Ok(endpoint) => {
            assert_eq!(wrong, "");
            drop(endpoint);
            let key = [&5u32.to_ne_bytes()[..], &16324u16.to_ne_bytes(), &[0; 2]].concat();
            assert_eq!(fake.state().opened[0].auth_key, key);
        }
        Err(error) => {
            let told = error.to_string();
            let networks = std::env::var("SLINGSHOT_VNIS").unwrap();
            assert!(matches!(error, Error::InvalidArgument(_)), "{told}");
            for part in ["SLINGSHOT_VNIS", &*networks, wrong] {
                assert!(!part.is_empty() && told.contains(part), "{part}: {told}");
            }
            let domains = fake.state().domains.len();
            assert_eq!((domains, fake.count_open()), (0, 0));
        }
    }
    println!("{OPENED_AS_WANTED}");
}

/// As C does: before libfabric 1.20 the device is not asked who sends, and the sender's address,
/// without its network, goes before each request.
#[test]
fn slingshot_tells_senders_from_a_version_on() {
    for (minor, header) in [(19, 4), (20, 0)] {
        let fake = Fake::of_version(1, minor, [Device::cxi()]);
        let (a, b) = Node::pair(&fake, "ofi+cxi://cxi0");
        let options = OpenOptions::default();
        let limits = a.endpoint.limits();
        assert_eq!(limits.unexpected_bytes_max, options.message_bytes_max - header);
        // Who asks is known, and can be answered.
        let recv = b.recv_unexpected();
        sent(both(&a, &b, &a, a.send_unexpected(&a.addr_of(&b), 3, b"who is it?"))).unwrap();
        let Completion::Recv { result: Ok(arrival), buf, .. } = b.wait(recv) else { panic!() };
        assert_eq!(buf.as_slice(), b"who is it?");
        assert_eq!(arrival.from, b.addr_of(&a), "1.{minor}");
        let answer = a.recv_expected(&a.addr_of(&b), 4);
        sent(both(&a, &b, &b, b.send_expected(&arrival.from, 4, b"it is a"))).unwrap();
        assert_eq!(received(a.wait(answer)), (4, b"it is a".to_vec()));
        // What names it elsewhere has as many bytes as the header, or the whole address.
        let bytes = a.endpoint.addr_to_bytes(&a.endpoint.self_addr()).unwrap();
        assert_eq!(bytes.len(), 8 + if header == 0 { 8 } else { header });
        assert_eq!(b.endpoint.addr_from_bytes(&bytes).unwrap(), b.addr_of(&a));
        assert_eq!(fake.state().searches[0].source_told, header == 0);
    }
}

/// There is room for both (`slots.rs`), so that a device may want either.
#[test]
fn contexts_of_both_sizes_are_offered() {
    for mode in [0, raw::FI_CONTEXT, raw::FI_ASYNC_IOV, raw::FI_CONTEXT | raw::FI_ASYNC_IOV] {
        let fake = Fake::new(Device { mode, ..Device::tcp() });
        let (a, b) = Node::pair(&fake, URI);
        drop((a, b));
        let offered = fake.state().searches[0].mode;
        assert_eq!(offered, raw::FI_CONTEXT | raw::FI_CONTEXT2 | raw::FI_ASYNC_IOV);
    }
    let prefix = 1 << 58;
    let fake = Fake::new(Device { mode: prefix, ..Device::tcp() });
    assert!(matches!(fake.open(URI), Err(Error::Unavailable { .. })), "what is not done");
}

/// `efa` leaves its adapter's transfers alone for callers that ask for less than 1.18
/// (`efa_rdm_get_use_device_rdma`).
#[test]
fn every_version_is_asked_for_what_it_knows() {
    for (major, minor, asked) in
        [(1, 13, 13), (1, 17, 13), (1, 18, 18), (1, 20, 20), (1, 22, 20), (2, 6, 20)]
    {
        let fake = Fake::of_version(major, minor, [Device::efa()]);
        drop(Node::pair(&fake, "ofi+efa://"));
        let versions = fake.state().searches.iter().map(|search| search.version).max();
        assert_eq!(versions, Some(1 << 16 | asked), "{major}.{minor}");
    }
}

#[test]
fn a_library_that_lacks_something_is_told_with_what() {
    for missing in [c"fi_getinfo", c"fi_dupinfo", c"fi_fabric", c"fi_version", c"fi_strerror"] {
        let find = |name: &CStr, version: Option<&CStr>| match name == missing {
            true => std::ptr::null_mut(),
            false => symbol(name, version),
        };
        // SAFETY: null, or a function of that name's type.
        let error = unsafe { Library::from_symbols("libfabric.so.9", find) }.unwrap_err();
        let told = error.to_string();
        let name = missing.to_str().unwrap();
        assert!(matches!(error, LoadError::Lacks { symbol, .. } if symbol == name), "{told}");
        assert!(told.contains("libfabric.so.9") && told.contains(name), "{told}");
    }
    for (minor, opens) in [(12, false), (13, true)] {
        let fake = Fake::of_version(1, minor, []);
        // SAFETY: functions of their names' types.
        let opened = fake.with(|_| unsafe { Library::from_symbols("libfabric.so.1", symbol) });
        assert_eq!(opened.is_ok(), opens);
        let too_old = opened.is_err_and(|error| matches!(error, LoadError::TooOld { .. }));
        assert_ne!(too_old, opens);
    }
}

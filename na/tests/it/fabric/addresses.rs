//! Addresses of fabrics that can be opened, and the errors of those that cannot: ofi and ucx, where
//! they are asked for (`MARGO_TEST_OFI=1`, `MARGO_TEST_UCX=1`).

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use na::conformance::{Optional, PATIENCE};
use na::{Completion, Endpoint, Error, OpId, OpenOptions, Tag};

use crate::common::test_path;

const ROLE: &str = "NA_FABRIC_ADDRESSES_ROLE";

/// Those of these that are asked for.
fn asked<const N: usize>(
    variable: &'static str,
    heads: [&'static str; N],
) -> impl Iterator<Item = &'static str> {
    heads.into_iter().filter(move |head| {
        match (Optional { variable, uri: head, open: na::open }).lacks() {
            None => true,
            Some(lacks) => {
                println!("SKIPPED: {head}: {lacks}");
                false
            }
        }
    })
}

fn ofi() -> impl Iterator<Item = &'static str> {
    asked("MARGO_TEST_OFI", ["ofi+tcp", "ofi+tcp;ofi_rxm"])
}

fn ucx() -> impl Iterator<Item = &'static str> {
    asked("MARGO_TEST_UCX", ["ucx+tcp", "ucx+sm"])
}

fn open(uri: &str) -> Result<Arc<dyn Endpoint>, Error> {
    na::open(uri, &OpenOptions::listening(true))
}

fn opened(uri: &str) -> (Arc<dyn Endpoint>, SocketAddr) {
    let endpoint = open(uri).unwrap_or_else(|error| panic!("{uri}: {error}"));
    let address = address_of(&endpoint);
    (endpoint, address)
}

fn address_of(endpoint: &Arc<dyn Endpoint>) -> SocketAddr {
    let own = endpoint.self_addr();
    let (_, address) = own.uri().split_once("://").unwrap();
    address.parse().unwrap_or_else(|_| panic!("{own} is no IP address"))
}

/// Opens an endpoint at a port that nobody has, in place of `PORT`, and returns the port, too. A
/// port that was free when it was looked for may have gone to another process that runs beside this
/// one.
fn opened_at_free(form: &str) -> (Arc<dyn Endpoint>, SocketAddr, u16) {
    const ATTEMPTS: usize = 100;
    for _ in 0..ATTEMPTS {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let uri = form.replace("PORT", &port.to_string());
        match open(&uri) {
            Ok(endpoint) => {
                let address = address_of(&endpoint);
                return (endpoint, address, port);
            }
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::AddrInUse => {}
            Err(error) => panic!("{uri}: {error}"),
        }
    }
    panic!("{form}: {ATTEMPTS} ports were taken");
}

/// A message from one to the other.
fn talk(one: &Arc<dyn Endpoint>, other: &Arc<dyn Endpoint>) {
    let to = one.lookup(other.self_addr().uri()).unwrap();
    other.recv_unexpected(OpId(1), other.alloc_msg()).unwrap();
    one.send_unexpected(OpId(2), &to, Tag(7), one.alloc_msg()).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let mut arrived = false;
    while !arrived {
        assert!(Instant::now() < deadline, "{to} is not reached");
        one.poll(8, &mut |_| ()).unwrap();
        let mut sink = |done| {
            if let Completion::Recv { result, .. } = done {
                arrived = result.unwrap().tag == Tag(7);
            }
        };
        other.poll(8, &mut sink).unwrap();
    }
}

#[test]
fn every_form_of_an_ofi_address_is_opened() {
    for head in ofi() {
        for (rest, is_loopback) in [
            ("127.0.0.1:PORT", true),
            ("localhost:PORT", true),
            ("lo", true),
            ("lo:PORT", true),
            ("lo/127.0.0.1:PORT", true),
            ("lo/127.0.0.1", true),
            // The device that libfabric offers first.
            (":PORT", false),
            ("", false),
        ] {
            let uri = format!("{head}://{rest}");
            let (endpoint, address, port) = opened_at_free(&uri);
            assert!(address.ip().is_loopback() || !is_loopback, "{uri}: {address}");
            assert!(!address.ip().is_unspecified() && address.port() != 0, "{uri}: {address}");
            assert!(address.port() == port || !rest.contains("PORT"), "{uri}: {address}");
            let other = open(&format!("{head}://{}", address.ip())).unwrap();
            talk(&other, &endpoint);
        }
    }
}

/// libfabric knows an endpoint by one address, which peers must be able to call.
#[test]
fn all_interfaces_are_the_one_by_which_others_call() {
    for head in ofi().chain(ucx()) {
        let (endpoint, address, port) = opened_at_free(&format!("{head}://0.0.0.0:PORT"));
        assert!(address.is_ipv4() && !address.ip().is_unspecified(), "{head}: {address}");
        assert_eq!(address.port(), port, "{head}");
        if head.starts_with("ofi") {
            talk(&open(&format!("{head}://{}", address.ip())).unwrap(), &endpoint);
        }
        let (_, address) = opened(&format!("{head}://0.0.0.0"));
        assert!(!address.ip().is_unspecified() && address.port() != 0, "{head}: {address}");
    }
}

#[test]
fn a_port_in_use_is_told_with_the_address() {
    for head in ofi().chain(ucx()) {
        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        let uri = format!("{head}://{}", held.local_addr().unwrap());
        let error = open(&uri).unwrap_err();
        let Error::Io { source, .. } = &error else { panic!("{error:?}") };
        assert_eq!(source.kind(), ErrorKind::AddrInUse, "{error}");
        for part in [&uri, "its port is in use"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        drop(held);
        let (first, _, port) = opened_at_free(&format!("{head}://127.0.0.1:PORT"));
        let uri = format!("{head}://127.0.0.1:{port}");
        let error = open(&uri).unwrap_err().to_string();
        assert!(error.contains(&uri), "one of ours has it: {error}");
        drop(first);
    }
}

#[test]
fn a_name_that_means_nothing_is_told_with_all_it_may_have_been() {
    for head in ofi() {
        let uri = format!("{head}://no-such-host.invalid");
        let error = open(&uri).unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        for part in [&uri, "no interface here, and no host", "nor is it a device", "there is "] {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
        assert_eq!(error.to_string().matches("lo (127.0.0.1)").count(), 1, "{error}");
    }
}

#[test]
fn the_devices_of_ucx_are_listed() {
    for _ in ucx().take(1) {
        let plugin = na::plugins().iter().find(|plugin| plugin.name() == "ucx").unwrap();
        let devices = plugin.devices().unwrap();
        let is_lo = |device: &&na::Device| device.protocol == "ucx+tcp" && device.name == "lo";
        assert_eq!(devices.iter().filter(is_lo).count(), 1, "{devices:?}");
        // Each can be opened by what is listed of it.
        drop(open("ucx+tcp://lo/127.0.0.1:0").unwrap());
    }
}

#[test]
fn transports_that_ucx_has_not_are_told() {
    for _ in ucx().take(1) {
        for tls in ["rc", "no_such_transport"] {
            // Where there is InfiniBand, this is no error.
            if tls == "rc" && std::path::Path::new("/sys/class/infiniband").exists() {
                continue;
            }
            let error = open(&format!("ucx+{tls}://127.0.0.1:0")).unwrap_err();
            assert!(matches!(error, Error::Unavailable { .. }), "{error}");
            assert!(error.to_string().contains(&format!("UCX_TLS={tls}")), "{error}");
            assert!(error.to_string().contains("ucx_info -d"), "{error}");
        }
        let error = open("ucx+tcp://no-such-device/127.0.0.1:0").unwrap_err().to_string();
        assert!(error.contains("UCX_NET_DEVICES=no-such-device"), "{error}");
    }
}

/// Needs no library: each that is named is missing. In a process of its own, because a library is
/// opened once.
#[test]
fn a_library_that_is_missing_is_told_with_what_was_tried() {
    if std::env::var_os(ROLE).is_some() {
        for (uri, transport, parts) in [
            ("ofi+tcp://127.0.0.1:0", "ofi", ["/nowhere/libfabric.so", "MARGO_LIBFABRIC"]),
            ("ucx+tcp://127.0.0.1:0", "ucx", ["/nowhere/libucp.so", "MARGO_LIBUCP"]),
        ] {
            // The same when it is asked again.
            for _ in 0..2 {
                let error = open(uri).unwrap_err();
                let told = error.to_string();
                let is_it =
                    matches!(error, Error::Unavailable { transport: of, .. } if of == transport);
                assert!(is_it && parts.iter().all(|part| told.contains(part)), "{told}");
            }
        }
        return println!("passed");
    }
    na::conformance::hear_of_children();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            test_path!("a_library_that_is_missing_is_told_with_what_was_tried"),
            "--exact",
            "--nocapture",
        ])
        .env(ROLE, "without")
        .env("MARGO_LIBFABRIC", "/nowhere/libfabric.so")
        .env("MARGO_LIBUCP", "/nowhere/libucp.so")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("passed"), "{said}{why}");
}

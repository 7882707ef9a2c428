//! Fuzz targets that read text and bytes as addresses. See `fuzz/`.

use crate::{Addr, OpenOptions, RemoteMem, Uri};

/// Reads addresses as text and as bytes, and descriptions of memory: accepted input says the same
/// when it is written again.
///
/// # Panics
///
/// If a rule does not hold.
pub fn addresses(data: &[u8]) {
    if let Some(remote) = RemoteMem::from_bytes(data) {
        assert_eq!(remote.to_bytes()[..], *data);
    }
    if let Ok(text) = Addr::text_in(data) {
        let addr = Addr::new(text, 0, 0, ());
        assert_eq!(addr.to_bytes().expect("it is not longer"), data);
    }
    let Ok(text) = str::from_utf8(data) else { return };
    // Opens nothing, so those of fabrics are read as well.
    let _ = crate::check_address(text, &OpenOptions::default());
    let Ok(uri) = Uri::parse(text) else { return };
    assert_eq!(uri.text, text);
    assert!(text.ends_with(uri.rest) && text.contains(uri.protocol));
    // Names of hosts would be asked for in the network.
    let is_numeric = |b: u8| b.is_ascii_hexdigit() || b".:[]%/".contains(&b);
    let may_ask = ["tcp", "net", "tcp_exp"].contains(&uri.protocol);
    if !may_ask || uri.rest.bytes().all(is_numeric) {
        look_up(text);
    }
}

fn look_up(text: &str) {
    thread_local! {
        // Not those of fabrics: their libraries patch functions of the program when they are
        // opened, and the sanitizer's do not survive that.
        static ENDPOINTS: Vec<prim::sync::Arc<dyn crate::Endpoint>> = crate::plugins()
            .iter()
            .filter(|plugin| plugin.probe_uri().starts_with("na+"))
            .filter_map(|plugin| {
                crate::open(plugin.probe_uri(), &OpenOptions::default()).ok()
            })
            .collect();
    }
    ENDPOINTS.with(|endpoints| {
        for endpoint in endpoints {
            let Ok(addr) = endpoint.lookup(text) else { continue };
            let again = endpoint.lookup(addr.uri()).expect("its own text form");
            assert_eq!((again.uri(), &again), (addr.uri(), &addr));
        }
    });
}

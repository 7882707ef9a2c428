//! Entry points for bytes that come before anybody has proven anything, used by fuzzers and by the
//! test that replays their corpora.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;

use crate::handshake::{Handshake, Progress};
use crate::trust::settings::{Sides, of_secret};

/// A handshake with a peer that says `data`, as its caller and as its target: it waits for more, or
/// fails, and proves nothing.
///
/// # Panics
///
/// If a rule does not hold.
pub fn handshake(data: &[u8]) {
    static SIDES: OnceLock<Sides> = OnceLock::new();
    let secret = b"a secret that no fuzzer will guess: 7f1c";
    let sides = SIDES.get_or_init(|| of_secret(secret).expect("a secret"));
    let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let Some((&step, data)) = data.split_first() else { return };
    for side in [Handshake::dial(sides.clone(), here), Handshake::accept(sides.clone(), None)] {
        let (mut theirs, ours) = UnixStream::pair().expect("a socket pair");
        ours.set_nonblocking(true).expect("a socket");
        let mut side = Some(Box::new(side.expect("a handshake")));
        for piece in data.chunks(1 + usize::from(step)) {
            theirs.write_all(piece).expect("room in the socket");
            let Some(now) = side.take() else { break };
            let (progress, later) = now.advance(&ours);
            assert!(!matches!(progress, Progress::Done(_)), "a stranger has proven something");
            side = later;
        }
        drop(theirs);
        if let Some(side) = side {
            let (progress, _) = side.advance(&ours);
            assert!(matches!(progress, Progress::Failed(_)), "the other end has gone");
        }
    }
}

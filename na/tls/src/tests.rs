//! Handshakes and records over a pair of sockets.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use na_core::TcpSecurity;
use proptest::prelude::*;

use crate::doorkeeper::{Desk, Doorkeeper, Job, Role, Turn};
use crate::handshake::{Handshake, Progress, Secured};
use crate::record::{HEADER_BYTES, Opened, Opener, Plaintext, Sealer, Unreadable, record_bytes};
use crate::trust::settings::Settings;

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// Data in one piece.
struct Piece<'a>(&'a [u8]);

// SAFETY: `copy_to` writes `len` bytes.
unsafe impl Plaintext for Piece<'_> {
    fn left(&self) -> usize {
        self.0.len()
    }

    unsafe fn copy_to(&mut self, to: *mut u8, len: usize) -> io::Result<()> {
        let (now, later) = self.0.split_at(len);
        // SAFETY: a slice of `len` bytes, and room for as many elsewhere (contract).
        unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), to, len) };
        self.0 = later;
        Ok(())
    }
}

/// Settings, and their file, which must live as long.
fn settings() -> (Arc<Settings>, tempfile::NamedTempFile) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "a secret of at least 32 characters").unwrap();
    std::fs::set_permissions(file.path(), PermissionsExt::from_mode(0o600)).unwrap();
    let wanted = TcpSecurity::ClusterSecret(file.path().to_owned());
    (Arc::new(Settings::load(&wanted).unwrap().unwrap()), file)
}

fn sockets() -> [UnixStream; 2] {
    let (one, other) = UnixStream::pair().unwrap();
    [one, other].map(|socket| {
        socket.set_nonblocking(true).unwrap();
        socket
    })
}

/// Makes both sides of a handshake in turn.
fn handshake(sockets: &[UnixStream; 2]) -> [Secured; 2] {
    let (settings, _file) = settings();
    let mut sides = [
        Some(Box::new(Handshake::dial(settings.sides(), HERE).unwrap())),
        Some(Box::new(Handshake::accept(settings.sides(), Some(HERE)).unwrap())),
    ];
    let mut done = [None, None];
    while done.iter().any(Option::is_none) {
        for at in 0..2 {
            let Some(side) = sides[at].take() else { continue };
            match side.advance(&sockets[at]) {
                (Progress::Waits(_), side) => sides[at] = side,
                (Progress::Done(secured), _) => done[at] = Some(*secured),
                (Progress::Failed(failure), _) => panic!("{failure:?}"),
            }
        }
    }
    done.map(Option::unwrap)
}

/// Reads what there is and opens it.
fn open_all(
    opener: &mut Opener,
    from: &mut impl Read,
    buffer: &mut Vec<u8>,
) -> Result<Vec<u8>, Unreadable> {
    let mut chunk = [0; 70_000];
    while let Ok(got) = from.read(&mut chunk) {
        if got == 0 {
            break;
        }
        buffer.extend_from_slice(&chunk[..got]);
    }
    let mut data = Vec::new();
    while let Some(len) = record_bytes(buffer)?.filter(|len| *len <= buffer.len()) {
        match opener.open(&mut buffer[..len], 0)? {
            Opened::Data(bytes) => data.extend_from_slice(&buffer[..bytes]),
            Opened::End => break,
        }
        buffer.drain(..len);
    }
    Ok(data)
}

fn send_all(sealer: &mut Sealer, socket: &UnixStream, data: &[u8]) {
    let mut piece = Piece(data);
    while piece.left() > 0 {
        assert!(sealer.send(socket, &mut piece).unwrap() > 0);
    }
}

#[test]
fn both_directions_carry_data_and_change_their_keys() {
    let mut sockets = sockets();
    let [mut dialer, mut acceptor] = handshake(&sockets);
    dialer.sealer.renew_after(3);
    acceptor.sealer.renew_after(1);
    let mut buffers = [Vec::new(), acceptor.left.clone()];
    for size in (0..200).map(|step| step * 173) {
        let data: Vec<u8> = (0..size).map(|at| at as u8).collect();
        send_all(&mut dialer.sealer, &sockets[0], &data);
        let came = open_all(&mut acceptor.opener, &mut sockets[1], &mut buffers[1]).unwrap();
        assert_eq!(came, data);
        send_all(&mut acceptor.sealer, &sockets[1], &data);
        let came = open_all(&mut dialer.opener, &mut sockets[0], &mut buffers[0]).unwrap();
        assert_eq!(came, data);
    }
    assert_eq!(dialer.sealer.waiting() + acceptor.sealer.waiting(), 0);
}

#[test]
fn what_the_kernel_does_not_take_waits_and_arrives() {
    let mut sockets = sockets();
    let [mut dialer, mut acceptor] = handshake(&sockets);
    let data: Vec<u8> = (0..4 << 20).map(|at: u32| (at >> 3) as u8).collect();
    let mut piece = Piece(&data);
    let (mut came, mut buffer, mut waited) = (Vec::new(), acceptor.left.clone(), false);
    while came.len() < data.len() {
        let sent = match piece.left() {
            0 => dialer.sealer.push(&sockets[0]).map(|()| 0),
            _ => dialer.sealer.send(&sockets[0], &mut piece),
        };
        match sent {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                assert!(dialer.sealer.waiting() > 0);
                waited = true;
                came.extend(open_all(&mut acceptor.opener, &mut sockets[1], &mut buffer).unwrap());
            }
        }
        if piece.left() == 0 && dialer.sealer.waiting() == 0 {
            came.extend(open_all(&mut acceptor.opener, &mut sockets[1], &mut buffer).unwrap());
        }
    }
    assert!(waited && came == data);
}

#[test]
fn an_alert_and_what_means_nothing_end_a_session() {
    for (kind, text, is_alert) in [(21, &[2, 48][..], true), (22, &[1], false), (99, &[], false)] {
        let mut sockets = sockets();
        let [mut dialer, mut acceptor] = handshake(&sockets);
        dialer.sealer.say_of_kind(kind, text, &sockets[0]);
        let opened = open_all(&mut acceptor.opener, &mut sockets[1], &mut acceptor.left);
        assert_eq!(matches!(opened, Err(Unreadable::Alert(_))), is_alert, "{opened:?}");
        assert!(opened.is_err());
    }
}

#[test]
fn records_without_data_are_few() {
    let mut sockets = sockets();
    let [mut dialer, mut acceptor] = handshake(&sockets);
    let mut empty = |count: u32| {
        (0..count).for_each(|_| dialer.sealer.say_of_kind(23, &[], &sockets[0]));
        open_all(&mut acceptor.opener, &mut sockets[1], &mut acceptor.left)
    };
    assert_eq!(empty(32).unwrap(), b"");
    assert!(empty(1).is_err());
}

#[test]
fn a_byte_at_a_time_does_not_make_a_peer_less_late() {
    let (settings, _file) = settings();
    let doorkeeper = Doorkeeper::start(settings.clone()).unwrap();
    let desk = Desk::new().unwrap();
    let [socket, mut peer] = sockets();
    let turn = prim::sync::Arc::new(Turn::default());
    assert_eq!(turn.of_peer_since(), None, "nobody has looked at it");
    let socket = prim::sync::Arc::new(socket.into());
    let (role, key) = (Role::Acceptor, 0);
    doorkeeper.secure(Job { socket, role, key, desk: desk.clone(), turn: turn.clone() });
    let hello = {
        let [mine, mut other] = sockets();
        let dialer = Box::new(Handshake::dial(settings.sides(), HERE).unwrap());
        let _ = dialer.advance(&mine);
        let mut hello = vec![0; 4096];
        let len = other.read(&mut hello).unwrap();
        hello.truncate(len);
        hello
    };
    while turn.of_peer_since().is_none() {
        std::thread::yield_now();
    }
    let since = turn.of_peer_since();
    let (last, rest) = hello.split_last().unwrap();
    for byte in rest {
        peer.write_all(&[*byte]).unwrap();
        assert_eq!(turn.of_peer_since(), since);
    }
    peer.write_all(&[*last]).unwrap();
    while turn.of_peer_since() == since {
        std::thread::yield_now();
    }
    assert!(peer.read(&mut [0; 1]).is_ok(), "it has been answered before");
}

#[test]
fn secrets_are_not_shown() {
    let (settings, _file) = settings();
    let shown = format!("{settings:?}");
    assert!(!shown.contains("a secret of"), "{shown}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever was changed in a record, its data is not there.
    #[test]
    fn a_changed_record_is_not_opened(at in 0_usize..200, bit in 0_u32..8, size in 1_usize..100) {
        let mut sockets = sockets();
        let [mut dialer, mut acceptor] = handshake(&sockets);
        send_all(&mut dialer.sealer, &sockets[0], &vec![7; size]);
        let mut buffer = std::mem::take(&mut acceptor.left);
        let mut chunk = [0; 1000];
        let got = sockets[1].read(&mut chunk).unwrap();
        buffer.extend_from_slice(&chunk[..got]);
        let at = at % buffer.len();
        buffer[at] ^= 1 << bit;
        // A length that says more than there is, is not there yet: its end follows.
        let _ = sockets[0].write_all(&[0; 70_000]);
        let opened = open_all(&mut acceptor.opener, &mut sockets[1], &mut buffer);
        prop_assert!(opened.is_err(), "{:?}, byte {} of {}", opened, at, HEADER_BYTES);
    }

    /// Whatever comes before a handshake ends it, or waits for more.
    #[test]
    fn no_bytes_get_through_a_handshake(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut sockets = sockets();
        let (settings, _file) = settings();
        let side = Box::new(Handshake::accept(settings.sides(), Some(HERE)).unwrap());
        sockets[0].write_all(&bytes).unwrap();
        let (progress, _) = side.advance(&sockets[1]);
        prop_assert!(!matches!(progress, Progress::Done(_)));
    }
}

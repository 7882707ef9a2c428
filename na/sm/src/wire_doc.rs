//! The tables of `docs/wire-sm.md` are those of the code.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

use super::address;
use super::api::open;
use super::link::conn::Control;
use super::link::handshake::{
    ANNOUNCE, ANNOUNCE_BYTES, HAND_OVER, Kind, Packet, Shards, TEXT_BYTES_MAX, hand_over,
};
use super::link::lane;
use super::link::record::{self, DATA_PREFIX, PARTS_MAX, PIECES_MAX, Piece, Request, Status};
use super::link::ring::{COMMIT_BYTES, Consumer, LINE, PAD, Producer, RingMemory};
use super::link::segment::{self, OFFERS_MAX, RING_BYTES, Segment};
use super::link::socket::Announcements;
use super::link::turns::{PAGE_BYTES, PAGES};
use super::transfer::block::{BLOCKS_MAX, PeerBlocks};
use super::transfer::fallback::{RUN_MAX, SLOT_BYTES};
use super::transfer::offer::read_place;
use super::wake::board;
use super::wake::board::SLOTS as BOARD_SLOTS;
use super::wake::doorbell::{BOARD, RECORDS, ROOM};
use na_core::Access;
use na_core::wire_doc::{Field, Page};
use prim::sync::Arc;
use prim::sync::atomic::{AtomicU32, Ordering};

const RING: usize = *RING_BYTES.start();

fn rings() -> (Producer<segment::MappedRing>, Consumer<segment::MappedRing>, Arc<Segment>) {
    let (ours, fd) = Segment::create(RING).unwrap();
    let (ours, theirs) = (Arc::new(ours), Arc::new(Segment::attach(&fd, RING, true).unwrap()));
    (Producer::new(ours.ring(true)), Consumer::new(theirs.ring(false)), ours)
}

/// Words of a record, by their names.
type Words = Vec<(&'static str, u64)>;

/// The words of a record that travels as such.
fn controls() -> Vec<(u8, Control, Words)> {
    let (part, key, block, place) = (11, 12, 13, 14);
    let (p, b) = (("part", part), ("block", block));
    vec![
        (record::DONE, Control::Done { part, status: Status::Canceled }, vec![p, ("status", 5)]),
        (record::PULL, Control::Pull { part, measure: true }, vec![p, ("measure", 1)]),
        (record::CANCEL, Control::Cancel { part }, vec![p]),
        (record::PING, Control::Ping, vec![]),
        (record::PONG, Control::Pong, vec![]),
        (record::GRANT, Control::Grant { part, block, offset: 15 }, vec![p, b, ("offset", 15)]),
        (
            record::FINISHED,
            Control::Finished { part, copied: false, nanos: 20 },
            vec![p, ("status", 1), ("time", 20)],
        ),
        (
            record::SHARE,
            Control::Share { part, addr: 16, len: 17 },
            vec![p, ("address", 16), ("length", 17)],
        ),
        (record::FORGET, Control::Forget { block }, vec![b]),
        (
            record::OFFER,
            Control::Offer { key, block, place },
            vec![("key", key), b, ("place", place)],
        ),
        (
            record::OFFER_PLAIN,
            Control::OfferPlain { key, place, addr: 16, len: 17 },
            vec![("key", key), ("place", place), ("address", 16), ("length", 17)],
        ),
        (
            record::TAKEN,
            Control::Taken { part, nanos: 18, last: 19 },
            vec![p, ("time of all its data", 18), ("time of the last", 19)],
        ),
    ]
}

fn records(page: &mut Page) {
    let rows = page.table("sm-records");
    let kinds: Vec<u8> = rows.iter().map(|row| row[0].parse().unwrap()).collect();
    assert_eq!(kinds, (record::UNEXPECTED..=record::SHARE).collect::<Vec<_>>());
    let row = |kind: u8| &rows[usize::from(kind - 1)];
    for (kind, name) in [
        (record::UNEXPECTED, "unexpected"),
        (record::EXPECTED, "expected"),
        (record::GET, "get"),
        (record::PUT, "put"),
        (record::DONE, "done"),
        (record::PULL, "pull"),
        (record::DATA, "data"),
        (record::SUPPLY, "supply"),
        (record::CANCEL, "cancel"),
        (record::PING, "ping"),
        (record::PONG, "pong"),
        (record::GRANT, "grant"),
        (record::FINISHED, "finished"),
        (record::FORGET, "forget"),
        (record::LANE_DATA, "lane data"),
        (record::LANE_SUPPLY, "lane supply"),
        (record::OFFER, "offer"),
        (record::OFFER_PLAIN, "offer of plain memory"),
        (record::TAKEN, "taken"),
        (record::UNEXPECTED_PAGE, "unexpected in a page"),
        (record::EXPECTED_PAGE, "expected in a page"),
        (record::SHARE, "share"),
    ] {
        assert_eq!(row(kind)[1], name);
    }
    let (mut producer, mut consumer, _segment) = rings();
    for (kind, control, words) in controls() {
        assert_eq!(control.write(&mut producer), Ok(true));
        let came = consumer.peek().unwrap().unwrap();
        assert_eq!((came.kind, came.tag), (kind, 0), "{control:?}");
        assert_eq!(row(kind)[3], came.len.to_string(), "{control:?}");
        let mut bytes = vec![0; came.len];
        consumer.read(&came, 0, &mut bytes);
        // What follows a colon explains.
        let said = row(kind)[4].split(':').next().unwrap_or_default();
        let names: Vec<_> = words.iter().map(|(name, _)| *name).collect();
        assert_eq!(said, names.join(", "), "{control:?}");
        for (index, (name, value)) in words.iter().take(came.len / 8).enumerate() {
            assert_eq!(record::word_at(&bytes, index), Some(*value), "{control:?}: {name}");
        }
        consumer.advance(came);
    }
    let request = |pieces: usize| {
        let pieces = vec![Piece { addr: 1, len: 1, block: 0 }; pieces];
        Request { part: 0, key: 0, offset: 0, len: pieces.len() as u64, pieces }.encoded_len()
    };
    let of_request = format!("{} + {} n", request(0), request(1) - request(0));
    assert_eq!((&row(record::GET)[3], &row(record::PUT)[3]), (&of_request, &of_request));
    let of_data = format!("{DATA_PREFIX} + n");
    assert_eq!((&row(record::DATA)[3], &row(record::SUPPLY)[3]), (&of_data, &of_data));
    let of_page = record::PAGE_RECORD.to_string();
    let said = [record::UNEXPECTED_PAGE, record::EXPECTED_PAGE].map(|kind| &row(kind)[3]);
    assert_eq!(said, [&of_page, &of_page]);
    let of_lane = (8 * record::LANE_WORDS).to_string();
    assert_eq!((&row(record::LANE_DATA)[3], &row(record::LANE_SUPPLY)[3]), (&of_lane, &of_lane));
}

/// Every word of the segment, touched by the side that the page says and seen where it says.
fn segment(page: &mut Page) {
    let rows = page.table("sm-segment");
    let names = [
        ("head of ring 0", segment::HEADS[0]),
        ("head of ring 1", segment::HEADS[1]),
        ("doorbell of the creator", segment::BELLS[0]),
        ("doorbell of the acceptor", segment::BELLS[1]),
        ("copying: the creator, in the acceptor's memory", segment::COPYING[0]),
        ("copying: the acceptor, in the creator's memory", segment::COPYING[1]),
        ("shut by the creator", segment::SHUT[0]),
        ("shut by the acceptor", segment::SHUT[1]),
        ("emptied slots of the creator's lane", segment::LANES[0]),
        ("emptied slots of the acceptor's lane", segment::LANES[1]),
        ("copying under an offer: the creator", segment::AT_ONCE[0]),
        ("copying under an offer: the acceptor", segment::AT_ONCE[1]),
        ("offers of the creator: 64 words of 4 bytes", segment::OFFERS[0]),
        ("offers of the acceptor: 64 words of 4 bytes", segment::OFFERS[1]),
    ];
    for (row, (name, offset)) in rows.iter().zip(names) {
        assert_eq!((&row[2][..], &row[0]), (name, &offset.to_string()));
    }
    assert_eq!(rows.len(), names.len() + 3);
    assert_eq!(rows[12][1], (4 * OFFERS_MAX).to_string());
    let pages = format!("pages: {PAGES} of {PAGE_BYTES} bytes");
    for (row, (rings, name)) in rows[names.len()..].iter().zip([
        ("", "ring 0"),
        (" + ring_bytes", "ring 1"),
        (" + 2 ring_bytes", &pages),
    ]) {
        assert_eq!(row[0], format!("{}{rings}", segment::CONTROL_BYTES));
        assert_eq!(row[2], name);
    }
    assert_eq!(rows[16][1], (PAGES * PAGE_BYTES).to_string());
    // Whose words they are, by what the accessors of each side give.
    let (ours, fd) = Segment::create(RING).unwrap();
    let theirs = Segment::attach(&fd, RING, true).unwrap();
    let at = |word: &AtomicU32, of: &Segment| std::ptr::from_ref(word) as usize - of.address();
    for (segment, me, other) in [(&ours, 0, 1), (&theirs, 1, 0)] {
        assert_eq!(at(segment.offer(true, 0), segment), segment::OFFERS[me]);
        assert_eq!(at(segment.offer(false, 63), segment), segment::OFFERS[other] + 4 * 63);
        assert_eq!(at(segment.lane_head(true), segment), segment::LANES[me]);
        assert_eq!(at(segment.lane_head(false), segment), segment::LANES[other]);
    }
    let word = |of: &Segment, offset: usize| of.word(offset).load(Ordering::Relaxed);
    ours.own_bell().announce(RECORDS);
    theirs.own_bell().announce(RECORDS | ROOM);
    assert_eq!((word(&theirs, segment::BELLS[0]), word(&theirs, segment::BELLS[1])), (1, 3));
    assert!(ours.gate_as_copier().enter() && theirs.offers_gate().enter());
    let copying = [segment::COPYING[0], segment::COPYING[1], segment::AT_ONCE[1]];
    assert_eq!(copying.map(|offset| word(&theirs, offset)), [1, 0, 1]);
    theirs.gate_as_keeper().shut();
    assert_eq!((word(&ours, segment::SHUT[0]), word(&ours, segment::SHUT[1])), (0, 1));
}

fn commit_word(page: &mut Page) {
    let rows = page.table("sm-commit-word");
    let place = |row: &[String]| (row[0].parse::<u32>().unwrap(), row[1].parse::<u32>().unwrap());
    let (mut producer, _consumer, segment) = rings();
    let slot = producer.reserve(0x0102).unwrap().unwrap();
    producer.publish(slot, record::EXPECTED, 0x0a0b_0c0d);
    let word = segment.ring(true).commit_word(0).load(Ordering::Relaxed);
    let fields = rows.iter().map(|row| {
        let (bit, bits) = place(row);
        word >> bit & ((1 << bits) - 1)
    });
    assert_eq!(fields.collect::<Vec<_>>(), [0x0102, 2, 0x0a0b_0c0d]);
    assert!(rows[1][2].ends_with(&format!("{PAD}: padding")));
    let places: Vec<_> = page.table("sm-place").iter().map(|row| place(row)).collect();
    assert_eq!(places, [(0, 8), (8, 8), (16, 16), (32, 32)]);
    let said = 3 << places[0].0 | 2 << places[1].0 | 9u64 << places[3].0;
    assert_eq!(read_place(said), Some((3, Access::WriteOnly, 9)));
    assert_eq!(read_place(said | 1 << places[2].0), None);
}

fn packets(page: &mut Page) {
    let packet = Packet {
        kind: Kind::Hello,
        message_bytes_max: 4096,
        listens: true,
        attach: true,
        never_sleeps: true,
        for_mercury: false,
        shards: None,
        ring_bytes: RING as u32,
        nonce_addr: 0x7fff_1234,
        nonce: 0x0102_0304_0506_0708,
        slot: Some(3),
        text: "na+sm://1-2".into(),
    };
    assert_eq!(Packet { for_mercury: true, ..packet.clone() }.encode()[12], 7 | 16);
    let fields = [
        ("magic", Field::Bytes(b"MRGO")),
        ("version", Field::Number(4)),
        ("kind", Field::Number(1)),
        ("message_bytes_max", Field::Number(4096)),
        ("flags", Field::Number(7)),
        ("ring_bytes", Field::Number(RING as u64)),
        ("text_bytes", Field::Number(11)),
        ("nonce_address", Field::Number(0x7fff_1234)),
        ("nonce", Field::Number(0x0102_0304_0506_0708)),
        ("slot", Field::Number(4)),
        ("zero", Field::Number(0)),
        ("text", Field::Bytes(b"na+sm://1-2")),
    ];
    page.check_layout("sm-handshake", &packet.encode(), &fields);
    let bits = page.table("sm-shards").into_iter().map(|row| row[0].parse::<u32>().unwrap());
    let values = [1, 5, 7, 1 + 6].into_iter().zip(bits).map(|(value, bit)| value << bit);
    let shards = Some(Shards { own: 5, last: 7, wanted: Some(6) });
    let flags = 7 | values.sum::<u32>();
    assert_eq!(Packet { shards, ..packet }.encode()[12..16], flags.to_le_bytes());
    let block = [
        ("first", Field::Bytes(&[ANNOUNCE])),
        ("writable", Field::Number(0)),
        ("zero", Field::Number(0)),
        ("number", Field::Number(7)),
        ("address", Field::Number(1 << 30)),
        ("length", Field::Number(4096)),
    ];
    let mut bytes = [0; ANNOUNCE_BYTES];
    bytes[0] = ANNOUNCE;
    for (place, word) in bytes[8..].chunks_exact_mut(8).zip([7u64, 1 << 30, 4096]) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    page.check_layout("sm-block", &bytes, &block);
    let handed = [
        ("first", Field::Bytes(&[HAND_OVER])),
        ("zero", Field::Number(0)),
        ("number", Field::Number(7)),
    ];
    page.check_layout("sm-hand-over", &hand_over(7), &handed);
    // The code reads the same into it.
    let buffer = na_core::SharedBuffer::for_transit(4096).unwrap();
    let fd = buffer.block().read_only_fd().unwrap();
    let mut blocks = PeerBlocks::default();
    blocks.announced(&bytes, Some(&fd), false).unwrap();
    assert!(blocks.knows(7, false) && !blocks.knows(7, true));
    let piece = Piece { addr: (1 << 30) + 4000, len: 96, block: 7 };
    assert!(blocks.resolve(&[piece], false).is_some());
    assert!(blocks.resolve(&[Piece { len: 97, ..piece }], false).is_none());
}

#[test]
fn the_page_says_what_the_code_does() {
    let mut page = Page::read(include_str!("../../../docs/wire-sm.md"));
    segment(&mut page);
    commit_word(&mut page);
    records(&mut page);
    packets(&mut page);
    page.check(
        "sm-doorbell",
        [0, 1],
        &[[&RECORDS, &"records"], [&ROOM, &"room"], [&BOARD, &"board"]],
    );
    let status: Vec<String> =
        page.table("sm-status").into_iter().map(|row| row[0].clone()).collect();
    let codes = (0..).map_while(|code| Status::from_code(code).map(|_| code.to_string()));
    assert_eq!(status, codes.collect::<Vec<_>>());
    assert_eq!(BOARD_SLOTS as usize, board::BYTES * 8);
    assert_eq!(COMMIT_BYTES + DATA_PREFIX, LINE);
    page.check(
        "sm-limits",
        [0, 1],
        &[
            [&"parts", &PARTS_MAX],
            [&"pieces", &PIECES_MAX],
            [&"blocks", &BLOCKS_MAX],
            [&"slots", &lane::SLOTS],
            [&"slot_bytes", &SLOT_BYTES],
            [&"run", &RUN_MAX],
            [&"offers", &OFFERS_MAX],
            [&"pages", &PAGES],
            [&"page_bytes", &PAGE_BYTES],
            [&"line", &LINE],
            [&"data_prefix", &DATA_PREFIX],
            [&"board_bytes", &board::BYTES],
            [&"control_bytes", &segment::CONTROL_BYTES],
            [&"ring_bytes_min", RING_BYTES.start()],
            [&"ring_bytes_max", RING_BYTES.end()],
            [&"text_bytes_max", &TEXT_BYTES_MAX],
            [&"name_bytes_max", &address::NAME_BYTES_MAX],
            [&"message_bytes_max", &open::MESSAGE_BYTES_MAX],
        ],
    );
    page.finish();
}

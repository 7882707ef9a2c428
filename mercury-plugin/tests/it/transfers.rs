//! Memory: descriptions, permissions, transfers, and memory that is taken back.

use std::ptr;

use super::mercury::{End, INVALID_ARG, OK, Side, call, pairs};
use na_plugin_margo::abi::{NaAddr, NaMem};

const READ: u64 = 1;
const WRITE: u64 = 2;
const BOTH: u64 = 3;

/// Codes of Mercury for transfers that the owner refuses.
const FAULT: i32 = 7;

fn get(a: &Side, b: &Side, local: *mut NaMem, remote: *mut NaMem, range: (u64, u64, usize)) -> End {
    let (op, owner) = (a.op(), a.addr_of(b));
    let end = begin(a, true, (local, remote), range, owner, op);
    let end = end.unwrap_or_else(|| a.next(&[b]));
    a.free(&[owner], &[op]);
    end
}

fn put(a: &Side, b: &Side, local: *mut NaMem, remote: *mut NaMem, range: (u64, u64, usize)) -> End {
    let (op, owner) = (a.op(), a.addr_of(b));
    let end = begin(a, false, (local, remote), range, owner, op);
    let end = end.unwrap_or_else(|| a.next(&[b]));
    a.free(&[owner], &[op]);
    end
}

/// `Some`: it was refused at once.
fn begin(
    a: &Side,
    is_get: bool,
    (local, remote): (*mut NaMem, *mut NaMem),
    (local_at, remote_at, len): (u64, u64, usize),
    owner: *mut NaAddr,
    op: *mut na_plugin_margo::abi::NaOp,
) -> Option<End> {
    let (class, context, arg) = (a.class(), a.context(), op.cast());
    let ret = match is_get {
        true => call!(get(
            class, context, None, arg, local, local_at, remote, remote_at, len, owner, 0, op
        )),
        false => call!(put(
            class, context, None, arg, local, local_at, remote, remote_at, len, owner, 0, op
        )),
    };
    let (op, kind) = (op.addr(), if is_get { 6 } else { 5 });
    let none = End { op, kind, ret, bytes: 0, source: 0, tag: 0, message: 0, last: true };
    (ret != OK).then_some(none)
}

#[test]
fn memory_in_segments_moves_both_ways() {
    for (a, b) in pairs() {
        for len in [64, 5000, 300_000] {
            let mut theirs: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let expected = theirs.clone();
            let (first, rest) = theirs.split_at_mut(len / 3);
            let owned = b.register(&mut [first, rest], BOTH);
            let remote = a.read_description(&[b.describe(owned), vec![9; 5]].concat()).unwrap();
            let mut mine = vec![0; len];
            let local = a.register(&mut [&mut mine], BOTH);
            let end = get(&a, &b, local, remote, (0, 0, len));
            assert_eq!((end.kind, end.ret), (6, OK));
            assert_eq!(mine, expected);
            mine.fill(0xA5);
            let end = put(&a, &b, local, remote, (0, (len / 2) as u64, len / 4));
            assert_eq!((end.kind, end.ret), (5, OK));
            assert_eq!(call!(mem_deregister(b.class(), owned)), OK);
            let (before, after) = expected.split_at(len / 2);
            assert_eq!(theirs[..len / 2], *before);
            assert_eq!(theirs[len / 2..len / 2 + len / 4], vec![0xA5; len / 4]);
            assert_eq!(theirs[len / 2 + len / 4..], after[len / 4..]);
            // It was taken back, so nobody may use it.
            assert_eq!(get(&a, &b, local, remote, (0, 0, len)).ret, FAULT);
            call!(mem_handle_free(b.class(), owned));
            for handle in [local, remote] {
                call!(mem_handle_free(a.class(), handle));
            }
        }
    }
}

#[test]
fn the_owner_decides_who_reads_and_writes() {
    for (a, b) in pairs() {
        let mut mine = [0; 16];
        let local = a.register(&mut [&mut mine], BOTH);
        for (flags, may_get, may_put) in [(READ, true, false), (WRITE, false, true)] {
            let mut theirs = [0; 16];
            let owned = b.register(&mut [&mut theirs], flags);
            let mut said = b.describe(owned);
            let remote = a.read_description(&said).unwrap();
            assert_eq!(get(&a, &b, local, remote, (0, 0, 16)).ret == OK, may_get);
            assert_eq!(put(&a, &b, local, remote, (0, 0, 16)).ret == OK, may_put);
            for range in [(0, 1, 16), (1, 0, 16), (0, u64::MAX, 1), (u64::MAX, 0, 1)] {
                assert_ne!(get(&a, &b, local, remote, range).ret, OK);
                assert_ne!(put(&a, &b, local, remote, range).ret, OK);
            }
            // Who lies about what he was told is refused by the owner: more access, more bytes,
            // another key.
            for (at, byte) in [(16, 3), (9, 1), (0, said[0] ^ 1)] {
                let before = std::mem::replace(&mut said[at], byte);
                let lie = a.read_description(&said).unwrap();
                let len = if at == 9 { 17 } else { 16 };
                let end = if may_get {
                    put(&a, &b, local, lie, (0, 0, len))
                } else {
                    get(&a, &b, local, lie, (0, 0, len))
                };
                assert_ne!(end.ret, OK, "byte {at}");
                said[at] = before;
                call!(mem_handle_free(a.class(), lie));
            }
            call!(mem_handle_free(a.class(), remote));
            call!(mem_handle_free(b.class(), owned));
        }
        call!(mem_handle_free(a.class(), local));
    }
}

#[test]
fn what_describes_no_memory_is_refused() {
    let a = Side::open("sm");
    for bytes in [vec![0; 1], vec![0; 23], vec![0; 24], vec![0xFF; 24], vec![7; 4096]] {
        assert_eq!(a.read_description(&bytes), Err(INVALID_ARG), "{} bytes", bytes.len());
    }
    let mut byte = [0_u8; 1];
    let (buf, mut handle) = (byte.as_mut_ptr().cast(), ptr::null_mut());
    for flags in [0, 4, u64::MAX] {
        let code = call!(mem_handle_create(a.class(), buf, 1, flags, &raw mut handle));
        assert_eq!(code, INVALID_ARG, "flags {flags}");
    }
    assert_eq!(call!(mem_handle_create(a.class(), buf, 1, BOTH, &raw mut handle)), OK);
    assert_eq!(call!(mem_handle_get_serialize_size(a.class(), handle)), 0, "not registered");
    let not_supported = 16;
    assert_eq!(call!(mem_register(a.class(), handle, 1, 0)), not_supported, "of a device");
    assert_eq!(call!(mem_deregister(a.class(), handle)), OK);
    call!(mem_handle_free(a.class(), handle));
}

//! Blocks on a file that fails, writes less than it was given, or loses what was not synced.

use std::cell::{Cell, RefCell};

use proptest::prelude::*;

use super::*;

const BLOCK: usize = BLOCK_BYTES as usize;

/// A file in memory.
#[derive(Default)]
struct Disk {
    bytes: RefCell<Vec<u8>>,
    /// The bytes that a machine which dies would find, and the writes that it may have lost.
    synced: RefCell<Vec<u8>>,
    unsynced: RefCell<Vec<Write>>,
    /// Most bytes of a write and of a read. Zero: all.
    most: usize,
    /// Changes until the process is dead.
    changes_left: Cell<Option<usize>>,
}

#[derive(Debug, Clone)]
enum Write {
    Bytes(u64, Vec<u8>),
    Len(u64),
}

fn apply(file: &mut Vec<u8>, write: &Write) {
    match write {
        Write::Len(len) => file.resize(*len as usize, 0),
        Write::Bytes(offset, bytes) => {
            let (start, end) = (*offset as usize, *offset as usize + bytes.len());
            file.resize(file.len().max(end), 0);
            file[start..end].copy_from_slice(bytes);
        }
    }
}

impl Disk {
    fn change(&self, write: Write) -> io::Result<()> {
        match self.changes_left.get() {
            Some(0) => return Err(io::Error::other("dead")),
            left => self.changes_left.set(left.map(|left| left - 1)),
        }
        apply(&mut self.bytes.borrow_mut(), &write);
        self.unsynced.borrow_mut().push(write);
        Ok(())
    }

    fn short(&self, len: usize) -> usize {
        if self.most == 0 { len } else { len.min(self.most) }
    }

    /// The disk of a machine that died, which has those of the writes that are `kept`.
    fn after_power_cut(&self, kept: impl Fn(usize) -> bool) -> Self {
        let mut bytes = self.synced.borrow().clone();
        let unsynced = self.unsynced.borrow();
        let kept = unsynced.iter().enumerate().filter(|(number, _)| kept(*number));
        kept.for_each(|(_, write)| apply(&mut bytes, write));
        Self { bytes: RefCell::new(bytes), ..Self::default() }
    }
}

impl FileExt for Disk {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let bytes = self.bytes.borrow();
        let there = bytes.get(offset as usize..).unwrap_or_default();
        let count = self.short(into.len()).min(there.len());
        into[..count].copy_from_slice(&there[..count]);
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let count = self.short(bytes.len());
        self.change(Write::Bytes(offset, bytes[..count].to_vec()))?;
        Ok(count)
    }
}

impl Medium for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.borrow().len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(Write::Len(len))
    }

    fn sync(&self) -> io::Result<()> {
        self.synced.replace(self.bytes.borrow().clone());
        self.unsynced.borrow_mut().clear();
        Ok(())
    }
}

fn read(disk: &Disk) -> Result<Vec<u8>, Fault> {
    let blocks = BlockFile(disk);
    let mut bytes = vec![0xEE; blocks.len()? as usize];
    blocks.read_at(0, &mut bytes).map(|()| bytes)
}

/// A disk with a blob of these bytes.
fn disk_with(bytes: &[u8]) -> Disk {
    let disk = Disk::default();
    BlockFile(&disk).format().unwrap();
    BlockFile(&disk).write_at(0, bytes, Order::Unseen).unwrap();
    disk.sync().unwrap();
    disk
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 + 1).collect()
}

#[test]
fn the_lengths_of_file_and_blob_say_the_same() {
    assert_eq!((blob_len(0), blob_len(PAGE - 1), blob_len(PAGE)), (None, None, Some(0)));
    for edge in [0, 1, BLOCK_BYTES, GROUP, 2 * GROUP, 7 * GROUP, LEN_MAX - 1] {
        for len in edge.saturating_sub(2)..edge + 2 {
            assert_eq!(blob_len(file_len(len)), Some(len));
        }
    }
    for page in 1..PAGE {
        assert_eq!(blob_len(file_len(GROUP) + page), Some(GROUP), "a page that is not whole");
    }
    assert_eq!(position(GROUP), file_len(GROUP + 1) - 1);
    assert_eq!(sum_position(GROUP_BLOCKS), file_len(GROUP) + HEADER);
}

#[test]
fn short_reads_and_writes_go_on_where_they_ended() {
    let disk = Disk { most: 1000, ..Disk::default() };
    let blocks = BlockFile(&disk);
    blocks.format().unwrap();
    let data = pattern(2 * BLOCK + 77);
    for order in [Order::Unseen, Order::InMemory, Order::OnDisk] {
        blocks.write_at(0, &data, order).unwrap();
        assert!(read(&disk).unwrap() == data);
        blocks.write_at(BLOCK_BYTES - 5, b"0123456789", order).unwrap();
        let mut expected = data.clone();
        expected[BLOCK - 5..BLOCK + 5].copy_from_slice(b"0123456789");
        assert!(read(&disk).unwrap() == expected);
    }
}

#[test]
fn each_flipped_bit_is_found_where_it_is() {
    let data = pattern(2 * BLOCK + 100);
    let disk = disk_with(&data);
    let bytes = disk.bytes.borrow().clone();
    for (place, block) in [
        (position(0), 0),
        (position(BLOCK_BYTES) - 1, 0),
        (position(BLOCK_BYTES + 7), 1),
        (position(2 * BLOCK_BYTES + 99), 2),
        (sum_position(1), 1),
        (sum_position(2) + 7, 2),
    ] {
        for bit in 0..8 {
            disk.bytes.borrow_mut()[place as usize] ^= 1 << bit;
            assert!(matches!(read(&disk), Err(Fault::Damaged { block: at }) if at == block));
            let blocks = BlockFile(&disk);
            assert_eq!(blocks.scrub(0, 9).unwrap().damaged, [block]);
            // A part of the block would give the rest of it a good sum.
            let part = blocks.write_at(block * BLOCK_BYTES + 1, b"x", Order::InMemory);
            assert!(matches!(part, Err(Fault::Damaged { block: at }) if at == block));
            // The others can be used.
            let other = (block + 1) % 2 * BLOCK_BYTES;
            blocks.read_at(other, &mut [0; 100]).unwrap();
            // All of it makes it good.
            let start = block as usize * BLOCK;
            let end = data.len().min(start + BLOCK);
            blocks.write_at(start as u64, &data[start..end], Order::InMemory).unwrap();
            assert!(read(&disk).unwrap() == data);
            disk.bytes.replace(bytes.clone());
        }
    }
}

#[test]
fn zeros_are_checked_as_well() {
    let disk = disk_with(b"");
    BlockFile(&disk).set_len(3 * BLOCK_BYTES, Order::InMemory).unwrap();
    assert!(read(&disk).unwrap() == vec![0; 3 * BLOCK]);
    disk.bytes.borrow_mut()[position(BLOCK_BYTES) as usize] = 1;
    assert!(matches!(read(&disk), Err(Fault::Damaged { block: 1 })));
}

#[test]
fn what_is_no_file_of_ours_is_told() {
    let disk = disk_with(b"data");
    BlockFile(&disk).check().unwrap();
    disk.bytes.borrow_mut()[8] = 2;
    assert!(matches!(BlockFile(&disk).check(), Err(Fault::Foreign)), "another version");
    for short in [0, 1, MARK.len() - 1] {
        disk.bytes.borrow_mut().truncate(short);
        assert!(matches!(BlockFile(&disk).check(), Err(Fault::Foreign)));
    }
}

/// A change of a blob: written at, or cut off.
#[derive(Debug, Clone)]
enum Change {
    Write(u64, Vec<u8>),
    Len(u64),
}

impl Change {
    fn make(&self, disk: &Disk, order: Order) -> Result<(), Fault> {
        match self {
            Self::Write(offset, data) => BlockFile(disk).write_at(*offset, data, order),
            Self::Len(len) => BlockFile(disk).set_len(*len, order),
        }
    }

    fn apply(&self, model: &mut Vec<u8>) {
        match self {
            Self::Write(_, data) if data.is_empty() => {}
            Self::Write(offset, data) => apply(model, &Write::Bytes(*offset, data.clone())),
            Self::Len(len) => model.resize(*len as usize, 0),
        }
    }

    /// Returns true if a block is one that the change is about.
    fn is_about(&self, block: u64, old_len: u64) -> bool {
        let (start, end) = match self {
            Self::Write(offset, data) => (*offset, offset + data.len() as u64),
            Self::Len(len) => (*len, old_len.max(*len)),
        };
        block * BLOCK_BYTES < end && (block + 1) * BLOCK_BYTES > start
    }
}

fn any_change() -> impl Strategy<Value = Change> {
    let edges = prop_oneof![0..3 * BLOCK as u64, (0..4u64).prop_map(|n| n * BLOCK_BYTES)];
    let data = (0..2 * BLOCK, any::<u8>()).prop_map(|(len, byte)| vec![byte; len]);
    prop_oneof![
        3 => (edges.clone(), data).prop_map(|(at, data)| Change::Write(at, data)),
        1 => edges.prop_map(Change::Len),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_blob_is_a_vector(changes in proptest::collection::vec(any_change(), 1..8)) {
        let (disk, mut model) = (disk_with(b""), Vec::new());
        for change in changes {
            change.make(&disk, Order::InMemory).unwrap();
            change.apply(&mut model);
            prop_assert!(read(&disk).unwrap() == model);
            prop_assert_eq!(disk.len().unwrap(), file_len(model.len() as u64));
        }
        let found = BlockFile(&disk).scrub(0, u64::MAX).unwrap();
        prop_assert_eq!((found.sealed, found.damaged), (0, vec![]));
    }

    /// A process that dies after any of the steps of a change leaves no damage, and no other block
    /// than those it was about changed; after a scrub all are checked again.
    #[test]
    fn a_killed_process_leaves_no_damage(
        first in any_change(),
        second in any_change(),
        most in prop_oneof![Just(0), Just(7000usize)],
    ) {
        for steps in 0.. {
            let mut disk = disk_with(&pattern(2 * BLOCK + 100));
            first.make(&disk, Order::InMemory).unwrap();
            let before = read(&disk).unwrap();
            disk.most = most;
            disk.changes_left.set(Some(steps));
            let is_done = second.make(&disk, Order::InMemory).is_ok();
            disk.changes_left.set(None);
            let after = read(&disk).unwrap();
            let same = after.chunks(BLOCK).zip(before.chunks(BLOCK)).enumerate();
            for (block, (now, then)) in same {
                let is_about = second.is_about(block as u64, before.len() as u64);
                let (old, more) = now.split_at(now.len().min(then.len()));
                let is_same = old == then && more.iter().all(|byte| *byte == 0);
                prop_assert!(is_about || is_same, "block {block} after {steps} steps");
            }
            let found = BlockFile(&disk).scrub(0, u64::MAX).unwrap();
            prop_assert!(found.damaged.is_empty());
            prop_assert_eq!(BlockFile(&disk).scrub(0, u64::MAX).unwrap().sealed, 0);
            // And it can be used.
            second.make(&disk, Order::InMemory).unwrap();
            read(&disk).unwrap();
            if is_done {
                break;
            }
        }
    }

    /// A machine that dies in the midst of a change may have lost any of the writes that were not
    /// synced: with syncs between the steps there is no damage, without there is none but in the
    /// blocks of the change.
    #[test]
    fn a_power_cut_leaves_no_damage_elsewhere(
        change in any_change(),
        steps in 0..8usize,
        kept in any::<u64>(),
        ordered in any::<bool>(),
    ) {
        let disk = disk_with(&pattern(2 * BLOCK + 100));
        let old_len = BlockFile(&disk).len().unwrap();
        disk.changes_left.set(Some(steps));
        let order = if ordered { Order::OnDisk } else { Order::InMemory };
        let _ = change.make(&disk, order);
        let disk = disk.after_power_cut(|number| kept >> (number % 64) & 1 == 1);
        for block in BlockFile(&disk).scrub(0, u64::MAX).unwrap().damaged {
            prop_assert!(!ordered && change.is_about(block, old_len), "block {block}");
        }
    }
}

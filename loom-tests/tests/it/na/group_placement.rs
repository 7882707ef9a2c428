//! Does a connection that is handed over always end up with one shard, or end once if all shards
//! are closed, whatever shard is closed or added meanwhile?
#![allow(dead_code, unreachable_pub, reason = "what only the transports need of the file below")]

// Counts of the model itself: what has happened, whatever the memory order.
use std::sync::Arc as Plain;
use std::sync::atomic::{AtomicUsize as Count, Ordering};

use loom::sync::Arc;
use loom::thread;
use margo_loom_tests::check;

#[path = "../../../../na/core/src/group/placement.rs"]
mod placement;

use placement::{Permit, Placement};

/// A connection, which counts how often it ends.
struct Conn {
    permit: Option<Permit<u8, Conn>>,
    ended: Plain<Count>,
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

type Group = Arc<Placement<u8, Conn>>;

fn accept(group: &Group, wanted: usize, ended: &Plain<Count>) {
    if let Ok(permit) = Placement::admit(group, None, Some(wanted), 2) {
        hand(group, Conn { permit: Some(permit), ended: ended.clone() });
    }
}

fn hand(group: &Group, conn: Conn) {
    group.hand(conn, |conn| conn.permit.as_mut());
}

fn close(group: &Group, shard: usize) {
    group.close(shard).into_iter().for_each(|conn| hand(group, conn));
}

#[test]
fn a_connection_goes_to_a_shard_that_is_open() {
    check(|| {
        let (group, ended) = (Placement::<u8, Conn>::new(2), Plain::new(Count::new(0)));
        let (closing, polling) = (group.clone(), group.clone());
        let closing = thread::spawn(move || close(&closing, 1));
        let polling = thread::spawn(move || polling.take(1));
        accept(&group, 1, &ended);
        closing.join().unwrap();
        let taken = polling.join().unwrap();
        let left = group.take(0);
        assert_eq!((taken.len() + left.len(), ended.load(Ordering::Relaxed)), (1, 0));
        assert!(left.iter().all(|conn| conn.permit.as_ref().is_some_and(|p| p.shard() == 0)));
        assert_eq!(group.counts().0, 1);
        drop((taken, left));
        assert_eq!(group.counts(), (0, vec![0, 0]));
    });
}

/// A group grows from one shard to two, the first one is closed, and a connection is accepted, all
/// at once.
#[test]
fn a_group_grows_while_a_connection_comes() {
    check(|| {
        let (group, ended) = (Placement::<u8, Conn>::new(1), Plain::new(Count::new(0)));
        let (growing, closing) = (group.clone(), group.clone());
        let growing = thread::spawn(move || growing.grow());
        let closing = thread::spawn(move || close(&closing, 0));
        accept(&group, 1, &ended);
        let grown = growing.join().unwrap();
        closing.join().unwrap();
        let left = if grown.is_ok() { group.take(1) } else { Vec::new() };
        // It has not been admitted, has ended once, or is with the new shard.
        assert!(left.len() + ended.load(Ordering::Relaxed) <= 1);
        assert_eq!(group.counts().0, left.len());
        assert!(left.iter().all(|conn| conn.permit.as_ref().is_some_and(|p| p.shard() == 1)));
        drop(left);
        assert!(group.counts().1.iter().all(|unwished| *unwished == 0));
    });
}

#[test]
fn what_comes_while_a_shard_looks_is_found_by_a_later_look() {
    check(|| {
        let (group, ended) = (Placement::<u8, Conn>::new(1), Plain::new(Count::new(0)));
        let polling = group.clone();
        let polling =
            thread::spawn(move || (0..2).flat_map(|_| polling.take_news(0)).collect::<Vec<_>>());
        (0..2).for_each(|_| accept(&group, 0, &ended));
        let taken = polling.join().unwrap();
        let left = group.take_news(0);
        assert_eq!(taken.len() + left.len(), 2);
    });
}

#[test]
fn a_connection_ends_once_with_the_last_shard() {
    check(|| {
        let (group, ended) = (Placement::<u8, Conn>::new(2), Plain::new(Count::new(0)));
        let (first, second) = (group.clone(), group.clone());
        let first = thread::spawn(move || close(&first, 0));
        let second = thread::spawn(move || close(&second, 1));
        accept(&group, 1, &ended);
        first.join().unwrap();
        second.join().unwrap();
        // Also if it was not admitted any more.
        assert!(ended.load(Ordering::Relaxed) <= 1);
        assert!(group.take(0).is_empty() && group.take(1).is_empty());
        assert_eq!(group.counts(), (0, vec![0, 0]));
    });
}

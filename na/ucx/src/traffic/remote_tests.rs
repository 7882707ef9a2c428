//! Remote keys between two endpoints over UCX, where `MARGO_TEST_UCX=1` is set. They emulate what
//! adapters do, so no test ends a connection while something moves.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

use std::sync::mpsc;
use std::time::Instant;

use super::remote::REGION_BYTES_MAX;
use crate::Ucx;
use crate::endpoint::UcxEndpoint;
use crate::operations::slots::Work;
use crate::wire::{Control, GivenKey, Place};
use na_core::conformance::{Optional, PATIENCE};
use na_core::{
    Access, Addr, Completion, DeniedReason, Endpoint, Error, LocalMem, Memory, MsgBuf, OpId,
    OpenOptions, Plugin, RemoteKeys, RemoteMem, Tag, Transfer, Uri,
};

const OPEN: Optional = Optional {
    variable: "MARGO_TEST_UCX",
    uri: "ucx+tcp://127.0.0.1:0",
    open: |uri, options| Ucx.open(&Uri::parse(uri)?, options),
};

/// An owner and a requester that know each other.
struct Pair {
    owner: UcxEndpoint,
    requester: UcxEndpoint,
    to_owner: Addr,
    to_requester: Addr,
}

fn open(uri: &str, keys: RemoteKeys) -> UcxEndpoint {
    let mut options = OpenOptions::listening(true);
    options.ucx.remote_keys = keys;
    UcxEndpoint::open(&Uri::parse(uri).unwrap(), &options).unwrap()
}

impl Pair {
    /// `None`: UCX is not to be tested.
    fn open() -> Option<Self> {
        Self::with(OPEN.uri, RemoteKeys::Always)
    }

    fn with(uri: &str, keys_of_owner: RemoteKeys) -> Option<Self> {
        if let Some(lacks) = OPEN.lacks() {
            println!("SKIPPED: {lacks}");
            return None;
        }
        let (owner, requester) = (open(uri, keys_of_owner), open(uri, RemoteKeys::Always));
        let to_owner = requester.lookup(owner.self_addr().uri()).unwrap();
        // Until the owner has heard of it.
        let to_requester = owner.self_addr();
        let mut pair = Self { owner, requester, to_owner, to_requester };
        let room = MsgBuf::with_capacity(pair.owner.limits().unexpected_bytes_max);
        pair.owner.recv_unexpected(OpId(1), room).unwrap();
        let hello = MsgBuf::with_capacity(0);
        pair.requester.send_unexpected(OpId(2), &pair.to_owner, Tag(0), hello).unwrap();
        let (mut caller, mut is_sent) = (None, false);
        pair.until(|completion| {
            match completion {
                Completion::Recv { result, .. } => caller = Some(result.unwrap().from),
                Completion::Send { result, .. } => {
                    result.unwrap();
                    is_sent = true;
                }
                other @ Completion::Transfer { .. } => panic!("{other:?}"),
            }
            (is_sent && caller.is_some()).then_some(())
        });
        pair.to_requester = caller.unwrap();
        Some(pair)
    }

    /// Polls both until one of them reports something that `wanted` takes.
    fn until<T>(&self, mut wanted: impl FnMut(Completion) -> Option<T>) -> T {
        let mut found = None;
        self.drive(|pair| {
            for end in [&pair.owner, &pair.requester] {
                end.poll(16, &mut |completion| found = found.take().or(wanted(completion)))
                    .unwrap();
            }
            found.is_some()
        });
        found.unwrap()
    }

    fn drive(&self, mut is_done: impl FnMut(&Self) -> bool) {
        let began = Instant::now();
        while !is_done(self) {
            assert!(began.elapsed() < PATIENCE, "nothing happens");
        }
    }

    /// Polls both, which report nothing, until something holds.
    fn quietly(&self, mut is_done: impl FnMut(&Self) -> bool) {
        self.drive(|pair| {
            for end in [&pair.owner, &pair.requester] {
                end.poll(16, &mut |completion| panic!("{completion:?}")).unwrap();
            }
            is_done(pair)
        });
    }

    /// Polls the owner, which reports nothing, until it would sleep.
    fn until_owner_sleeps(&self) {
        self.drive(|pair| {
            let may_sleep = pair.owner.prepare_wait();
            if !may_sleep {
                pair.owner.poll(16, &mut |completion| panic!("{completion:?}")).unwrap();
            }
            may_sleep
        });
    }

    /// Moves all of `remote` and answers how that went.
    fn moves(&self, put: bool, remote: &RemoteMem, local: &LocalMem) -> Result<(), Error> {
        let (local, remote, len) = (local.clone(), remote.clone(), remote.len);
        let transfer = Transfer { local, local_offset: 0, remote, remote_offset: 0, len };
        match put {
            true => self.requester.put(OpId(7), &self.to_owner, transfer).unwrap(),
            false => self.requester.get(OpId(7), &self.to_owner, transfer).unwrap(),
        }
        self.until(|completion| match completion {
            Completion::Transfer { result, .. } => Some(result),
            other => panic!("{other:?}"),
        })
    }

    /// Keys that the requester has, as the owner sees it.
    fn given(&self) -> usize {
        self.owner.with(|driver| driver.given).unwrap()
    }

    fn tell(&self, from_owner: bool, control: &Control) {
        let (from, to) = match from_owner {
            true => (&self.owner, &self.to_requester),
            false => (&self.requester, &self.to_owner),
        };
        from.with(|driver| {
            let index = driver.index_of(to).unwrap();
            driver.tell(index, control);
        });
    }
}

/// Memory in pieces of these lengths.
fn memory(of: &UcxEndpoint, lens: &[usize], access: Access) -> LocalMem {
    let pieces = lens.iter().enumerate().map(|(at, len)| vec![at as u8 + 1; *len]).collect();
    of.register(Memory::from_vecs(pieces), access).unwrap()
}

fn bytes(memory: &LocalMem) -> Vec<u8> {
    let mut bytes = vec![0; memory.len() as usize];
    assert!(memory.read_at(0, &mut bytes));
    bytes
}

#[test]
fn memory_in_pieces_is_read_and_written_by_one_key() {
    let Some(pair) = Pair::open() else { return };
    let owned = memory(&pair.owner, &[5, 100_000, 1, 7000], Access::ReadWrite);
    let local = memory(&pair.requester, &[60_000, 47_006], Access::ReadWrite);
    let remote = owned.region().describe();
    let wanted = bytes(&owned);
    pair.moves(false, &remote, &local).unwrap();
    assert_eq!(bytes(&local), wanted);
    let other = memory(&pair.requester, &[107_006], Access::ReadWrite);
    pair.moves(true, &remote, &other).unwrap();
    assert_eq!(bytes(&owned), bytes(&other));
    assert_eq!(pair.given(), 1);
    // The owner was asked for no transfer.
    let served = pair.owner.with(|driver| {
        let index = driver.index_of(&pair.to_requester).unwrap();
        driver.peer(index).map(|peer| peer.leases.len())
    });
    assert_eq!(served, Some(Some(0)));
}

#[test]
fn memory_of_more_pieces_than_a_key_names_is_asked_for() {
    let Some(pair) = Pair::open() else { return };
    let owned = memory(&pair.owner, &[10; 200], Access::ReadOnly);
    let local = memory(&pair.requester, &[2000], Access::ReadWrite);
    pair.moves(false, &owned.region().describe(), &local).unwrap();
    assert_eq!(bytes(&local), bytes(&owned));
    assert_eq!(pair.given(), 0);
}

#[test]
fn memory_that_is_long_to_register_is_asked_for() {
    let Some(pair) = Pair::open() else { return };
    let owned = |bytes| {
        // Pages that nobody touches cost nothing.
        let memory = Memory::from_vec(vec![0; bytes]);
        pair.owner.register(memory, Access::ReadOnly).unwrap()
    };
    let longest = usize::try_from(REGION_BYTES_MAX).unwrap();
    let (long, short) = (owned(longest + 1), owned(longest));
    let local = memory(&pair.requester, &[1000], Access::ReadWrite);
    for (owned, given) in [(long, 0), (short, 1)] {
        let remote = RemoteMem { len: 1000, ..owned.region().describe() };
        pair.moves(false, &remote, &local).unwrap();
        assert_eq!(bytes(&local), [0; 1000]);
        assert_eq!(pair.given(), given);
    }
}

#[test]
fn an_owner_that_gives_no_keys_is_asked() {
    let Some(pair) = Pair::with(OPEN.uri, RemoteKeys::Never) else { return };
    let owned = memory(&pair.owner, &[1000], Access::ReadOnly);
    let local = memory(&pair.requester, &[1000], Access::ReadWrite);
    pair.moves(false, &owned.region().describe(), &local).unwrap();
    assert_eq!(bytes(&local), bytes(&owned));
    assert_eq!(pair.given(), 0);
}

/// Whatever the peer wants. With `all` the endpoint gives keys to peers that are reached by
/// adapters.
#[test]
fn an_owner_that_gives_keys_for_adapters_gives_none_for_tcp() {
    let Some(pair) = Pair::with("ucx+all://127.0.0.1:0", RemoteKeys::Auto) else { return };
    let by_adapter = pair.owner.with(|driver| {
        assert!(driver.worker.as_ref().unwrap().gives_keys());
        let index = driver.index_of(&pair.to_requester).unwrap();
        driver.peer(index).unwrap().by_adapter
    });
    if by_adapter == Some(true) {
        return println!("SKIPPED: the two are connected by an adapter");
    }
    let owned = memory(&pair.owner, &[100_000], Access::ReadOnly);
    let local = memory(&pair.requester, &[100_000], Access::ReadWrite);
    pair.moves(false, &owned.region().describe(), &local).unwrap();
    assert_eq!(bytes(&local), bytes(&owned));
    assert_eq!(pair.given(), 0);
}

#[test]
fn what_the_key_does_not_grant_is_denied() {
    let Some(pair) = Pair::open() else { return };
    let owned = memory(&pair.owner, &[1000], Access::ReadOnly);
    let local = memory(&pair.requester, &[2000], Access::ReadWrite);
    let remote = owned.region().describe();
    pair.moves(false, &remote, &local).unwrap();
    // It believes what nobody has said.
    let longer = RemoteMem { len: 1001, ..remote.clone() };
    let writable = RemoteMem { access: Access::ReadWrite, ..remote };
    for (put, remote, wanted) in
        [(false, longer, DeniedReason::OutOfRange), (true, writable, DeniedReason::Access)]
    {
        let error = pair.moves(put, &remote, &local).unwrap_err();
        assert!(matches!(error, Error::Denied { reason, .. } if reason == wanted), "{error}");
    }
}

#[test]
fn memory_that_is_revoked_comes_back_when_its_key_was_returned_and_is_dead() {
    let Some(pair) = Pair::open() else { return };
    let owned = memory(&pair.owner, &[1000], Access::ReadWrite);
    let local = memory(&pair.requester, &[1000], Access::ReadWrite);
    let remote = owned.region().describe();
    pair.moves(false, &remote, &local).unwrap();
    let (sender, released) = mpsc::channel();
    owned.revoke(move |memory| sender.send(memory).unwrap());
    assert!(released.try_recv().is_err(), "the requester has a key");
    pair.quietly(|_| released.try_recv().is_ok());
    assert_eq!(pair.given(), 0);
    let error = pair.moves(true, &remote, &local).unwrap_err();
    let reason = DeniedReason::NoSuchKey;
    assert!(matches!(error, Error::Denied { reason: told, .. } if told == reason), "{error}");
}

#[test]
fn memory_comes_back_when_the_holder_of_its_key_is_gone() {
    for is_revoked_before in [true, false] {
        let Some(pair) = Pair::open() else { return };
        let owned = memory(&pair.owner, &[1000], Access::ReadWrite);
        let local = memory(&pair.requester, &[1000], Access::ReadWrite);
        pair.moves(false, &owned.region().describe(), &local).unwrap();
        assert_eq!(pair.given(), 1);
        let (sender, released) = mpsc::channel();
        let release = move |memory| sender.send(memory).unwrap();
        if is_revoked_before {
            owned.revoke(release);
            pair.requester.close();
        } else {
            pair.requester.close();
            pair.quietly(|pair| pair.given() == 0);
            owned.revoke(release);
        }
        pair.quietly(|_| released.try_recv().is_ok());
        assert_eq!(pair.given(), 0);
    }
}

#[test]
fn memory_comes_back_when_its_endpoint_closes() {
    let Some(pair) = Pair::open() else { return };
    let owned = memory(&pair.owner, &[1000], Access::ReadWrite);
    let local = memory(&pair.requester, &[1000], Access::ReadWrite);
    pair.moves(false, &owned.region().describe(), &local).unwrap();
    let (sender, released) = mpsc::channel();
    owned.revoke(move |memory| sender.send(memory).unwrap());
    assert!(released.try_recv().is_err());
    pair.owner.close();
    assert!(released.try_recv().is_ok());
}

#[test]
fn who_breaks_a_rule_about_keys_loses_its_connection() {
    let place = || Place { address: 1 << 40, len: 8, packed: vec![1; 20] };
    let unasked = GivenKey { key: 5, access: Access::ReadWrite, places: vec![place()] };
    let of_owner = [Control::Key(unasked), Control::NoKey { key: 5 }];
    let of_requester = [Control::Returned { key: 5 }];
    let all = of_owner.map(|control| (true, control)).into_iter();
    for (from_owner, control) in all.chain(of_requester.map(|control| (false, control))) {
        let Some(pair) = Pair::open() else { return };
        let waits = |of: &UcxEndpoint, from: &Addr| {
            let room = MsgBuf::with_capacity(of.limits().expected_bytes_max);
            of.recv_expected(OpId(9), from, Tag(3), room).unwrap();
        };
        match from_owner {
            true => waits(&pair.requester, &pair.to_owner),
            false => waits(&pair.owner, &pair.to_requester),
        }
        pair.tell(from_owner, &control);
        let error = pair.until(|completion| match completion {
            Completion::Recv { result, .. } => result.err(),
            other => panic!("{other:?}"),
        });
        assert!(matches!(error, Error::Protocol { .. }), "{control:?}: {error}");
    }
}

#[test]
fn who_wants_a_key_twice_or_returns_it_twice_loses_its_connection() {
    for is_wanted in [true, false] {
        let Some(pair) = Pair::open() else { return };
        let owned = memory(&pair.owner, &[1000], Access::ReadWrite);
        let local = memory(&pair.requester, &[1000], Access::ReadWrite);
        pair.moves(false, &owned.region().describe(), &local).unwrap();
        let room = MsgBuf::with_capacity(pair.owner.limits().expected_bytes_max);
        pair.owner.recv_expected(OpId(9), &pair.to_requester, Tag(3), room).unwrap();
        let key = owned.key();
        match is_wanted {
            true => pair.tell(false, &Control::Want { key }),
            false => (0..2).for_each(|_| pair.tell(false, &Control::Returned { key })),
        }
        let error = pair.until(|completion| match completion {
            Completion::Recv { result, .. } => result.err(),
            other => panic!("{other:?}"),
        });
        assert!(matches!(error, Error::Protocol { .. }), "{error}");
        pair.quietly(|pair| pair.given() == 0);
    }
}

/// The connection of a holder reaches memory until UCX has ended it, which is after the call that
/// closes it.
#[test]
fn memory_stays_until_the_connection_of_its_holder_has_ended() {
    // As adapters do it, when UCX is asked late or at once, and by messages.
    for (by_adapter, at_once) in [(true, false), (true, true), (false, false)] {
        let Some(pair) = Pair::open() else { return };
        let owned = memory(&pair.owner, &[1000], Access::ReadWrite);
        let local = memory(&pair.requester, &[1000], Access::ReadWrite);
        pair.moves(false, &owned.region().describe(), &local).unwrap();
        let (sender, released) = mpsc::channel();
        owned.revoke(move |memory| sender.send(memory).unwrap());
        pair.owner.with(|driver| {
            let index = driver.index_of(&pair.to_requester).unwrap();
            driver.peer(index).unwrap().by_adapter = by_adapter;
            driver.end_session(index, "a test".into());
            if at_once {
                driver.settle_discards(true);
                let mut works = driver.slots.iter().map(|(_, work)| work);
                assert!(works.any(|work| matches!(work, Work::Discarded(_))), "nothing is flushed");
            }
        });
        assert_eq!(pair.given(), 1);
        assert!(released.try_recv().is_err(), "UCX was not called since");
        let mut is_back = false;
        pair.drive(|pair| {
            pair.owner.poll(16, &mut |completion| panic!("{completion:?}")).unwrap();
            is_back = is_back || released.try_recv().is_ok();
            is_back && pair.owner.with(|driver| driver.is_busy()) == Some(false)
        });
        assert_eq!(pair.given(), 0);
    }
}

/// The peer hears of the end by what UCX does in a later call, for which nothing would wake us.
#[test]
fn who_has_closed_a_connection_does_not_sleep_before_the_peer_can_know() {
    let Some(pair) = Pair::open() else { return };
    let room = MsgBuf::with_capacity(pair.requester.limits().expected_bytes_max);
    pair.requester.recv_expected(OpId(9), &pair.to_owner, Tag(3), room).unwrap();
    // So that nothing else keeps it from sleeping.
    pair.until_owner_sleeps();
    pair.owner.with(|driver| {
        let index = driver.index_of(&pair.to_requester).unwrap();
        driver.end_session(index, "a test".into());
    });
    pair.until_owner_sleeps();
    let mut error = None;
    pair.drive(|pair| {
        let mut sink = |completion| match completion {
            Completion::Recv { result, .. } => error = result.err(),
            other => panic!("{other:?}"),
        };
        pair.requester.poll(16, &mut sink).unwrap();
        error.is_some()
    });
    assert!(matches!(error, Some(Error::PeerGone { .. })), "{error:?}");
}

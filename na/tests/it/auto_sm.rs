//! Endpoints over shared memory and tcp at once: they pass the conformance suite with near and far
//! peers, and take the right way to each.

use std::sync::Arc;
use std::time::Instant;

use na::{Access, Completion, Endpoint, Error, Memory, OpId, OpenOptions, Tag, Transfer};

fn composed(options: &OpenOptions) -> Arc<dyn Endpoint> {
    let mut options = options.clone();
    options.auto_sm = Some("na+sm://".to_owned());
    na::open("na+tcp://127.0.0.1:0", &options).unwrap()
}

fn tcp(listen: bool) -> Arc<dyn Endpoint> {
    na::open("na+tcp://127.0.0.1:0", &OpenOptions::listening(listen)).unwrap()
}

/// Both are composed and on one host, so everything goes through shared memory.
mod near {
    use super::*;

    fn open(options: &OpenOptions) -> Arc<dyn Endpoint> {
        composed(options)
    }

    na::conformance! { open; all }
}

/// One side knows only tcp.
mod far {
    use super::*;

    fn open(listen: bool) -> Arc<dyn Endpoint> {
        if listen { composed(&OpenOptions::listening(true)) } else { tcp(false) }
    }

    na::conformance! { open;
        echoes_both_kinds,
        receives_posted_after_the_message,
        order_is_kept_per_peer,
        get_and_put_move_the_named_bytes,
        large_transfers_are_complete,
        transfers_from_and_to_an_origin,
        an_origin_that_does_not_listen_is_answered,
        a_slow_receiver_holds_its_senders_back,
        a_receive_takes_many_messages,
        a_receive_for_many_takes_no_more,
        a_canceled_receive_for_many_ends_once,
        a_close_ends_receives_for_many,
        peers_share_a_receive_for_many,
    }
}

/// Groups, near and far.
mod groups {
    use na::PeerLink;

    use super::*;

    fn open_group(options: &OpenOptions, shards: usize) -> Vec<Arc<dyn Endpoint>> {
        let mut options = options.clone();
        options.auto_sm = Some("na+sm://".to_owned());
        na::open_group("na+tcp://127.0.0.1:0", &options, shards).unwrap()
    }

    na::group_conformance! { open_group; grows }

    /// Callers that do not listen know only tcp.
    mod from_far {
        use super::*;

        fn open(options: &OpenOptions, shards: usize) -> Vec<Arc<dyn Endpoint>> {
            match options.listen {
                true => open_group(options, shards),
                false => na::open_group("na+tcp://127.0.0.1:0", options, shards).unwrap(),
            }
        }

        na::group_conformance! { open; grows }
    }

    /// The last endpoint of a group, of which the others are closed.
    mod left_alone {
        use super::*;

        fn open(options: &OpenOptions) -> Arc<dyn Endpoint> {
            let mut group = open_group(options, 4);
            let last = group.pop().unwrap();
            group.iter().for_each(|shard| shard.close());
            last
        }

        na::conformance! { open; between_endpoints }
    }

    #[test]
    fn a_group_has_bounds() {
        let mut options = OpenOptions::listening(true);
        options.auto_sm = Some("na+sm://".to_owned());
        na::conformance::a_group_has_bounds(|shards| {
            na::open_group("na+tcp://127.0.0.1:0", &options, shards)
        });
    }

    /// Each endpoint has got one caller near, and one far.
    #[test]
    fn callers_of_either_kind_are_spread() {
        let group = open_group(&OpenOptions::listening(true), 3);
        let uri = group[0].self_addr().uri().to_owned();
        let mut callers: Vec<_> = (0..3).map(|_| tcp(false)).collect();
        callers.extend((0..3).map(|_| composed(&OpenOptions::default())));
        for caller in &callers {
            let to = caller.lookup(&uri).unwrap();
            caller.send_unexpected(OpId(1), &to, Tag(1), caller.alloc_msg()).unwrap();
        }
        let connected = |shard: &Arc<dyn Endpoint>| {
            let peers = shard.stats().peers.into_iter();
            let open = peers.filter(|peer| peer.link == PeerLink::Connected);
            let mut transports: Vec<_> = open.map(|peer| peer.transport).collect();
            transports.sort_unstable();
            transports
        };
        let deadline = Instant::now() + na::conformance::PATIENCE;
        while !group.iter().all(|shard| connected(shard) == ["sm", "tcp"]) {
            assert!(Instant::now() < deadline, "they are not spread");
            for one in group.iter().chain(&callers) {
                one.poll(8, &mut |_| ()).unwrap();
            }
        }
    }
}

/// Both ways over networks that describe memory, or move it, in their own way; where their
/// libraries are asked for.
#[cfg(any(feature = "ofi", feature = "ucx"))]
mod over_libraries {
    use na::conformance::{Opener, Optional};

    use super::*;

    /// Composed over the network, where it listens; else as `origin` says.
    struct Composed {
        network: Optional,
        origin: Origin,
    }

    enum Origin {
        /// Composed too: on this host, so near.
        Composed,
        /// Knows only the network.
        Network,
    }

    impl Opener<Composed> for Composed {
        const HEEDS_OPTIONS: bool = true;

        fn lacks(&self) -> Option<String> {
            self.network.lacks()
        }

        fn open(&self, options: &OpenOptions) -> Arc<dyn Endpoint> {
            let mut options = options.clone();
            if options.listen || matches!(self.origin, Origin::Composed) {
                options.auto_sm = Some("na+sm://".to_owned());
            }
            self.network.open(&options)
        }
    }

    macro_rules! networks {
        ($($name:ident, $variable:literal, $uri:literal, $feature:literal;)*) => { $(
            #[cfg(feature = $feature)]
            mod $name {
                use super::*;

                const NETWORK: Optional =
                    Optional { variable: $variable, uri: $uri, open: na::open };

                mod near {
                    use super::*;

                    const OPEN: Composed = Composed { network: NETWORK, origin: Origin::Composed };

                    na::conformance! { OPEN;
                        echoes_both_kinds, get_and_put_move_the_named_bytes,
                        large_transfers_are_complete, transfers_from_and_to_an_origin,
                    }
                }

                mod far {
                    use super::*;

                    const OPEN: Composed = Composed { network: NETWORK, origin: Origin::Network };

                    na::conformance! { OPEN;
                        echoes_both_kinds, receives_posted_after_the_message,
                        get_and_put_move_the_named_bytes, large_transfers_are_complete,
                        transfers_from_and_to_an_origin,
                    }
                }

                #[test]
                fn memory_of_many_parts_is_reached_by_each_of_them_both_ways() {
                    match NETWORK.lacks() {
                        Some(lacks) => println!("SKIPPED: {lacks}"),
                        None => reach_parts(&NETWORK),
                    }
                }
            }
        )* };
    }

    networks! {
        ofi_tcp, "MARGO_TEST_OFI", "ofi+tcp;ofi_rxm://127.0.0.1:0", "ofi";
        ucx_tcp, "MARGO_TEST_UCX", "ucx+tcp://127.0.0.1:0", "ucx";
    }

    /// Reaches parts of memory as hg does: by one handle for each part, if the transport has such.
    fn reach_parts(network: &Optional) {
        let mut options = OpenOptions::listening(true);
        let plain = network.open(&options);
        options.auto_sm = Some("na+sm://".to_owned());
        let (owner, composed) = (network.open(&options), network.open(&options));
        let pieces = vec![vec![1u8; 5000], vec![2; 3000], vec![3; 4000]];
        let shown = owner.register(Memory::from_vecs(pieces), Access::ReadWrite).unwrap();
        let all = || vec![na::MemPart { base: 0, len: 12000, handle: owner.mem_to_bytes(&shown) }];
        let parts = owner.mem_parts(&shown).unwrap_or_else(all);
        let expected = [vec![1u8; 5000], vec![2; 3000], vec![3; 4000]].concat();
        let elsewhere = owner.self_addr().uri().replacen("uid://", "uid://0", 1);
        let (_, far) = owner.self_addr().uri().rsplit_once('#').map(own).unwrap();
        // Near, far although both are composed, and one that knows the network only.
        for (reader, uri) in [
            (&composed, owner.self_addr().uri().to_owned()),
            (&composed, elsewhere),
            (&composed, far),
            (&plain, owner.self_addr().uri().to_owned()),
        ] {
            let peer = reader.lookup(&uri).unwrap();
            let zeros = Memory::from_vec(vec![0; 12000]);
            let local = reader.register(zeros, Access::ReadWrite).unwrap();
            let mut start = 0;
            for part in &parts {
                let remote = reader.mem_from_bytes(&part.handle).unwrap();
                let (local, local_offset, len) = (local.clone(), start, part.len - 10);
                start += part.len;
                let transfer = Transfer { local, local_offset, remote, remote_offset: 10, len };
                reader.get(OpId(1), &peer, transfer).unwrap();
                let done = ended(&[reader, &owner]);
                assert!(matches!(done, Completion::Transfer { result: Ok(()), .. }), "{done:?}");
            }
            let (mut read, mut start) = (vec![0; 12000], 0);
            assert!(local.read_at(0, &mut read));
            for part in &parts {
                let (from, len) = (start, part.len as usize - 10);
                assert_eq!(read[from..from + len], expected[from + 10..from + 10 + len], "{uri}");
                start += part.len as usize;
            }
        }
    }

    fn own((host, far): (&str, &str)) -> (String, String) {
        (host.to_owned(), far.to_owned())
    }
}

fn listening() -> Arc<dyn Endpoint> {
    composed(&OpenOptions::listening(true))
}

/// Polls all until the first has ended an operation.
fn ended(endpoints: &[&Arc<dyn Endpoint>]) -> Completion {
    let deadline = Instant::now() + na::conformance::PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "nothing ended");
        for (at, endpoint) in endpoints.iter().enumerate() {
            let mut first = None;
            endpoint.poll(1, &mut |completion| first = Some(completion)).unwrap();
            if at == 0
                && let Some(completion) = first
            {
                return completion;
            }
        }
    }
}

/// Sends a message; returns the way that it came.
fn way_of_a_message(from: &Arc<dyn Endpoint>, to: &Arc<dyn Endpoint>) -> String {
    way_to(from, to, to.self_addr().uri())
}

fn way_to(from: &Arc<dyn Endpoint>, to: &Arc<dyn Endpoint>, uri: &str) -> String {
    let peer = from.lookup(uri).unwrap();
    to.recv_unexpected(OpId(1), to.alloc_msg()).unwrap();
    from.send_unexpected(OpId(2), &peer, Tag(3), from.alloc_msg()).unwrap();
    match ended(&[to, from]) {
        Completion::Recv { op: OpId(1), result: Ok(arrival), .. } => arrival.from.uri().to_owned(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn peers_on_this_host_take_shared_memory_and_others_the_network() {
    let (target, origin) = (listening(), listening());
    assert!(way_of_a_message(&origin, &target).starts_with("na+sm://"));
    assert!(way_of_a_message(&tcp(true), &target).starts_with("na+tcp://"));
    // The other way round: the network's part of the composed address.
    assert!(way_of_a_message(&target, &tcp(true)).starts_with("na+tcp://"));
    // Each single transport finds its part.
    let sm = na::open("na+sm://", &OpenOptions::listening(true)).unwrap();
    assert!(way_of_a_message(&sm, &target).starts_with("na+sm://"));
}

#[test]
fn an_address_of_another_host_is_reached_through_the_network() {
    let (target, origin) = (listening(), listening());
    let uri = target.self_addr().uri().to_owned();
    let (host, parts) = uri.split_once('#').unwrap();
    let elsewhere = format!("{}#{parts}", host.replace(['a', '1'], "2").replace("222", "333"));
    assert_ne!(elsewhere, uri);
    assert!(way_to(&origin, &target, &elsewhere).starts_with("na+tcp://"));
    assert!(way_to(&origin, &target, &uri).starts_with("na+sm://"));
    // Shared memory alone would find a process of this host, whoever has that name here.
    let sm = na::open("na+sm://", &OpenOptions::listening(true)).unwrap();
    let error = sm.lookup(&elsewhere).unwrap_err();
    assert!(matches!(error, Error::BadUri { .. }), "{error}");
}

#[test]
fn a_composed_address_names_its_own_endpoint() {
    let endpoint = listening();
    let own = endpoint.self_addr();
    let (_, far) = own.uri().rsplit_once('#').unwrap();
    assert_eq!(endpoint.lookup(own.uri()).unwrap(), own);
    assert_eq!(endpoint.lookup(far).unwrap(), own);
    let bytes = own.to_bytes().unwrap();
    assert_eq!(endpoint.addr_from_bytes(&bytes).unwrap(), own);
}

#[test]
fn memory_is_reached_both_ways_under_one_key() {
    let (owner, near, far) = (listening(), listening(), tcp(true));
    let shared = owner.register(Memory::from_vec(vec![7; 1 << 16]), Access::ReadOnly).unwrap();
    let bytes = owner.mem_to_bytes(&shared);
    for reader in [&near, &far] {
        let peer = reader.lookup(owner.self_addr().uri()).unwrap();
        let remote = reader.mem_from_bytes(&bytes).unwrap();
        let memory = Memory::from_vec(vec![0; 1 << 16]);
        let local = reader.register(memory, Access::ReadWrite).unwrap();
        let transfer = Transfer {
            local: local.clone(),
            local_offset: 0,
            remote,
            remote_offset: 0,
            len: 1 << 16,
        };
        reader.get(OpId(1), &peer, transfer).unwrap();
        let done = ended(&[reader, &owner]);
        assert!(matches!(done, Completion::Transfer { result: Ok(()), .. }), "{done:?}");
        let mut read = vec![0; 1 << 16];
        assert!(local.read_at(0, &mut read));
        assert_eq!(read, vec![7; 1 << 16]);
    }
}

/// The receives that are left over on one side serve later ones, and none is lost to a cancel.
#[test]
fn messages_of_both_sides_find_receives_in_any_order() {
    let (target, near, far) = (listening(), listening(), tcp(true));
    let mut next = 0;
    for round in 0..60u32 {
        next += 1;
        target.recv_unexpected(OpId(next), target.alloc_msg()).unwrap();
        if round % 3 == 0 {
            target.cancel(OpId(next));
            let canceled = ended(&[&target]);
            assert!(
                matches!(&canceled, Completion::Recv { op, result: Err(Error::Canceled), .. }
                    if op.0 == next),
                "{canceled:?}"
            );
            continue;
        }
        let from = if round % 2 == 0 { &near } else { &far };
        let peer = from.lookup(target.self_addr().uri()).unwrap();
        from.send_unexpected(OpId(1000), &peer, Tag(round), from.alloc_msg()).unwrap();
        match ended(&[&target, &near, &far]) {
            Completion::Recv { op, result: Ok(arrival), .. } => {
                assert_eq!((op.0, arrival.tag), (next, Tag(round)));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Near has more than the budget in every poll.
#[test]
fn a_busy_near_side_does_not_keep_the_far_side_out() {
    let (target, near, far) = (listening(), listening(), tcp(true));
    let peer = far.lookup(target.self_addr().uri()).unwrap();
    far.send_unexpected(OpId(1), &peer, Tag(7), far.alloc_msg()).unwrap();
    let peer = near.lookup(target.self_addr().uri()).unwrap();
    let deadline = Instant::now() + na::conformance::PATIENCE;
    let (mut posted, mut sent, mut taken) = (0, 0, 0);
    loop {
        assert!(Instant::now() < deadline, "the message from afar does not come");
        while sent < taken + 8 {
            sent += 1;
            near.send_unexpected(OpId(sent), &peer, Tag(0), near.alloc_msg()).unwrap();
        }
        while posted < taken + 16 {
            posted += 1;
            target.recv_unexpected(OpId(posted), target.alloc_msg()).unwrap();
        }
        near.poll(64, &mut drop).unwrap();
        far.poll(64, &mut drop).unwrap();
        let mut is_far = false;
        target
            .poll(1, &mut |completion| match completion {
                Completion::Recv { result: Ok(arrival), .. } => {
                    taken += 1;
                    is_far = arrival.tag == Tag(7);
                }
                other => panic!("{other:?}"),
            })
            .unwrap();
        if is_far {
            return;
        }
    }
}

#[test]
fn what_cannot_be_near_is_refused() {
    let mut options = OpenOptions::default();
    options.auto_sm = Some("na+tcp://127.0.0.1:0".to_owned());
    let error = na::open("na+tcp://127.0.0.1:0", &options).unwrap_err();
    assert!(error.to_string().contains("shared memory"), "{error}");
    let error = listening().lookup("uid://1#na+sm://x").unwrap_err();
    assert!(matches!(error, Error::BadUri { .. }), "{error}");
}

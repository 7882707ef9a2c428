//! Bulk transfers through the public API, over both transports.

use crate::bulk_support;
use crate::common::{PATIENCE, TRANSPORTS, builder, on_each};
use margo::hg::{MemoryAttr, MemoryKind};
use margo::{Access, Bulk, BulkError, Instance, ProviderHandle, Rpc};
use serde::{Deserialize, Serialize};

/// A transfer that the service is asked to make with the origin's memory.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Order {
    bulk: Bulk,
    pull: bool,
    offset: u64,
    len: u64,
}

const MOVE: Rpc<Order, Result<u64, String>> = Rpc::new("move");

fn pattern(len: usize) -> Vec<u8> {
    bulk_support::pattern(len, 0)
}

/// The service pulls and checks the pattern, or pushes it.
fn serve(service: &margo::Instance) {
    service
        .register(MOVE, |request| {
            let Order { bulk, pull, offset, len } = request.args();
            let run = || -> Result<u64, BulkError> {
                let bytes = *len as usize;
                let mut buffer = request.instance().memory().bulk_buffer(bytes)?;
                let expected = &pattern((offset + len) as usize)[*offset as usize..];
                if *pull {
                    request.pull(bulk, *offset, &mut buffer, 0..bytes)?;
                    assert!(*buffer == *expected, "pulled bytes differ");
                } else {
                    buffer.copy_from_slice(expected);
                    request.push(bulk, *offset, &mut buffer, 0..bytes)?;
                }
                Ok(*len)
            };
            request.respond(&run().map_err(|error| error.to_string())).unwrap();
        })
        .unwrap();
}

#[test]
fn pulls_and_pushes_of_every_size() {
    on_each(|pair| {
        serve(&pair.service);
        let target = pair.target();
        for len in [0usize, 1, 63, 64, 4096, 65_537, 1 << 20, 16 << 20] {
            let data = pattern(len);
            let order =
                |bulk: &Bulk, pull| Order { bulk: bulk.clone(), pull, offset: 0, len: len as u64 };
            let moved = pair
                .client
                .memory()
                .expose_ref(&data, |bulk| pair.client.forward(MOVE, &target, &order(bulk, true)))
                .unwrap()
                .unwrap();
            assert_eq!(moved, Ok(len as u64));
            let mut back = vec![0; len];
            pair.client
                .memory()
                .expose_mut(&mut back, |bulk| {
                    pair.client.forward(MOVE, &target, &order(bulk, false))
                })
                .unwrap()
                .unwrap()
                .unwrap();
            assert!(back == data, "{len} bytes pushed differ");
        }
        pair.end();
    });
}

/// Handlers on several execution streams move data at the same time, for callers on several.
#[test]
fn transfers_of_several_execution_streams_at_once() {
    const CALLERS: usize = 12;
    for transport in TRANSPORTS.into_iter().chain(["na+sim://"]) {
        let own = transport.split("://").next().unwrap();
        let several = |address: &str, listen: bool| {
            let builder = builder(address).listen(listen).use_progress_thread(true);
            builder.rpc_thread_count(3).start().unwrap()
        };
        let (service, client) = (several(transport, true), several(&format!("{own}://"), false));
        serve(&service);
        let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
        let call = move |client: &Instance, target: &ProviderHandle, number: usize| {
            for round in 0..8 {
                let len = [100, 5000, 70_000, 1 << 20][(number + round) % 4];
                let pull = round % 2 == 0;
                let memory = if pull { pattern(len) } else { vec![0; len] };
                let exposed = client.expose(memory, Access::ReadWrite).unwrap();
                let bulk = exposed.bulk().clone();
                let order = Order { bulk, pull, offset: 0, len: len as u64 };
                let moved = client.forward_timed(MOVE, target, &order, PATIENCE).unwrap();
                assert_eq!(moved, Ok(len as u64));
                assert!(exposed.release().unwrap() == pattern(len));
            }
        };
        let callers: Vec<_> = (0..CALLERS)
            .map(|number| {
                let (client, target) = (client.clone(), target.clone());
                client
                    .clone()
                    .layout()
                    .rpc_pool()
                    .spawn(move || call(&client, &target, number))
                    .unwrap()
            })
            .collect();
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        assert_eq!(service.monitoring().stats().bulk_transfers, 8 * CALLERS as u64);
        client.finalize_and_wait().unwrap();
        service.finalize_and_wait().unwrap();
    }
}

#[test]
fn parts_of_exposed_memory() {
    on_each(|pair| {
        serve(&pair.service);
        let exposed = pair.client.expose(pattern(100_000), Access::ReadWrite).unwrap();
        for (offset, len) in [(0, 1), (1, 99_999), (50_000, 50_000), (99_999, 1), (100_000, 0)] {
            let order = Order { bulk: exposed.bulk().clone(), pull: true, offset, len };
            assert_eq!(pair.client.forward(MOVE, &pair.target(), &order).unwrap(), Ok(len));
        }
        assert!(exposed.release().unwrap() == pattern(100_000));
        pair.end();
    });
}

#[test]
fn a_peer_is_told_which_memory_it_is() {
    const WHERE: Rpc<Bulk, Option<u16>> = Rpc::new("where");
    on_each(|pair| {
        let device = |request: &margo::Handle<Bulk, Option<u16>>| {
            request.args().attr().map(MemoryAttr::device)
        };
        pair.service.serve(WHERE).returning(device).unwrap();
        let near = MemoryAttr::new(MemoryKind::Host, 7).unwrap();
        let exposed =
            pair.client.memory().expose_attr(pattern(64), Access::ReadOnly, near).unwrap();
        assert_eq!(pair.client.forward(WHERE, &pair.target(), exposed.bulk()).unwrap(), Some(7));
        assert_eq!(exposed.release().unwrap(), pattern(64));
        let gpu = MemoryAttr::new(MemoryKind::Cuda, 3).unwrap();
        let error =
            pair.client.memory().expose_attr(pattern(64), Access::ReadOnly, gpu).unwrap_err();
        assert!(error.to_string().contains("Cuda memory of device 3"), "{error}");
        pair.end();
    });
}

/// The addresses are no memory of this process: no transport gets to see them.
#[test]
fn memory_of_a_device_is_refused_before_it_is_registered() {
    let instance = builder("na+sm://").listen(false).start().unwrap();
    instance.finalize_and_wait().unwrap();
    let expose = |kind| {
        let attr = MemoryAttr::new(kind, 0).unwrap();
        instance.memory().expose_attr(pattern(64), Access::ReadOnly, attr).unwrap_err().to_string()
    };
    let (host, device) = (expose(MemoryKind::Host), expose(MemoryKind::Cuda));
    assert!(host.contains("closed"), "nothing can be registered any more: {host}");
    assert!(device.contains("host memory only"), "{device}");
}

/// Also of memory that would have room in the message.
#[test]
fn a_peer_reads_what_it_has_written() {
    const FLIP: Rpc<Bulk, Result<(), String>> = Rpc::new("flip");
    on_each(|pair| {
        let flip = |request: &margo::Handle<Bulk, Result<(), String>>| -> Result<(), BulkError> {
            let bulk = request.args();
            let mut buffer = request.instance().memory().bulk_buffer(64)?;
            request.pull(bulk, 0, &mut buffer, 0..64)?;
            buffer.iter_mut().for_each(|byte| *byte = !*byte);
            let flipped = buffer.to_vec();
            request.push(bulk, 0, &mut buffer, 0..64)?;
            buffer.fill(0);
            request.pull(bulk, 0, &mut buffer, 0..64)?;
            assert!(*buffer == *flipped, "as it was when the handle was sent");
            Ok(())
        };
        pair.service
            .serve(FLIP)
            .returning(move |request| flip(request).map_err(|error| error.to_string()))
            .unwrap();
        let exposed = pair.client.expose(pattern(64), Access::ReadWrite).unwrap();
        pair.client.forward(FLIP, &pair.target(), exposed.bulk()).unwrap().unwrap();
        let flipped: Vec<u8> = pattern(64).iter().map(|byte| !byte).collect();
        assert_eq!(exposed.release().unwrap(), flipped);
        pair.end();
    });
}

#[test]
fn what_the_owner_did_not_allow_is_refused() {
    on_each(|pair| {
        serve(&pair.service);
        let target = pair.target();
        let ask = |bulk: &Bulk, pull, offset, len| {
            let order = Order { bulk: bulk.clone(), pull, offset, len };
            pair.client.forward_timed(MOVE, &target, &order, PATIENCE).unwrap()
        };
        let read_only = pair.client.expose(pattern(10_000), Access::ReadOnly).unwrap();
        assert!(ask(read_only.bulk(), true, 0, 10_000).is_ok());
        ask(read_only.bulk(), false, 0, 10_000).unwrap_err();
        ask(read_only.bulk(), true, 1, 10_000).unwrap_err();
        let write_only = pair.client.expose(vec![0; 10_000], Access::WriteOnly).unwrap();
        assert!(ask(write_only.bulk(), false, 0, 10_000).is_ok());
        ask(write_only.bulk(), true, 0, 10_000).unwrap_err();
        assert!(write_only.release().unwrap() == pattern(10_000));
        // The handle outlives the memory; using it is refused, not undefined.
        let revoked = read_only.bulk().clone();
        assert!(read_only.release().unwrap() == pattern(10_000));
        let error = ask(&revoked, true, 0, 10_000).unwrap_err();
        // Over libfabric the owner is not asked: the network refuses.
        assert!(error.contains("revoked") || error.contains("ofi+tcp"), "{error}");
        assert!(
            ask(pair.client.expose(pattern(9), Access::ReadOnly).unwrap().bulk(), true, 0, 9)
                .is_ok()
        );
        pair.end();
    });
}

#[test]
fn a_scope_that_panics_takes_its_memory_back() {
    on_each(|pair| {
        let data = pattern(1000);
        let kept = std::sync::Mutex::new(None);
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = pair.client.memory().expose_ref(&data, |bulk| {
                *kept.lock().unwrap() = Some(bulk.clone());
                panic!("in the scope");
            });
        }));
        panic.unwrap_err();
        serve(&pair.service);
        let bulk = kept.into_inner().unwrap_or_else(|e| e.into_inner()).unwrap();
        let order = Order { bulk, pull: true, offset: 0, len: 1000 };
        // Small data may have been embedded in the handle, but not after the memory is gone.
        pair.client.forward(MOVE, &pair.target(), &order).unwrap().unwrap_err();
        pair.end();
    });
}

/// A handler that makes room for what a peer says that it has.
#[test]
fn a_buffer_for_which_there_is_no_memory_is_an_error_and_the_process_goes_on() {
    const FETCH: Rpc<u64, String> = Rpc::new("fetch");
    on_each(|pair| {
        pair.service
            .serve(FETCH)
            .returning(|handle| {
                let buffer = handle.instance().memory().bulk_buffer(*handle.args() as usize);
                match buffer {
                    Ok(buffer) => buffer.len().to_string(),
                    Err(error) => {
                        assert!(matches!(error, BulkError::Alloc(_)), "{error:?}");
                        error.to_string()
                    }
                }
            })
            .unwrap();
        let target = pair.target();
        for bytes in [1 << 50, 1 << 62, u64::MAX] {
            let said = pair.client.forward(FETCH, &target, &bytes).unwrap();
            assert!(said.contains(&format!("a buffer of {bytes} bytes")), "{said}");
        }
        for bytes in [0, 1, 100_000] {
            let said = pair.client.forward(FETCH, &target, &bytes).unwrap();
            assert_eq!(said, bytes.to_string());
        }
        let pool = pair
            .client
            .memory()
            .bulk_pool(&margo::bulk_memory::BulkPoolSpec::new().class(1 << 50, 1));
        assert!(pool.is_err(), "{pool:?}");
        pair.end();
    });
}

#[test]
fn local_ranges_are_checked() {
    on_each(|pair| {
        let mut buffer = pair.client.memory().bulk_buffer(10).unwrap();
        let exposed = pair.service.expose(pattern(10), Access::ReadWrite).unwrap();
        let peer = pair.target().addr().clone();
        #[expect(clippy::reversed_empty_ranges, reason = "a wrong argument is the point")]
        for range in [0..11, 11..11, 5..4] {
            let error = pair.client.pull(&peer, exposed.bulk(), 0, &mut buffer, range).unwrap_err();
            assert!(matches!(error, BulkError::LocalRange { .. }), "{error}");
        }
        pair.end();
    });
}

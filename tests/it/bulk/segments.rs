//! Memory in several segments, through the public API, over both transports.

use crate::bulk_support;
use crate::common::{bounded, on_each};
use margo::{Access, Bulk, BulkError, Instance, Rpc};

/// The service pulls into segments of its own, of which it has so many, and pushes back what it
/// got, each byte one higher.
const RAISE: Rpc<(Bulk, usize), Result<(), String>> = Rpc::new("raise");

fn pattern(len: usize) -> Vec<u8> {
    bulk_support::pattern(len, 0)
}

fn raised(len: usize) -> Vec<u8> {
    pattern(len).into_iter().map(|byte| byte + 1).collect()
}

/// `bytes` cut into `count` pieces of uneven lengths, some of them empty.
fn cut(bytes: &[u8], count: usize) -> Vec<Vec<u8>> {
    let mut rest = bytes;
    let mut pieces: Vec<Vec<u8>> = (1..count)
        .map(|index| {
            let (piece, behind) = rest.split_at((index * index % 97).min(rest.len()));
            rest = behind;
            piece.to_vec()
        })
        .collect();
    pieces.push(rest.to_vec());
    pieces
}

fn serve(service: &Instance) {
    service
        .register(RAISE, |request| {
            let (bulk, count) = request.args();
            let len = bulk.len() as usize;
            let run = || -> Result<(), BulkError> {
                let mut pieces =
                    request.instance().memory().bulk_segments(cut(&vec![0; len], *count))?;
                assert_eq!((pieces.len(), pieces.count()), (len, *count));
                request.pull(bulk, 0, &mut pieces, 0..len)?;
                assert!(pieces.segments().flatten().eq(&pattern(len)), "pulled bytes differ");
                pieces.for_each_mut(|_, piece| piece.iter_mut().for_each(|byte| *byte += 1));
                // In two parts that end in the midst of segments.
                let middle = len / 3;
                request.push(bulk, 0, &mut pieces, 0..middle)?;
                request.push(bulk, middle as u64, &mut pieces, middle..len)?;
                assert!(pieces.into_segments().concat() == raised(len));
                Ok(())
            };
            request.respond(&run().map_err(|error| error.to_string())).unwrap();
        })
        .unwrap();
}

#[test]
fn segments_of_one_side_meet_others_at_the_other() {
    on_each(|pair| {
        serve(&pair.service);
        bounded("segments", move || {
            let target = pair.target();
            for (len, ours, theirs) in [
                (0, 1, 1),
                (1, 3, 2),
                (1000, 16, 1),
                (100_000, 1024, 7),
                (100_000, 1, 1024),
                (1 << 20, 5000, 3000),
            ] {
                let pieces = cut(&pattern(len), ours);
                let lens: Vec<_> = pieces.iter().map(Vec::len).collect();
                let exposed = pair.client.expose(pieces, Access::ReadWrite).unwrap();
                assert_eq!(exposed.bulk().len(), len as u64);
                let order = (exposed.bulk().clone(), theirs);
                pair.client.forward(RAISE, &target, &order).unwrap().unwrap();
                let pieces = exposed.release().unwrap();
                assert!(pieces.iter().map(Vec::len).eq(lens), "the same vectors come back");
                assert!(pieces.concat() == raised(len), "{len} bytes in {ours} and {theirs}");
            }
            pair.end();
        });
    });
}

/// Without a copy at the owner.
#[test]
fn the_segments_of_exposed_memory_are_where_they_were() {
    on_each(|pair| {
        let pieces = cut(&pattern(5000), 40);
        let at: Vec<_> = pieces.iter().map(|piece| (piece.as_ptr(), piece.len())).collect();
        let exposed = pair.client.expose(pieces, Access::ReadOnly).unwrap();
        let found = exposed.segments().map(|raw| (raw.cast::<u8>().cast_const(), raw.len()));
        assert!(found.eq(at));
        // Copies go across segments.
        let mut middle = vec![0; 3000];
        exposed.read_at(1000, &mut middle).unwrap();
        assert!(middle == pattern(5000)[1000..4000]);
        exposed.write_at(999, &middle).unwrap();
        let error = exposed.read_at(4000, &mut [0; 1001]).unwrap_err();
        assert!(matches!(error, BulkError::LocalRange { len: 5000, .. }), "{error}");
        assert!(exposed.release().unwrap().concat()[999..3999] == middle);
        pair.end();
    });
}

/// The service reads and writes what is only lent to it.
const COPY: Rpc<(Bulk, Bulk), Result<(), String>> = Rpc::new("copy");

#[test]
fn slices_are_lent_without_being_moved() {
    on_each(|pair| {
        pair.service
            .register(COPY, |request| {
                let (from, to) = request.args();
                let len = from.len() as usize;
                let run = || -> Result<(), BulkError> {
                    let mut buffer = request.instance().memory().bulk_buffer(len)?;
                    request.pull(from, 0, &mut buffer, 0..len)?;
                    // What was lent for reading is not written, and the reverse.
                    request.push(from, 0, &mut buffer, 0..1).unwrap_err();
                    request.pull(to, 0, &mut buffer, 0..1).unwrap_err();
                    request.push(to, 0, &mut buffer, 0..len)
                };
                request.respond(&run().map_err(|error| error.to_string())).unwrap();
            })
            .unwrap();
        let target = pair.target();
        let (source, mut sink) = (cut(&pattern(70_000), 1500), cut(&[0; 70_000], 33));
        let source: Vec<&[u8]> = source.iter().map(Vec::as_slice).collect();
        let mut parts: Vec<&mut [u8]> = sink.iter_mut().map(Vec::as_mut_slice).collect();
        let client = &pair.client;
        client
            .memory()
            .expose_ref_segments(&source, |from| {
                client.memory().expose_mut_segments(&mut parts, |to| {
                    client.forward(COPY, &target, &(from.clone(), to.clone())).unwrap().unwrap();
                })
            })
            .unwrap()
            .unwrap();
        assert!(sink.concat() == pattern(70_000));
        pair.end();
    });
}

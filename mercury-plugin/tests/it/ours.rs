//! Endpoints of ours beside those of Mercury: who is who.

use std::sync::Arc;

use na::{Completion, Endpoint, Error, OpId, OpenOptions, Tag};

use super::mercury::{OK, Side, call};

fn ends(own: &dyn Endpoint, theirs: &Side) -> Completion {
    let mut ended = None;
    while ended.is_none() {
        theirs.poll();
        own.poll(1, &mut |completion| ended = Some(completion)).unwrap();
    }
    ended.unwrap()
}

fn pairs() -> impl Iterator<Item = (Arc<dyn Endpoint>, Side)> {
    ["sm", "tcp"].into_iter().map(|protocol| {
        let uri = format!("na+{protocol}://");
        (na::open(&uri, &OpenOptions::listening(true)).unwrap(), Side::open(protocol))
    })
}

#[test]
fn a_caller_of_mercury_is_known_and_answered() {
    for (own, theirs) in pairs() {
        own.recv_unexpected(OpId(1), own.alloc_msg()).unwrap();
        // As it is written, `na+` and all.
        let to = theirs.look_up(own.self_addr().uri().strip_prefix("na+").unwrap());
        let (send, receive) = (theirs.op(), theirs.op());
        let mut room = vec![0; 4096];
        assert_eq!(theirs.receive_from(&mut room, to, 5, receive), OK);
        assert_eq!(theirs.send(true, b"hello", to, 5, send), OK);
        let Completion::Recv { buf, result: Ok(arrival), .. } = ends(&*own, &theirs) else {
            panic!("no message")
        };
        assert_eq!(buf.as_slice(), b"hello");
        assert!(!own.carries_extensions(&arrival.from), "it is not one of ours");
        own.send_expected(OpId(2), &arrival.from, arrival.tag, buf).unwrap();
        theirs.next(&[]);
        let end = loop {
            own.poll(1, &mut drop).unwrap();
            theirs.poll();
            if let Some(end) = theirs.trigger() {
                break end;
            }
        };
        assert_eq!((end.op, end.ret, &room[..5]), (receive.addr(), OK, &b"hello"[..]));
        theirs.free(&[to], &[send, receive]);
    }
}

#[test]
fn a_server_of_mercury_gets_nothing_that_was_written_for_one_of_ours() {
    for (own, theirs) in pairs() {
        let addr = theirs.self_addr();
        let text = theirs.text(addr);
        let mut room = vec![0; 4096];
        let receive = theirs.op();
        assert_eq!(theirs.receive(&mut room, receive), OK);
        // Taken for one of ours, by the class of the address.
        let mistaken = own.lookup(&format!("na+{text}")).unwrap();
        assert!(own.carries_extensions(&mistaken));
        own.send_unexpected(OpId(1), &mistaken, Tag(1), own.alloc_msg()).unwrap();
        let Completion::Send { result: Err(error), .. } = ends(&*own, &theirs) else {
            panic!("it was sent")
        };
        assert!(matches!(error, Error::Unreachable { .. } | Error::PeerGone { .. }), "{error}");
        assert!(error.to_string().contains(&format!("margo+{text}")), "{error}");
        assert!(!own.carries_extensions(&mistaken), "it is known now");

        let to = own.lookup(&format!("margo+{text}")).unwrap();
        assert!(!own.carries_extensions(&to));
        let mut message = own.alloc_msg();
        assert!(message.try_extend(b"right"));
        own.send_unexpected(OpId(2), &to, Tag(1), message).unwrap();
        assert!(matches!(ends(&*own, &theirs), Completion::Send { result: Ok(()), .. }));
        let end = theirs.next(&[]);
        assert_eq!((end.ret, &room[..end.bytes]), (OK, &b"right"[..]), "and nothing before");
        theirs.free(&[addr, end.source()], &[receive]);
    }
}

#[test]
fn those_of_one_kind_are_known_as_such() {
    for (own, theirs) in pairs() {
        let uri = format!("na+{}://", own.transport());
        let another = na::open(&uri, &OpenOptions::listening(true)).unwrap();
        let to = own.lookup(another.self_addr().uri()).unwrap();
        own.send_unexpected(OpId(1), &to, Tag(1), own.alloc_msg()).unwrap();
        let mut is_sent = false;
        while !is_sent {
            another.poll(1, &mut drop).unwrap();
            own.poll(1, &mut |end| {
                is_sent = matches!(end, Completion::Send { result: Ok(()), .. });
            })
            .unwrap();
        }
        assert!(own.carries_extensions(&to));
        assert!(call!(has_opt_feature(theirs.class(), 1)));
    }
}

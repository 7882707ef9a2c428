//! Requests that are done with on other threads than they arrive on.

use super::*;

const PLACES: usize = 32;

/// A target with places for so many requests and no more.
fn pair_of_places() -> (Side, Side) {
    pair_with(HgOptions {
        request_post_init: PLACES,
        request_post_incr: 0,
        requests_max: PLACES,
        ..HgOptions::default()
    })
}

/// Lets go of requests on a thread of their own.
fn let_go_elsewhere(requests: Vec<RequestHandle<u32>>) {
    std::thread::scope(|scope| {
        scope.spawn(move || drop(requests));
    });
}

#[test]
fn places_come_back_from_whichever_thread() {
    let (mut origin, mut target) = pair_of_places();
    for round in 0..40 {
        let calls = 1 + round % PLACES as u32;
        for token in 0..calls {
            origin.call(&target, b"arguments", token);
        }
        drive(&mut origin, &mut target, "the arrival of all", |_, target| {
            target.notes.requests.len() == calls as usize
        });
        let mut here = std::mem::take(&mut target.notes.requests);
        let elsewhere = here.split_off(here.len() / 3);
        drop(here);
        let_go_elsewhere(elsewhere);
        settle(&mut origin, &mut target);
        for token in 0..calls {
            let error = ended(&mut origin, token).unwrap_err();
            assert!(matches!(error, HgError::Remote(ReturnCode::OtherError)), "{error}");
        }
        assert_eq!(target.core.in_hand().requests_held, 0);
        assert_eq!(target.receives(), PLACES);
    }
}

#[test]
fn who_is_done_while_no_receive_is_left_posts_one() {
    let (mut origin, mut target) = pair_of_places();
    for round in 0..3 {
        for token in 0..PLACES as u32 {
            origin.call(&target, b"arguments", token);
        }
        settle(&mut origin, &mut target);
        assert_eq!((target.notes.requests.len(), target.receives()), (PLACES, 0), "{round}");
        // Nothing arrives that would look.
        let_go_elsewhere(target.notes.requests.drain(..1).collect());
        assert_eq!(target.endpoint.posted().0, 1, "{round}");
        // One more comes, and takes it.
        origin.call(&target, b"arguments", PLACES as u32);
        settle(&mut origin, &mut target);
        assert_eq!((target.notes.requests.len(), target.receives()), (PLACES, 0), "{round}");
        let_go_elsewhere(std::mem::take(&mut target.notes.requests));
        settle(&mut origin, &mut target);
        assert_eq!(origin.notes.responses.drain().count(), PLACES + 1);
        assert_eq!((target.core.in_hand().requests_held, target.receives()), (0, PLACES));
    }
}

#[test]
fn answers_of_all_threads_are_counted() {
    let (mut origin, mut target) = pair_of_places();
    target.endpoint.at_once();
    for token in 0..4 {
        origin.call(&target, b"arguments", token);
    }
    drive(&mut origin, &mut target, "the arrival of all", |_, target| {
        target.notes.requests.len() == 4
    });
    for request in target.notes.requests.drain(..) {
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(matches!(request.respond(|_| Ok(()), 0), Ok(Sent::Done(0)))));
        });
    }
    settle(&mut origin, &mut target);
    assert_eq!(target.core.counters().rpc_resp_sent, 4);
    assert_eq!(origin.notes.responses.len(), 4);
}

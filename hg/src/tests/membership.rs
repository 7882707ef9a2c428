//! Members of a cluster prove to each other who they are, over endpoints that do not tell.

use std::io::Write;

use na::{MsgBuf, OpId, Principal, SessionChange, SessionObserver, Tag};
use tempfile::NamedTempFile;

use super::net::{Kind, MESSAGE_MAX};
use super::*;
use crate::base::membership::SessionKey;
use crate::core::own_sessions::OwnSession;
use crate::header::{Build, ResponseHeader, flags};
use crate::wire::introduction::INTRODUCTION;
use crate::{Membership, OnBehalfOf, TraceParent};

/// As `Membership` has it.
const EPOCH: Duration = Duration::from_secs(300);

fn text(secret: &str) -> String {
    format!("{secret}, which is long enough to be one\n")
}

/// A file with these secrets, which only its owner may read.
fn file(secrets: &[&str]) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    secrets.iter().for_each(|secret| file.write_all(text(secret).as_bytes()).unwrap());
    file
}

fn rewrite(file: &NamedTempFile, secrets: &[&str]) {
    // Another file in its place, as `margo security` does it.
    let new = self::file(secrets).into_temp_path();
    std::fs::rename(&new, file.path()).unwrap();
}

fn looking_always(file: &NamedTempFile) -> Membership {
    Membership::load(file.path()).unwrap().looking_every(Duration::ZERO)
}

fn knowing(file: &NamedTempFile) -> HgOptions {
    HgOptions { membership: Some(looking_always(file)), ..HgOptions::default() }
}

fn calling_strangers(file: &NamedTempFile) -> HgOptions {
    let membership = looking_always(file).calling_strangers(true);
    HgOptions { membership: Some(membership), ask_build: true, ..HgOptions::default() }
}

/// An origin and a target that know the same secret.
fn members() -> (Side, Side) {
    pair_with(knowing(&file(&["ours"])))
}

/// Sessions with origins, of all shards, and with targets, of this one.
fn sessions(side: &Side) -> (usize, usize) {
    (side.core.class.members.count(), side.core.own_sessions.count())
}

/// Introductions and requests that were sent.
fn introduced_and_called(side: &Side) -> (usize, usize) {
    let sent = side.endpoint.sent();
    let requests = sent.iter().filter(|(kind, ..)| *kind == Kind::Unexpected);
    let introduces = |bytes: &[u8]| bytes[2..10] == INTRODUCTION.0.to_be_bytes();
    let (introduced, called): (Vec<_>, Vec<_>) = requests.partition(|(.., b)| introduces(b));
    (introduced.len(), called.len())
}

/// The last request that was sent.
fn last_request(side: &Side) -> (Tag, Vec<u8>) {
    let sent = side.endpoint.sent();
    let last = sent.into_iter().rfind(|(kind, ..)| *kind == Kind::Unexpected).unwrap();
    (last.1, last.2)
}

fn member() -> Option<Principal> {
    Some(Principal::member_at([0, 0, 0, 0].into()))
}

/// Makes a call, and returns whose it is to its target.
fn call_once(origin: &mut Side, target: &mut Side, token: u32) -> Option<Principal> {
    origin.call(target, b"args", token);
    let request = arrive(origin, target);
    let proven = request.proven();
    answer(request, b"result", 1000 + token);
    settle(origin, target);
    target.notes.responded.remove(&(1000 + token)).expect("the answer is over").unwrap();
    assert_eq!(ended(origin, token).unwrap(), b"result");
    proven
}

/// Makes a call that does not come to a handler, and returns why.
fn refused(origin: &mut Side, target: &mut Side, token: u32) -> String {
    origin.call(target, b"args", token);
    settle(origin, target);
    assert!(target.notes.requests.is_empty(), "it came to the handler");
    match ended(origin, token) {
        Err(HgError::Na(error)) if error.never_arrived() => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_knows_the_secret_is_a_member_from_the_first_call_on() {
    for (is_foreign, ask_build, build) in [
        (false, false, Build::Plain),
        (true, true, Build::Plain),
        // As over a fabric to one of ours that speaks like the other build.
        (true, true, Build::Checksum),
        (false, false, Build::Checksum),
    ] {
        let (net, file) = (Net::default(), file(&["ours"]));
        let own = if is_foreign { Build::Plain } else { build };
        let mut origin = Side::new(&net, HgOptions { ask_build, build: own, ..knowing(&file) });
        let mut target = Side::new(&net, HgOptions { build, ..knowing(&file) });
        if is_foreign {
            target.endpoint.is_foreign_to_others();
        }
        let (mut token, hour) = (0, Duration::from_secs(3600));
        // In the message, and beyond it.
        for len in [0, 10, MESSAGE_MAX - 140, MESSAGE_MAX - 100, MESSAGE_MAX, 100_000] {
            for no_response in [false, true] {
                token += 1;
                let trace = Some(TraceParent { trace_id: [9; 16], span_id: [4; 8] });
                let deadline = Instant::now().checked_add(hour);
                let default = ForwardOptions { no_response, ..ForwardOptions::default() };
                let options = ForwardOptions { deadline, trace, ..default };
                origin.call_with(&target, options, &pattern(len), token);
                let request = arrive(&mut origin, &mut target);
                assert_eq!((request.proven(), request.trace()), (member(), trace), "{len}");
                assert!(request.deadline().is_some() && request.payload() == pattern(len));
                if no_response {
                    drop(request);
                } else {
                    answer(request, &pattern(len), 1000 + token);
                }
                settle(&mut origin, &mut target);
                let result = ended(&mut origin, token).unwrap();
                assert_eq!(result.len(), if no_response { 0 } else { len });
            }
        }
        assert_eq!(introduced_and_called(&origin), (1, token as usize));
        assert_eq!((sessions(&target), sessions(&origin)), ((1, 0), (0, 1)));
        assert_eq!((origin.core.in_flight(), origin.endpoint.posted().1), (0, 0));
        assert_eq!((origin.endpoint.registered(), target.endpoint.registered()), (0, 0));
        let counters = target.core.counters();
        let counted = (counters.rpc_req_recv, counters.not_proven, counters.malformed);
        assert_eq!(counted, (token.into(), 0, 0), "an introduction is nobody's request");
    }
}

#[test]
fn without_a_secret_of_ours_not_one_byte_is_different() {
    let (mut origin, mut target) = pair();
    assert_eq!(call_once(&mut origin, &mut target, 1), None);
    assert_eq!(last_request(&origin).1.len(), 16 + 4);
}

#[test]
fn calls_that_begin_together_are_all_believed() {
    let (mut origin, mut target) = members();
    for token in 0..20 {
        origin.call(&target, b"together", token);
    }
    settle(&mut origin, &mut target);
    assert_eq!(target.notes.requests.len(), 20);
    for (request, token) in std::mem::take(&mut target.notes.requests).into_iter().zip(100..) {
        assert_eq!(request.proven(), member());
        answer(request, b"yes", token);
    }
    settle(&mut origin, &mut target);
    assert!((0..20).all(|token| ended(&mut origin, token).unwrap() == b"yes"));
    assert_eq!(sessions(&origin), (0, 1), "one of their sessions stays");
}

#[test]
fn each_shard_of_a_group_has_sessions_of_its_own() {
    let (net, file) = (Net::default(), file(&["ours"]));
    let mut origins = Side::group(&net, 2, knowing(&file));
    let mut targets = Side::group(&net, 2, knowing(&file));
    for (number, origin) in (0u32..).zip(&mut origins) {
        for (other, target) in (0u32..).zip(&mut targets) {
            for again in 0..2 {
                let token = 100 * number + 10 * other + again;
                assert_eq!(call_once(origin, target, token), member());
            }
        }
    }
    let all = origins.iter().chain(&targets).map(sessions);
    assert_eq!(all.collect::<Vec<_>>(), [(0, 2), (0, 2), (4, 0), (4, 0)]);
}

#[test]
fn who_knows_another_secret_is_refused_and_both_ends_say_so() {
    let net = Net::default();
    let [ours, theirs] = [file(&["ours"]), file(&["theirs"])];
    let (tell, told) = std::sync::mpsc::channel();
    let observer = SessionObserver::new(move |news| {
        let SessionChange::Refused { reason } = news.change else { panic!("{news:?}") };
        tell.send((news.address.to_owned(), reason.to_owned())).unwrap();
    });
    let mut options = knowing(&ours);
    options.membership = options.membership.map(|one| one.observed_by(Some(observer)));
    let mut target = Side::new(&net, options);
    for options in [knowing(&theirs), calling_strangers(&theirs)] {
        let mut origin = Side::new(&net, options);
        let error = refused(&mut origin, &mut target, 1);
        assert!(error.contains("does not believe"), "{error}");
        let (address, reason) = told.try_recv().unwrap();
        assert_eq!(address, origin.core.self_addr().uri());
        assert!(reason.contains("does not know the secret"), "{reason}");
        assert_eq!((origin.core.in_flight(), origin.endpoint.posted().1), (0, 0));
    }
    assert_eq!(target.core.counters().not_proven, 2);
    assert_eq!(sessions(&target), (0, 0));
    assert!(told.try_recv().is_err());
}

#[test]
fn a_target_that_proves_nothing_is_called_only_if_that_is_wanted() {
    let ours = file(&["ours"]);
    for (is_foreign, build) in
        [(false, Build::Plain), (true, Build::Plain), (true, Build::Checksum)]
    {
        for len in [4, MESSAGE_MAX - 60, 100_000] {
            let net = Net::default();
            let mut target = Side::new(&net, HgOptions { build, ..HgOptions::default() });
            if is_foreign {
                target.endpoint.is_foreign_to_others();
            }
            let ask = HgOptions { ask_build: true, ..knowing(&ours) };
            let mut strict = Side::new(&net, ask);
            let error = refused(&mut strict, &mut target, 1);
            assert!(error.contains("has not proven"), "{error}");
            let mut origin = Side::new(&net, calling_strangers(&ours));
            for token in 0..3 {
                let deadline = Instant::now().checked_add(PATIENCE);
                let options = ForwardOptions { deadline, ..ForwardOptions::default() };
                origin.call_with(&target, options, &pattern(len), token);
                let request = arrive(&mut origin, &mut target);
                assert_eq!((request.proven(), request.payload()), (None, &pattern(len)[..]));
                let (_, bytes) = last_request(&origin);
                assert_eq!(bytes[10] & flags::EXTENSION != 0, !is_foreign, "as a C program reads");
                answer(request, b"yes", 100 + token);
                settle(&mut origin, &mut target);
                assert_eq!(ended(&mut origin, token).unwrap(), b"yes");
            }
            assert_eq!((origin.endpoint.registered(), target.endpoint.registered()), (0, 0));
        }
    }
}

#[test]
fn a_stranger_is_not_called_on_behalf_of_somebody() {
    let ours = file(&["ours"]);
    for (options, is_called) in [(HgOptions::default(), false), (knowing(&ours), true)] {
        let net = Net::default();
        let mut target = Side::new(&net, options);
        target.endpoint.is_foreign_to_others();
        let mut origin = Side::new(&net, calling_strangers(&ours));
        let (to, who) = (origin.addr_of(&target), OnBehalfOf::User(7));
        let options = (ForwardOptions::default(), Some(&who));
        let put = |writer: &mut crate::Writer| writer.put(b"args");
        origin.core.forward_on_behalf(&to, SUM, options, put, 1).unwrap();
        settle(&mut origin, &mut target);
        if is_called {
            let request = target.notes.requests.remove(0);
            assert_eq!((request.on_behalf_of(), request.proven()), (Some(&who), member()));
            answer(request, b"", 2);
            settle(&mut origin, &mut target);
            ended(&mut origin, 1).unwrap();
        } else {
            assert!(target.notes.requests.is_empty());
            let error = ended(&mut origin, 1).unwrap_err().to_string();
            assert!(error.contains("on whose behalf"), "{error}");
        }
        assert_eq!(origin.core.in_flight(), 0);
    }
}

#[test]
fn an_origin_that_proves_nothing_is_nobody() {
    let (net, file) = (Net::default(), file(&["ours"]));
    let mut target = Side::new(&net, knowing(&file));
    let mut origin = Side::new(&net, HgOptions::default());
    assert_eq!(call_once(&mut origin, &mut target, 1), None);
    assert_eq!(introduced_and_called(&origin), (0, 1));
}

/// Sends a message by hand. Returns what a target answers: its code, if it is one of ours.
fn send(from: &Side, target: &mut Side, bytes: &[u8]) -> Option<ReturnCode> {
    let mut buf = MsgBuf::with_capacity(MESSAGE_MAX);
    assert!(buf.try_extend(bytes));
    let before = target.endpoint.sent().len();
    let to = from.addr_of(target);
    from.endpoint.send_unexpected(OpId(1), &to, Tag(77), buf).unwrap();
    while target.step() > 0 {}
    let sent = target.endpoint.sent();
    let (_, _, answer) = sent.get(before)?;
    Some(ResponseHeader::read(Build::Plain, answer).unwrap().0.code)
}

#[test]
fn a_proof_is_of_no_use_twice_or_to_others_or_for_another_message() {
    let (mut origin, mut target) = members();
    let net = origin.endpoint.net().clone();
    assert_eq!(call_once(&mut origin, &mut target, 1), member());
    let (_, heard) = last_request(&origin);
    // The same peer, and one that has heard it: a member as well, and one that is none.
    let thief = Side::new(&net, HgOptions::default());
    assert_eq!(send(&origin, &mut target, &heard), Some(ReturnCode::Access));
    assert_eq!(send(&thief, &mut target, &heard), Some(ReturnCode::Access));
    // One that has not come yet, from elsewhere, or changed at any byte.
    origin.endpoint.hold_sends(true);
    origin.call(&target, b"kept back", 2);
    let bytes = origin.endpoint.held().remove(0);
    assert_eq!(send(&thief, &mut target, &bytes), Some(ReturnCode::Access));
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        send(&thief, &mut target, &changed);
        // Without a field that says that it is a proof, it is one of somebody unknown.
        for request in std::mem::take(&mut target.notes.requests) {
            assert_eq!(request.proven(), None, "byte {at}");
        }
    }
    while target.step() > 0 {}
    // And it is still good for whom it is from.
    origin.endpoint.hold_sends(false);
    let request = arrive(&mut origin, &mut target);
    assert_eq!((request.proven(), request.payload()), (member(), &b"kept back"[..]));
    answer(request, b"", 3);
    settle(&mut origin, &mut target);
    ended(&mut origin, 2).unwrap();
    assert!(target.core.counters().not_proven > 3);
    // At another target that knows the secret, too.
    let mut other = Side::new(&net, target.core.options.clone());
    assert_eq!(send(&origin, &mut other, &bytes), Some(ReturnCode::Access));
    assert_eq!(sessions(&other), (0, 0));
}

#[test]
fn a_message_that_is_changed_on_its_way_ends_its_call_and_nothing_else() {
    let (mut origin, mut target) = members();
    call_once(&mut origin, &mut target, 1);
    let len = last_request(&origin).1.len();
    // Of headers: the id of the RPC; the proof, in all of its parts; the arguments.
    for at in [9, 20, 30, 40, len - 20, len - 1] {
        origin.endpoint.damage(at);
        let error = refused(&mut origin, &mut target, 2);
        assert!(error.contains("call again"), "byte {at}: {error}");
        assert_eq!(call_once(&mut origin, &mut target, 3), member());
    }
}

#[test]
fn sessions_are_renewed_and_those_that_are_over_are_not_good() {
    let (mut origin, mut target) = members();
    let mut token = 0;
    let mut call = |origin: &mut Side, target: &mut Side| {
        token += 1;
        assert_eq!(call_once(origin, target, token), member());
    };
    call(&mut origin, &mut target);
    let (_, first) = last_request(&origin);
    for step in 1..40 {
        for side in [&origin, &target] {
            side.core.class.members.pass(EPOCH / 5);
        }
        // Some that are on their way at the same time: one of them renews it.
        for again in 0..3 {
            origin.call(&target, b"load", 1000 + again);
        }
        settle(&mut origin, &mut target);
        for (request, token) in std::mem::take(&mut target.notes.requests).into_iter().zip(2000..) {
            assert_eq!(request.proven(), member(), "step {step}");
            answer(request, b"", token);
        }
        settle(&mut origin, &mut target);
        for again in 0..3 {
            ended(&mut origin, 1000 + again).unwrap();
        }
        target.notes.responded.clear();
        call(&mut origin, &mut target);
    }
    let (introduced, _) = introduced_and_called(&origin);
    assert!((6..=20).contains(&introduced), "about once in an epoch: {introduced}");
    let (kept, _) = sessions(&target);
    assert!(kept <= 4, "{kept} sessions are kept");
    assert_eq!(send(&origin, &mut target, &first), Some(ReturnCode::Access), "long over");
    // Both have been silent for long.
    for side in [&origin, &target] {
        side.core.class.members.pass(10 * EPOCH);
    }
    call(&mut origin, &mut target);
}

#[test]
fn a_target_that_has_started_again_is_introduced_to_again() {
    let (mut origin, mut target) = members();
    call_once(&mut origin, &mut target, 1);
    target.core.class.members.start_again();
    let error = refused(&mut origin, &mut target, 2);
    assert!(error.contains("started again"), "{error}");
    assert_eq!(call_once(&mut origin, &mut target, 3), member());
    assert_eq!(introduced_and_called(&origin).0, 2);
    // One whose end was seen is not called with the session of before.
    let other = Side::new(origin.endpoint.net(), target.core.options.clone());
    let to = origin.addr_of(&other);
    let (key, now) = (SessionKey::new(&[1; 32], &[2; 16], &[3; 16]), Instant::now());
    let (who, names, times) = ((&to, Principal::Unknown), (0, [2; 16], key), (now, EPOCH));
    origin.core.own_sessions.learn(&to, OwnSession::new(who, Build::Plain, names, times));
    other.endpoint.kill();
    origin.call(&other, b"", 4);
    while origin.step() > 0 {}
    assert!(matches!(ended(&mut origin, 4), Err(HgError::Na(na::Error::PeerGone { .. }))));
    assert_eq!(sessions(&origin), (0, 1), "that of the target");
}

#[test]
fn a_secret_is_changed_without_a_call_that_fails() {
    let net = Net::default();
    let [here, there] = [file(&["old"]), file(&["old"])];
    let mut origin = Side::new(&net, knowing(&here));
    let mut target = Side::new(&net, knowing(&there));
    let mut token = 0;
    let steps: [&[&str]; 3] = [&["old", "new"], &["new", "old"], &["new"]];
    for step in steps {
        for (number, file) in [&there, &here].into_iter().enumerate() {
            rewrite(file, step);
            // The session that there is, a renewed one, and one of another peer.
            for _ in 0..4 {
                token += 1;
                assert_eq!(call_once(&mut origin, &mut target, token), member(), "{number}");
                for side in [&origin, &target] {
                    side.core.class.members.pass(EPOCH / 4);
                }
            }
            let mut new = Side::new(&net, knowing(if number == 0 { &there } else { &here }));
            assert_eq!(call_once(&mut new, &mut target, 1), member());
        }
    }
    // A file that cannot be used changes nothing.
    std::fs::write(there.path(), "short").unwrap();
    let mut new = Side::new(&net, knowing(&here));
    assert_eq!(call_once(&mut new, &mut target, 1), member());
    let mut old = Side::new(&net, knowing(&file(&["old"])));
    assert!(refused(&mut old, &mut target, 1).contains("does not believe"));
}

#[test]
fn a_request_that_is_too_long_for_its_target_is_proven_once_more() {
    for known in [false, true] {
        let (mut origin, mut target) = members();
        call_once(&mut origin, &mut target, 1);
        target.endpoint.takes(300, known);
        for (len, token) in [(MESSAGE_MAX - 100, 2), (200, 3)] {
            origin.call(&target, &pattern(len), token);
            let request = arrive(&mut origin, &mut target);
            assert_eq!((request.proven(), request.payload()), (member(), &pattern(len)[..]));
            answer(request, b"yes", 100 + token);
            settle(&mut origin, &mut target);
            assert_eq!(ended(&mut origin, token).unwrap(), b"yes");
        }
    }
}

#[test]
fn a_call_that_introduces_us_ends_as_others_do() {
    for payload in [pattern(10), pattern(5000)] {
        let (mut origin, mut target) = members();
        let op = origin.call(&target, &payload, 1);
        origin.core.cancel(op);
        origin.step();
        assert!(matches!(ended(&mut origin, 1), Err(HgError::Canceled)));
        settle(&mut origin, &mut target);
        assert!(target.notes.requests.is_empty(), "it was not sent");
        assert_eq!((origin.core.in_flight(), origin.endpoint.posted().1), (0, 0));
        assert_eq!(call_once(&mut origin, &mut target, 2), member());

        let (mut origin, target) = members();
        origin.call(&target, &payload, 1);
        target.endpoint.kill();
        while origin.step() > 0 {}
        assert!(matches!(ended(&mut origin, 1), Err(HgError::Na(_))));
        assert_eq!((origin.core.in_flight(), origin.endpoint.registered()), (0, 0));
    }
}

#[test]
fn introductions_that_mean_nothing_are_refused() {
    let (mut origin, mut target) = members();
    let mut buf = MsgBuf::with_capacity(MESSAGE_MAX);
    let membership = origin.core.options.membership.clone().unwrap();
    origin.core.write_introduction(&membership, &mut buf).unwrap();
    let whole = buf.as_slice().to_vec();
    assert_eq!(send(&origin, &mut target, &whole), Some(ReturnCode::Success));
    assert_eq!(send(&origin, &mut target, &whole), Some(ReturnCode::Success), "nothing is kept");
    for len in 20..whole.len() {
        assert_eq!(send(&origin, &mut target, &whole[..len]), Some(ReturnCode::NoEntry), "{len}");
    }
    for at in 21..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        let code = send(&origin, &mut target, &changed);
        assert_eq!(code, Some(ReturnCode::Permission), "byte {at}");
    }
    assert_eq!(sessions(&target), (0, 0));
    assert!(target.notes.requests.is_empty());
    assert_eq!(call_once(&mut origin, &mut target, 1), member());
}

#[test]
fn a_member_to_whom_calls_are_led_on_is_not_the_one_that_was_called() {
    for options in [knowing, calling_strangers] {
        let (net, file) = (Net::default(), file(&["ours"]));
        let mut origin = Side::new(&net, options(&file));
        let mut called = Side::new(&net, options(&file));
        let mut other = Side::new(&net, options(&file));
        let to_other = origin.addr_of(&other);
        // Somebody who knows no secret has the address that is called, and leads on what comes.
        called.endpoint.leads_to(&other.endpoint);
        origin.call(&called, b"args", 1);
        settle(&mut origin, &mut other);
        assert!(other.notes.requests.is_empty(), "it came to the handler");
        match ended(&mut origin, 1) {
            Err(HgError::Na(error)) if error.never_arrived() => {
                let said = error.to_string();
                assert!(said.contains("leads calls on") && said.contains(to_other.uri()), "{said}");
            }
            result => panic!("{result:?}"),
        }
        assert_eq!((sessions(&origin), sessions(&other)), ((0, 0), (0, 0)));
        called.endpoint.leads_to(&called.endpoint);
        assert_eq!(call_once(&mut origin, &mut other, 2), member(), "by its own address");
        assert_eq!(call_once(&mut origin, &mut called, 3), member());
    }
}

#[test]
fn strangers_do_not_have_us_look_at_the_file_each_time() {
    let net = Net::default();
    let [ours, theirs] = [file(&["old"]), file(&["new"])];
    let membership = Membership::load(ours.path()).unwrap().looking_every(10 * PATIENCE);
    let options = HgOptions { membership: Some(membership), ..HgOptions::default() };
    let mut target = Side::new(&net, options);
    rewrite(&ours, &["new"]);
    for token in 0..3 {
        let mut origin = Side::new(&net, knowing(&theirs));
        assert!(refused(&mut origin, &mut target, token).contains("does not believe"));
    }
    // One who is asked to does at once.
    target.core.look_at_secrets();
    let mut origin = Side::new(&net, knowing(&theirs));
    assert_eq!(call_once(&mut origin, &mut target, 1), member());
}

#[test]
fn members_that_have_proven_who_they_are_are_told_by_address() {
    let (mut origin, mut target) = members();
    assert!(origin.core.proven_members().is_empty() && target.core.proven_members().is_empty());
    call_once(&mut origin, &mut target, 1);
    for (side, peer) in [(&origin, &target), (&target, &origin)] {
        let proven = side.core.proven_members();
        assert_eq!(proven.len(), 1);
        assert_eq!(proven.get(peer.core.self_addr().uri()).copied(), member());
    }
    for side in [&origin, &target] {
        side.core.class.members.pass(2 * EPOCH);
        assert!(side.core.proven_members().is_empty(), "that was long ago");
    }
}

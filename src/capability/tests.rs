use std::time::{Duration, UNIX_EPOCH};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

const OBJECTS: [&str; 3] = ["", "a", "b"];
const OPERATIONS: [&str; 3] = ["get", "put", ""];
const CALLERS: [Principal; 3] = [Principal::Unknown, Principal::User(1), Principal::User(2)];

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

fn caveat() -> impl Strategy<Value = Caveat> {
    prop_oneof![
        select(&OBJECTS[..]).prop_map(|object| Caveat::Object(object.to_owned())),
        vec(select(&OPERATIONS[..]), 0..4).prop_map(Caveat::operations),
        (0_u64..4).prop_map(|seconds| Caveat::Until(at(seconds))),
        select(&CALLERS[..]).prop_map(Caveat::caller),
    ]
}

fn attempts() -> impl Iterator<Item = Attempt<'static>> {
    OBJECTS.into_iter().flat_map(|object| {
        OPERATIONS.into_iter().flat_map(move |operation| {
            CALLERS.into_iter().flat_map(move |caller| {
                (0..4).map(move |now| Attempt { object, operation, caller, now: at(now) })
            })
        })
    })
}

fn issued(key: &CapabilityKey) -> Capability {
    key.issue("a", &["get", "put"], at(3)).unwrap()
}

fn narrowed(mut from: Capability, by: &[Caveat]) -> Capability {
    for caveat in by {
        from = from.narrow(caveat).unwrap();
    }
    from
}

proptest! {
    #[test]
    fn narrowed_it_allows_what_all_of_it_allows_and_never_more(
        first in vec(caveat(), 0..3), then in vec(caveat(), 0..3),
    ) {
        let key = CapabilityKey::new();
        let before = narrowed(issued(&key), &first);
        let after = narrowed(before.clone(), &then);
        for attempt in attempts() {
            let allows = |of: &Capability| key.verify(of, &attempt).is_ok();
            prop_assert!(allows(&before) || !allows(&after));
            let is_meant = attempt.object == "a" && ["get", "put"].contains(&attempt.operation)
                && attempt.now < at(3)
                && first.iter().chain(&then).all(|caveat| match caveat {
                    Caveat::Object(object) => object == attempt.object,
                    Caveat::Operations(names) => names.iter().any(|name| name == attempt.operation),
                    Caveat::Until(until) => attempt.now < *until,
                    Caveat::Caller(text) => {
                        text.starts_with("user ") && *text == attempt.caller.to_string()
                    }
                });
            prop_assert_eq!(allows(&after), is_meant);
        }
    }

    #[test]
    fn one_that_was_changed_is_none(
        caveats in vec(caveat(), 0..3), byte in any::<prop::sample::Index>(), change in 1_u8..,
    ) {
        let key = CapabilityKey::new();
        let mut bytes = narrowed(issued(&key), &caveats).to_bytes();
        let at = byte.index(bytes.len());
        bytes[at] ^= change;
        if let Ok(changed) = Capability::from_bytes(&bytes) {
            for attempt in attempts() {
                prop_assert_eq!(key.verify(&changed, &attempt), Err(CapabilityError::Forged));
            }
        }
    }

    #[test]
    fn no_caveat_can_be_taken_out_or_moved(
        caveats in vec(caveat(), 1..4), which in any::<prop::sample::Index>(),
    ) {
        let key = CapabilityKey::new();
        let whole = narrowed(issued(&key), &caveats);
        let mut parts: Vec<_> = encode::each(&whole.caveats).map(<[u8]>::to_owned).collect();
        let which = which.index(parts.len());
        let taken = parts.remove(which);
        let forge = |parts: &[Vec<u8>]| {
            let bytes = [&[VERSION], &*parts.concat(), &whole.tag[..]].concat();
            Capability::from_bytes(&bytes).unwrap()
        };
        let attempt = attempts().next().unwrap();
        let forged = |parts: &[Vec<u8>]| key.verify(&forge(parts), &attempt);
        prop_assert_eq!(forged(&parts), Err(CapabilityError::Forged));
        if parts.last() != Some(&taken) && which != parts.len() {
            let moved = parts[which..].iter().any(|part| *part != taken);
            parts.push(taken);
            prop_assert!(!moved || forged(&parts) == Err(CapabilityError::Forged));
        }
    }

    #[test]
    fn bytes_come_back_as_they_were(caveats in vec(caveat(), 0..5)) {
        let whole = narrowed(issued(&CapabilityKey::new()), &caveats);
        prop_assert_eq!(&Capability::from_bytes(&whole.to_bytes()).unwrap(), &whole);
        prop_assert_eq!(whole.caveats().skip(3).collect::<Vec<_>>(), caveats);
        let json = serde_json::to_string(&whole).unwrap();
        prop_assert_eq!(serde_json::from_str::<Capability>(&json).unwrap(), whole);
    }

    #[test]
    fn bytes_of_a_stranger_are_no_capability(data in vec(any::<u8>(), 0..200)) {
        fuzzing::capabilities(&data);
    }
}

#[test]
fn a_key_that_is_kept_knows_its_own() {
    let key = CapabilityKey::new();
    let token = issued(&key);
    let attempt = Attempt { object: "a", operation: "get", caller: Principal::Unknown, now: at(2) };
    assert_eq!(CapabilityKey::from_bytes(&key.to_bytes()).verify(&token, &attempt), Ok(()));
    for (attempt, error) in [
        (Attempt { object: "b", ..attempt }, CapabilityError::OtherObject),
        (Attempt { operation: "del", ..attempt }, CapabilityError::OtherOperation),
        (Attempt { now: at(3), ..attempt }, CapabilityError::Expired),
    ] {
        assert_eq!(key.verify(&token, &attempt), Err(error));
    }
    let bound = token.narrow(&Caveat::caller(Principal::User(1))).unwrap();
    assert_eq!(key.verify(&bound, &attempt), Err(CapabilityError::OtherCaller));
}

#[test]
fn one_without_caveats_allows_nothing() {
    let key = CapabilityKey::new();
    let none = [&[VERSION], &key.root()[..]].concat();
    let none = Capability::from_bytes(&none).unwrap();
    let attempt = attempts().next().unwrap();
    assert_eq!(key.verify(&none, &attempt), Err(CapabilityError::Forged));
}

#[test]
fn there_is_a_longest_one() {
    let token = issued(&CapabilityKey::new());
    let mut many = token.clone();
    while let Ok(more) = many.narrow(&Caveat::Until(at(1))) {
        many = more;
    }
    assert_eq!(many.caveats().count(), CAVEATS_MAX);
    let long = |bytes| token.narrow(&Caveat::Object("x".repeat(bytes)));
    let room = BYTES_MAX - token.to_bytes().len() - 3;
    assert_eq!(long(room).unwrap().to_bytes().len(), BYTES_MAX);
    for bytes in [room + 1, 1 << 16, 1 << 20] {
        assert_eq!(long(bytes), Err(CapabilityError::TooLong));
    }
    let beyond = vec![VERSION; BYTES_MAX + 1];
    assert_eq!(Capability::from_bytes(&beyond), Err(CapabilityError::TooLong));
}

#[test]
fn no_secret_is_printed() {
    let [one, other] = [CapabilityKey::new(), CapabilityKey::new()];
    assert_eq!(format!("{one:?}"), format!("{other:?}"));
    let shown = [&one, &other].map(|key| format!("{:?}", issued(key)));
    assert_eq!(shown[0], shown[1]);
    assert!(shown[0].contains("Object(\"a\")"), "{}", shown[0]);
}

use std::net::IpAddr;

use margo_config::Config;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

const SEC: u64 = 1_000_000_000;
const OWN: u32 = 1000;

/// The limits of a document.
fn limits(list: &str) -> Arc<Limits> {
    let text = format!(
        r#"{{ "margo": {{ "security": {{
            "allow": [{{ "who": "anyone" }}], "roles": {{ "guest": ["uid:7", "uid:8"] }},
            "limits": {list} }} }} }}"#
    );
    let config = Config::from_json(&text).unwrap();
    let security = config.resolve(&|_| None).unwrap().security.unwrap();
    Limits::new(&security.limits, OWN).expect("there are some")
}

fn over(of: Measure, wait: u64) -> Result<bool, OverLimit> {
    Err(OverLimit { limit: 0, of, wait })
}

fn hosts() -> impl Iterator<Item = Principal> {
    (0..100_000_u32).map(|n| Principal::Host(IpAddr::V4(n.into())))
}

fn accounts(limits: &Limits) -> usize {
    limits.sets.iter().map(|set| set.lock().len()).sum()
}

proptest! {
    /// The level of a bucket, in parts of a thousand millionth.
    #[test]
    fn a_bucket_gives_what_has_come_into_it(
        per_sec in select(&[1_u64, 2, 5, 1000, SEC][..]),
        burst in 1_u64..100,
        takes in proptest::collection::vec((0_u64..3 * SEC, 0_u64..150), 1..40),
    ) {
        let document = format!(
            r#"[{{ "who": "anyone", "bytes_per_sec": {per_sec}, "bytes_burst": {burst} }}]"#
        );
        let limits = limits(&document);
        let (room, mut now) = (i128::from(burst * SEC), 0);
        let mut level = room;
        for (pause, count) in takes {
            now += pause;
            level = room.min(level + i128::from(pause) * i128::from(per_sec));
            let is_enough = level >= i128::from(count.min(burst) * SEC);
            let taken = limits.count_in(Principal::Unknown, count, now);
            prop_assert_eq!(taken.is_ok(), is_enough);
            match taken {
                Ok(_) => level -= i128::from(count * SEC),
                Err(OverLimit { wait, .. }) => {
                    // Then, and not before, it is enough.
                    let then = |wait: u64| level + i128::from(wait) * i128::from(per_sec);
                    let need = i128::from(count.min(burst) * SEC);
                    prop_assert!(then(wait) >= need && then(wait - 1) < need);
                }
            }
        }
    }
}

#[test]
fn a_caller_has_the_first_limit_that_names_it() {
    let limits = limits(
        r#"[{ "who": "role:guest", "calls_per_sec": 1 }, { "who": "uid:self" },
            { "who": "anyone", "calls_per_sec": 2 }]"#,
    );
    let at_once = |caller| {
        let called = (0..10).map(|_| limits.count_in(caller, 0, 0));
        called.filter(Result::is_ok).count()
    };
    let callers = [7, 8, OWN, 9].map(Principal::User);
    assert_eq!(callers.map(at_once), [1, 1, 10, 2], "each has its own");
    assert_eq!(at_once(Principal::Unknown), 2);
}

#[test]
fn what_is_refused_takes_nothing() {
    let limits = limits(
        r#"[{ "who": "anyone", "calls_per_sec": 1, "calls_burst": 2, "bytes_per_sec": 10 }]"#,
    );
    let caller = Principal::User(1);
    assert_eq!(limits.count_in(caller, 10, 0), Ok(false));
    for _ in 0..5 {
        assert_eq!(limits.count_in(caller, 5, 0), over(Measure::Bytes, SEC / 2));
    }
    assert_eq!(limits.count_in(caller, 0, 0), Ok(false));
    for _ in 0..5 {
        assert_eq!(limits.count_in(caller, 0, 0), over(Measure::Calls, SEC));
    }
    assert_eq!(limits.count_in(caller, 10, SEC), Ok(false), "of bytes nothing was taken");
}

#[test]
fn requests_in_hand_are_counted_until_they_end() {
    let limits = limits(r#"[{ "who": "anyone", "handlers_max": 3, "request_bytes_max": 100 }]"#);
    let admit = |bytes| limits.admit(Principal::User(1), bytes);
    let long = admit(1000).unwrap();
    assert!(long.is_some(), "there is no other");
    let refused = admit(1).err().unwrap();
    assert_eq!(refused, OverLimit { limit: 0, of: Measure::RequestBytes, wait: 0 });
    let text = "bytes of requests at once; try again when others have ended";
    assert!(refused.to_string().ends_with(text));
    drop(long);
    let mut held = [40, 40, 20].map(|bytes| admit(bytes).unwrap());
    assert_eq!(admit(0).err().unwrap().of, Measure::Handlers);
    assert!(limits.admit(Principal::User(2), 100).is_ok(), "another one has its own");
    held[0] = None;
    assert_eq!(admit(41).err().unwrap().of, Measure::RequestBytes);
    assert!(admit(40).is_ok());
}

#[test]
fn the_accounts_are_bounded_and_those_in_use_stay() {
    let limits = limits(
        r#"[{ "who": "uid:7", "calls_per_sec": 1 }, { "who": "uid:8", "handlers_max": 1 }]"#,
    );
    let [slow, busy] = [7, 8].map(Principal::User);
    assert_eq!(limits.count_in(slow, 0, 0), Ok(false));
    let in_hand = limits.admit(busy, 0).unwrap();
    for (now, host) in hosts().enumerate() {
        assert_eq!(limits.count_in(host, 0, now as u64), Ok(false));
    }
    assert!(accounts(&limits) <= SETS * SET_MAX);
    // Nobody gets a new account by making others come.
    assert_eq!(limits.count_in(slow, 0, 100_000), over(Measure::Calls, SEC - 100_000));
    assert!(limits.admit(busy, 0).is_err());
    drop(in_hand);
    assert!(limits.admit(busy, 0).is_ok());
}

#[test]
fn a_set_grows_while_all_have_something_in_hand_and_no_longer() {
    let limits = limits(r#"[{ "who": "anyone", "handlers_max": 1 }]"#);
    let held: Vec<_> = hosts().map(|host| limits.admit(host, 0).unwrap()).collect();
    assert_eq!(accounts(&limits), held.len());
    drop(held);
    assert!(accounts(&limits) <= SETS * SET_MAX);
}

#[test]
fn the_answer_says_what_is_too_much_and_when_it_will_not_be() {
    let over = OverLimit { limit: 0, of: Measure::Calls, wait: 1_200_000 };
    let text = "this caller is over its limit of calls in a second; try again in 2 ms";
    assert_eq!(over.to_string(), text);
}

//! Walks over the keys of a selection, in steps that give other requests their turn.

use std::ops::{Bound, ControlFlow};

use margo::cancel::CancelToken;
use margo::encoding::Bytes;

use crate::KvError;
use crate::engine::{Record, View};
use crate::model::KeyRange;
use crate::rpc::Selection;

/// Records that are looked at before others have their turn.
const STEP: usize = 1024;

/// Shows the records of `selection`, or those behind `after`, in its direction, until `visit`
/// breaks.
pub(super) fn walk(
    view: &dyn View,
    selection: &Selection,
    after: Option<&Bytes>,
    token: &CancelToken,
    visit: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
) -> Result<(), KvError> {
    let KeyRange { from, to } = &selection.range;
    let (mut from, mut to) = (owned(from), owned(to));
    if !selection.prefix.is_empty() {
        from = later(from, Bound::Included(selection.prefix.to_vec()));
        to = earlier(to, behind(&selection.prefix));
    }
    let after = after.map(|after| Bound::Excluded(after.to_vec()));
    match (after, selection.is_backwards) {
        (Some(after), false) => from = later(from, after),
        (Some(after), true) => to = earlier(to, after),
        (None, _) => {}
    }
    let (mut seen, mut is_canceled) = (0_usize, false);
    let range = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
    view.scan(range, selection.is_backwards, &mut |key, record| {
        seen += 1;
        if seen.is_multiple_of(STEP) {
            // Nothing here suspends: give the other requests their turn.
            margo::ult::yield_now();
            is_canceled = token.is_canceled();
        }
        match is_canceled {
            true => ControlFlow::Break(()),
            false if is_selected(selection, key, record) => visit(key, record),
            false => ControlFlow::Continue(()),
        }
    })?;
    if is_canceled { Err(KvError::Deadline) } else { Ok(()) }
}

fn is_selected(selection: &Selection, key: &[u8], record: Record<'_>) -> bool {
    key.ends_with(&selection.suffix)
        && selection.key_bytes.have(key.len())
        && selection.value_bytes.have(record.value.len())
}

fn owned(bound: &Bound<Bytes>) -> Bound<Vec<u8>> {
    bound.as_ref().map(|key| key.to_vec())
}

/// The end of the keys that begin with `prefix`.
fn behind(prefix: &[u8]) -> Bound<Vec<u8>> {
    let Some(last) = prefix.iter().rposition(|byte| *byte != u8::MAX) else {
        return Bound::Unbounded;
    };
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Bound::Excluded(end)
}

/// The key of a bound, and whether it is outside.
fn parts(bound: &Bound<Vec<u8>>) -> Option<(&[u8], bool)> {
    match bound {
        Bound::Unbounded => None,
        Bound::Included(key) => Some((key, false)),
        Bound::Excluded(key) => Some((key, true)),
    }
}

/// The later one of two beginnings.
fn later(one: Bound<Vec<u8>>, other: Bound<Vec<u8>>) -> Bound<Vec<u8>> {
    if parts(&one) >= parts(&other) { one } else { other }
}

/// The earlier one of two ends.
fn earlier(one: Bound<Vec<u8>>, other: Bound<Vec<u8>>) -> Bound<Vec<u8>> {
    let is_earlier = match (parts(&one), parts(&other)) {
        (None, _) => false,
        (_, None) => true,
        (Some((a, a_is_out)), Some((b, b_is_out))) => (a, !a_is_out) <= (b, !b_is_out),
    };
    if is_earlier { one } else { other }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bounds() -> impl Strategy<Value = Bound<Vec<u8>>> {
        let keys = || prop::collection::vec(prop_oneof![0..3_u8, Just(u8::MAX)], 0..3);
        prop_oneof![
            Just(Bound::Unbounded),
            keys().prop_map(Bound::Included),
            keys().prop_map(Bound::Excluded),
        ]
    }

    fn has(from: &Bound<Vec<u8>>, to: &Bound<Vec<u8>>, key: &Vec<u8>) -> bool {
        use std::ops::RangeBounds;
        (from.as_ref(), to.as_ref()).contains(key)
    }

    proptest! {
        #[test]
        fn bounds_are_put_together_as_keys_are(
            (a, b, c, d) in (bounds(), bounds(), bounds(), bounds()),
            prefix in prop::collection::vec(prop_oneof![0..3_u8, Just(u8::MAX)], 0..3),
            key in prop::collection::vec(prop_oneof![0..3_u8, Just(u8::MAX)], 0..4),
        ) {
            let both = has(&a, &b, &key) && has(&c, &d, &key);
            let (from, to) = (later(a, c), earlier(b, d));
            prop_assert_eq!(has(&from, &to, &key), both);
            let begins = has(&Bound::Included(prefix.clone()), &behind(&prefix), &key);
            prop_assert_eq!(begins, key.starts_with(&prefix));
        }
    }
}

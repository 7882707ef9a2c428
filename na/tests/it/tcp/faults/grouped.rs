//! The attacks once more, on an endpoint to which others hand its connections over.

use std::sync::atomic::AtomicU64;

use super::*;
use crate::common::{in_groups, wanted};

/// Adds to a hello the wish for the endpoint under test, if that is in a group.
pub(super) fn wishing(mut hello: Vec<u8>, peer: u64) -> Vec<u8> {
    static ENDPOINTS: AtomicU64 = AtomicU64::new(1 << 40);
    let Some(shard) = wanted() else { return hello };
    // It knows groups; its extension has endpoint, peer, own shard, shards, wish and map.
    hello[6] |= 2;
    hello[28] = 24;
    let endpoint = ENDPOINTS.fetch_add(1, Ordering::Relaxed);
    [endpoint, peer].iter().for_each(|word| hello.extend_from_slice(&word.to_le_bytes()));
    let shards = [0, 1, 1 + shard as u16, 0];
    shards.iter().for_each(|word| hello.extend_from_slice(&word.to_le_bytes()));
    hello
}

in_groups! {
    a_connection_that_ends_anywhere_ends_alone,
    a_long_message_that_never_ends_gives_its_receive_back,
    a_peer_that_asks_and_never_reads_the_answers_is_bounded,
    a_peer_that_calls_and_does_not_read_the_answers_is_held_back,
    a_peer_that_gets_and_does_not_read_is_bounded,
    a_stranger_is_hung_up_on,
    another_version_is_answered_and_hung_up_on,
    connections_without_a_hello_do_not_keep_others_out,
    denied_transfers_do_not_end_the_connection,
    frames_that_break_a_rule_are_the_last,
    long_messages_that_do_not_go_on_leave_receives_for_others,
    random_frames_harm_nobody_else,
    signs_of_life_are_sent_to_who_wants_them,
    what_a_crowd_leaves_unread_is_bounded_and_given_back,
}

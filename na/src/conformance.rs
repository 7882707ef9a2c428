//! The conformance suite: what every transport must do, as cases that it instantiates.
//!
//! A case is a function of a [`Case`], which opens endpoints of the transport under test. A
//! transport's test file instantiates the suite as one `#[test]` per case:
//!
//! ```text
//! fn open(listen: bool) -> std::sync::Arc<dyn na::Endpoint> {
//!     na::open("na+tcp://127.0.0.1:0", &na::OpenOptions::listening(listen)).unwrap()
//! }
//! na::conformance! { open; all }
//! // or only those whose peers live in one process: na::conformance! { open; between_endpoints }
//! // or some by name: na::conformance! { open; echoes_both_kinds, a_dead_peer_is_reported }
//! ```
//!
//! Some cases need a second process. They start the test binary again, for the same test, with a
//! role in the environment (`process.rs`), so a factory must work in a fresh process too, and the
//! macro must be used at a place where `module_path!` names the test as libtest does.
//!
//! Nothing here decides by time: a case that waits longer than [`PATIENCE`] fails.

use std::sync::Arc;
use std::time::Duration;

use crate::Endpoint;

mod bulk;
mod bulk_refused;
mod flow;
mod lifecycle;
mod messages;
mod node;
mod peers;
mod process;
mod waiting;

pub use self::{
    bulk::*, bulk_refused::*, flow::*, lifecycle::*, messages::*, peers::*, waiting::*,
};

/// How long a case waits for what must happen, before it fails. Far above what a loaded machine
/// needs.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// One run of one case.
#[derive(Clone, Copy)]
pub struct Case<'a> {
    /// Opens an endpoint with default options; listening if asked.
    pub open: &'a dyn Fn(bool) -> Arc<dyn Endpoint>,
    /// The test's name as libtest knows it, to run it again in a second process.
    pub test: &'a str,
}

impl std::fmt::Debug for Case<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Case({})", self.test)
    }
}

/// Runs `case`. `path` is the test's path with its crate.
pub fn run(path: &str, open: &dyn Fn(bool) -> Arc<dyn Endpoint>, case: fn(&Case<'_>)) {
    let test = path.split_once("::").map_or(path, |(_crate_name, test)| test);
    case(&Case { open, test });
}

/// Instantiates the suite, or the named cases of it, as tests. See [`conformance`](self).
#[macro_export]
macro_rules! conformance {
    ($open:path; all) => {
        $crate::conformance! { $open; between_endpoints }
        $crate::conformance! { $open; between_processes }
    };
    // Those whose peers live in one process: what a transport within a process has to pass.
    ($open:path; between_endpoints) => {
        $crate::conformance! { $open;
            addresses_compare_and_name_their_peer,
            bad_addresses_are_refused,
            echoes_both_kinds,
            receives_posted_after_the_message,
            tags_and_sources_are_told_apart,
            order_is_kept_per_peer,
            empty_and_longest_messages_pass,
            what_does_not_fit_is_refused_with_its_buffer,
            foreign_addresses_are_refused,
            an_origin_that_does_not_listen_is_answered,
            sends_to_oneself,
            a_slow_receiver_holds_its_senders_back,
            a_flood_does_not_hold_up_other_peers,
            many_operations_with_random_sizes,
            many_endpoints_in_one_process,
            threads_share_an_endpoint,
            get_and_put_move_the_named_bytes,
            get_and_put_between_segments,
            large_transfers_are_complete,
            many_transfers_at_once,
            transfers_from_and_to_an_origin,
            zero_length_transfers_ask_permission,
            messages_pass_during_large_transfers,
            wrong_local_ranges_are_refused_at_once,
            the_owner_denies_what_was_not_granted,
            the_owner_denies_unknown_keys,
            memory_comes_back_after_the_transfer_in_flight,
            canceled_receives_end_once,
            canceled_sends_end_once,
            canceled_transfers_end_once,
            cancel_of_unknown_operations_is_ignored,
            close_gives_every_buffer_back,
            a_closed_endpoint_refuses,
            a_closed_peer_is_reported,
            an_origin_that_left_cannot_be_answered,
            nobody_listens,
            descriptors_are_given_back,
            an_idle_endpoint_can_sleep,
            a_message_wakes_a_sleeper,
            a_transfer_wakes_both_sleepers,
            a_local_completion_wakes_a_sleeper,
            an_operation_of_another_thread_wakes_a_sleeper,
            room_for_a_held_back_sender_wakes_it,
        }
    };
    // Those that have to kill a process that is a peer.
    ($open:path; between_processes) => {
        $crate::conformance! { $open;
            a_dead_peer_is_reported,
            a_dead_peer_is_reported_to_a_sleeper,
            a_peer_restarts_under_its_address,
        }
    };
    ($open:path; $($case:ident),+ $(,)?) => {
        $(
            #[test]
            fn $case() {
                $crate::conformance::run(
                    concat!(module_path!(), "::", stringify!($case)),
                    &$open,
                    $crate::conformance::$case,
                );
            }
        )+
    };
}

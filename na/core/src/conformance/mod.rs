//! The conformance suite: what every transport must do, as cases that it instantiates.
//!
//! A case is a function of a [`Case`], which opens endpoints of the transport under test. A
//! transport's test file instantiates the suite as one `#[test]` per case and mode:
//!
//! ```text
//! fn open(options: &na::OpenOptions) -> std::sync::Arc<dyn na::Endpoint> {
//!     na::open("na+tcp://127.0.0.1:0", options).unwrap()
//! }
//! na::conformance! { open; all }               // a transport between processes
//! na::conformance! { open; not_amid_writes }   // … that peers can block by dying
//! na::conformance! { open; between_endpoints } // one whose endpoints share a process
//! na::conformance! { open; one_thread }        // the same, driven by one thread
//! na::conformance! { open; handed_over }       // `last_of_group`: what differs there
//! // or some by name, in the plainest mode:
//! na::conformance! { open; echoes_both_kinds, a_dead_peer_is_reported }
//! ```
//!
//! A factory may also take just `listen: bool`; then the cases that need other options pass without
//! doing anything.
//!
//! # Modes
//!
//! | module | the target lives | the loop that waits |
//! |---|---|---|
//! | (none) | in this process | polls |
//! | `blocking` | in this process | sleeps on the wait descriptors |
//! | `two_processes` | in a child, behind a proxy (`remote.rs`) | polls |
//! | `two_processes_blocking` | in a child, behind a proxy | sleeps on the wait descriptors |
//!
//! The second process is the test binary again, for the same test, with a role in the environment
//! (`process.rs`), so a factory must work in a fresh process too, and the macro must be used at a
//! place where `module_path!` names the test as libtest does.
//!
//! Nothing here decides by time: a case that waits longer than [`PATIENCE`] fails.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use self::forked::{hear_of_children, in_forked_child};
pub use self::group_member::last_of_group;
pub use self::process::end_child;
pub use crate::base::random::Random;
use crate::{Endpoint, Error, OpenOptions};

mod bulk;
mod bulk_refused;
mod cancel;
mod crowd;
mod flow;
mod forked;
mod group_member;
mod groups;
mod leftovers;
mod lifecycle;
mod messages;
mod midway;
mod multi;
mod node;
mod oneself;
mod peers;
mod process;
mod remote;
mod served;
mod stopped;
mod told;
mod waiting;
mod wire;

pub use self::{
    bulk::*, bulk_refused::*, cancel::*, crowd::*, flow::*, groups::*, leftovers::*, lifecycle::*,
    messages::*, midway::*, multi::*, oneself::*, peers::*, stopped::*, told::*, waiting::*,
};

/// How long a case waits for what must happen, before it fails. Far above what a loaded machine
/// needs.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Opens at an address that was in use before, once it is free: a child that another thread has
/// forked holds a closed listener until it runs its program.
///
/// # Panics
///
/// If it cannot be opened for another reason, or is not free within [`PATIENCE`].
pub fn open_again<T>(open: impl Fn() -> Result<T, Error>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match open() {
            Err(Error::Io { source, .. })
                if source.kind() == ErrorKind::AddrInUse && Instant::now() < deadline =>
            {
                std::thread::yield_now();
            }
            opened => return opened.expect("open again"),
        }
    }
}

/// Where the target lives and how the test waits.
#[derive(Debug, Clone, Copy)]
pub struct Mode {
    two_processes: bool,
    blocking: bool,
}

impl Mode {
    /// One process that polls.
    pub const POLLING: Self = Self { two_processes: false, blocking: false };
    /// One process that sleeps.
    pub const BLOCKING: Self = Self { two_processes: false, blocking: true };
    /// Two processes, polled.
    pub const TWO_PROCESSES: Self = Self { two_processes: true, blocking: false };
    /// Two processes that sleep.
    pub const TWO_PROCESSES_BLOCKING: Self = Self { two_processes: true, blocking: true };
}

/// A function that opens an endpoint for a URI, as `na::open` does.
pub type OpenByUri = fn(&str, &OpenOptions) -> Result<Arc<dyn Endpoint>, Error>;

/// A function that opens endpoints: of `&OpenOptions`, or of `listen: bool`. `Argument` only tells
/// the two apart.
pub trait Opener<Argument> {
    /// States whether options beside `listen` are heeded.
    const HEEDS_OPTIONS: bool;

    /// Returns the thing that this machine lacks for the transport; its cases then pass with a
    /// message.
    fn lacks(&self) -> Option<String> {
        None
    }

    /// Why a case, by its name, cannot be run over the transport; it then passes with a message.
    fn spares(&self, _case: &str) -> Option<String> {
        None
    }

    /// Opens an endpoint.
    fn open(&self, options: &OpenOptions) -> Arc<dyn Endpoint>;
}

/// A transport over a library that not every machine has. Its tests run only on request, because
/// they test that library as much as this crate. A machine that requests them has the library, and
/// nothing is skipped there: otherwise a transport that no longer opens would pass.
#[derive(Debug, Clone, Copy)]
pub struct Optional {
    /// The variable of the environment that asks for them.
    pub variable: &'static str,
    /// The URI that is opened.
    pub uri: &'static str,
    /// The function that opens it.
    pub open: OpenByUri,
}

/// Returns the one of these variables of the environment that is to be set before somebody has
/// asked for these tests.
#[doc(hidden)]
pub fn not_asked_for(variables: &[&str]) -> Option<String> {
    let is_set = |name: &&&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let unset = variables.iter().find(|name| !is_set(name))?;
    Some(format!("set {unset}=1"))
}

impl Optional {
    /// Returns the variable to set if nobody has asked for these tests.
    pub fn lacks(&self) -> Option<String> {
        not_asked_for(&[self.variable])
    }

    /// Opens an endpoint.
    ///
    /// # Panics
    ///
    /// If it cannot be opened.
    pub fn open(&self, options: &OpenOptions) -> Arc<dyn Endpoint> {
        (self.open)(self.uri, options).unwrap_or_else(|error| panic!("{}: {error}", self.uri))
    }
}

impl Opener<Optional> for Optional {
    const HEEDS_OPTIONS: bool = true;

    fn lacks(&self) -> Option<String> {
        self.lacks()
    }

    fn open(&self, options: &OpenOptions) -> Arc<dyn Endpoint> {
        self.open(options)
    }
}

impl<F: Fn(bool) -> Arc<dyn Endpoint>> Opener<bool> for F {
    const HEEDS_OPTIONS: bool = false;

    fn open(&self, options: &OpenOptions) -> Arc<dyn Endpoint> {
        self(options.listen)
    }
}

impl<F: Fn(&OpenOptions) -> Arc<dyn Endpoint>> Opener<OpenOptions> for F {
    const HEEDS_OPTIONS: bool = true;

    fn open(&self, options: &OpenOptions) -> Arc<dyn Endpoint> {
        self(options)
    }
}

/// One run of one case.
#[derive(Clone, Copy)]
pub struct Case<'a> {
    opener: &'a dyn Fn(&OpenOptions) -> Arc<dyn Endpoint>,
    heeds_options: bool,
    mode: Mode,
    /// The function that opens a successor of a peer, under its address.
    reopen: Option<OpenByUri>,
    /// The test's name as libtest knows it, to run it again in a second process.
    test: &'a str,
}

impl Case<'_> {
    /// Opens an endpoint with default options; listening if asked.
    fn open(&self, listen: bool) -> Arc<dyn Endpoint> {
        (self.opener)(&OpenOptions::listening(listen))
    }

    /// Opens an endpoint with options, or does not, if the factory heeds none.
    fn open_with(&self, options: &OpenOptions) -> Option<Arc<dyn Endpoint>> {
        self.heeds_options.then(|| (self.opener)(options))
    }
}

impl std::fmt::Debug for Case<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Case({}, {:?})", self.test, self.mode)
    }
}

/// Runs `case`. `path` is the test's path with its crate.
pub fn run<Argument, O: Opener<Argument>>(
    path: &str,
    opener: O,
    mode: Mode,
    reopen: Option<OpenByUri>,
    case: fn(&Case<'_>),
) {
    let test = path.split_once("::").map_or(path, |(_crate_name, test)| test);
    let name = test.rsplit("::").next().unwrap_or(test);
    if let Some(reason) = opener.lacks().or_else(|| opener.spares(name)) {
        return println!("SKIPPED: {reason}");
    }
    let opener = |options: &OpenOptions| opener.open(options);
    let this = Case { opener: &opener, heeds_options: O::HEEDS_OPTIONS, mode, reopen, test };
    if !served::serve_if_asked(&this) {
        case(&this);
    }
}

/// Instantiates the suite, or the named cases of it, as tests. See [`conformance`](self).
#[macro_export]
macro_rules! conformance {
    ($open:path; all) => {
        $crate::conformance! { $open; not_amid_writes }
        $crate::conformance! { $open; amid_writes }
    };
    // Those that kill or stop a peer amid writes to memory that both may share.
    ($open:path; amid_writes) => {
        $crate::conformance! { @tests $open; POLLING;
            a_peer_that_dies_amid_long_messages_is_reported,
            memory_comes_back_from_a_peer_that_ends_amid_transfers }
        mod blocking_amid_writes {
            #[allow(unused_imports, reason = "the factory may be named in full")]
            use super::*;
            $crate::conformance! { @tests $open; BLOCKING;
                a_peer_that_dies_amid_long_messages_is_reported,
                memory_comes_back_from_a_peer_that_ends_amid_transfers }
        }
    };
    ($open:path; not_amid_writes) => {
        $crate::conformance! { $open; between_endpoints }
        $crate::conformance! { $open; between_processes }
        mod two_processes {
            #[allow(unused_imports, reason = "the factory may be named in full")]
            use super::*;
            $crate::conformance! { @single $open; TWO_PROCESSES }
            $crate::conformance! { @threads $open; TWO_PROCESSES }
        }
        mod two_processes_blocking {
            #[allow(unused_imports, reason = "the factory may be named in full")]
            use super::*;
            $crate::conformance! { @single $open; TWO_PROCESSES_BLOCKING }
        }
    };
    // The cases that may differ over a connection which another endpoint has handed over: all
    // within a process, and those that end a process whose peer sleeps. Left out: the same with a
    // target in another process and with loops that poll, where endpoints do not know who has
    // accepted a connection; and the one case of ten seconds, about a timer that each endpoint has.
    ($open:path; handed_over) => {
        $crate::conformance! { $open; between_endpoints }
        mod blocking_processes {
            #[allow(unused_imports, reason = "the factory may be named in full")]
            use super::*;
            $crate::conformance! { @quick_processes $open; BLOCKING }
            $crate::conformance! { @tests $open; BLOCKING;
                a_peer_that_dies_amid_long_messages_is_reported,
                memory_comes_back_from_a_peer_that_ends_amid_transfers }
        }
    };
    // A transport over a library that shows no connections, and asks no owner of memory.
    ($open:path; unconnected) => {
        $crate::conformance! { $open; unconnected_here }
        $crate::conformance! { $open; wakers }
        mod two_processes {
            #[allow(unused_imports, reason = "the factory may be named in full")]
            use super::*;
            $crate::conformance! { @plain $open; TWO_PROCESSES }
            $crate::conformance! { @wakers $open; TWO_PROCESSES }
        }
        mod two_processes_blocking {
            #[allow(unused_imports, reason = "the factory may be named in full")]
            use super::*;
            $crate::conformance! { @plain $open; TWO_PROCESSES_BLOCKING }
        }
    };
    // One whose endpoints share a process, driven by one thread.
    ($open:path; unconnected_here) => {
        $crate::conformance! { @plain $open; POLLING }
        mod blocking {
            #[allow(unused_imports, reason = "the factory may be named in full")]
            use super::*;
            $crate::conformance! { @plain $open; BLOCKING }
        }
    };
    // Those that kill or stop a process that is a peer.
    ($open:path; between_processes) => {
        $crate::conformance! { @processes $open; POLLING }
        mod blocking_processes {
            #[allow(unused_imports, reason = "the factory may be named in full")]
            use super::*;
            $crate::conformance! { @processes $open; BLOCKING }
        }
    };
    // Those whose peers live in one process.
    ($open:path; between_endpoints) => {
        $crate::conformance! { $open; one_thread }
        $crate::conformance! { @threads $open; POLLING }
    };
    ($open:path; one_thread) => {
        $crate::conformance! { @single $open; POLLING }
        mod blocking {
            #[allow(unused_imports, reason = "the factory may be named in full")]
            use super::*;
            $crate::conformance! { @single $open; BLOCKING }
        }
    };
    // Those where several threads use an endpoint.
    ($open:path; wakers) => {
        $crate::conformance! { @wakers $open; POLLING }
    };
    (@single $open:path; $mode:ident) => {
        $crate::conformance! { @plain $open; $mode }
        $crate::conformance! { @connected $open; $mode }
    };
    // What a transport does that has connections which end, and owners of memory that are asked.
    (@connected $open:path; $mode:ident) => {
        $crate::conformance! { @tests $open; $mode;
            a_smaller_limit_of_the_peer_counts,
            a_slow_receiver_holds_its_senders_back,
            zero_length_transfers_ask_permission,
            the_owner_denies_what_was_not_granted,
            the_owner_denies_unknown_keys,
            memory_comes_back_after_the_transfer_in_flight,
            a_flood_does_not_hold_up_other_peers,
            long_messages_pass_where_they_are_allowed,
            late_answers_do_not_hold_up_later_ones,
            order_is_kept_among_peers,
            many_peers,
            operations_end_once_whatever_happens,
            a_drop_gives_memory_back,
            a_closed_peer_is_reported,
            who_is_behind_a_peer_is_what_the_kernel_says,
            an_origin_that_left_cannot_be_answered,
            what_gone_peers_left_is_bounded,
            nobody_listens,
        }
    };
    (@plain $open:path; $mode:ident) => {
        $crate::conformance! { @tests $open; $mode;
            addresses_compare_and_name_their_peer,
            addresses_survive_serialisation,
            bad_addresses_are_refused,
            echoes_both_kinds,
            receives_posted_after_the_message,
            tags_and_sources_are_told_apart,
            order_is_kept_per_peer,
            what_is_sent_at_once_keeps_its_order,
            a_call_at_once_is_sent_and_answered_or_refused_whole,
            empty_and_longest_messages_pass,
            what_does_not_fit_is_refused_with_its_buffer,
            foreign_addresses_are_refused,
            an_origin_that_does_not_listen_is_answered,
            sends_to_oneself,
            transfers_with_oneself,
            segments_of_oneself_are_told_apart,
            sends_to_oneself_wait_for_receives,
            what_waits_within_is_canceled_and_closed,
            many_operations_with_random_sizes,
            many_endpoints_in_one_process,
            get_and_put_move_the_named_bytes,
            get_and_put_between_segments,
            large_transfers_are_complete,
            many_transfers_at_once,
            transfers_from_and_to_an_origin,
            messages_pass_during_large_transfers,
            wrong_local_ranges_are_refused_at_once,
            canceled_receives_end_once,
            a_receive_takes_many_messages,
            a_receive_for_many_takes_no_more,
            a_canceled_receive_for_many_ends_once,
            a_close_ends_receives_for_many,
            a_receive_for_many_takes_ones_own,
            peers_share_a_receive_for_many,
            canceled_sends_end_once,
            canceled_transfers_end_once,
            cancel_of_unknown_operations_is_ignored,
            cancel_before_the_connection_ends_once,
            cancel_while_the_owner_is_idle_ends_once,
            a_canceled_put_reads_no_more,
            cancel_and_close_end_everything_once,
            late_messages_hold_up_nobody,
            close_gives_every_buffer_back,
            a_closed_endpoint_refuses,
            peers_and_memory_are_told,
        }
    };
    (@threads $open:path; $mode:ident) => {
        $crate::conformance! { @wakers $open; $mode }
        $crate::conformance! { @tests $open; $mode;
            an_idle_endpoint_can_sleep,
            a_sleeper_costs_no_processor_time,
        }
    };
    // Without those about sleeping for nothing.
    (@wakers $open:path; $mode:ident) => {
        $crate::conformance! { @tests $open; $mode;
            threads_share_an_endpoint,
            a_message_wakes_a_sleeper,
            who_looks_before_it_polls_misses_nothing,
            a_transfer_wakes_both_sleepers,
            a_local_completion_wakes_a_sleeper,
            an_operation_of_another_thread_wakes_a_sleeper,
            a_receive_wakes_a_sleeper_for_what_waits_within,
            an_operation_on_oneself_wakes_a_sleeper,
            room_for_a_held_back_sender_wakes_it,
        }
    };
    (@processes $open:path; $mode:ident) => {
        $crate::conformance! { @tests $open; $mode; a_stopped_peer_passes_the_liveness_limit }
        $crate::conformance! { @quick_processes $open; $mode }
    };
    (@quick_processes $open:path; $mode:ident) => {
        $crate::conformance! { @tests $open; $mode;
            a_dead_peer_is_reported,
            a_dead_peer_is_reported_to_a_sleeper,
            a_stopped_peer_is_waited_for,
            a_stopped_peer_that_owes_an_answer_passes_the_limit,
            a_stopped_peer_that_owes_nothing_is_not_given_up,
            nothing_is_left_behind,
        }
        // A restarted peer is opened by its address.
        $crate::conformance! {
            @test $open; $mode; Some(::na::open); a_call_at_once_ends_with_its_peer
        }
        $crate::conformance! {
            @test $open; $mode; Some(::na::open); a_peer_restarts_under_its_address
        }
    };
    (@tests $open:path; $mode:ident; $($case:ident),+ $(,)?) => {
        $( $crate::conformance! { @test $open; $mode; None; $case } )+
    };
    (@test $open:path; $mode:ident; $reopen:expr; $case:ident) => {
        #[test]
        fn $case() {
            $crate::conformance::run(
                concat!(module_path!(), "::", stringify!($case)),
                $open,
                $crate::conformance::Mode::$mode,
                $reopen,
                $crate::conformance::$case,
            );
        }
    };
    ($open:path; $($case:ident),+ $(,)?) => {
        $crate::conformance! { @tests $open; POLLING; $($case),+ }
    };
}

//! The behaviour of this crate, seen from outside: modules as the folders of `src/`.
//!
//! Nothing here owns the process. Tests that do have programs of their own: `leaks` counts its
//! descriptors, `unmapped` uses up its mappings, `log` and `rude` take its log, and `stress` takes
//! its log and its panics. So has `topology`, which is built twice: with and without hwloc.
#![allow(clippy::unwrap_used, reason = "test code, unknown as such to the lint")]

#[path = "../common/mod.rs"]
mod common;

/// The cases of Argobots that no other module has, and the table of all of them.
mod argobots {
    mod external;
    mod sync;
    mod table;
}

/// ULTs and tasklets: spawn, run, switch, end, join.
mod unit {
    mod async_join;
    mod cancel;
    mod fork;
    mod home;
    mod join_any;
    mod joined;
    mod locals;
    mod par;
    mod scope;
    mod spawn;
    mod streaks;
    mod switching;
    mod tasklets;
    mod units;
}

/// Pools, and units that move between them.
mod pool {
    mod migrate;
    mod pools;
    mod stealing;
}

/// Xstreams, their schedulers and their sleep.
mod xstream {
    mod idle;
    mod schedulers;
    mod stacked;
    mod xstreams;
}

/// Objects to wait for, by ULTs, OS threads and async code.
mod wait {
    mod async_bridge;
    mod blocking;
    mod channel;
    mod counts;
    mod mutex;
    mod spsc;
    mod waiting;
}

/// A runtime from its start to its end.
mod runtime {
    mod child;
    mod layout;
    mod life;
    mod panic_hook;
}

/// Lists, stack dumps and traces.
mod observe {
    mod backtrace;
    mod trace;
}

mod examples;
mod stacks;
mod timers;

//! The models, by the crate whose code they run.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a model")]

/// A peer and a host, as `src/admission/gate.rs` names them.
type Addr = u8;
type Principal = u8;

mod ult {
    mod barrier;
    mod channel;
    mod close;
    mod condvar;
    mod eventual;
    mod fork;
    mod inbox;
    mod join;
    mod mutex;
    mod once;
    mod park;
    mod rwlock;
    mod select;
    mod semaphore;
    mod sleep;
    mod spsc;
    mod stealing;
    mod suspend;
    mod timer;
    mod trace_ring;
    mod transfer;
    mod wakers;
}

mod prim {
    mod biased_lock;
    mod claim;
    mod message_parts;
    mod shared_counts;
}

mod na {
    mod group_placement;
    mod sm_doorbell;
    mod sm_lane;
    mod sm_reports;
    mod sm_ring;
    mod sm_turns;
}

/// Files of `hg`, which these models include.
mod hg {
    mod releases;
}

/// Files of `margo`, which these models include.
mod margo {
    mod admission;
    mod copy_claims;
    mod handlers_in_hand;
    mod resting_shards;
    mod trace_wake;
}

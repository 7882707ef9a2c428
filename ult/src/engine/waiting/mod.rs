//! Waiters: the records that a waiting party leaves for those that wake it.
//!
//! The objects of [`wait`](crate::wait) are made of them. All of it but `change_signal.rs` compiles
//! for the models in `loom-tests`, where only OS threads wait.
//!
//! The types themselves are in `model/waiter.rs`. Read `waiter.rs` first (who may touch what), then
//! `list.rs`. `join_word.rs` is where a unit that
//! ends meets those that join it; `watch.rs` waits for several objects; `raw_mutex.rs` is the lock
//! in all mutexes; `change_signal.rs` waits until something in the runtime has changed.

#[cfg(not(loom))]
pub(crate) mod change_signal;
pub(crate) mod join_word;
pub(crate) mod list;
pub(crate) mod raw_mutex;
pub(crate) mod waiter;
pub(crate) mod watch;

//! Objects that an instance owns, and that do not keep it running.

use std::sync::mpsc;
use std::time::Duration;

use crate::common::{PATIENCE, builder};
use margo::{Instance, ProviderHandle, Rpc, WeakInstance, timers::Timer};

const ADDRESS: Rpc<(), String> = Rpc::new("address");

/// Drops the only clone, and waits for the end.
fn ends_by_itself(own: Instance) {
    let (sender, ended) = mpsc::channel();
    own.on_finalize(move |_| sender.send(()).unwrap()).unwrap().keep();
    let weak = own.downgrade();
    assert!(weak.upgrade().is_some_and(|own| !own.is_finalizing()));
    assert!(format!("{weak:?}").contains(own.self_addr().uri()));
    drop(own);
    ended.recv_timeout(PATIENCE).expect("it ends");
    assert!(weak.upgrade().is_none());
    assert_eq!(format!("{weak:?}"), "WeakInstance(gone)");
}

fn started() -> (Instance, WeakInstance) {
    let own = builder("na+sm://").start().unwrap();
    let weak = own.downgrade();
    (own, weak)
}

#[test]
fn a_timer_uses_the_instance_that_it_does_not_keep() {
    let (own, weak) = started();
    let (sender, ticks) = mpsc::channel();
    let timer: Timer = own.timer(move |_| {
        if let Some(own) = weak.upgrade() {
            _ = sender.send(own.self_addr());
        }
    });
    timer.start_every(Duration::from_millis(1)).unwrap();
    assert_eq!(ticks.recv_timeout(PATIENCE).unwrap(), own.self_addr());
    ends_by_itself(own);
    drop(timer);
}

#[test]
fn a_handler_uses_the_instance_that_it_does_not_keep() {
    let (own, weak) = started();
    let address = move |()| weak.upgrade().unwrap().self_addr().uri().to_owned();
    own.serve(ADDRESS).function(address).unwrap();
    let to = ProviderHandle::from(own.self_addr());
    assert_eq!(own.forward(ADDRESS, &to, &()).unwrap(), own.self_addr().uri());
    ends_by_itself(own);
}

#[test]
fn who_listens_says_so_also_after_the_end() {
    for listens in [true, false] {
        let own = builder("na+sm://").listen(listens).start().unwrap();
        assert_eq!(own.network().is_listening(), listens);
        own.finalize_and_wait().unwrap();
        assert_eq!(own.network().is_listening(), listens);
    }
}

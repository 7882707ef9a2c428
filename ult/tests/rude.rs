//! Code of the program that panics where the runtime calls it does not hurt the unit that runs
//! there: wakers of async tasks (which may also poll and drop their tasks at once), pools,
//! schedulers, destructors, and the subscriber of the log.
#![allow(clippy::unwrap_used, reason = "test code, unknown as such to the lint")]

mod common;
#[path = "rude/pools.rs"]
mod pools;

use std::future::Future;
use std::pin::Pin;
use std::ptr;
use std::sync::{Arc, Mutex};
use std::task::{RawWaker, RawWakerVTable, Wake, Waker};

use common::wakers::{Count, poll};
use common::{private, within};
use ult::{Eventual, channel, ready, wait_any};

struct Rude;

impl Wake for Rude {
    fn wake(self: Arc<Self>) {
        panic!("from a waker");
    }
}

fn rude() -> Waker {
    Waker::from(Arc::new(Rude))
}

/// Panics from its third clone on: a future that waits makes two.
fn rude_clone() -> Waker {
    static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, |_| (), |_| (), |_| ());
    unsafe fn clone(left: *const ()) -> RawWaker {
        // SAFETY: a counter that is never freed: `rude_clone`.
        let left = unsafe { &*left.cast::<Mutex<u32>>() };
        let mut left = left.lock().unwrap();
        assert!(*left > 0, "from a clone");
        *left -= 1;
        RawWaker::new(ptr::from_ref(Box::leak(Box::new(Mutex::new(0)))).cast(), &VTABLE)
    }
    let left = ptr::from_ref(Box::leak(Box::new(Mutex::new(2u32))));
    // SAFETY: `clone` gets what it expects, and the others do nothing.
    unsafe { Waker::from_raw(RawWaker::new(left.cast(), &VTABLE)) }
}

#[test]
fn the_others_who_wait_for_an_eventual_are_woken() {
    for waker in [rude, rude_clone] {
        within(move || {
            let (runtime, pools) = private(2);
            let event = Arc::new(Eventual::new());
            let mut first = Box::pin(ready(&*event));
            assert!(poll(&mut first, &waker()).is_pending());
            let mut second = Box::pin(ready(&*event));
            let (count, counting) = Count::new();
            assert!(poll(&mut second, &counting).is_pending());
            let for_ult = event.clone();
            let waits = pools[0].spawn(move || *for_ult.wait()).unwrap();
            let for_set = event.clone();
            let sets = pools[1].spawn(move || {
                for_set.set(3).unwrap();
                ult::current().map(|unit| unit.pool)
            });
            assert_eq!(sets.unwrap().join().unwrap().as_deref(), Some("p1"), "in its unit again");
            assert_eq!(waits.join().unwrap(), 3);
            assert_eq!(count.get(), 1);
            drop((first, second));
            runtime.shutdown().unwrap();
        });
    }
}

#[test]
fn the_others_who_wait_for_a_channel_are_woken() {
    for waker in [rude, rude_clone] {
        within(move || {
            let (runtime, pools) = private(2);
            let (sender, receiver) = channel::unbounded::<u32>();
            let mut first = Box::pin(ready(&receiver));
            assert!(poll(&mut first, &waker()).is_pending());
            let mut second = Box::pin(ready(&receiver));
            let (count, counting) = Count::new();
            assert!(poll(&mut second, &counting).is_pending());
            let for_ult = receiver.clone();
            let waits = pools[0].spawn(move || {
                loop {
                    if let Ok(item) = for_ult.try_recv() {
                        return item;
                    }
                    wait_any(&[&for_ult], None);
                }
            });
            pools[1].spawn(move || sender.send(4).unwrap()).unwrap().join().unwrap();
            assert_eq!(waits.unwrap().join().unwrap(), 4);
            assert_eq!(count.get(), 1);
            drop((first, second));
            runtime.shutdown().unwrap();
        });
    }
}

/// Drops its futures when it is called: an executor that runs its tasks at once.
#[derive(Default)]
struct Inline(Mutex<Vec<Pin<Box<dyn Future<Output = ()> + Send>>>>);

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        let futures = std::mem::take(&mut *self.0.lock().unwrap());
        drop(futures);
    }
}

/// Has `object` watched by futures of one such waker, and lets `fire` wake them.
fn drop_all_in_the_first(
    object: &Arc<impl ult::Selectable + Send + Sync + 'static>,
    fire: impl FnOnce(),
) {
    let inline = Arc::new(Inline::default());
    let mut futures: Vec<Pin<Box<dyn Future<Output = ()> + Send>>> = Vec::new();
    for _ in 0..3 {
        let object = object.clone();
        let mut future: Pin<Box<dyn Future<Output = ()> + Send>> =
            Box::pin(async move { ready(&*object).await });
        assert!(poll(&mut future, &Waker::from(inline.clone())).is_pending());
        futures.push(future);
    }
    *inline.0.lock().unwrap() = futures;
    fire();
    assert!(inline.0.lock().unwrap().is_empty(), "the waker was called");
}

#[test]
fn a_waker_may_drop_other_futures_of_the_same_object() {
    within(|| {
        let event = Arc::new(Eventual::new());
        drop_all_in_the_first(&event, || event.set(()).unwrap());
        let (sender, receiver) = channel::bounded::<()>(1);
        let receiver = Arc::new(receiver);
        drop_all_in_the_first(&receiver, || sender.send(()).unwrap());
    });
}

#[test]
fn a_waker_may_drop_other_futures_of_a_channel_that_is_closed() {
    within(|| {
        let (sender, receiver) = channel::bounded::<()>(1);
        sender.send(()).unwrap();
        let (other_sender, full) = (Arc::new(sender), receiver);
        drop_all_in_the_first(&other_sender, || drop(full));
    });
}

//! Sleeping on the descriptor, and who is woken.

use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use na_plugin_margo::abi::NaInitInfo;
use rustix::event::{PollFd, PollFlags, poll};

use super::mercury::{OK, Sending, Side, TIMEOUT, call, pairs, trigger};

fn fd(side: &Side) -> BorrowedFd<'static> {
    let fd = call!(poll_get_fd(side.class(), side.context()));
    assert!(fd >= 0);
    // SAFETY: it is open as long as the context is, which each test keeps.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Sleeps as Mercury does: a look, then the descriptor, unless there is something to do.
fn sleep(side: &Side) {
    side.poll();
    if side.has_ends() || !call!(poll_try_wait(side.class(), side.context())) {
        return;
    }
    let fd = fd(side);
    let left = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
    let woken = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&left)).unwrap();
    assert_eq!(woken, 1, "nobody has woken the sleeper");
}

#[test]
fn a_message_wakes_who_sleeps_on_the_descriptor() {
    for (a, b) in pairs() {
        let (to, send, receive) = (a.addr_of(&b), a.op(), b.op());
        let mut room = vec![0; 4096];
        let sending = Sending::new(to, send);
        for _ in 0..50 {
            assert_eq!(b.receive(&mut room, receive), OK);
            thread::scope(|scope| {
                scope.spawn(|| {
                    sending.start(&a);
                    while a.trigger().is_none() {
                        a.poll();
                    }
                });
                let end = loop {
                    if let Some(end) = b.trigger() {
                        break end;
                    }
                    sleep(&b);
                };
                b.free(&[end.source()], &[]);
            });
        }
        a.free(&[to], &[send]);
        b.free(&[], &[receive]);
    }
}

#[test]
fn a_send_that_is_done_at_once_wakes_who_sleeps() {
    let (a, b) = (Side::open("tcp"), Side::open("tcp"));
    let (to, send) = (a.addr_of(&b), a.op());
    // The first one connects.
    assert_eq!(a.send(true, b"first", to, 0, send), OK);
    a.next(&[&b]);
    let sending = Sending::new(to, send);
    for _ in 0..50 {
        thread::scope(|scope| {
            scope.spawn(|| sending.start(&a));
            while a.trigger().is_none() {
                sleep(&a);
            }
        });
    }
    a.free(&[to], &[send]);
}

#[test]
fn who_sleeps_in_another_context_is_woken_for_what_is_his() {
    for (a, mut b) in pairs() {
        let second = b.another_context();
        let own = second.plugin_context();
        let (to, send, receive) = (a.addr_of(&b), a.op(), b.op());
        let mut room = vec![0; 4096];
        let class = b.class();
        for _ in 0..20 {
            let (buf, none) = (room.as_mut_ptr().cast(), ptr::null_mut());
            let context = second.base();
            let op = receive.cast();
            let code =
                call!(msg_recv_unexpected(class, context, None, op, buf, 4096, none, receive));
            assert_eq!(code, OK);
            assert_eq!(a.send(true, b"wake", to, 0, send), OK);
            let done = &AtomicBool::new(false);
            thread::scope(|scope| {
                // The first context finds it, and the second one is asleep.
                let (a, b) = (&a, &b);
                scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        a.poll();
                        b.poll();
                        thread::yield_now();
                    }
                });
                let end = loop {
                    if let Some(end) = trigger(&second) {
                        break end;
                    }
                    let code = call!(poll_wait(class, second.base(), 60_000, ptr::null_mut()));
                    assert_eq!(code, OK);
                };
                done.store(true, Ordering::Relaxed);
                b.free(&[end.source()], &[]);
            });
            a.trigger();
        }
        assert_eq!(call!(context_destroy(class, own)), OK);
        a.free(&[to], &[]);
        b.free(&[], &[receive]);
    }
}

#[test]
fn waiting_ends_by_its_time() {
    let a = Side::open("sm");
    for timeout in [0, 5] {
        let code = call!(poll_wait(a.class(), a.context(), timeout, ptr::null_mut()));
        assert_eq!(code, TIMEOUT);
    }
    let init = NaInitInfo { progress_mode: 1, ..NaInitInfo::default() };
    let busy = Side::open_with("sm", "", init, true).unwrap();
    assert_eq!(call!(poll_get_fd(busy.class(), busy.context())), -1);
    assert!(!call!(poll_try_wait(busy.class(), busy.context())));
    let code = call!(poll_wait(busy.class(), busy.context(), 1, ptr::null_mut()));
    assert_eq!(code, TIMEOUT);
}

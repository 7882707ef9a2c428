//! Progress ULTs that share an execution stream: they spin together, and sleep together.
//!
//! An instance and its children (`child.rs`) may make progress on one execution stream, and so may
//! shards. If one slept while another one spins, it would hear of its messages late: the kernel
//! is not asked as long as something runs. And two that spin see each other run, so that neither
//! would ever find the execution stream idle. Hence they tell each other:
//!
//! - one whose patience is over (`spin_window.rs`) is *tired*. It polls on, in turn with the
//!   others, until all are tired;
//! - then all sleep, one after the other;
//! - the first that wakes up, or has something to do after all, wakes the others.
//!
//! Turns that they give each other are not counted as other work.
//!
//! # Who may touch what
//!
//! A company belongs to an OS thread. Progress ULTs stay on theirs, so it needs no atomics.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

thread_local! {
    static COMPANY: Rc<ProgressGroup> = Rc::default();
}

/// The progress ULTs of one execution stream.
#[derive(Debug, Default)]
struct ProgressGroup {
    /// Those who do not sleep.
    awake: Cell<usize>,
    /// Those of them who would like to.
    tired: Cell<usize>,
    /// How often one of them came back from giving the others a turn.
    turns: Cell<u64>,
    /// Progress ULTs that have stepped aside, so that others run whose pools come behind theirs.
    aside: Cell<usize>,
    asleep: RefCell<Vec<(u64, ult::Unparker)>>,
    /// Number of the next seat.
    next: Cell<u64>,
}

impl ProgressGroup {
    /// Wakes those who sleep, but for the caller.
    fn wake(&self, caller: u64) {
        let asleep = std::mem::take(&mut *self.asleep.borrow_mut());
        for (_, unparker) in asleep.iter().filter(|(number, _)| *number != caller) {
            unparker.unpark();
        }
    }
}

/// The place of one progress ULT in its company; it leaves when this is dropped.
#[derive(Debug)]
pub(crate) struct GroupMember {
    company: Rc<ProgressGroup>,
    number: u64,
    is_tired: bool,
}

impl GroupMember {
    /// The caller, a progress ULT, is on this execution stream from now on, and does not sleep.
    // Not inlined: the address of a thread's own data must not outlive a switch.
    #[inline(never)]
    pub(crate) fn take() -> Self {
        let company = COMPANY.with(Rc::clone);
        let number = company.next.get();
        company.next.set(number + 1);
        bump(&company.awake, true);
        // They sleep as long as nobody else is awake.
        company.wake(number);
        Self { company, number, is_tired: false }
    }

    /// No other one is awake here.
    #[inline]
    pub(crate) fn is_alone(&self) -> bool {
        self.company.awake.get() == 1
    }

    /// There are others, awake or asleep.
    pub(crate) fn has_company(&self) -> bool {
        !self.is_alone() || !self.company.asleep.borrow().is_empty()
    }

    /// The caller has had something to do.
    #[inline]
    pub(crate) fn useful(&mut self) {
        if self.is_tired {
            self.set_tired(false);
            self.company.wake(self.number);
        }
    }

    /// A progress ULT waits until others have run, such as the caller.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.company.aside.get() > 0
    }

    /// Gives others a turn; whether none but the company took it. `step_aside` waits until they
    /// had it, if the order of pools is against them.
    pub(crate) fn give_turn(&self, step_aside: impl FnOnce()) -> bool {
        let turns = &self.company.turns;
        let before = (ult::integration::units_run(), turns.get());
        if ult::integration::has_runnable_behind() {
            let aside = Aside::new(&self.company);
            step_aside();
            drop(aside);
        } else {
            ult::yield_now();
            turns.set(turns.get().wrapping_add(1));
        }
        ult::integration::units_run().wrapping_sub(before.0) <= turns.get().wrapping_sub(before.1)
    }

    /// The caller's patience is over; whether that of all is.
    pub(crate) fn may_sleep(&mut self) -> bool {
        if !self.is_tired {
            self.set_tired(true);
        }
        self.company.tired.get() == self.company.awake.get()
    }

    /// Sleeps by `sleep`, which returns at the latest after an unpark of the calling ULT.
    pub(crate) fn sleep(&mut self, sleep: impl FnOnce()) {
        let company = self.company.clone();
        if self.is_tired {
            self.set_tired(false);
        }
        company.asleep.borrow_mut().push((self.number, ult::unparker()));
        bump(&company.awake, false);
        // Also when the ULT is unwound.
        let _awake = Awake { company: &company, number: self.number };
        sleep();
    }

    fn set_tired(&mut self, is_tired: bool) {
        self.is_tired = is_tired;
        bump(&self.company.tired, is_tired);
    }
}

impl Drop for GroupMember {
    fn drop(&mut self) {
        if self.is_tired {
            self.set_tired(false);
        }
        bump(&self.company.awake, false);
    }
}

/// Somebody is aside until this is dropped.
struct Aside<'a>(&'a ProgressGroup);

impl<'a> Aside<'a> {
    fn new(company: &'a ProgressGroup) -> Self {
        bump(&company.aside, true);
        Self(company)
    }
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        bump(&self.0.aside, false);
    }
}

/// A progress ULT wakes up when this is dropped, and wakes the others.
struct Awake<'a> {
    company: &'a ProgressGroup,
    number: u64,
}

impl Drop for Awake<'_> {
    fn drop(&mut self) {
        bump(&self.company.awake, true);
        self.company.wake(self.number);
    }
}

fn bump(count: &Cell<usize>, up: bool) {
    count.set(if up { count.get() + 1 } else { count.get() - 1 });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn all_are_tired_before_one_sleeps() {
        let (mut one, mut other) = (GroupMember::take(), GroupMember::take());
        assert!(!one.is_alone());
        assert!(!one.may_sleep(), "the other one still hopes");
        assert!(!one.may_sleep());
        assert!(other.may_sleep());
        one.useful();
        assert!(!other.may_sleep(), "there was something to do");
        drop(one);
        assert!(other.is_alone() && other.may_sleep(), "it has left");
    }

    #[test]
    fn who_wakes_up_wakes_the_others() {
        let (mut one, mut other) = (GroupMember::take(), GroupMember::take());
        assert!(!one.may_sleep() && other.may_sleep());
        let mut order = Vec::new();
        one.sleep(|| {
            assert!(other.is_alone() && other.may_sleep());
            order.push("one sleeps");
            // Both wait for the same thread's token here.
            other.sleep(|| order.push("other sleeps"));
            ult::park();
            order.push("one was woken");
        });
        assert_eq!(order, ["one sleeps", "other sleeps", "one was woken"]);
        assert_eq!(one.company.awake.get(), 2);
        assert_eq!(one.company.tired.get(), 0);
        assert!(one.company.asleep.borrow().is_empty());
    }

    #[test]
    fn turns_of_the_company_are_not_work_of_others() {
        let runtime = ult::Runtime::builder()
            .pool(ult::PoolSpec::new("pool"))
            .xstream(ult::XstreamSpec::new("xstream").pools(["pool"]))
            .start()
            .expect("a runtime");
        let pool = runtime.pools().remove(0);
        let (is_over, own) = (Arc::new(AtomicBool::new(false)), pool.clone());
        let until = is_over.clone();
        let other = pool.spawn(move || {
            let seat = GroupMember::take();
            while !until.load(Ordering::Relaxed) {
                seat.give_turn(|| ());
            }
        });
        let one = pool.spawn(move || {
            let seat = GroupMember::take();
            while seat.is_alone() {
                ult::yield_now();
            }
            seat.give_turn(|| ());
            let alone = (0..100).filter(|_| seat.give_turn(|| ())).count();
            let until = is_over.clone();
            let worker = own.spawn(move || {
                while !until.load(Ordering::Relaxed) {
                    ult::yield_now();
                }
            });
            let beside_work = (0..100).filter(|_| seat.give_turn(|| ())).count();
            is_over.store(true, Ordering::Relaxed);
            worker.expect("a worker").join().expect("its end");
            (alone, beside_work)
        });
        assert_eq!(one.expect("a member").join().expect("its counts"), (100, 0));
        other.expect("a member").join().expect("its end");
    }

    #[test]
    fn an_instance_and_its_child_sleep_when_nothing_happens() {
        const CALL: crate::Rpc<(), ()> = crate::Rpc::new("company_call");
        let parent = crate::Instance::builder("na+sm://").listen(true).start().expect("a parent");
        let child = crate::Instance::builder("na+sm://").parent(&parent).start().expect("a child");
        parent.register(CALL, |handle| drop(handle.respond(&()))).expect("registered");
        let addr = child.lookup(parent.self_addr().uri()).expect("its address");
        let to = crate::ProviderHandle::new(addr, crate::ProviderId::DEFAULT);
        let is_asleep = |instance: &crate::Instance| {
            let progress = &instance.inner().shards.first().progress;
            progress.get().is_some_and(crate::progress::control::Progress::is_asleep)
        };
        for _ in 0..3 {
            child.forward(CALL, &to, &()).expect("an answer");
            let start = Instant::now();
            while !(is_asleep(&parent) && is_asleep(&child)) {
                assert!(start.elapsed() < Duration::from_secs(60), "one of them spins");
                std::thread::yield_now();
            }
        }
        parent.finalize_and_wait().expect("finalized");
    }
}

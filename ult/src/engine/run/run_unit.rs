//! One unit: [`Xstream::run`] gives it a stack, switches to it, and carries out the command with
//! which it switches back, or ends it.
//!
//! A ULT that runs another one as its child calls the same function; then it is that ULT's stack on
//! which the command is carried out.

use crate::base::contain::{NoUnwind, log};
use crate::base::unwind::Why;
use crate::engine::model::interfaces::PushReason;
use crate::engine::model::pool::PoolSlot;
use crate::engine::model::unit::{CANCEL, TIMED, UltPtr, UltRef};
use crate::engine::model::xstream_shared::XstreamShared;
use crate::engine::run::timed;
use crate::engine::unit::end::{lose, publish, run_and_publish};
use crate::engine::xstream::change_pool::{adopt, take_target};
use crate::engine::xstream::current;
use crate::engine::xstream::owner::Xstream;
use crate::engine::xstream::push::{enqueue, push_again, requeue};
use crate::engine::xstream::recycle::recycle_at;
use crate::engine::xstream::switch::HOPS_MAX;
use crate::stack::block::{BlockPtr, StackBlock};
use crate::stack::context::Command;
use crate::stack::memory::StackClass;
use crate::sync::Arc;
use crate::sync::atomic::Ordering::{Relaxed, Release};
use crate::trace::event::EventKind;

/// After so many returns in a row the next ULT has to queue, because the xstream has other things
/// to do, too (mail, timers, other units).
const CHAIN_MAX: u32 = 8;

impl Xstream {
    /// Runs a unit until it yields, suspends or ends, and then those that it names to come next.
    /// The caller has taken it out of its queue.
    // Always: a frame of its own between the loop and the switch would be left by a `ret` that the
    // processor cannot predict, since the stack of return addresses is that of another ULT by then.
    #[inline(always)]
    pub(crate) fn run(&self, ult: UltPtr) {
        // Who runs it, and hence who does what is to be done when it has switched back.
        let outer = self.current.get();
        let mut next = ult;
        let mut left = CHAIN_MAX;
        let guard = NoUnwind::begin();
        loop {
            if self.is_home_of(next) || self.admit(next, outer) {
                self.switch_to(next, outer);
            }
            match self.next.get() {
                Some(ult) => next = ult,
                None => break,
            }
            self.next.set(None);
            // Those that went past the scheduler count as well.
            self.units_run.set(self.units_run.get() + u64::from(HOPS_MAX));
            left -= 1;
            if left == 0 {
                requeue(self, next);
                break;
            }
        }
        guard.defuse();
    }

    /// Switches to a ULT that is at home here and has a stack, and carries out the command with
    /// which it comes back.
    #[inline(always)]
    pub(super) fn switch_to(&self, ult: UltPtr, outer: Option<UltPtr>) {
        let Some(block) = ult.block() else { return };
        self.current.set(Some(ult));
        // SAFETY:
        // - one resumer: only who runs the ULT touches its context, and it runs in one place;
        // - alive: until `finish`.
        let answer = unsafe { self.resume(ult, block) };
        // Another one may have taken its place. The flag is for speed: to load the one that came
        // back costs ten times as much as to know it.
        let back = if self.handed.get() { self.current.get() } else { Some(ult) };
        // A ULT that runs this one as its child may itself have been switched to.
        self.handed.set(outer.is_some());
        self.current.set(outer);
        match (answer.command(), back) {
            // The descriptor may be gone.
            (Command::Finish, _) => self.finish(answer.finished(block)),
            (Command::Yield, Some(ult)) => self.carry_out_yield(ult),
            (Command::Park, Some(ult)) => self.carry_out_park(ult),
            (_, None) => {}
        }
    }

    /// Makes this xstream the home of a unit that is not at home here, and gives it a stack.
    /// `false`: it is not to be switched to: it was a tasklet and is over, or it does not belong
    /// here and has been sent where it does, or it has been cancelled.
    #[inline(never)]
    fn admit(&self, ult: UltPtr, outer: Option<UltPtr>) -> bool {
        if !ult.home.load(Relaxed).is_null() {
            return self.take_over(ult);
        }
        if ult.has_requests() && !settle_unstarted(ult) {
            return false;
        }
        let pool = ult.pool();
        let slot = match self.own_slot(pool) {
            Some(slot) => slot,
            None if Arc::ptr_eq(&ult.core, &self.core) => self.slot_for(pool),
            None => {
                self.refuse(ult);
                return false;
            }
        };
        if ult.is_tasklet() {
            self.run_tasklet(ult, slot, outer);
            return false;
        }
        self.start(ult, slot)
    }

    /// A user's scheduler brought a unit of another runtime here.
    #[cold]
    fn refuse(&self, ult: UltPtr) {
        let (id, pool) = (ult.id.get(), &*ult.pool().name);
        log!(ERROR, id, pool, "a scheduler picked a unit of another runtime");
        enqueue(ult, PushReason::Create);
    }

    /// A ULT that started elsewhere: a migratable one moves in, others are sent home.
    #[cold]
    fn take_over(&self, ult: UltPtr) -> bool {
        let is_ours = Arc::ptr_eq(&self.core, &ult.core);
        // Where its home alone serves its pool, even a migratable one is still registered there.
        let is_free = ult.may_move() && ult.home.load(Relaxed) == XstreamShared::nowhere();
        if !is_free || !is_ours {
            // A user's pool or scheduler brought it here; running it would be unsound.
            let held = UltRef::share(ult);
            push_again(ult, false);
            drop(held);
            return false;
        }
        self.move_in(ult);
        true
    }

    #[inline]
    pub(super) fn start(&self, ult: UltPtr, slot: &PoolSlot) -> bool {
        let class = ult.class.get();
        let taken = match self.stacks.take_default(class) {
            Some(block) => Ok(block),
            None => self.fetch_stack(ult, class),
        };
        match taken {
            Ok(block) => {
                block.set_ult(Some(ult));
                ult.set_block(Some(block));
                self.settle(ult, slot);
                true
            }
            Err(error) => {
                self.no_stack(ult, &error);
                false
            }
        }
    }

    #[cold]
    fn fetch_stack(&self, ult: UltPtr, class: StackClass) -> std::io::Result<BlockPtr> {
        if class.is_users() {
            self.init_user_stack(ult)
        } else {
            self.stacks.take(class, &self.shared.stacks)
        }
    }

    #[cold]
    fn init_user_stack(&self, ult: UltPtr) -> std::io::Result<BlockPtr> {
        let stack = ult.with_extra(|extra| extra.stack.take());
        let stack =
            stack.ok_or_else(|| std::io::Error::other("the stack has been used already"))?;
        let block = stack.init_stack()?;
        self.stacks.register(block, &self.shared.stacks);
        Ok(block)
    }

    #[cold]
    fn no_stack(&self, ult: UltPtr, error: &std::io::Error) {
        let (id, name, pool) = (ult.id.get(), ult.name(), &*ult.pool().name);
        const WHY: &str = "no memory for the stack of a ULT: lower stack_bytes, start fewer at a \
                           time, or raise the limit that is reached: memory (with \
                           vm.overcommit_memory=2, address space counts against \
                           vm.overcommit_ratio), address space of the process (RLIMIT_AS, \
                           ulimit -v), or mappings (vm.max_map_count)";
        log!(ERROR, id, name, pool, %error, "{WHY}");
        lose(ult, Why::NoStack(error.raw_os_error().unwrap_or(libc::ENOMEM)));
    }

    pub(crate) fn run_tasklet(&self, ult: UltPtr, slot: &PoolSlot, outer: Option<UltPtr>) {
        self.run_tasklet_by(ult, slot, outer, |ult| self.run_here(ult));
    }

    /// [`run_tasklet`](Self::run_tasklet) where nobody watches.
    #[inline(always)]
    pub(crate) fn run_tasklet_unseen(&self, ult: UltPtr, slot: &PoolSlot) {
        self.run_tasklet_by(ult, slot, None, run_and_publish);
    }

    #[inline(always)]
    fn run_tasklet_by(
        &self,
        ult: UltPtr,
        slot: &PoolSlot,
        outer: Option<UltPtr>,
        run: impl FnOnce(UltPtr) -> bool,
    ) {
        let guard = NoUnwind::begin();
        ult.slot.set(slot);
        self.current.set(Some(ult));
        if run(ult) {
            recycle_at(self, ult);
        }
        self.current.set(outer);
        self.tell_end();
        guard.defuse();
    }

    /// Ends the life of a ULT; its stack is quiet and its result has been published.
    #[inline]
    fn finish(&self, block: BlockPtr) {
        if let Some(ult) = block.take_ult() {
            recycle_at(self, ult);
        }
        self.stacks.put(block, &self.shared.stacks);
        self.shared.ults.store(self.shared.ults.load(Relaxed) - 1, Release); // pair: ULTS
        self.tell_end();
    }

    #[inline]
    pub(crate) fn tell_end(&self) {
        if self.watched.get() {
            self.core.tell_news();
        }
    }

    /// Runs a tasklet to its end. As
    /// [`run_and_publish`](run_and_publish).
    #[inline(always)]
    pub(crate) fn run_here(&self, ult: UltPtr) -> bool {
        if self.shared().diag.is_on() {
            return self.run_here_seen(ult);
        }
        run_and_publish(ult)
    }

    #[cold]
    #[inline(never)]
    fn run_here_seen(&self, ult: UltPtr) -> bool {
        let outer = self.shared().diag.begin(ult);
        self.on_event(ult, EventKind::TaskletRun);
        ult.payload.run();
        self.on_event(ult, EventKind::TaskletFinish);
        let is_last = publish(ult);
        self.shared().diag.end(outer);
        is_last
    }

    /// The ULT that lived on `block` has ended, and `root` asks for the next one to run there:
    /// settled, and out of its queue. None: back to the stack's resumer.
    #[inline]
    pub(crate) fn follow(&self, block: BlockPtr) -> Option<UltPtr> {
        let slot = self.streak.slot()?;
        let shared = self.shared();
        if shared.has_mail()
            || self.has_chores.get()
            || self.next.get().is_some()
            || self.is_watched()
        {
            return None;
        }
        let ended = block.ult();
        // What it leaves may be dropped by code of a user, which must not find itself in the next.
        if ended.is_some_and(|ended| ended.leaves_much()) {
            return None;
        }
        let next = slot.pop_fresh(block.class)?;
        self.streak.left.set(self.streak.left.get() - 1);
        self.streak.taken.set(self.streak.taken.get() + 1);
        // What `finish` does for the one and `start` for the other, where these differ.
        if let Some(ended) = ended {
            recycle_at(self, ended);
        }
        self.tell_end();
        next.slot.set(slot);
        next.home.store(self.me(), Relaxed);
        next.set_block(Some(block));
        block.set_ult(Some(next));
        self.current.set(Some(next));
        self.handed.set(true);
        Some(next)
    }
}

impl StackBlock {
    /// Runs one ULT, from its closure to its published result, and those that may follow it at
    /// once: the body of the frame at the bottom of every stack. If the descriptor of the last one
    /// is left to nobody, it stands in the block. Without a ULT it does nothing.
    #[inline(never)]
    pub(crate) fn run_ults(&self) {
        let Some(mut ult) = self.ult() else { return };
        loop {
            if run_and_publish(ult) {
                self.set_ult(Some(ult));
            }
            match follow(self) {
                Some(next) => ult = next,
                None => return,
            }
        }
    }
}

/// See [`Xstream::follow`]. `block` is the stack of the caller.
#[inline]
fn follow(block: &StackBlock) -> Option<UltPtr> {
    // SAFETY:
    // - valid: it is in its place, at the top of the stack that the caller runs on.
    let block = unsafe { BlockPtr::from_ptr(block) }?;
    current::xstream()?.follow(block)
}

/// Carries out the requests of a unit that is about to start. `false`: it does not start here and
/// now.
#[cold]
pub(crate) fn settle_unstarted(ult: UltPtr) -> bool {
    if ult.take_request(TIMED) && !timed::settle(ult) {
        return false;
    }
    if ult.is_requested(CANCEL) {
        ult.forget_move();
        lose(ult, Why::Cancelled);
        return false;
    }
    let Some(target) = take_target(ult) else { return true };
    adopt(ult, &target);
    enqueue(ult, PushReason::Migrate);
    false
}

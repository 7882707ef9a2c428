//! Tells checking tools about stacks and switches: the address sanitizer with `--cfg ult_asan`,
//! valgrind with `--cfg ult_valgrind`; otherwise nothing.
//!
//! The sanitizer keeps the bounds of the stack that runs, to know which shadow memory it has to
//! clean when a panic unwinds, and a second, "fake" stack for each. Without these calls a panic in
//! a ULT would leave stale marks behind. Valgrind would take the switch between two stacks that are
//! close to each other for a large frame.

#[cfg(not(ult_asan))]
pub(super) use off::StackAnnotations;
#[cfg(ult_asan)]
pub(super) use on::StackAnnotations;

#[cfg(not(ult_asan))]
mod off {
    use crate::stack::context::wakeup::Wakeup;

    use corosensei::stack::Stack;
    #[cfg(ult_valgrind)]
    use corosensei::stack::valgrind::ValgrindStackRegistration;

    pub(crate) struct StackAnnotations {
        #[cfg(ult_valgrind)]
        registration: std::cell::Cell<Option<ValgrindStackRegistration>>,
    }

    impl StackAnnotations {
        #[cfg(not(ult_valgrind))]
        pub(crate) fn new(_stack: &impl Stack, _above: usize) -> Self {
            Self {}
        }

        #[cfg(ult_valgrind)]
        pub(crate) fn new(stack: &impl Stack, _above: usize) -> Self {
            let (low, high) = (stack.limit().get(), stack.base().get());
            let low = std::ptr::with_exposed_provenance_mut(low);
            let registration = ValgrindStackRegistration::new(low, high - low.addr());
            Self { registration: std::cell::Cell::new(Some(registration)) }
        }

        #[inline(always)]
        pub(crate) fn resume<R>(&self, switch: impl FnOnce() -> R) -> R {
            switch()
        }

        #[inline(always)]
        pub(crate) fn suspend(&self, switch: impl FnOnce() -> Wakeup) -> Wakeup {
            switch()
        }

        #[inline(always)]
        pub(crate) fn hand_over(&self, _: &Self, switch: impl FnOnce() -> Wakeup) -> Wakeup {
            switch()
        }

        #[inline(always)]
        pub(crate) fn enter(&self) {}

        #[inline(always)]
        pub(crate) fn clear_below(&self, _top: *mut u8) {}

        #[inline(always)]
        pub(crate) fn end(&self) {
            #[cfg(ult_valgrind)]
            drop(self.registration.take());
        }
    }
}

#[cfg(ult_asan)]
mod on {
    use std::cell::Cell;
    use std::ffi::c_void;
    use std::ptr;

    use corosensei::stack::Stack;

    use crate::stack::context::wakeup::Wakeup;

    unsafe extern "C" {
        fn __sanitizer_start_switch_fiber(
            fake_stack: *mut *mut c_void,
            bottom: *const c_void,
            bytes: usize,
        );
        fn __sanitizer_finish_switch_fiber(
            fake_stack: *mut c_void,
            old_bottom: *mut *const c_void,
            old_bytes: *mut usize,
        );
        fn __asan_unpoison_memory_region(start: *const c_void, bytes: usize);
    }

    /// Lowest address and size.
    type Range = (*const c_void, usize);

    pub(crate) struct StackAnnotations {
        stack: Range,
        /// The bounds of the resumer's stack, while this stack runs.
        resumer: Cell<Range>,
    }

    impl StackAnnotations {
        /// `above` is the size of the block, which stands on top of the stack.
        pub(crate) fn new(stack: &impl Stack, above: usize) -> Self {
            let (low, high) = (stack.limit().get(), stack.base().get());
            let low = low + rustix::param::page_size();
            let stack = (ptr::with_exposed_provenance(low), high - low);
            // What was here before may have left its marks, also where the block goes.
            let bytes = high - low + above;
            // SAFETY: marks memory of ours as good.
            unsafe { __asan_unpoison_memory_region(stack.0, bytes) };
            Self { stack, resumer: Cell::new((ptr::null(), 0)) }
        }

        /// Called around the switch to the stack.
        #[inline(always)]
        pub(crate) fn resume<R>(&self, switch: impl FnOnce() -> R) -> R {
            let fake = start(self.stack);
            let answer = switch();
            finish(fake);
            answer
        }

        /// Called around the switch from the stack.
        #[inline(always)]
        pub(crate) fn suspend(&self, switch: impl FnOnce() -> Wakeup) -> Wakeup {
            let fake = start(self.resumer.get());
            let wakeup = switch();
            self.arrive(fake, wakeup)
        }

        /// Called around the switch from the stack to the suspended stack `next`, which gets its
        /// resumer.
        #[inline(always)]
        pub(crate) fn hand_over(&self, next: &Self, switch: impl FnOnce() -> Wakeup) -> Wakeup {
            next.resumer.set(self.resumer.get());
            let fake = start(next.stack);
            let wakeup = switch();
            self.arrive(fake, wakeup)
        }

        #[inline(always)]
        fn arrive(&self, fake: *mut c_void, wakeup: Wakeup) -> Wakeup {
            let left = finish(fake);
            // Otherwise another ULT has been left, and has said who the resumer is.
            if wakeup != Wakeup::After {
                self.resumer.set(left);
            }
            wakeup
        }

        /// First of all on a new stack.
        pub(crate) fn enter(&self) {
            self.resumer.set(finish(ptr::null_mut()));
        }

        /// Forgets the frames below `top`, which a panic may have left marked. No unit lives on the
        /// stack any more.
        pub(crate) fn clear_below(&self, top: *mut u8) {
            let (low, _) = self.stack;
            // SAFETY: marks memory of ours as good.
            unsafe { __asan_unpoison_memory_region(low, top.addr() - low.addr()) };
        }

        /// The memory is used for something else from now on.
        pub(crate) fn end(&self) {
            let (low, bytes) = self.stack;
            // SAFETY: marks memory of ours as good; its last frames never returned.
            unsafe { __asan_unpoison_memory_region(low, bytes) };
        }
    }

    #[inline(always)]
    fn start(next: Range) -> *mut c_void {
        let mut fake = ptr::null_mut();
        // SAFETY: followed by a switch to a stack with these bounds.
        unsafe { __sanitizer_start_switch_fiber(&raw mut fake, next.0, next.1) };
        fake
    }

    /// Returns the bounds of the stack that has been left.
    #[inline(always)]
    fn finish(fake: *mut c_void) -> Range {
        let mut old = (ptr::null(), 0);
        // SAFETY: after a switch; `fake` is what `start` gave to this stack, or null on a new one.
        unsafe { __sanitizer_finish_switch_fiber(fake, &raw mut old.0, &raw mut old.1) };
        old
    }
}

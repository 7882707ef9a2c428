//! The mail of an xstream: units that others send, requests, and changes of the phase.

use crate::engine::model::interfaces::PushReason;
use crate::engine::model::runtime_core::{CLOSING, EXIT, REPORT, StuckUlt, WATCHED};
use crate::engine::model::unit::UltPtr;
use crate::engine::xstream::owner::Xstream;
use crate::engine::xstream::push::enqueue;
use crate::sync::atomic::Ordering::{Relaxed, Release};
use prim::prefetch;

impl Xstream {
    /// Empties the inbox, carries out requests, and looks at the phase.
    #[cold]
    pub(crate) fn read_mail(&self) {
        prefetch::for_write(self.shared.inbox.newest());
        for node in self.shared.inbox.take_all() {
            // SAFETY:
            // - a live descriptor: units that are sent have not ended.
            self.sort_mail(unsafe { UltPtr::new(node) });
        }
        if self.shared.take_signal() {
            self.look_at_phase();
            self.on_signal();
            if self.shared.take_stack_wake() {
                self.any_slot(|slot| {
                    slot.wake_sleepers();
                    false
                });
            }
            // Those of before: what one of them asks for comes after a unit has run.
            for _ in 0..self.shared.requests() {
                if let Some(request) = self.shared.take_request() {
                    request();
                }
            }
        }
    }

    fn sort_mail(&self, ult: UltPtr) {
        if self.is_home_of(ult) {
            self.queue_resumed(ult);
            return;
        }
        let pool = ult.pool();
        match self.own_slot(pool) {
            Some(slot) => {
                let received = &slot.shared.received;
                received.store(received.load(Relaxed) + 1, Release); // pair: POOL-LEN
                self.push_own(ult, slot);
            }
            // The pool has changed its owner meanwhile: it goes on as if it had not been sent.
            None => {
                pool.foreign.0.sent.fetch_sub(1, Relaxed);
                enqueue(ult, PushReason::Create);
            }
        }
    }

    fn look_at_phase(&self) {
        let (flags, word) = self.core.phase();
        self.watched.set(flags & WATCHED != 0);
        self.closing.set(flags & CLOSING != 0);
        self.exiting.set(flags & EXIT != 0);
        if flags & REPORT != 0 {
            self.core.report_stuck(self.suspended());
        }
        self.shared.see(word);
        self.core.tell_news();
    }

    /// The ULTs that have started here and not ended.
    fn suspended(&self) -> Vec<StuckUlt> {
        let mut found = Vec::new();
        self.stacks.for_each(|block| {
            found.extend(block.ult().map(|ult| StuckUlt {
                id: ult.id.get(),
                name: ult.name().map(str::to_owned),
                pool: ult.pool().name.to_string(),
                xstream: self.shared.name.to_string(),
                waits_for: ult.waits_for(),
            }));
        });
        found.sort_by_key(|ult| ult.id);
        found
    }
}

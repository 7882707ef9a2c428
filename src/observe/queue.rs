//! The queue to a thread that writes records: of a trace, or of an audit file.
//!
//! A caller hands a record over and goes on; if too many records wait already, this one is lost and
//! counted. The writing thread sleeps while there are none: `wake.rs` says how
//! it is woken.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::Thread;
use std::time::Duration;

use ult::Eventual;

use super::wake::Wake;

/// How long records gather.
const GATHER: Duration = Duration::from_millis(20);

pub(crate) struct Sender<T> {
    queue: SyncSender<Box<T>>,
    shared: Arc<QueueShared>,
    thread: Thread,
}

#[derive(Debug, Default)]
struct QueueShared {
    wake: Wake,
    lost: AtomicU64,
    ended: Eventual<()>,
}

struct Inbox<T> {
    queue: Receiver<Box<T>>,
    shared: Arc<QueueShared>,
}

/// The consumer of the records, on the thread of the queue.
pub(crate) trait Writer: Send + 'static {
    type Record: Send + 'static;

    /// It looks what there is.
    fn begin(&mut self);
    fn record(&mut self, record: Self::Record);
    /// So many were lost, in all.
    fn lost(&mut self, lost: u64);
    /// Nothing waits.
    fn flush(&mut self);
    /// Nothing more will come.
    fn end(self);
}

impl<T: Send + 'static> Sender<T> {
    /// Starts the thread of that name.
    pub(crate) fn start(
        name: &str,
        records_max: usize,
        writer: impl Writer<Record = T>,
    ) -> io::Result<Self> {
        let (queue, receiver) = sync_channel(records_max);
        let shared = Arc::<QueueShared>::default();
        let inbox = Inbox { queue: receiver, shared: shared.clone() };
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || inbox.run(writer))?.thread().clone();
        Ok(Self { queue, shared, thread })
    }

    /// Never waits.
    pub(crate) fn send(&self, record: T) {
        match self.queue.try_send(Box::new(record)) {
            Ok(()) if self.shared.wake.must_unpark() => self.thread.unpark(),
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.lose();
            }
        }
    }

    /// Counts a record as lost that is not sent at all.
    pub(crate) fn lose(&self) {
        self.shared.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Has the thread write what there is and end; what tells that it has.
    pub(crate) fn close(&self) -> &Eventual<()> {
        self.end();
        &self.shared.ended
    }
}

impl<T> Sender<T> {
    fn end(&self) {
        self.shared.wake.close();
        self.thread.unpark();
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Tells the end of the thread, also by a panic.
struct Ended(Arc<QueueShared>);

impl Drop for Ended {
    fn drop(&mut self) {
        // Nobody else does.
        let _ = self.0.ended.set(());
    }
}

impl<T> Inbox<T> {
    /// Until it is closed.
    fn run(self, mut writer: impl Writer<Record = T>) {
        let _ended = Ended(self.shared.clone());
        let gather = || std::thread::park_timeout(GATHER);
        self.shared.wake.run(|| self.drain(&mut writer), gather, std::thread::park);
        writer.end();
    }

    fn drain(&self, writer: &mut impl Writer<Record = T>) -> bool {
        let mut any = false;
        writer.begin();
        while let Ok(record) = self.queue.try_recv() {
            writer.record(*record);
            any = true;
        }
        writer.lost(self.shared.lost.load(Ordering::Relaxed));
        writer.flush();
        any
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Seen {
        records: usize,
        lost: u64,
        flushed: usize,
        is_over: bool,
    }

    /// Writes nothing until it may.
    struct Slow {
        may: Arc<Eventual<()>>,
        seen: Arc<Mutex<Seen>>,
    }

    impl Writer for Slow {
        type Record = u32;

        fn begin(&mut self) {}

        fn record(&mut self, _record: u32) {
            self.may.wait();
            self.seen.lock().unwrap().records += 1;
        }

        fn lost(&mut self, lost: u64) {
            self.seen.lock().unwrap().lost = lost;
        }

        fn flush(&mut self) {
            let mut seen = self.seen.lock().unwrap();
            seen.flushed = seen.records;
        }

        fn end(self) {
            self.seen.lock().unwrap().is_over = true;
        }
    }

    fn start(records_max: usize) -> (Sender<u32>, Arc<Eventual<()>>, Arc<Mutex<Seen>>) {
        let (may, seen) = (Arc::new(Eventual::new()), Arc::<Mutex<Seen>>::default());
        let writer = Slow { may: may.clone(), seen: seen.clone() };
        (Sender::start("writer", records_max, writer).unwrap(), may, seen)
    }

    #[test]
    fn who_sends_never_waits_and_what_is_too_much_is_counted() {
        let (sender, may, seen) = start(16);
        // The writer holds one at most.
        (0..99).for_each(|_| sender.send(7));
        sender.lose();
        assert!(seen.lock().unwrap().records == 0);
        may.set(()).unwrap();
        sender.close().wait();
        let seen = seen.lock().unwrap();
        assert!((16..=17).contains(&seen.records), "{}", seen.records);
        assert_eq!((seen.records as u64 + seen.lost, seen.flushed), (100, seen.records));
        assert!(seen.is_over);
    }

    #[test]
    fn what_is_sent_is_written_before_long_also_if_the_writer_sleeps() {
        let (sender, may, seen) = start(1000);
        may.set(()).unwrap();
        for number in 1..=20 {
            sender.send(7);
            let started = std::time::Instant::now();
            while seen.lock().unwrap().flushed < number {
                assert!(started.elapsed() < Duration::from_secs(60), "it was not woken");
                std::thread::yield_now();
            }
        }
        let ended = sender.shared.clone();
        drop(sender);
        ended.ended.wait();
        assert!(seen.lock().unwrap().is_over);
    }
}

//! The two ends of one direction of a connection: frames with numbers, acknowledged, repeated when
//! no acknowledgement comes, discarded when they come twice, and put in order. No clock and no
//! network of its own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::packet::Frame;
use crate::base::options::Nanos;

/// How often the time before a repetition doubles at most.
const DOUBLINGS_MAX: u32 = 6;

struct Flight {
    seq: u64,
    frame: Frame,
    /// As in `dues`; `None` while it has not left, and once it has arrived.
    due: Option<Nanos>,
    tries: u32,
    /// It has arrived, though frames before it have not.
    arrived: bool,
}

/// The sending end.
pub(crate) struct Tx {
    next: u64,
    flight: VecDeque<Flight>,
    /// When which frame has to be repeated, if it has left and not arrived.
    dues: BTreeSet<(Nanos, u64)>,
    /// Bytes that the receiver has not yet taken.
    charged: u64,
    patience: RetransmitTimer,
}

/// How long to wait for an acknowledgement: from the times that they took (as TCP does).
struct RetransmitTimer {
    smooth: Nanos,
    deviation: Nanos,
    least: Nanos,
    most: Nanos,
}

impl RetransmitTimer {
    fn learn(&mut self, sample: Nanos) {
        if self.smooth == 0 {
            (self.smooth, self.deviation) = (sample, sample / 2);
            return;
        }
        self.deviation = (3 * self.deviation + self.smooth.abs_diff(sample)) / 4;
        self.smooth = (7 * self.smooth + sample) / 8;
    }

    fn after(&self, tries: u32) -> Nanos {
        let once = (self.smooth + self.smooth / 2 + 4 * self.deviation).max(self.least);
        // Never less than an answer takes: repetitions would only keep a slow peer from answering.
        once.saturating_mul(1 << tries.min(DOUBLINGS_MAX)).min(self.most.max(once))
    }
}

impl Tx {
    /// Makes a sender for a link whose packets and answers take about `round_trip`; it waits at
    /// most `most`.
    pub(crate) fn new(round_trip: Nanos, most: Nanos) -> Self {
        let least = 2 * round_trip + 1_000;
        let patience = RetransmitTimer { smooth: 0, deviation: 0, least, most };
        Self { next: 0, flight: VecDeque::new(), dues: BTreeSet::new(), charged: 0, patience }
    }

    /// Bytes that the receiver has not yet taken.
    pub(crate) fn charged(&self) -> u64 {
        self.charged
    }

    /// Returns whether everything has arrived.
    pub(crate) fn is_quiet(&self) -> bool {
        self.flight.is_empty()
    }

    /// The number of a frame that is about to be sent for the first time.
    pub(crate) fn push(&mut self, frame: Frame) -> u64 {
        let seq = self.next;
        self.next += 1;
        self.charged += frame.charge();
        self.flight.push_back(Flight { seq, frame, due: None, tries: 0, arrived: false });
        seq
    }

    /// The frame `seq` has left at `at`.
    pub(crate) fn left(&mut self, seq: u64, at: Nanos) {
        let Self { flight, dues, patience, .. } = self;
        let Some(flight) = find(flight, seq) else { return };
        if !flight.arrived && flight.due.is_none() {
            let due = at.saturating_add(patience.after(flight.tries));
            flight.due = Some(due);
            dues.insert((due, seq));
        }
    }

    /// Everything before `next` has arrived, and `have`; the answer took `round_trip`.
    pub(crate) fn acknowledged(&mut self, next: u64, have: u64, round_trip: Nanos) {
        self.patience.learn(round_trip);
        let Self { flight, dues, .. } = self;
        let mut arrived = |flight: &mut Flight| {
            flight.arrived = true;
            if let Some(due) = flight.due.take() {
                dues.remove(&(due, flight.seq));
            }
        };
        while let Some(first) = flight.front_mut()
            && first.seq < next
        {
            arrived(first);
            flight.pop_front();
        }
        if let Some(flight) = find(flight, have) {
            arrived(flight);
        }
    }

    /// The receiver has taken `bytes`.
    pub(crate) fn credited(&mut self, bytes: u64) {
        self.charged = self.charged.saturating_sub(bytes);
    }

    /// When a frame has to be repeated.
    pub(crate) fn due(&self) -> Option<Nanos> {
        self.dues.first().map(|(due, _)| *due)
    }

    /// The frames that have to be repeated now.
    pub(crate) fn take_due(&mut self, now: Nanos) -> Vec<(u64, Frame)> {
        let mut overdue = Vec::new();
        while let Some((due, seq)) = self.dues.first().copied()
            && due <= now
        {
            self.dues.pop_first();
            if let Some(flight) = find(&mut self.flight, seq) {
                flight.due = None;
                flight.tries += 1;
                overdue.push((seq, flight.frame.clone()));
            }
        }
        overdue
    }
}

fn find(flight: &mut VecDeque<Flight>, seq: u64) -> Option<&mut Flight> {
    let place = seq.checked_sub(flight.front()?.seq)?;
    flight.get_mut(usize::try_from(place).ok()?)
}

/// The receiving end.
#[derive(Default)]
pub(crate) struct Rx {
    next: u64,
    /// Frames that came before their turn. Bounded by the sender's window.
    ahead: BTreeMap<u64, Frame>,
}

impl Rx {
    /// The next frame that is missing.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Takes a frame; appends to `ready` what is in order now. `false`: it had come before.
    pub(crate) fn take(&mut self, seq: u64, frame: Frame, ready: &mut Vec<Frame>) -> bool {
        if seq < self.next || self.ahead.contains_key(&seq) {
            return false;
        }
        self.ahead.insert(seq, frame);
        while let Some(frame) = self.ahead.remove(&self.next) {
            self.next += 1;
            ready.push(frame);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn number(frame: &Frame) -> u64 {
        match frame {
            Frame::Credit(number) => *number,
            other => panic!("not of this test: {other:?}"),
        }
    }

    proptest! {
        /// Whatever the network does to packets and acknowledgements, each frame comes out once and
        /// in order, and the sender notices.
        #[test]
        fn frames_arrive_once_and_in_order(
            count in 1..40u64,
            fates in prop::collection::vec((0..4u8, 0..3u8, any::<prop::sample::Index>()), 1..200),
        ) {
            let (mut tx, mut rx) = (Tx::new(1000, 1_000_000), Rx::default());
            let mut wire: Vec<(u64, Frame)> = Vec::new();
            for frame in (0..count).map(Frame::Credit) {
                let seq = tx.push(frame.clone());
                tx.left(seq, 0);
                wire.push((seq, frame));
            }
            let mut ready = Vec::new();
            let mut fates = fates.into_iter();
            while !tx.is_quiet() {
                if wire.is_empty() {
                    let now = tx.due().expect("something is on its way or due");
                    wire = tx.take_due(now);
                    prop_assert!(!wire.is_empty());
                    wire.iter().for_each(|(seq, _)| tx.left(*seq, now));
                }
                // Once the fates are used up, the network is perfect.
                let (copies, acks, at) = match fates.next() {
                    Some((copies, acks, index)) => (copies, acks, index.index(wire.len())),
                    None => (1, 1, 0),
                };
                let (seq, frame) = wire.remove(at);
                for _ in 0..copies {
                    rx.take(seq, frame.clone(), &mut ready);
                    prop_assert!(!rx.take(seq, frame.clone(), &mut ready), "taken twice");
                    for _ in 0..acks {
                        tx.acknowledged(rx.next(), seq, 1000);
                    }
                }
            }
            let numbers: Vec<u64> = ready.iter().map(number).collect();
            prop_assert_eq!(numbers, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn patience_grows_with_each_try_up_to_its_limit() {
        let mut tx = Tx::new(1_000, 50_000);
        let seq = tx.push(Frame::Bye);
        tx.left(seq, 0);
        let mut waits = Vec::new();
        for _ in 0..8 {
            let due = tx.due().unwrap();
            assert_eq!(tx.take_due(due).len(), 1);
            tx.left(seq, due);
            waits.push(tx.due().unwrap() - due);
        }
        assert!(waits.is_sorted() && waits[0] > 2_000, "{waits:?}");
        assert_eq!(waits.last(), Some(&50_000));
    }
}

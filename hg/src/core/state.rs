//! The state of a shard that every operation touches, briefly, under its lock.

use std::collections::{HashMap, VecDeque};

use na::Addr;

use crate::base::clock::Origins;
use crate::base::counters::HotCounts;
use crate::core::receives::Receives;
use crate::core::registry::Seen;
use crate::memory::Kept;
use crate::ops::{
    ArgumentsFetch, BulkTransfer, Call, Event, OPS_MAX, OutgoingResponse, Role, Slab, Space, Tags,
};
use crate::{HgError, InHand, OpRef};

/// An operation in flight.
#[derive(Debug)]
pub(crate) enum Op<T> {
    /// A call of ours.
    Call(Call<T>),
    /// A call to ourselves; nothing but its token.
    Local(T),
    /// An answer of ours.
    Response(OutgoingResponse<T>),
    /// A request whose arguments are being fetched.
    Fetch(ArgumentsFetch),
    /// A bulk transfer of ours.
    Transfer(BulkTransfer<T>),
}

/// The state that every operation touches, briefly.
#[derive(Debug)]
pub(crate) struct State<T> {
    pub(crate) ops: Slab<Op<T>>,
    /// Events of operations that ended, or requests that arrived, without the network.
    pub(crate) events: VecDeque<Event<T>>,
    /// Tokens in `ops` and `events`.
    pub(crate) tokens: usize,
    /// Calls that were canceled while they waited for their response, oldest first; may name calls
    /// that are over.
    given_up: VecDeque<OpRef>,
    /// So many of them keep their receives.
    given_up_max: usize,
    /// For calls to no certain shard, and to a certain one.
    tags: [Tags; 2],
    pub(crate) closed: bool,
    /// The receives for requests.
    pub(crate) receives: Receives,
    pub(crate) hot: HotCounts,
    pub(crate) seen: Seen,
    /// By the operation that ends with them.
    pub(crate) watched: HashMap<OpRef, Addr>,
    /// The clocks of origins whose requests come in here.
    pub(crate) origins: Origins,
}

impl<T> State<T> {
    pub(crate) fn new(
        (id, shards): (u8, usize),
        given_up_max: usize,
        space: Space,
        receives: Receives,
    ) -> Self {
        Self {
            ops: Slab::new(id),
            events: VecDeque::new(),
            tokens: 0,
            given_up: VecDeque::new(),
            given_up_max,
            tags: [false, true].map(|targeted| Tags::new(space.width(targeted))),
            closed: false,
            receives,
            hot: HotCounts::default(),
            seen: Seen::of_shard(id, shards),
            watched: HashMap::new(),
            origins: Origins::default(),
        }
    }

    /// The number of a new call, which gives its tag.
    ///
    /// # Errors
    ///
    /// [`HgError::Busy`]: there are as many calls in flight as tags.
    pub(crate) fn number(&mut self, targeted: bool) -> Result<u64, HgError> {
        let Self { tags, ops, .. } = self;
        let number = tags[usize::from(targeted)].next(|| {
            ops.iter().filter_map(|(_, op)| match op {
                Op::Call(call) if call.target.is_some() == targeted => Some(call.number),
                _ => None,
            })
        });
        number.map_err(HgError::Busy)
    }

    /// The numbers that the next calls would have.
    pub(crate) fn next_numbers(&self) -> [u64; 2] {
        [self.tags[0].upcoming(), self.tags[1].upcoming()]
    }

    /// Adds what is in hand here.
    pub(crate) fn add_to(&self, sum: &mut InHand) {
        sum.operations += self.ops.len();
        sum.tokens += self.tokens;
        sum.requests_held += self.receives.held;
        sum.receives_posted += self.receives.posted;
    }

    /// Returns the event that the last step of an operation leads to, if any, and the operation
    /// itself when it is over, to be dropped outside of the lock.
    pub(crate) fn settle(&mut self, op: OpRef) -> (Option<Event<T>>, Option<Op<T>>) {
        let (event, over) = match self.ops.get_mut(op) {
            Some(Op::Call(forward)) => forward.settle(),
            Some(Op::Response(respond)) => respond.settle(),
            Some(Op::Transfer(transfer)) => transfer.settle(),
            Some(Op::Local(_) | Op::Fetch(_)) | None => (None, false),
        };
        (event, if over { self.ops.remove(op) } else { None })
    }

    /// Remembers a canceled call, whose receive stays posted: a late response that overflowed must
    /// be acknowledged, or its sender would keep the result for as long as it lives. Returns the
    /// receives of older ones to cancel: when there are too many, and when `arguments` that stay
    /// exposed for others than this one are more than `max` bytes.
    pub(crate) fn give_up(&mut self, op: OpRef, arguments: &Kept, max: u64) -> Vec<(OpRef, Role)> {
        self.given_up.push_back(op);
        let mut forgotten = Vec::new();
        if self.given_up.len() > self.given_up_max
            && let Some(oldest) = self.given_up.pop_front()
            && let Some(Op::Call(call)) = self.ops.get_mut(oldest)
        {
            call.uncount_arguments();
            forgotten.push((oldest, call.response_role()));
        }
        let mut at = 0;
        while arguments.bytes() > max && at + 1 < self.given_up.len() {
            let older = self.given_up[at];
            let counted = match self.ops.get_mut(older) {
                Some(Op::Call(call)) => call.uncount_arguments().then(|| call.response_role()),
                _ => None,
            };
            match counted {
                Some(role) => {
                    forgotten.push((older, role));
                    self.given_up.remove(at);
                }
                None => at += 1,
            }
        }
        forgotten
    }

    /// Returns whether an operation can be admitted: the core is neither closed nor full.
    #[inline]
    pub(crate) fn may_admit(&self) -> Result<(), HgError> {
        if self.closed {
            return Err(HgError::Closed);
        }
        if self.ops.is_full() { Err(HgError::Busy(OPS_MAX)) } else { Ok(()) }
    }

    /// Admits an operation, unless the core is closed or full; gives it back then.
    pub(crate) fn admit(&mut self, op: Op<T>) -> Result<OpRef, Box<(HgError, Op<T>)>> {
        match self.may_admit() {
            Ok(()) => Ok(self.ops.insert(op)),
            Err(error) => Err(Box::new((error, op))),
        }
    }

    /// Ends a call that waits for its response and for nothing else: what [`settle`](Self::settle)
    /// comes to for nearly all calls, without moving the operation. `None`: it is not such a call.
    #[inline]
    pub(crate) fn end_plain_call(&mut self, op: OpRef) -> Option<T> {
        let Some(Op::Call(call)) = self.ops.get_mut(op) else { return None };
        let token = call.take_plain()?;
        // All that it could own was looked at and is gone.
        self.ops.forget(op);
        self.tokens -= 1;
        Some(token)
    }
}

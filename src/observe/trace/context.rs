//! The traces that calls are part of: ids, and how they go from unit to unit.

use std::cell::RefCell;
use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};

use na::fork::Process;

use hg::TraceParent;

/// Names all calls that belong together, on whatever hosts. 128 random bits, printed as 32 digits
/// of hexadecimal: the `trace-id` of W3C Trace Context.
///
/// ```
/// use margo::trace::{TraceContext, TraceId};
///
/// let id = TraceId::new(0x4bf9).expect("only zero is no id");
/// assert_eq!(id.to_string(), "00000000000000000000000000004bf9");
/// assert_ne!(TraceContext::begin().trace_id, TraceContext::begin().trace_id);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceId(NonZeroU128);

/// Names a call, or the handling of a request, within its trace. 64 random bits, printed as 16
/// digits of hexadecimal: the `parent-id` of W3C Trace Context.
///
/// ```
/// use margo::trace::SpanId;
///
/// let id = SpanId::new(0xf067).expect("only zero is no id");
/// assert_eq!(id.to_string(), "000000000000f067");
/// assert_eq!(id.get(), 0xf067);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(NonZeroU64);

impl TraceId {
    /// From a number other than zero.
    #[must_use]
    pub const fn new(id: u128) -> Option<Self> {
        match NonZeroU128::new(id) {
            Some(id) => Some(Self(id)),
            None => None,
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u128 {
        self.0.get()
    }
}

impl SpanId {
    /// From a number other than zero.
    #[must_use]
    pub const fn new(id: u64) -> Option<Self> {
        match NonZeroU64::new(id) {
            Some(id) => Some(Self(id)),
            None => None,
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// A new one.
    pub(crate) fn random() -> Self {
        loop {
            if let Some(id) = Self::new(random()) {
                return id;
            }
        }
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceId({self})")
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SpanId({self})")
    }
}

/// The trace that the caller is part of, with all that is done on its behalf, and the place in it.
/// Only sampled work has one.
///
/// Printed as the `traceparent` header of W3C Trace Context, in which it goes on to, and comes
/// from, programs that know nothing of margo.
///
/// ```
/// use margo::trace::{self, TraceContext};
///
/// // From a request of a program that knows nothing of margo.
/// let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let context = TraceContext::from_traceparent(header).expect("valid, and sampled");
/// trace::within(Some(context), || {
///     // Calls from here are part of that trace; to pass it on in other ways:
///     assert_eq!(trace::current().expect("it is traced").to_string(), header);
/// });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// All that belongs together.
    pub trace_id: TraceId,
    /// The handling of a request, or whatever else the caller is busy with.
    pub span_id: SpanId,
}

impl TraceContext {
    /// Begins a trace, with random ids. For several calls that shall be one trace: see
    /// [`within`]. A call that is made outside of any trace begins its own.
    #[must_use]
    pub fn begin() -> Self {
        let id = loop {
            let (high, low) = (u128::from(random()), u128::from(random()));
            if let Some(id) = TraceId::new(high << 64 | low) {
                break id;
            }
        };
        Self { trace_id: id, span_id: SpanId::random() }
    }

    /// Reads a `traceparent` header: `00-TRACE_ID-PARENT_ID-FLAGS`, in lower-case hexadecimal.
    /// `None`: it is not valid, or says that this trace is not sampled. Versions to come may have
    /// more behind the flags.
    ///
    /// ```
    /// use margo::trace::TraceContext;
    /// let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    /// let context = TraceContext::from_traceparent(header).expect("valid, and sampled");
    /// assert_eq!(context.trace_id.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
    /// assert_eq!(context.to_string(), header);
    /// ```
    #[must_use]
    pub fn from_traceparent(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let version = hex(parts.next()?, 2)?;
        let trace_id = TraceId::new(hex(parts.next()?, 32)?)?;
        let span_id = SpanId::new(u64::try_from(hex(parts.next()?, 16)?).ok()?)?;
        let is_sampled = hex(parts.next()?, 2)? & 1 == 1;
        let is_known = version < 0xFF && (version > 0 || parts.next().is_none());
        (is_known && is_sampled).then_some(Self { trace_id, span_id })
    }

    /// Returns the same trace at another place.
    pub(crate) fn at(self, span_id: SpanId) -> Self {
        Self { span_id, ..self }
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-01", self.trace_id, self.span_id)
    }
}

fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_digit = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    let is_one = text.len() == digits && text.bytes().all(is_digit);
    is_one.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

/// Returns the trace and the span that a request names.
pub(crate) fn from_wire(parent: TraceParent) -> Option<(TraceId, Option<SpanId>)> {
    let trace_id = TraceId::new(u128::from_be_bytes(parent.trace_id))?;
    Some((trace_id, SpanId::new(u64::from_be_bytes(parent.span_id))))
}

/// Returns the context in the form in which it is sent.
pub(crate) fn to_wire(context: TraceContext) -> TraceParent {
    let (trace_id, span_id) = (context.trace_id.get(), context.span_id.get());
    TraceParent { trace_id: trace_id.to_be_bytes(), span_id: span_id.to_be_bytes() }
}

static CURRENT: ult::integration::Inherited<TraceContext> = ult::integration::Inherited::new();

/// Returns the trace context of the caller: in the handler of a request that is sampled, in what
/// that spawns, over any number of ULTs and tasklets in between, and in [`within`]. `None`
/// elsewhere. For logs that are to be found by their trace:
///
/// ```
/// if let Some(context) = margo::trace::current() {
///     tracing::info!(trace_id = %context.trace_id, "cache miss");
/// }
/// ```
///
/// Callbacks of timers are part of no trace, whatever armed the timer.
///
/// The same for one request, wherever it is dealt with: [`Handle::trace`](crate::Handle::trace).
#[must_use]
pub fn current() -> Option<TraceContext> {
    CURRENT.get()
}

/// Runs `work`, and all that it spawns, as part of the trace that `context` names (`None`: of
/// none). Calls made there belong to it, and are recorded by instances that record.
///
/// ```
/// use margo::trace::{self, TraceContext};
/// // Two calls, one trace. Or `TraceContext::from_traceparent`, to go on with somebody's.
/// let context = TraceContext::begin();
/// trace::within(Some(context), || {
///     assert_eq!(trace::current(), Some(context));
///     // instance.forward(…); instance.forward(…);
/// });
/// assert_eq!(trace::current(), None);
/// ```
pub fn within<R>(context: Option<TraceContext>, work: impl FnOnce() -> R) -> R {
    struct Restore(Option<TraceContext>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.set(self.0);
        }
    }
    let _restore = Restore(CURRENT.get());
    CURRENT.set(context);
    work()
}

/// The caller is a unit that works for the RPC `on_behalf_of` (0: for none) and is part of
/// `context`, whatever its spawner does. Of nothing: costs a nanosecond.
#[inline]
pub(crate) fn begin_unit(on_behalf_of: u64, context: Option<TraceContext>) {
    ult::integration::inherit_nothing(on_behalf_of);
    if context.is_some() {
        CURRENT.set(context);
    }
}

thread_local! {
    /// The generator of ids, with the process that seeded it: a child that was forked off has a
    /// copy, and would repeat its parent's ids.
    static RANDOM: RefCell<Option<(Process, Random)>> = const { RefCell::new(None) };
}

/// xoshiro256++ by Blackman and Vigna: ids have to differ, not to be secret.
struct Random([u64; 4]);

impl Random {
    fn seeded() -> Self {
        let mut seed = [0u8; 32];
        let filled = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty());
        if filled != Ok(seed.len()) {
            // Only early in the boot of a machine.
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            let nanos = now.unwrap_or_default().as_nanos().to_le_bytes();
            seed[..16].copy_from_slice(&nanos);
            seed[16..20].copy_from_slice(&std::process::id().to_le_bytes());
        }
        seed[31] |= 1;
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&seed[at * 8..at * 8 + 8]);
            u64::from_le_bytes(bytes)
        };
        Self([word(0), word(1), word(2), word(3)])
    }

    fn next(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }
}

// Never inlined, so that no address of a thread-local is kept across a switch.
#[inline(never)]
fn random() -> u64 {
    RANDOM.with_borrow_mut(|own| {
        own.take_if(|(process, _)| process.is_other());
        own.get_or_insert_with(|| (Process::current(), Random::seeded())).1.next()
    })
}

/// The share of calls, or of requests, that is sampled: 0 none, 1 all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate(u64);

impl Rate {
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of all numbers; its last digits do not matter"
    )]
    pub(crate) fn new(share: f64) -> Self {
        Self((share.clamp(0.0, 1.0) * u64::MAX as f64) as u64)
    }

    /// Returns whether the next one is among them.
    pub(crate) fn takes(self) -> bool {
        match self.0 {
            0 => false,
            u64::MAX => true,
            share => random() < share,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_printed_and_sent_in_the_same_order() {
        let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = TraceContext::from_traceparent(header).unwrap();
        let wire = to_wire(context);
        assert_eq!((wire.trace_id[0], wire.trace_id[15]), (0x4b, 0x36));
        assert_eq!((wire.span_id[0], wire.span_id[7]), (0, 0xb7));
        assert_eq!(from_wire(wire), Some((context.trace_id, Some(context.span_id))));
        let unknown = TraceParent { span_id: [0; 8], ..wire };
        assert_eq!(from_wire(unknown), Some((context.trace_id, None)));
        assert_eq!(from_wire(TraceParent { trace_id: [0; 16], ..wire }), None);
    }

    #[test]
    fn what_is_no_traceparent_is_not_taken_for_one() {
        let is_one = |text| TraceContext::from_traceparent(text).is_some();
        assert!(is_one(" 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 "));
        assert!(is_one("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-09-more"));
        for text in [
            "",
            "-",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e47360-00f067aa0ba902b7-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e47\u{e9}-00f067aa0ba902b7-01",
        ] {
            assert!(!is_one(text), "{text:?}");
        }
    }

    #[test]
    fn ids_differ_between_calls_and_threads() {
        let draw = || (0..1000).map(|_| TraceContext::begin()).collect::<Vec<_>>();
        let other = std::thread::spawn(draw).join().unwrap();
        let all: Vec<_> = draw().into_iter().chain(other).collect();
        let ids: std::collections::HashSet<_> = all.iter().map(|one| one.trace_id).collect();
        let spans: std::collections::HashSet<_> = all.iter().map(|one| one.span_id).collect();
        assert_eq!((ids.len(), spans.len()), (2000, 2000));
    }

    #[test]
    fn a_rate_takes_its_share() {
        let taken = |share| (0..10_000).filter(|_| Rate::new(share).takes()).count();
        assert_eq!((taken(0.0), taken(-1.0), taken(f64::NAN)), (0, 0, 0));
        assert_eq!((taken(1.0), taken(2.0)), (10_000, 10_000));
        // Off by more than ten standard deviations happens once in the age of the universe.
        assert!((2_000..3_000).contains(&taken(0.25)), "{}", taken(0.25));
    }

    #[test]
    fn what_is_within_ends_with_it_also_by_a_panic() {
        let (outer, inner) = (TraceContext::begin(), TraceContext::begin());
        within(Some(outer), || {
            let panic = std::panic::catch_unwind(|| within(Some(inner), || panic!("on purpose")));
            assert!(panic.is_err());
            assert_eq!(current(), Some(outer));
            within(None, || assert_eq!(current(), None));
            assert_eq!(current(), Some(outer));
        });
        assert_eq!(current(), None);
    }
}

//! The handle of a network: opening nodes, moving the clock, causing trouble.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Weak;
use std::time::Duration;

use super::wire::{Call, Event, EventKey};
use super::world::{Step, World};
use crate::base::address::{DEFAULT_NETWORK, check_name};
use crate::base::options::{LinkOptions, Nanos, Settings, nanos};
use crate::base::trace::Trace;
use na_core::{Error, Principal};
use prim::sync::{Arc, Mutex, lock};

/// The networks of this process.
static NETWORKS: Mutex<BTreeMap<String, Weak<Shared>>> = Mutex::new(BTreeMap::new());

struct Shared {
    name: std::sync::Arc<str>,
    seed: u64,
    world: Mutex<World>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        lock(&NETWORKS).retain(|_, network| network.strong_count() > 0);
    }
}

/// A simulated network of this process. Cheap to clone; it exists for as long as a clone or one of
/// its endpoints does.
///
/// See the [crate] for what it does and does not promise.
///
/// ```
/// use std::time::Duration;
///
/// use na_core::{OpId, OpenOptions, Tag};
/// use na_sim::{Drive, Network};
///
/// let network = Network::builder("doc-network").drive(Drive::Manual).build()?;
/// let a = network.open("a", &OpenOptions::listening(true))?;
/// let _b = network.open("b", &OpenOptions::listening(true))?;
/// network.partition("a", "b");
/// network.schedule(Duration::from_millis(5), |network| network.heal());
///
/// a.send_unexpected(OpId(1), &a.lookup("na+sim://doc-network/b")?, Tag(0), a.alloc_msg())?;
/// let mut sent = 0;
/// while sent == 0 && network.step() {
///     sent += a.poll(16, &mut drop)?;
/// }
/// assert!(sent == 1 && network.now() > Duration::from_millis(5));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Network(Arc<Shared>);

/// A call that was [scheduled](Network::schedule).
///
/// ```
/// use std::time::Duration;
///
/// use na_sim::{Drive, Network, TimerId};
///
/// let network = Network::builder("doc-timer").drive(Drive::Manual).build()?;
/// let timer: TimerId = network.schedule(Duration::from_secs(1), |_| panic!("it was taken back"));
/// assert!(network.unschedule(timer));
/// assert!(!network.step(), "nothing is left");
/// # Ok::<(), na_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TimerId(EventKey);

impl Network {
    /// Returns the network of that name, which is made with default settings if there is none. An
    /// empty name is the network `default`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a name that cannot be used.
    pub fn named(name: &str) -> Result<Self, Error> {
        check_name("network", name).map_err(Error::InvalidArgument)?;
        let name = if name.is_empty() { DEFAULT_NETWORK } else { name };
        let mut networks = lock(&NETWORKS);
        if let Some(existing) = networks.get(name).and_then(Weak::upgrade) {
            return Ok(Self(existing));
        }
        let network = Self::new(name, Settings::default());
        networks.insert(name.to_owned(), Arc::downgrade(&network.0));
        Ok(network)
    }

    /// A new network, under a name that none has.
    pub(crate) fn register(name: &str, settings: Settings) -> Result<Self, Error> {
        // Dropped after the lock.
        let existing;
        let mut networks = lock(&NETWORKS);
        existing = networks.get(name).and_then(Weak::upgrade);
        if existing.is_some() {
            let error = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
            return Err(Error::io(format!("cannot make the network `{name}`: it exists"), error));
        }
        let network = Self::new(name, settings);
        networks.insert(name.to_owned(), Arc::downgrade(&network.0));
        drop(networks);
        Ok(network)
    }

    fn new(name: &str, settings: Settings) -> Self {
        let name: std::sync::Arc<str> = name.into();
        let world = Mutex::new(World::new(name.clone(), settings));
        Self(Arc::new(Shared { name, seed: settings.seed, world }))
    }

    /// Returns the name of the network.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the seed of the network.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    // ---- time ----

    /// Returns the virtual time since the network was made.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.with(|world| world.wire.now))
    }

    /// Returns the time of the next event, if there is one.
    pub fn next_event_at(&self) -> Option<Duration> {
        self.with(|world| world.wire.next_at()).map(Duration::from_nanos)
    }

    /// Moves the clock to the next event and makes it happen. Returns `false` if no event is left.
    pub fn step(&self) -> bool {
        self.step_until(Nanos::MAX)
    }

    /// Makes all events happen up to the time `at`, and sets the clock to `at` (never back).
    pub fn run_until(&self, at: Duration) {
        let at = nanos(at);
        while self.step_until(at) {}
        self.with(|world| world.wire.now = world.wire.now.max(at));
    }

    /// Does the same as [`run_until`](Self::run_until), for a time from now on.
    pub fn run_for(&self, duration: Duration) {
        self.run_until(self.now().saturating_add(duration));
    }

    /// Makes events happen until none is left, but at most `events`. Returns their number.
    pub fn run_until_idle(&self, events: u64) -> u64 {
        (0..events).take_while(|_| self.step()).count() as u64
    }

    fn step_until(&self, until: Nanos) -> bool {
        match self.with(|world| world.step(until)) {
            Step::Idle => false,
            Step::Done => true,
            Step::Call(call) => {
                self.run_call(call);
                true
            }
        }
    }

    /// Runs a call that a step has given out. What is scheduled for later waits until it has ended,
    /// so that calls take effect in their order also where several threads poll.
    pub(crate) fn run_call(&self, call: Call) {
        let _calling = Calling(self);
        call(self);
    }

    /// Calls `call` at the virtual time `at`, or as soon as possible if that has passed. This is
    /// how the layers above get timers in virtual time, and how a test causes trouble at a chosen
    /// moment.
    ///
    /// It runs on the thread that moves the clock, without any lock of the network, and nothing
    /// else happens there until it has ended; under
    /// [`Drive::OnPoll`](crate::Drive) that is inside somebody's poll, so it must not poll. It
    /// gets the network as an argument: a clone inside would keep the network alive until it runs.
    pub fn schedule(&self, at: Duration, call: impl FnOnce(&Network) + Send + 'static) -> TimerId {
        let event = Event::Call(Box::new(call));
        TimerId(self.with(|world| world.wire.push(nanos(at), event)))
    }

    /// Takes a scheduled call back. Returns `false` if it has run, or is running.
    pub fn unschedule(&self, timer: TimerId) -> bool {
        // The call is dropped outside of the lock.
        self.with(|world| world.wire.remove(timer.0)).is_some()
    }

    // ---- trouble ----

    /// Changes the link from one node to another, for packets that leave from now on. Nodes are
    /// named here and below whether or not they run.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a setting that is out of range.
    pub fn set_link(&self, from: &str, to: &str, link: LinkOptions) -> Result<(), Error> {
        link.check()?;
        self.with(|world| {
            let (from, to) = (world.wire.host(from), world.wire.host(to));
            world.wire.set_link(from, to, link);
        });
        Ok(())
    }

    /// Drops packets between `a` and `b` from now on, also packets under way.
    pub fn partition(&self, a: &str, b: &str) {
        self.partition_one_way(a, b);
        self.partition_one_way(b, a);
    }

    /// Drops packets from `from` to `to` from now on, also packets under way.
    pub fn partition_one_way(&self, from: &str, to: &str) {
        self.cut(from, to, true);
    }

    /// Cuts `node` off from all nodes that were ever opened or named.
    pub fn isolate(&self, node: &str) {
        self.with(|world| {
            let wire = &mut world.wire;
            let node = wire.host(node);
            for other in (0..wire.hosts.len()).filter(|other| *other != node) {
                wire.cut(node, other, true);
                wire.cut(other, node, true);
            }
        });
    }

    /// Ends the partition between `a` and `b`.
    pub fn heal_between(&self, a: &str, b: &str) {
        self.cut(a, b, false);
        self.cut(b, a, false);
    }

    /// Ends all partitions.
    pub fn heal(&self) {
        self.with(|world| world.wire.heal());
    }

    fn cut(&self, from: &str, to: &str, cut: bool) {
        self.with(|world| {
            let (from, to) = (world.wire.host(from), world.wire.host(to));
            world.wire.cut(from, to, cut);
        });
    }

    /// Makes a node slow (or fast again): each packet, in or out, takes `cost` of its time.
    pub fn set_operation_cost(&self, node: &str, cost: Duration) {
        self.with(|world| {
            let host = world.wire.host(node);
            world.wire.note(host, format!("takes {cost:?} per packet from now on"));
            world.wire.hosts[host].cost = nanos(cost);
        });
    }

    /// Has peers of `node` be told that `principal` is behind it
    /// ([`Endpoint::principal`](na_core::Endpoint::principal)), also after a restart. Nobody is
    /// until then: a node cannot say it of itself.
    ///
    /// ```
    /// use na_core::{OpenOptions, PeerName, Principal};
    /// use na_sim::Network;
    ///
    /// let network = Network::builder("doc-principal").build()?;
    /// let name = Principal::Name(PeerName::new("node7.storage.example"));
    /// network.set_principal("b", name);
    /// let [a, b] = ["a", "b"].map(|node| network.open(node, &OpenOptions::listening(true)));
    /// let a = a?;
    /// assert_eq!(a.principal(&a.lookup(b?.self_addr().uri())?), name);
    /// # Ok::<(), na_core::Error>(())
    /// ```
    pub fn set_principal(&self, node: &str, principal: Principal) {
        self.with(|world| {
            let host = world.wire.host(node);
            world.wire.note(host, format!("is {principal} from now on"));
            world.wire.hosts[host].principal = principal;
        });
    }

    /// Kills the process of `node`. The packets that it has put on the wire still arrive; the
    /// machine tells the peers, as an operating system does, as soon as it can reach them. The
    /// operations of the dead endpoint end with [`Error::Closed`], and one poll of it fails.
    pub fn crash(&self, node: &str) {
        self.with(|world| {
            let host = world.wire.host(node);
            world.crash(host, true);
        });
    }

    /// Turns off the machine of `node`. It is like [`crash`](Self::crash), but nobody tells the
    /// peers, and packets to the machine vanish until a node of that name is opened again.
    pub fn power_off(&self, node: &str) {
        self.with(|world| {
            let host = world.wire.host(node);
            world.crash(host, false);
        });
    }

    // ---- looking ----

    /// Returns a copy of the trace so far.
    pub fn trace(&self) -> Trace {
        self.with(|world| world.wire.trace.clone())
    }

    /// Returns a guard: while it lives, a panic of its thread prints the seed, the time and the
    /// last `lines` of the trace.
    #[must_use]
    pub fn trace_on_panic(&self, lines: usize) -> TraceOnPanic {
        TraceOnPanic { network: self.clone(), lines }
    }

    /// Runs `work` under the lock, and afterwards what must not run under it.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut World) -> R) -> R {
        let mut world = lock(&self.0.world);
        let result = work(&mut world);
        world.wake_sleepers();
        let trash = std::mem::take(&mut world.wire.trash);
        drop(world);
        // Gives memory back to its owners, by their own code.
        drop(trash);
        result
    }
}

/// A scheduled call that runs, also until it has panicked.
struct Calling<'a>(&'a Network);

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.0.with(|world| world.is_calling = false);
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Network({}, seed {})", self.name(), self.seed())
    }
}

/// See [`Network::trace_on_panic`].
///
/// ```
/// use na_core::OpenOptions;
/// use na_sim::{Network, TraceOnPanic};
///
/// let network = Network::builder("doc-panic").seed(7).build()?;
/// let _guard: TraceOnPanic = network.trace_on_panic(100);
/// // If this failed, the end of the trace would be printed, and the seed.
/// assert!(network.open("a", &OpenOptions::listening(true)).is_ok());
/// # Ok::<(), na_core::Error>(())
/// ```
#[derive(Debug)]
pub struct TraceOnPanic {
    network: Network,
    lines: usize,
}

impl Drop for TraceOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { network, lines } = self;
            eprintln!(
                "network `{}` with seed {}, at {:?}; the end of its trace:\n{}",
                network.name(),
                network.seed(),
                network.now(),
                network.trace().tail(*lines)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::base::options::Drive;

    #[test]
    fn a_call_that_takes_its_time_is_not_overtaken() {
        let network =
            Network::builder("calls-in-order").drive(Drive::Manual).build().expect("a name");
        let (begun, has_begun) = mpsc::channel();
        let (end, may_end) = mpsc::channel::<()>();
        let (note, notes) = mpsc::channel();
        let first = note.clone();
        network.schedule(Duration::from_micros(1), move |_| {
            let _ = begun.send(());
            let _ = may_end.recv();
            let _ = first.send("first");
        });
        network.schedule(Duration::from_micros(2), move |_| {
            let _ = note.send("second");
        });
        let other = network.clone();
        let stepping = std::thread::spawn(move || other.run_until_idle(10));
        assert!(has_begun.recv().is_ok());
        // As another thread that polls does meanwhile.
        assert_eq!(network.run_until_idle(10), 0);
        drop(end);
        assert!(stepping.join().is_ok_and(|steps| steps == 2));
        assert_eq!(notes.iter().collect::<Vec<_>>(), ["first", "second"]);
    }
}

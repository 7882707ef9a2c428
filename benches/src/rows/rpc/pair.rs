//! An origin in the row process and a target in a peer: two instances of margo, one core each.
//!
//! Each process is pinned before its instance starts, so that all its threads are on its core.

use margo::{Instance, ProviderHandle};
use serde::Serialize;
use serde_json::json;

use crate::base::{Deadline, Doing, Failure, Result};
use crate::floors::tls;
use crate::floors::transport::Transport;
use crate::process::{ChildProcess, Context, child};

/// The result of a handler, as it travels.
pub(crate) type Told = Result<(), String>;

/// How an instance waits for the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitPolicy {
    /// It spins for as long as the row takes.
    Poll,
    /// The default settings of margo.
    Default,
}

/// The settings that both instances of a row are started with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    /// The transport between the two.
    pub(crate) transport: Transport,
    /// How they wait.
    pub(crate) patience: WaitPolicy,
}

impl Settings {
    fn instance(self, listen: bool) -> Result<Instance> {
        let address = self.transport.uri();
        let mut document = json!({"margo": {"address": address, "listen": listen}});
        // Of memory that can be lent, which one row alone has.
        document["margo"]["device"] = json!({"share": true});
        if self.transport == Transport::Private {
            let secret = tls::secret_file()?;
            let tcp = json!({"mode": "cluster_secret", "secret": secret});
            document["margo"]["security"] = json!({"tcp": tcp});
        }
        if self.patience == WaitPolicy::Poll {
            document["mercury"] = json!({"na_no_block": true});
        }
        margo::init(&document.to_string()).doing("starting margo")
    }
}

/// The target's side, in the peer: starts, lets `register` add RPCs, tells its address, serves
/// until the origin's process asks for the end, lets `report` tell what it has measured, stops.
///
/// # Errors
///
/// When margo does not start or stop, and those of `register` and `report`.
pub(crate) fn serve(
    settings: Settings,
    register: impl FnOnce(&Instance) -> Result<()>,
    report: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let instance = settings.instance(true)?;
    register(&instance)?;
    child::send(&instance.self_addr().uri())?;
    child::wait_for_finish()?;
    report()?;
    instance.finalize_and_wait().doing("stopping margo")
}

/// The origin's side.
#[derive(Debug)]
pub(crate) struct Pair {
    /// The origin.
    pub(crate) instance: Instance,
    /// The target's default provider.
    pub(crate) target: ProviderHandle,
    /// The target's process.
    pub(crate) peer: ChildProcess,
}

impl Pair {
    /// Starts the peer, which calls [`serve`], with `order`; runs `meet` while the peer starts;
    /// then starts the origin.
    ///
    /// # Errors
    ///
    /// When one of the two does not start in time.
    pub(crate) fn start<T>(
        context: &Context,
        settings: Settings,
        order: impl Serialize,
        meet: impl FnOnce() -> Result<T>,
    ) -> Result<(Self, T)> {
        Self::start_as(false, context, settings, order, meet)
    }

    /// As [`start`](Self::start), with an origin that can be called.
    ///
    /// # Errors
    ///
    /// As there.
    pub(crate) fn start_listening<T>(
        context: &Context,
        settings: Settings,
        order: impl Serialize,
        meet: impl FnOnce() -> Result<T>,
    ) -> Result<(Self, T)> {
        Self::start_as(true, context, settings, order, meet)
    }

    fn start_as<T>(
        listen: bool,
        context: &Context,
        settings: Settings,
        order: impl Serialize,
        meet: impl FnOnce() -> Result<T>,
    ) -> Result<(Self, T)> {
        let mut peer = context.start_peer(order)?;
        let met = meet()?;
        let uri: String = peer.receive("the target's address")?;
        let instance = settings.instance(listen)?;
        let target = instance.lookup(&uri).doing("looking the target up")?.into();
        Ok((Self { instance, target, peer }, met))
    }

    /// Stops both. Only after all went well: otherwise the processes just end.
    ///
    /// # Errors
    ///
    /// When one of them does not stop well.
    pub(crate) fn stop(self, deadline: Deadline) -> Result<()> {
        self.peer.finish()?;
        // In a thread of its own, so that it has a deadline.
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || drop(sender.send(self.instance.finalize_and_wait())));
        let result = receiver.recv_timeout(deadline.left());
        result.map_err(|_| deadline.late("the end of margo"))?.doing("stopping margo")
    }
}

/// The origin has the target's handler of `floor` take part in `meet`: the call is under way for as
/// long as that takes, and both xstreams do nothing else. On a ULT.
///
/// # Errors
///
/// Those of `meet` and of the handler.
pub(crate) fn during_call(
    instance: &Instance,
    target: &ProviderHandle,
    floor: margo::Rpc<(), Told>,
    meet: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let (origin, to) = (instance.clone(), target.clone());
    let call = instance.layout().rpc_pool().spawn(move || origin.forward(floor, &to, &()))?;
    meet()?;
    call.join()??.map_err(Failure::new)
}

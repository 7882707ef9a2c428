//! A server, and what its handlers do.

use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use margo::{Bulk, Handle, Instance, Provider, ProviderId, Rpc};
use serde::{Deserialize, Serialize};

use super::layout::Layout;
use crate::base::{Doing, OrFail, Result};
use crate::floors::transport::Transport;
use crate::process::child::{send, wait_for_finish};

/// A call without arguments and results.
pub(crate) const CALL: Rpc<(), ()> = Rpc::new("scale_call");
/// Has the server pull the argument's memory.
pub(crate) const PULL: Rpc<Bulk, Result<(), String>> = Rpc::new("scale_pull");
/// Bytes that each [`PULL`] moves.
pub(crate) const BYTES: usize = 1 << 20;

/// The time that a handler of [`Work::Burn`] computes.
const WORK_TIME: Duration = Duration::from_micros(2);

/// The work of a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Work {
    /// None.
    Null,
    /// It computes for 2 us.
    Burn,
    /// It pulls 1 MiB of plain memory of the client's into plain memory.
    Bulk,
}

impl Work {
    pub(crate) const ALL: [Self; 3] = [Self::Null, Self::Burn, Self::Bulk];

    /// The word in ids.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Burn => "burn2us",
            Self::Bulk => "push-plain",
        }
    }

    /// Calls that a client has in flight.
    pub(crate) fn in_flight(self) -> usize {
        if self == Self::Bulk { 2 } else { 32 }
    }
}

/// The software that is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Stack {
    /// Margo, in a layout.
    Margo(Layout),
    /// `tarpc`.
    #[cfg(feature = "peers")]
    Tarpc,
    /// `tonic`.
    #[cfg(feature = "peers")]
    Tonic,
}

impl Stack {
    /// The word in ids.
    pub(crate) fn word(self) -> String {
        match self {
            Self::Margo(layout) => format!("margo-{}", layout.word()),
            #[cfg(feature = "peers")]
            Self::Tarpc => "tarpc".into(),
            #[cfg(feature = "peers")]
            Self::Tonic => "tonic".into(),
        }
    }
}

/// The calls of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Calls {
    pub(crate) stack: Stack,
    pub(crate) over: Transport,
    pub(crate) work: Work,
}

/// A place where calls of a client go.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) uri: String,
    pub(crate) provider: u16,
    pub(crate) shard: Option<u8>,
}

/// A running server.
pub(crate) struct Server {
    pub(crate) instances: Vec<Instance>,
    pub(crate) places: Vec<Place>,
    _providers: Vec<Provider>,
}

impl Server {
    /// Starts one with an xstream on each of `cores`.
    ///
    /// # Errors
    ///
    /// When margo does not start.
    pub(crate) fn start(layout: Layout, calls: Calls, cores: &[usize]) -> Result<Self> {
        let service = layout.service(calls.over.uri(), cores);
        let start = |document: &serde_json::Value| margo::init(&document.to_string());
        let instances: Result<Vec<_>, _> = service.documents.iter().map(start).collect();
        let instances = instances.doing("starting margo")?;
        let (mut places, mut providers) = (Vec::new(), Vec::new());
        for (at, entry) in service.entries.iter().enumerate() {
            let instance = &instances[entry.instance];
            let id = at as u16 + 1;
            let pool = instance.runtime().pool(&entry.pool).or_fail("a pool is missing")?;
            let provider = instance.provider(ProviderId::new(id), &pool);
            register(&provider, calls.work)?;
            providers.push(provider);
            let uri = instance.self_addr().uri().to_owned();
            places.push(Place { uri, provider: id, shard: entry.shard });
        }
        Ok(Self { instances, places, _providers: providers })
    }

    /// Tells where it is, and serves until the parent asks for the end.
    ///
    /// # Errors
    ///
    /// When the parent is gone, or margo does not stop.
    pub(crate) fn serve(self) -> Result<()> {
        send(&self.places)?;
        wait_for_finish()?;
        self.stop()
    }

    /// Stops it.
    ///
    /// # Errors
    ///
    /// When margo does not stop.
    pub(crate) fn stop(self) -> Result<()> {
        let stop = |instance: Instance| instance.finalize_and_wait().doing("stopping margo");
        self.instances.into_iter().try_for_each(stop)
    }
}

fn register(provider: &Provider, work: Work) -> Result<()> {
    let registered = match work {
        Work::Null => provider.serve(CALL).function(|()| ()),
        Work::Burn => provider.serve(CALL).function(|()| burn()),
        Work::Bulk => {
            let spare = Mutex::new(Vec::new());
            provider.register(PULL, move |request: Handle<Bulk, Result<(), String>>| {
                let taken = spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
                let pulled = (|| {
                    let fresh = || request.instance().memory().bulk_buffer(BYTES).doing("a buffer");
                    let mut buffer = taken.map_or_else(fresh, Ok)?;
                    let pulled = request.pull(request.args(), 0, &mut buffer, 0..BYTES);
                    spare.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
                    pulled.doing("pulling")
                })();
                // A client that is gone needs no answer.
                let _ = request.respond(&pulled.map_err(|failure| failure.to_string()));
            })
        }
    };
    registered.doing("registering")
}

/// Computes for 2 us.
pub(crate) fn burn() {
    let begun = Instant::now();
    while black_box(begun.elapsed()) < WORK_TIME {}
}

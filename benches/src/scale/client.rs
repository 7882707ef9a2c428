//! Clients: in processes of their own, or beside the server on its xstreams.

use std::sync::Arc;
use std::time::Duration;

use margo::{Access, Instance, InstanceBuilder, ProviderHandle, ProviderId, config::Config};
use serde_json::json;
use ult::JoinHandle;

use super::layout::SPIN_MSEC;
use super::meter::{Measured, Meter};
use super::server::{BYTES, CALL, Calls, PULL, Place, Server, Work};
use crate::base::{Deadline, Doing, Failure, OrFail, Result, ensure};
use crate::process::child::{send, wait_for_word};
use crate::rows::ult::on_ult::{join_each, on_ult};

/// An instance that calls a place.
struct Client {
    instance: Instance,
    target: ProviderHandle,
}

impl Client {
    fn new(instance: Instance, place: &Place) -> Result<Self> {
        let target = instance.lookup(&place.uri).doing("looking the server up")?;
        let target = ProviderHandle::new(target, ProviderId::new(place.provider));
        let target = match place.shard {
            Some(shard) => target.in_shard(shard),
            None => target,
        };
        Ok(Self { instance, target })
    }

    /// Starts its callers.
    fn callers(&self, work: Work, meter: &Arc<Meter>) -> Result<Vec<JoinHandle<Result<()>>>> {
        let pool = self.instance.layout().rpc_pool();
        let start = |number| {
            let (instance, target) = (self.instance.clone(), self.target.clone());
            let meter = meter.clone();
            pool.spawn(move || {
                if work != Work::Bulk {
                    return meter.run(|| instance.forward(CALL, &target, &()).doing("calling"));
                }
                let exposed = instance.expose(vec![number as u8; BYTES], Access::ReadOnly)?;
                meter.run(|| {
                    let pulled = instance.forward(PULL, &target, exposed.bulk());
                    pulled.doing("calling")?.map_err(Failure::new)
                })?;
                drop(exposed.release()?);
                Ok(())
            })
        };
        Ok((0..work.in_flight()).map(start).collect::<Result<_, _>>()?)
    }
}

/// A client in a process of its own, which is pinned to its core.
///
/// # Errors
///
/// When margo does not start, or a call fails.
pub(crate) fn apart(
    place: &Place,
    calls: Calls,
    window: Duration,
    deadline: Deadline,
) -> Result<()> {
    let margo = json!({ "address": calls.over.uri(), "listen": false });
    let document = json!({ "margo": margo, "progress_spindown_msec": SPIN_MSEC });
    let instance = margo::init(&document.to_string()).doing("starting margo")?;
    let client = [Client::new(instance, place)?];
    measure(&client, calls.work, window, deadline)?;
    let [client] = client;
    client.instance.finalize_and_wait().doing("stopping margo")
}

/// A client on each xstream of a server in this process, as instances that share its xstreams.
///
/// # Errors
///
/// As [`apart`].
pub(crate) fn beside(
    server: Server,
    calls: Calls,
    window: Duration,
    deadline: Deadline,
) -> Result<()> {
    let mut clients = Vec::new();
    for instance in &server.instances {
        for xstream in instance.runtime().xstreams() {
            let pools = xstream.pools();
            let Some(pool) = pools.first().filter(|_| xstream.name().starts_with("xstream")) else {
                continue;
            };
            let mut config = Config::default();
            config.margo.address = calls.over.uri().to_owned();
            config.margo.listen = false;
            config.progress_spindown_msec = SPIN_MSEC;
            config.progress_pool = Some(pool.as_str().into());
            config.rpc_pool = Some(pool.as_str().into());
            let child = InstanceBuilder::from_config(config).parent(instance).start();
            let place = server.places.get(clients.len() % server.places.len());
            let place = place.or_fail("a server without a place")?;
            clients.push(Client::new(child.doing("starting a client")?, place)?);
        }
    }
    measure(&clients, calls.work, window, deadline)?;
    server.stop()
}

/// Tells the parent that the clients are ready, has them call when it says so, and tells it what
/// each of them has measured.
fn measure(clients: &[Client], work: Work, window: Duration, deadline: Deadline) -> Result<()> {
    ensure!(!clients.is_empty(), "no client");
    let every = if work == Work::Bulk { 1 } else { 8 };
    let meters: Vec<_> = clients.iter().map(|_| Arc::new(Meter::new(every))).collect();
    send(&())?;
    wait_for_word()?;
    let mut callers = Vec::new();
    for (client, meter) in clients.iter().zip(&meters) {
        callers.extend(client.callers(work, meter)?);
    }
    let measured: Vec<Measured> = std::thread::scope(|scope| {
        let watch = |meter: &Arc<Meter>| {
            let meter = meter.clone();
            scope.spawn(move || meter.watch(window))
        };
        let watches: Vec<_> = meters.iter().map(watch).collect();
        let result = |watch: std::thread::ScopedJoinHandle<'_, _>| {
            watch.join().map_err(|_| Failure::new("the clock panicked"))
        };
        watches.into_iter().map(result).collect::<Result<_>>()
    })?;
    on_ult(&clients[0].instance.layout().rpc_pool(), deadline, move || join_each(callers))?;
    send(&measured)
}

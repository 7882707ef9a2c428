//! Memory of devices between two processes: what moves, and either side killed or stopped while it
//! does.

use std::time::Duration;

use device::fake::Fake;
use margo::{Access, Bulk, BulkError, Instance, ProviderHandle, Rpc, device};

use super::staged::{assert_clean, buffers, bytes_of, pattern, until};
use crate::common::process::{self, Service, say};
use crate::common::{all_asked_for, builder};

const ROLE: &str = "MARGO_TEST_STAGED";

/// Memory of the device of the other process.
const LEND: Rpc<(), Bulk> = Rpc::new("lend");

/// Lets its device stand still, or go on.
const HOLD: Rpc<bool, ()> = Rpc::new("hold");

/// Buffers of the other process that are free, all, and its copies that are not over.
const STATE: Rpc<(), (u64, u64, u64)> = Rpc::new("state");

const BYTES: usize = (3 << 20) + 5;

/// Not a test of its own: the other process of the tests below, which run this program again.
#[test]
fn service_process() {
    let Some(asked) = process::asked(ROLE) else { return };
    let (role, transport) = asked.split_once(' ').unwrap();
    match role {
        "owner" => own(transport),
        _ => pull_for_ever(role, transport),
    }
}

fn own(transport: &str) {
    let fake = Fake::new(1, 11);
    let gpu = fake.driver().unwrap().device(0).unwrap();
    let memory = gpu.alloc(BYTES).unwrap();
    memory.write_at(0, &pattern(BYTES, 1)).unwrap();
    let service = builder(transport).start().unwrap();
    let exposed = service.expose(memory, Access::ReadWrite).unwrap();
    let bulk = exposed.bulk().clone();
    service.serve(LEND).returning(move |_| bulk.clone()).unwrap();
    let own = fake.clone();
    service.serve(HOLD).returning(move |request| own.hold(*request.args())).unwrap();
    let state = move |request: &margo::Handle<(), (u64, u64, u64)>| {
        let (free, all) = buffers(request.instance());
        (free as u64, all as u64, fake.pending() as u64)
    };
    service.serve(STATE).returning(state).unwrap();
    say(&format!("listening on {}", service.self_addr()));
    service.wait_for_finalize().unwrap();
}

/// Pulls all the time, into memory of the host.
fn pull_for_ever(owner: &str, transport: &str) {
    let class = transport.split("://").next().unwrap();
    let client = builder(format!("{class}://")).listen(false).start().unwrap();
    let owner = client.lookup(owner).unwrap();
    let target = ProviderHandle::from(owner.clone());
    let bulk = client.forward(LEND, &target, &()).unwrap();
    let mut buffer = client.memory().bulk_buffer(BYTES).unwrap();
    say("begins");
    loop {
        client.pull(&owner, &bulk, 0, &mut buffer, 0..BYTES).unwrap();
    }
}

fn start_owner(transport: &str) -> Service {
    Service::start_with(module_path!(), ROLE, &format!("owner {transport}"))
}

struct Client {
    instance: Instance,
    target: ProviderHandle,
    bulk: Bulk,
}

impl Client {
    fn of(owner: &Service, transport: &str) -> Self {
        let class = transport.split("://").next().unwrap();
        let instance = builder(format!("{class}://")).listen(false).start().unwrap();
        let target = ProviderHandle::from(instance.lookup(&owner.address).unwrap());
        let bulk = instance.forward(LEND, &target, &()).unwrap();
        Self { instance, target, bulk }
    }

    fn state(&self) -> (u64, u64, u64) {
        self.instance.forward(STATE, &self.target, &()).unwrap()
    }

    fn hold(&self, held: bool) {
        self.instance.forward(HOLD, &self.target, &held).unwrap();
    }

    fn pull(&self) -> Result<Vec<u8>, BulkError> {
        let mut buffer = self.instance.memory().bulk_buffer(BYTES)?;
        let owner = self.target.addr();
        self.instance.pull(owner, &self.bulk, 0, &mut buffer, 0..BYTES)?;
        Ok(buffer.to_vec())
    }

    fn assert_all_buffers_are_back(&self) {
        until("the return of buffers", || {
            let (free, all, pending) = self.state();
            (free, pending) == (all, 0)
        });
    }
}

#[test]
fn bytes_move_between_the_devices_of_two_processes() {
    for transport in all_asked_for() {
        let owner = start_owner(transport);
        let client = Client::of(&owner, transport);
        assert!(client.pull().unwrap() == pattern(BYTES, 1));
        let fake = Fake::new(1, 12);
        let memory = fake.driver().unwrap().device(0).unwrap().alloc(BYTES).unwrap();
        let mut local = client.instance.expose(memory.clone(), Access::ReadOnly).unwrap();
        let to = client.target.addr();
        client.instance.pull(to, &client.bulk, 0, &mut local, 0..BYTES).unwrap();
        assert!(bytes_of(&memory) == pattern(BYTES, 1));
        memory.write_at(0, &pattern(BYTES, 2)).unwrap();
        client.instance.push(to, &client.bulk, 0, &mut local, 0..BYTES).unwrap();
        assert!(client.pull().unwrap() == pattern(BYTES, 2));
        client.assert_all_buffers_are_back();
        drop((local, memory));
        client.instance.finalize_and_wait().unwrap();
        drop(client);
        assert_clean(&fake);
    }
}

#[test]
fn an_owner_that_is_killed_ends_the_transfer() {
    for transport in all_asked_for() {
        // Before, while its device copies, and in the midst of many.
        for phase in 0..3 {
            let mut owner = start_owner(transport);
            let client = Client::of(&owner, transport);
            if phase == 0 {
                owner.kill();
            }
            if phase == 1 {
                client.hold(true);
            }
            let buffer = client.instance.memory().bulk_buffer(BYTES).unwrap();
            let to = client.target.addr().clone();
            // Over fabrics nobody may be told that a peer is gone.
            let limit = if transport.starts_with("na+") { 600 } else { 5 };
            let transfer = client.instance.bulk(&to, &client.bulk);
            let transfer = transfer.timeout(Duration::from_secs(limit));
            let request = transfer.start_pull(0, buffer, 0..BYTES);
            if phase == 1 {
                until("a copy of the owner", || client.state().2 > 0);
            }
            owner.kill();
            let (result, _buffer) = request.wait();
            // The last may be over before.
            assert!(result.is_err() || phase == 2, "{transport} {phase}");
            client.instance.finalize_and_wait().unwrap();
        }
    }
}

#[test]
fn an_initiator_that_is_killed_gives_the_buffers_of_the_owner_back() {
    for transport in all_asked_for().filter(|transport| transport.starts_with("na+")) {
        let owner = start_owner(transport);
        let client = Client::of(&owner, transport);
        for held in [true, false, false] {
            let role = format!("{} {transport}", owner.address);
            client.hold(held);
            let mut other = Service::spawn(module_path!(), ROLE, &role);
            other.line_after("begins");
            if held {
                until("a copy for it", || client.state().2 > 0);
            }
            other.kill();
            client.hold(false);
            client.assert_all_buffers_are_back();
        }
        assert!(client.pull().unwrap() == pattern(BYTES, 1));
        client.instance.finalize_and_wait().unwrap();
    }
}

/// A peer that stands still holds half of the buffers, and no longer than the owner allows.
#[test]
fn an_initiator_that_is_stopped_does_not_hold_the_buffers_of_the_owner_for_good() {
    for transport in all_asked_for().filter(|transport| transport.starts_with("na+")) {
        let fake = Fake::new(1, 13);
        let gpu = fake.driver().unwrap().device(0).unwrap();
        let memory = gpu.alloc(BYTES).unwrap();
        memory.write_at(0, &pattern(BYTES, 1)).unwrap();
        let owner = owner_with_limit(transport);
        let exposed = owner.expose(memory, Access::ReadOnly).unwrap();
        let bulk = exposed.bulk().clone();
        owner.serve(LEND).returning(move |_| bulk.clone()).unwrap();
        let role = format!("{} {transport}", owner.self_addr());
        let mut others: Vec<_> =
            (0..3).map(|_| Service::spawn(module_path!(), ROLE, &role)).collect();
        others.iter_mut().for_each(|other| drop(other.line_after("begins")));
        fake.hold(true);
        until("copies for them", || fake.pending() > 0);
        others.iter().for_each(Service::stop);
        fake.hold(false);
        until("the return of buffers", || {
            let (free, all) = buffers(&owner);
            free == all
        });
        drop(others);
        drop(exposed);
        owner.finalize_and_wait().unwrap();
        drop((owner, gpu));
        assert_clean(&fake);
    }
}

fn owner_with_limit(transport: &str) -> Instance {
    let mut config = margo::config::Config::default();
    config.margo.address = transport.to_owned();
    config.margo.bulk.timeout_msec = 200;
    Instance::from_config(&config).unwrap()
}

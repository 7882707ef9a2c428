//! Memory of devices that one process of a host has mapped from another, in two processes: what
//! moves, either side killed or stopped meanwhile, and that descriptors and memory come back.

use device::fake::Fake;
use device::{DeviceMemory, Driver};
use margo::{Access, Bulk, BulkError, Instance, ProviderHandle, Rpc, device};

use super::shared::{mappings, sharing};
use super::staged::{assert_clean, bytes_of, pattern, until};
use crate::common::process::{self, Service, say};

const ROLE: &str = "MARGO_TEST_SHARED";

/// Memory of the device of the other process.
const LEND: Rpc<(), Bulk> = Rpc::new("lend");

/// Lets its device stand still, or go on.
const HOLD: Rpc<bool, ()> = Rpc::new("hold");

/// The other process: pieces that are mapped, copies that are not over, bytes that its device has
/// copied alone, open descriptors.
const STATE: Rpc<(), State> = Rpc::new("state");

type State = (u64, u64, u64, u64);

const BYTES: usize = (3 << 20) + 5;

/// Not a test of its own: the other process of the tests below, which run this program again.
#[test]
fn service_process() {
    let Some(role) = process::asked(ROLE) else { return };
    match &*role {
        "owner" => own(),
        owner => pull_for_ever(owner),
    }
}

fn own() {
    let fake = Fake::new(1, 11);
    let gpu = fake.driver().unwrap().device(0).unwrap();
    let memory = gpu.alloc(BYTES).unwrap();
    memory.write_at(0, &pattern(BYTES, 1)).unwrap();
    let service = sharing("na+sm://", |_| ()).start().unwrap();
    let exposed = service.expose(memory, Access::ReadWrite).unwrap();
    let bulk = exposed.bulk().clone();
    service.serve(LEND).returning(move |_| bulk.clone()).unwrap();
    let own = fake.clone();
    service.serve(HOLD).returning(move |request| own.hold(*request.args())).unwrap();
    let state = move |request: &margo::Handle<(), State>| {
        let metrics = request.instance().metrics();
        let mapped = metrics.memory.device_mappings as u64;
        let alone = metrics.memory.device_shared_bytes;
        let open = metrics.process.open_fds.unwrap_or(0);
        (mapped, fake.pending() as u64, alone, open)
    };
    service.serve(STATE).returning(state).unwrap();
    say(&format!("listening on {}", service.self_addr()));
    service.wait_for_finalize().unwrap();
}

/// Pulls all the time, into memory of a device of its own.
fn pull_for_ever(owner: &str) {
    let client = Client::of(owner, &Fake::new(1, 14).driver().unwrap());
    say("begins");
    let mut local = client.instance.expose(client.memory(), Access::ReadOnly).unwrap();
    loop {
        let to = client.target.addr();
        client.instance.pull(to, &client.bulk, 0, &mut local, 0..BYTES).unwrap();
    }
}

fn start_owner() -> Service {
    Service::start_with(module_path!(), ROLE, "owner")
}

struct Client {
    instance: Instance,
    target: ProviderHandle,
    bulk: Bulk,
    driver: Driver,
}

impl Client {
    fn of(owner: &str, driver: &Driver) -> Self {
        let instance = sharing("na+sm://", |_| ()).listen(false).start().unwrap();
        let target = ProviderHandle::from(instance.lookup(owner).unwrap());
        let bulk = instance.forward(LEND, &target, &()).unwrap();
        Self { instance, target, bulk, driver: driver.clone() }
    }

    fn memory(&self) -> DeviceMemory {
        self.driver.device(0).unwrap().alloc_exportable(BYTES).unwrap()
    }

    fn state(&self) -> State {
        self.instance.forward(STATE, &self.target, &()).unwrap()
    }

    fn hold(&self, held: bool) {
        self.instance.forward(HOLD, &self.target, &held).unwrap();
    }

    /// Pulls into fresh memory, which is released afterwards.
    fn pull(&self) -> Result<Vec<u8>, BulkError> {
        let mut local = self.instance.expose(self.memory(), Access::ReadOnly)?;
        let to = self.target.addr();
        self.instance.pull(to, &self.bulk, 0, &mut local, 0..BYTES)?;
        Ok(bytes_of(&local.release().unwrap()))
    }

    fn end(self) {
        self.instance.finalize_and_wait().unwrap();
    }
}

#[test]
fn a_device_copies_between_two_processes_and_no_descriptor_stays() {
    let owner = start_owner();
    let fake = Fake::new(1, 12);
    let client = Client::of(&owner.address, &fake.driver().unwrap());
    assert!(client.pull().unwrap() == pattern(BYTES, 1));
    let memory = client.memory();
    memory.write_at(0, &pattern(BYTES, 2)).unwrap();
    let mut local = client.instance.expose(memory, Access::ReadOnly).unwrap();
    client.instance.push(client.target.addr(), &client.bulk, 0, &mut local, 0..BYTES).unwrap();
    assert!(client.pull().unwrap() == pattern(BYTES, 2));
    assert_eq!(client.state().2, 3 * BYTES as u64);
    drop(local.release().unwrap());
    // The memory is back when the other side has unmapped it, and so has closed what it had.
    let (mapped, _, _, before) = client.state();
    assert_eq!((mapped, mappings(&client.instance)), (0, 0));
    for _ in 0..20 {
        client.pull().unwrap();
    }
    assert_eq!(client.state().3, before, "open descriptors");
    client.end();
    assert_clean(&fake);
}

#[test]
fn an_owner_that_is_killed_ends_the_copy_and_gives_the_memory_back() {
    // While its device copies, and in the midst of many.
    for held in [true, false] {
        let mut owner = start_owner();
        let fake = Fake::new(1, 13);
        let client = Client::of(&owner.address, &fake.driver().unwrap());
        client.pull().unwrap();
        client.hold(held);
        let local = client.instance.expose(client.memory(), Access::ReadOnly).unwrap();
        let to = client.target.addr().clone();
        let request = client.instance.bulk(&to, &client.bulk).start_pull(0, local, 0..BYTES);
        if held {
            until("a copy of the owner", || client.state().1 > 0);
        }
        owner.kill();
        let (result, local) = request.wait();
        // The last may be over before.
        assert!(result.is_err() || !held);
        drop((local.release().unwrap(), to));
        client.end();
        assert_clean(&fake);
    }
}

#[test]
fn an_initiator_that_is_killed_or_stopped_ends_its_mapping_alone() {
    let owner = start_owner();
    let fake = Fake::new(1, 15);
    let client = Client::of(&owner.address, &fake.driver().unwrap());
    for held in [true, false, false] {
        client.hold(held);
        let mut other = Service::spawn(module_path!(), ROLE, &owner.address);
        other.line_after("begins");
        let what = if held { "a copy for it" } else { "its mapping" };
        until(what, || if held { client.state().1 > 0 } else { client.state().0 > 0 });
        if held {
            // Nobody else is held up by one that is stopped.
            other.stop();
        }
        other.kill();
        client.hold(false);
        until("the end of the mapping", || client.state().0 == 0);
    }
    assert!(client.pull().unwrap() == pattern(BYTES, 1));
    client.end();
    assert_clean(&fake);
}

/// A lender that stands still does not keep the owner from ending.
#[test]
fn an_owner_ends_while_it_has_memory_mapped() {
    let fake = Fake::new(1, 16);
    let gpu = fake.driver().unwrap().device(0).unwrap();
    let memory = gpu.alloc(BYTES).unwrap();
    let service = sharing("na+sm://", |_| ()).start().unwrap();
    let exposed = service.expose(memory, Access::ReadOnly).unwrap();
    let bulk = exposed.bulk().clone();
    service.serve(LEND).returning(move |_| bulk.clone()).unwrap();
    let mut other = Service::spawn(module_path!(), ROLE, service.self_addr().uri());
    other.line_after("begins");
    until("its mapping", || mappings(&service) > 0);
    other.stop();
    drop(exposed);
    service.finalize_and_wait().unwrap();
    drop((service, gpu));
    other.signal(rustix::process::Signal::CONT);
    assert!(!other.wait(), "its transfer is an error");
    assert_clean(&fake);
}

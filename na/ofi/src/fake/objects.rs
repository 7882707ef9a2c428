//! Calls that open, bind, enable and close objects. Objects are never freed, so that use after
//! their end is a complaint and no crash.

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;

use ofi_sys::raw;
use rustix::event::EventfdFlags;

use super::device::Device;
use super::{
    Call, Endpoint, Opening, Place, Queue, Registered, Registration, Shared, State, reading,
    traffic,
};
use prim::sync::{Arc, MutexGuard, lock};

/// Entries of a completion queue of which nobody has said how many.
const CQ_ENTRIES: usize = 1024;

/// An object: libfabric's part, and what stands behind it.
#[repr(C)]
pub(super) struct Object<F> {
    fid: F,
    pub(super) shared: Arc<Shared>,
    pub(super) number: u64,
    /// The domain, or the fabric of a domain.
    pub(super) parent: u64,
    pub(super) device: Arc<Device>,
}

impl<F> Object<F> {
    /// # Safety
    ///
    /// `fid` is that of an object of this type.
    pub(super) unsafe fn of<'a, P>(fid: *mut P) -> &'a Self {
        // SAFETY: the caller's; it is never freed.
        unsafe { &*fid.cast::<Self>() }
    }

    /// The state; with a complaint if the object was closed.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        let mut state = lock(&self.shared.state);
        if !state.open.contains_key(&self.number) {
            state.complain(format!("{} is used after its end", std::any::type_name::<F>()));
        }
        state
    }

    fn open(shared: &Arc<Shared>, parent: u64, device: &Arc<Device>, fid: F) -> (*mut Self, u64) {
        let mut state = lock(&shared.state);
        let number = state.new_number();
        state.open.insert(number, parent);
        drop(state);
        let (shared, device) = (shared.clone(), device.clone());
        (Box::into_raw(Box::new(Self { fid, shared, number, parent, device })), number)
    }

    /// Closes it, unless that is refused or `holds` says what else is open that needs it.
    fn close(
        &self,
        call: Option<Call>,
        holds: impl FnOnce(&State) -> Option<&'static str>,
    ) -> c_int {
        let mut state = self.state();
        if let Some(errno) = call.and_then(|call| state.refused(call)) {
            return -errno;
        }
        if let Some(held) = holds(&state) {
            state.complain(format!("{} is closed before {held}", std::any::type_name::<F>()));
            return -libc::EBUSY;
        }
        state.open.remove(&self.number);
        0
    }
}

/// The functions of an object.
macro_rules! functions {
    ($name:ident: $type:ident { $($function:ident: $value:expr),* $(,)? }) => {
        pub(in crate::fake) static $name: raw::$type = raw::$type {
            size: size_of::<raw::$type>(),
            $($function: $value),*
        };
    };
}
pub(super) use functions;

macro_rules! common {
    ($name:ident, $close:expr, $bind:expr, $control:expr) => {
        functions! { $name: fi_ops {
            close: $close, bind: $bind, control: $control, ops_open: None, tostr: None,
            ops_set: None,
        } }
    };
}

common!(FABRIC, Some(close_fabric), None, None);
common!(DOMAIN, Some(close_domain), None, Some(control_domain));
common!(AV, Some(close_av), None, None);
common!(CQ, Some(close_cq), None, Some(control_cq));
common!(MEMORY, Some(close_memory), Some(bind_memory), Some(enable_memory));
common!(ENDPOINT, Some(close_endpoint), Some(bind_endpoint), Some(enable_endpoint));

functions! { OF_FABRIC: fi_ops_fabric {
    domain: Some(domain), passive_ep: None, eq_open: None, wait_open: None,
    trywait: Some(reading::trywait), domain2: None,
} }
functions! { OF_DOMAIN: fi_ops_domain {
    av_open: Some(av_open), cq_open: Some(cq_open), endpoint: Some(endpoint), scalable_ep: None,
    cntr_open: None, poll_open: None, stx_ctx: None, srx_ctx: None, query_atomic: None,
    query_collective: None, endpoint2: None,
} }
functions! { OF_MEMORY: fi_ops_mr { reg: None, regv: None, regattr: Some(regattr) } }
functions! { OF_AV: fi_ops_av {
    insert: Some(insert), insertsvc: None, insertsym: None, remove: Some(remove), lookup: None,
    straddr: None, av_set: None,
} }
functions! { OF_ENDPOINT: fi_ops_ep {
    cancel: Some(traffic::cancel), getopt: None, setopt: Some(setopt), tx_ctx: None, rx_ctx: None,
    rx_size_left: None, tx_size_left: None,
} }
functions! { OF_NAME: fi_ops_cm {
    setname: None, getname: Some(getname), getpeer: None, connect: None, listen: None,
    accept: None, reject: None, shutdown: None, join: None,
} }

fn fid(ops: &'static raw::fi_ops) -> raw::fid {
    let ops = (&raw const *ops).cast_mut();
    raw::fid { fclass: 0, context: std::ptr::null_mut(), ops }
}

type Fabric = Object<raw::fid_fabric>;
type Domain = Object<raw::fid_domain>;
type Av = Object<raw::fid_av>;
type Cq = Object<raw::fid_cq>;
type Memory = Object<raw::fid_mr>;
type Ep = Object<raw::fid_ep>;

pub(super) fn open_fabric(shared: &Arc<Shared>, provider: &str) -> *mut raw::fid_fabric {
    let (device, api_version) = {
        let state = lock(&shared.state);
        let found = state.devices.iter().find(|device| device.provider == provider);
        let found = found.unwrap_or_else(|| panic!("provider {provider} was not found"));
        (found.clone(), state.api)
    };
    let ops = (&raw const OF_FABRIC).cast_mut();
    let fabric = raw::fid_fabric { fid: fid(&FABRIC), ops, api_version };
    Fabric::open(shared, 0, &device, fabric).0.cast()
}

/// Returns whether something is open that was opened of that.
fn has_parts(state: &State, number: u64) -> Option<&'static str> {
    state.open.values().any(|parent| *parent == number).then_some("what was opened of it")
}

unsafe extern "C" fn close_fabric(fabric: *mut raw::fid) -> c_int {
    // SAFETY: a function of fabrics.
    let this = unsafe { Fabric::of(fabric) };
    this.close(None, |state| has_parts(state, this.number))
}

/// Reads from an info the options that are to be opened with.
///
/// # Safety
///
/// `info` is live, with all its parts, and its authorisation as long as it says.
unsafe fn opening(info: *const raw::fi_info) -> Opening {
    // SAFETY: the caller's.
    unsafe {
        let domain = &*(*info).domain_attr;
        let auth_key = match domain.auth_key.is_null() {
            true => Vec::new(),
            false => std::slice::from_raw_parts(domain.auth_key, domain.auth_key_size).to_vec(),
        };
        Opening { class: domain.tclass, sends_class: (*(*info).tx_attr).tclass, auth_key }
    }
}

unsafe extern "C" fn domain(
    fabric: *mut raw::fid_fabric,
    info: *mut raw::fi_info,
    domain: *mut *mut raw::fid_domain,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: a function of fabrics.
    let this = unsafe { Fabric::of(fabric) };
    // SAFETY: the info of a search, with what the caller has put in.
    let opening = unsafe { opening(info) };
    let mut state = this.state();
    state.domains.push(opening);
    if let Some(errno) = state.refused(Call::Domain) {
        return -errno;
    }
    drop(state);
    let ops = (&raw const OF_DOMAIN).cast_mut();
    let mr = (&raw const OF_MEMORY).cast_mut();
    let opened = raw::fid_domain { fid: fid(&DOMAIN), ops, mr };
    let opened = Domain::open(&this.shared, this.number, &this.device, opened).0;
    // SAFETY: the caller's place for it.
    unsafe { *domain = opened.cast() };
    0
}

unsafe extern "C" fn control_domain(_: *mut raw::fid, _: c_int, _: *mut c_void) -> c_int {
    // Options of one provider, which has them.
    0
}

unsafe extern "C" fn close_domain(domain: *mut raw::fid) -> c_int {
    // SAFETY: a function of domains.
    let this = unsafe { Domain::of(domain) };
    this.close(None, |state| has_parts(state, this.number))
}

unsafe extern "C" fn av_open(
    domain: *mut raw::fid_domain,
    _attr: *mut raw::fi_av_attr,
    av: *mut *mut raw::fid_av,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: a function of domains.
    let this = unsafe { Domain::of(domain) };
    let opened = raw::fid_av { fid: fid(&AV), ops: (&raw const OF_AV).cast_mut() };
    let (opened, number) = Av::open(&this.shared, this.number, &this.device, opened);
    this.state().avs.insert(number, Vec::new());
    // SAFETY: the caller's place for it.
    unsafe { *av = opened.cast() };
    0
}

unsafe extern "C" fn close_av(av: *mut raw::fid) -> c_int {
    // SAFETY: a function of address vectors.
    let this = unsafe { Av::of(av) };
    let number = Some(this.number);
    let is_bound = |state: &State| state.endpoints.values().any(|own| own.av == number);
    this.close(None, |state| is_bound(state).then_some("an endpoint that is bound to it"))
}

unsafe extern "C" fn insert(
    av: *mut raw::fid_av,
    addr: *const c_void,
    count: usize,
    fi_addr: *mut raw::fi_addr_t,
    _flags: u64,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: a function of address vectors.
    let this = unsafe { Av::of(av) };
    let mut state = this.state();
    if let Some(errno) = state.refused(Call::AvInsert) {
        // SAFETY: the caller's place for it.
        unsafe { *fi_addr = u64::MAX };
        return -errno;
    }
    assert_eq!(count, 1, "more is not done by the fake");
    let len = match this.device.format {
        // SAFETY: such an address is a text with an end.
        raw::FI_ADDR_STR => unsafe { std::ffi::CStr::from_ptr(addr.cast()) }.count_bytes() + 1,
        _ => this.device.name_bytes,
    };
    // SAFETY: an address of the device's format.
    let name = unsafe { std::slice::from_raw_parts(addr.cast::<u8>(), len) }.to_vec();
    let Some(names) = state.avs.get_mut(&this.number) else { return -libc::EINVAL };
    // Indices of those that were removed are used again.
    let at = names.iter().position(Option::is_none).unwrap_or(names.len());
    match names.get_mut(at) {
        Some(free) => *free = Some(name),
        None => names.push(Some(name)),
    }
    // SAFETY: the caller's place for it.
    unsafe { *fi_addr = at as u64 };
    1
}

unsafe extern "C" fn remove(
    av: *mut raw::fid_av,
    fi_addr: *mut raw::fi_addr_t,
    _count: usize,
    _flags: u64,
) -> c_int {
    // SAFETY: a function of address vectors; the caller's address.
    let (this, at) = unsafe { (Av::of(av), *fi_addr as usize) };
    let mut state = this.state();
    let name = state.avs.get_mut(&this.number).and_then(|names| names.get_mut(at));
    if name.and_then(Option::take).is_none() {
        state.complain("an address is removed that is not there");
    }
    0
}

unsafe extern "C" fn cq_open(
    domain: *mut raw::fid_domain,
    attr: *mut raw::fi_cq_attr,
    cq: *mut *mut raw::fid_cq,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: a function of domains; the caller's attributes.
    let (this, attr) = unsafe { (Domain::of(domain), &*attr) };
    let mut state = this.state();
    state.cq_sizes.push(attr.size);
    if let Some(errno) = state.refused(Call::CqOpen) {
        return -errno;
    }
    drop(state);
    let most = this.device.cq_entries;
    if attr.size > most {
        return -libc::EINVAL;
    }
    let entries = if attr.size == 0 { most.min(CQ_ENTRIES) } else { attr.size };
    assert_eq!(attr.format, raw::FI_CQ_FORMAT_TAGGED, "others are not done by the fake");
    let waits = attr.wait_obj == raw::FI_WAIT_FD;
    if waits && !this.device.wait_fd {
        return -libc::ENOSYS;
    }
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let bell = waits.then(|| rustix::event::eventfd(0, flags).expect("an eventfd"));
    let opened = raw::fid_cq { fid: fid(&CQ), ops: (&raw const reading::OF_CQ).cast_mut() };
    let (opened, number) = Cq::open(&this.shared, this.number, &this.device, opened);
    this.state().queues.insert(number, Queue { done: Vec::new(), entries, bell });
    // SAFETY: the caller's place for it.
    unsafe { *cq = opened.cast() };
    0
}

unsafe extern "C" fn control_cq(cq: *mut raw::fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: a function of completion queues.
    let this = unsafe { Cq::of(cq) };
    let mut state = this.state();
    if command != raw::FI_GETWAIT as c_int {
        return -libc::ENOSYS;
    }
    if let Some(errno) = state.refused(Call::GetWait) {
        return -errno;
    }
    let bell = state.queues.get(&this.number).and_then(|queue| queue.bell.as_ref());
    let Some(bell) = bell else { return -libc::ENODATA };
    // SAFETY: the argument of this command is a place for a descriptor.
    unsafe { *arg.cast::<c_int>() = bell.as_raw_fd() };
    0
}

unsafe extern "C" fn close_cq(cq: *mut raw::fid) -> c_int {
    // SAFETY: a function of completion queues.
    let this = unsafe { Cq::of(cq) };
    let number = Some(this.number);
    let is_bound = |state: &State| state.endpoints.values().any(|own| own.cq == number);
    let closed =
        this.close(None, |state| is_bound(state).then_some("an endpoint that is bound to it"));
    if closed == 0 {
        lock(&this.shared.state).queues.remove(&this.number);
    }
    closed
}

unsafe extern "C" fn regattr(
    domain: *mut raw::fid,
    attr: *const raw::fi_mr_attr,
    _flags: u64,
    mr: *mut *mut raw::fid_mr,
) -> c_int {
    // SAFETY: a function of domains; the caller's attributes, and as many pieces as they say.
    let (this, attr, piece) = unsafe { (Domain::of(domain), &*attr, &*(*attr).mr_iov) };
    this.shared.pause(Call::Register);
    let device = &this.device;
    let is_ours = device.mr_mode & raw::FI_MR_PROV_KEY != 0;
    let opened = raw::fid_mr { fid: fid(&MEMORY), mem_desc: std::ptr::null_mut(), key: 0 };
    let mut state = this.state();
    if let Some(errno) = state.refused(Call::Register) {
        return -errno;
    }
    if attr.iov_count != 1 || piece.iov_len == 0 {
        state.complain("memory of no pieces, of several, or of no bytes is registered");
    }
    let of_device = attr.iface != raw::FI_HMEM_SYSTEM;
    // SAFETY: the parts of that union are numbers at the same place.
    let place = (attr.iface, unsafe { attr.device.cuda });
    if of_device && !device.hmem {
        state.complain("memory of a GPU is registered with a device that does not move it");
    }
    let is_there = state.views.of(piece.iov_base.cast(), piece.iov_len).is_some();
    if of_device != is_there {
        return -(raw::FI_EINVAL as c_int);
    }
    let serial = state.new_number();
    let largest = u64::MAX >> (64 - 8 * device.key_bytes);
    let start = piece.iov_base.addr();
    let range = start..start + piece.iov_len;
    let covers = |known: &&(u64, std::ops::Range<usize>, u64)| {
        known.0 == this.number && known.1.start <= range.start && range.end <= known.1.end
    };
    let cached = state.cached.iter().find(covers).map(|(.., key)| *key);
    let key = match cached {
        Some(key) => key,
        None if is_ours => largest - serial,
        None => attr.requested_key,
    };
    if key > largest {
        state.complain(format!("key {key:#x} is longer than {} bytes", device.key_bytes));
        return -(raw::FI_EKEYREJECTED as c_int);
    }
    if cached.is_none() && state.keys.contains_key(&(this.number, key)) {
        return -(raw::FI_ENOKEY as c_int);
    }
    if cached.is_none() && device.caches {
        state.cached.push((this.number, range, key));
    }
    let (base, len, access) = (Place(piece.iov_base.cast()), piece.iov_len, attr.access);
    let (at, wanted_key) = (base.0.addr() as u64, attr.requested_key);
    state.registrations.push(Registration { base: at, len, access, wanted_key, key, place });
    let enabled = device.mr_mode & raw::FI_MR_ENDPOINT == 0;
    let (domain, endpoint) = (this.number, None);
    let memory = Registered { domain, endpoint, enabled, base, len, access, key, of_device };
    drop(state);
    let (opened, number) = Memory::open(&this.shared, this.number, &this.device, opened);
    let mut state = this.state();
    state.keys.entry((this.number, key)).or_default().push(number);
    state.memories.insert(number, memory);
    drop(state);
    // SAFETY: just opened, and nobody else has it; the caller's place for it.
    unsafe {
        (*opened).fid.mem_desc = std::ptr::without_provenance_mut(number as usize);
        // With endpoints, keys are there when the memory is enabled.
        (*opened).fid.key = if enabled { key } else { u64::MAX };
        *mr = opened.cast();
    }
    0
}

unsafe extern "C" fn bind_memory(mr: *mut raw::fid, other: *mut raw::fid, _flags: u64) -> c_int {
    // SAFETY: functions of memory and, as the device wants it, of an endpoint.
    let (this, endpoint) = unsafe { (Memory::of(mr), Ep::of(other)) };
    let mut state = this.state();
    if let Some(errno) = state.refused(Call::Bind) {
        return -errno;
    }
    if let Some(memory) = state.memories.get_mut(&this.number) {
        memory.endpoint = Some(endpoint.number);
    }
    0
}

unsafe extern "C" fn enable_memory(mr: *mut raw::fid, _: c_int, _: *mut c_void) -> c_int {
    // SAFETY: a function of memory.
    let this = unsafe { Memory::of(mr) };
    let mut state = this.state();
    if let Some(errno) = state.refused(Call::EnableMemory) {
        return -errno;
    }
    let Some(memory) = state.memories.get_mut(&this.number) else { return -libc::EINVAL };
    memory.enabled = true;
    let (key, is_bound) = (memory.key, memory.endpoint.is_some());
    if !is_bound {
        state.complain("memory is enabled that is bound to no endpoint");
    }
    // SAFETY: the object is there, and read by others only after this.
    unsafe { (*mr.cast::<raw::fid_mr>()).key = key };
    0
}

unsafe extern "C" fn close_memory(mr: *mut raw::fid) -> c_int {
    // SAFETY: a function of memory.
    let this = unsafe { Memory::of(mr) };
    this.shared.pause(Call::CloseMemory);
    let number = this.number;
    // What is bound to an endpoint must end before it, whatever is under way.
    let is_named = |state: &State| {
        let is_bound = state.memories.get(&number).is_some_and(|own| own.endpoint.is_some());
        !is_bound && state.named.values().any(|(_, memory)| *memory == number)
    };
    let closed = this.close(Some(Call::CloseMemory), |state| {
        is_named(state).then_some("an operation that was given its descriptor")
    });
    if closed == 0 {
        let mut state = lock(&this.shared.state);
        if let Some(memory) = state.memories.remove(&this.number) {
            let key = (memory.domain, memory.key);
            let numbers = state.keys.entry(key).or_default();
            numbers.retain(|own| *own != number);
            if numbers.is_empty() {
                state.keys.remove(&key);
            }
        }
    }
    closed
}

unsafe extern "C" fn endpoint(
    domain: *mut raw::fid_domain,
    info: *mut raw::fi_info,
    ep: *mut *mut raw::fid_ep,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: a function of domains; the info of a search.
    let (this, caps, mr_mode, asked, opening) = unsafe {
        let opening = opening(info);
        let info = &*info;
        let len = info.src_addrlen;
        let asked: &[u8] = match info.src_addr.is_null() {
            true => &[],
            false => std::slice::from_raw_parts(info.src_addr.cast(), len),
        };
        let mr_mode = (*info.domain_attr).mr_mode as u32;
        (Domain::of(domain), info.caps, mr_mode, asked.to_vec(), opening)
    };
    let opened = raw::fid_ep {
        fid: fid(&ENDPOINT),
        ops: (&raw const OF_ENDPOINT).cast_mut(),
        cm: (&raw const OF_NAME).cast_mut(),
        msg: (&raw const traffic::OF_MESSAGES).cast_mut(),
        rma: (&raw const traffic::OF_TRANSFERS).cast_mut(),
        tagged: (&raw const traffic::OF_TAGGED).cast_mut(),
        atomic: std::ptr::null_mut(),
        collective: std::ptr::null_mut(),
    };
    let (opened, number) = Ep::open(&this.shared, this.number, &this.device, opened);
    let endpoint = Endpoint {
        name: this.device.name(number, &asked),
        device: this.device.clone(),
        domain: this.number,
        av: None,
        cq: None,
        enabled: false,
        caps,
        mr_mode,
        multi_min: 64,
        posted: Vec::new(),
        held: Vec::new(),
    };
    let mut state = this.state();
    state.endpoints.insert(number, endpoint);
    state.opened.push(opening);
    drop(state);
    // SAFETY: the caller's place for it.
    unsafe { *ep = opened.cast() };
    0
}

unsafe extern "C" fn bind_endpoint(ep: *mut raw::fid, other: *mut raw::fid, _flags: u64) -> c_int {
    // SAFETY: a function of endpoints; all objects have the same parts before and behind `fid`,
    // of which the number is found by the functions that the object has.
    let (this, is_cq) = unsafe { (Ep::of(ep), std::ptr::eq((*other).ops, &raw const CQ)) };
    // SAFETY: told apart just now.
    let number = unsafe { if is_cq { Cq::of(other).number } else { Av::of(other).number } };
    let mut state = this.state();
    let Some(endpoint) = state.endpoints.get_mut(&this.number) else { return -libc::EINVAL };
    *(if is_cq { &mut endpoint.cq } else { &mut endpoint.av }) = Some(number);
    if endpoint.enabled {
        state.complain("an endpoint is bound after it was enabled");
    }
    0
}

unsafe extern "C" fn enable_endpoint(ep: *mut raw::fid, _: c_int, _: *mut c_void) -> c_int {
    // SAFETY: a function of endpoints.
    let this = unsafe { Ep::of(ep) };
    let mut state = this.state();
    if let Some(errno) = state.refused(Call::Enable) {
        return -errno;
    }
    let Some(endpoint) = state.endpoints.get_mut(&this.number) else { return -libc::EINVAL };
    endpoint.enabled = true;
    if endpoint.cq.is_none() || endpoint.av.is_none() {
        state.complain("an endpoint is enabled that lacks a queue or an address vector");
    }
    0
}

unsafe extern "C" fn setopt(
    ep: *mut raw::fid,
    _level: c_int,
    name: c_int,
    value: *const c_void,
    _len: usize,
) -> c_int {
    // SAFETY: a function of endpoints.
    let this = unsafe { Ep::of(ep) };
    let mut state = this.state();
    if let Some(errno) = state.refused(Call::SetOpt) {
        return -errno;
    }
    if name != raw::FI_OPT_MIN_MULTI_RECV as c_int {
        return -(raw::FI_ENOPROTOOPT as c_int);
    }
    let Some(endpoint) = state.endpoints.get_mut(&this.number) else { return -libc::EINVAL };
    // SAFETY: the value of this option is a `size_t`.
    endpoint.multi_min = unsafe { value.cast::<usize>().read() };
    0
}

unsafe extern "C" fn getname(ep: *mut raw::fid, addr: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: a function of endpoints; the caller's places, with as much room as it says.
    unsafe {
        let this = Ep::of(ep);
        let state = this.state();
        let Some(endpoint) = state.endpoints.get(&this.number) else { return -libc::EINVAL };
        let name = &endpoint.name;
        let room = std::mem::replace(&mut *len, name.len());
        std::ptr::copy_nonoverlapping(name.as_ptr(), addr.cast(), room.min(name.len()));
        if room < name.len() { -(raw::FI_ETOOSMALL as c_int) } else { 0 }
    }
}

unsafe extern "C" fn close_endpoint(ep: *mut raw::fid) -> c_int {
    // SAFETY: a function of endpoints.
    let this = unsafe { Ep::of(ep) };
    let number = Some(this.number);
    let is_bound = |state: &State| state.memories.values().any(|own| own.endpoint == number);
    let closed = this.close(Some(Call::CloseEndpoint), |state| {
        is_bound(state).then_some("memory that is bound to it")
    });
    if closed == 0 {
        let mut state = lock(&this.shared.state);
        state.endpoints.remove(&this.number);
        state.contexts.retain(|_, endpoint| *endpoint != this.number);
        state.named.retain(|_, (endpoint, _)| *endpoint != this.number);
    }
    closed
}

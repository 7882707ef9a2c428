//! Memory that goes away while it is registered.

use std::ffi::{c_int, c_void};
use std::process::Command;
use std::sync::Mutex;

use na::{AllocOptions, SharedBuffer};

use crate::common::test_path;

/// Notices that a hook was given: where memory went away, and how much. Libraries for networks have
/// such hooks.
static SEEN: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// `ucm_event_t` of UCX's ucm.h, as its event of memory that goes away fills it in.
#[repr(C)]
struct Unmapped {
    address: *mut c_void,
    size: usize,
}

type Callback = unsafe extern "C" fn(event: c_int, of: *const Unmapped, arg: *mut c_void);
type SetHandler = unsafe extern "C" fn(
    events: c_int,
    priority: c_int,
    callback: Callback,
    arg: *mut c_void,
) -> i8;

/// # Safety
///
/// Only as a callback of UCX.
unsafe extern "C" fn note(_: c_int, of: *const Unmapped, _: *mut c_void) {
    // SAFETY: UCX hands a live description.
    let of = unsafe { &*of };
    // There is room: who allocates may unmap.
    let mut seen = SEEN.lock().unwrap();
    if seen.len() < seen.capacity() {
        seen.push((of.address.addr(), of.size));
    }
}

/// Watches memory that goes away, as UCX does for its cache of registrations. `false`: there is no
/// UCX.
fn watch() -> bool {
    const UNMAPPED: c_int = 1 << 17;
    SEEN.lock().unwrap().reserve(10_000);
    // It brings libucm, which cannot be opened before it.
    // SAFETY: runs the initialisers of the libraries, which are made for that.
    let library = unsafe { libc::dlopen(c"libucs.so.0".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return false;
    }
    // SAFETY: a library that was opened, and stays.
    let function = unsafe { libc::dlsym(library, c"ucm_set_event_handler".as_ptr()) };
    assert!(!function.is_null());
    // SAFETY: the function of that name, as ucm.h declares it.
    let set_handler = unsafe { std::mem::transmute::<*mut c_void, SetHandler>(function) };
    // SAFETY: the callback needs no argument, and stays.
    let status = unsafe { set_handler(UNMAPPED, 0, note, std::ptr::null_mut()) };
    assert_eq!(status, 0);
    true
}

/// Returns whether the hook has seen that memory go away, whole.
fn has_seen(address: usize, len: usize) -> bool {
    let seen = SEEN.lock().unwrap();
    seen.iter().any(|(at, size)| *at <= address && address + len <= at + size)
}

/// Set in a process of this program that is the child of a test.
const CHILD: &str = "NA_UNMAPPED_CHILD";

/// In a process of its own, with one thread: UCX changes the code of functions that other threads
/// may be in.
#[test]
fn the_end_of_shared_memory_is_seen_by_who_keeps_registrations() {
    if std::env::var_os(CHILD).is_some() {
        return see_the_end_of_shared_memory();
    }
    let _alone = crate::alone();
    let test = test_path!("the_end_of_shared_memory_is_seen_by_who_keeps_registrations");
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
    let skipped = said.lines().filter_map(|line| Some(&line[line.find("SKIPPED: ")?..]));
    skipped.for_each(|line| println!("{line}"));
}

fn see_the_end_of_shared_memory() {
    if !watch() {
        return println!("SKIPPED: there is no libucs.so.0");
    }
    let mut buffer = SharedBuffer::new(1 << 20, &AllocOptions::default()).unwrap();
    let address = buffer.as_mut_slice().unwrap().as_ptr().addr();
    assert!(!has_seen(address, 1 << 20));
    drop(buffer);
    assert!(has_seen(address, 1 << 20));
}

/// A mapped file whose pages go away while peers use it: over tcp, where the kernel copies, the
/// transfer ends that needs them, at both sides, and nothing else.
#[cfg(feature = "tcp")]
mod cut_off {
    use std::os::fd::OwnedFd;
    use std::sync::Arc;
    use std::time::Instant;

    use na::conformance::PATIENCE;
    use na::{
        Access, Addr, Completion, DeniedReason, Endpoint, Error, LocalMem, Memory, OpId,
        OpenOptions, RawSegment, Tag, Transfer,
    };
    use rustix::fs::MemfdFlags;
    use rustix::mm::{MapFlags, ProtFlags};

    use crate::alone;

    const LEN: usize = 8 << 20;
    /// Where the file ends: in the midst of a frame with data.
    const CUT: usize = (3 << 20) + 4096;

    struct Mapping(*mut u8, usize);

    // SAFETY: plain memory, which is not tied to a thread.
    unsafe impl Send for Mapping {}

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: mapped by `file`; who owns this drops it after the last use of the mapping.
            let _ = unsafe { rustix::mm::munmap(self.0.cast(), self.1) };
        }
    }

    /// A mapped file of ones.
    fn file(len: usize) -> (OwnedFd, Memory) {
        let fd = rustix::fs::memfd_create(c"cut-off", MemfdFlags::CLOEXEC).unwrap();
        let mut written = 0;
        while written < len {
            written += rustix::io::pwrite(&fd, &vec![1; len - written], written as u64).unwrap();
        }
        let (access, null) = (ProtFlags::READ | ProtFlags::WRITE, std::ptr::null_mut());
        // SAFETY: a fresh mapping at a place that the kernel chooses; it replaces nothing.
        let base = unsafe { rustix::mm::mmap(null, len, access, MapFlags::SHARED, &fd, 0) };
        let base = base.unwrap().cast::<u8>();
        let segment = RawSegment { ptr: base, len };
        // SAFETY: the mapping, which its owner keeps; nobody has a reference to its bytes. That
        // pages are cut off is what is tested: only the kernel is to meet them.
        let memory = unsafe { Memory::from_raw(vec![segment], Mapping(base, len)) };
        (fd, memory)
    }

    fn cut(file: &OwnedFd, len: usize) {
        rustix::fs::ftruncate(file, len as u64).unwrap();
    }

    struct Pair {
        origin: Arc<dyn Endpoint>,
        target: Arc<dyn Endpoint>,
        to_target: Addr,
        /// The session is that of the first message.
        to_origin: Addr,
    }

    impl Pair {
        fn new() -> Self {
            let open =
                |listen| na::open("na+tcp://127.0.0.1:0", &OpenOptions::listening(listen)).unwrap();
            let (origin, target) = (open(false), open(true));
            let to_target = origin.lookup(target.self_addr().uri()).unwrap();
            target.recv_unexpected(OpId(1), target.alloc_msg()).unwrap();
            origin.send_unexpected(OpId(2), &to_target, Tag(0), origin.alloc_msg()).unwrap();
            let Completion::Recv { result, .. } = ended(&[&target, &origin], 1) else {
                panic!("another end")
            };
            Self { to_origin: result.unwrap().from, origin, target, to_target }
        }

        fn transfer(
            &self,
            op: u64,
            put: bool,
            local: &LocalMem,
            remote: &LocalMem,
        ) -> Result<(), Error> {
            let remote = self.target.mem_to_bytes(remote);
            let remote = self.origin.mem_from_bytes(&remote).unwrap();
            let len = local.len();
            let (local, local_offset) = (local.clone(), 0);
            let transfer = Transfer { local, local_offset, remote, remote_offset: 0, len };
            match put {
                true => self.origin.put(OpId(op), &self.to_target, transfer).unwrap(),
                false => self.origin.get(OpId(op), &self.to_target, transfer).unwrap(),
            }
            match ended(&[&self.origin, &self.target], op) {
                Completion::Transfer { result, .. } => result,
                other => panic!("{other:?}"),
            }
        }

        /// The connection is the one that there was, and moves data as before.
        fn still_works(&self) {
            let local = Memory::from_vec(vec![3; LEN]);
            let local = self.origin.register_local(local, Access::ReadWrite).unwrap();
            let remote = Memory::from_vec(vec![4; LEN]);
            let remote = self.target.register(remote, Access::ReadWrite).unwrap();
            self.transfer(100, false, &local, &remote).unwrap();
            let mut bytes = vec![0; LEN];
            assert!(local.read_at(0, &mut bytes) && bytes == [4; LEN]);
            self.transfer(101, true, &local, &remote).unwrap();
            assert!(!self.target.is_gone(&self.to_origin), "another session");
        }
    }

    /// The completion of `op` at the first of them, while all poll. Others are of messages.
    fn ended(endpoints: &[&Arc<dyn Endpoint>], wanted: u64) -> Completion {
        let deadline = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < deadline, "operation {wanted} does not end");
            for (index, endpoint) in endpoints.iter().enumerate() {
                let mut found = None;
                let mut sink = |completion| match &completion {
                    Completion::Recv { op, .. } | Completion::Transfer { op, .. }
                        if index == 0 && op.0 == wanted =>
                    {
                        found = Some(completion);
                    }
                    _ => {}
                };
                endpoint.poll(64, &mut sink).unwrap();
                if let Some(found) = found {
                    return found;
                }
            }
        }
    }

    fn whole(endpoint: &Arc<dyn Endpoint>) -> LocalMem {
        endpoint.register(Memory::from_vec(vec![2; LEN]), Access::ReadWrite).unwrap()
    }

    #[test]
    fn transfers_of_our_own_say_so() {
        let _alone = alone();
        let pair = Pair::new();
        for (put, len) in [(true, CUT), (true, 0), (false, CUT)] {
            let (fd, memory) = file(LEN);
            let local = pair.origin.register_local(memory, Access::ReadWrite).unwrap();
            cut(&fd, len);
            let error = pair.transfer(7, put, &local, &whole(&pair.target)).unwrap_err();
            assert!(matches!(&error, Error::Io { .. }), "{error}");
            assert!(error.to_string().contains("the local memory of a transfer"), "{error}");
            pair.still_works();
        }
        // Short ones are copied in user space, but for such memory.
        let (fd, memory) = file(1000);
        let local = pair.origin.register_local(memory, Access::ReadWrite).unwrap();
        cut(&fd, 0);
        for put in [true, false] {
            let error = pair.transfer(8, put, &local, &whole(&pair.target)).unwrap_err();
            assert!(matches!(&error, Error::Io { .. }), "{error}");
            pair.still_works();
        }
    }

    #[test]
    fn transfers_of_peers_are_refused() {
        let _alone = alone();
        let pair = Pair::new();
        // What is short comes in a buffer, and is copied from there.
        for (put, whole_len, len) in [
            (true, LEN, CUT),
            (false, LEN, CUT),
            (false, LEN, 0),
            (true, 1000, 0),
            (false, 1000, 0),
        ] {
            let (fd, memory) = file(whole_len);
            let remote = pair.target.register(memory, Access::ReadWrite).unwrap();
            let local = Memory::from_vec(vec![2; whole_len]);
            let local = pair.origin.register_local(local, Access::ReadWrite).unwrap();
            cut(&fd, len);
            let error = pair.transfer(7, put, &local, &remote).unwrap_err();
            let reason = DeniedReason::CopyFailed;
            assert!(
                matches!(&error, Error::Denied { reason: why, .. } if *why == reason),
                "{error}"
            );
            pair.still_works();
        }
    }

    /// The last frame has begun, so that a refusal would come too late: data that is not there is
    /// never passed off as such.
    #[test]
    fn a_get_of_which_the_end_is_gone_is_not_good() {
        let _alone = alone();
        for len in [LEN - 4096, LEN - (1 << 20), LEN - (1 << 20) - 4096] {
            let pair = Pair::new();
            let (fd, memory) = file(LEN);
            let remote = pair.target.register(memory, Access::ReadWrite).unwrap();
            cut(&fd, len);
            pair.transfer(7, false, &whole(&pair.origin), &remote).unwrap_err();
        }
    }
}

//! Memory of a device in two processes, and in one that was forked off.

use std::os::fd::{FromRawFd, OwnedFd};

use device::fake::Fake;
use device::{Copies, DeviceError};

use super::memory::assert_clean;

/// Runs `child` in a process that is forked off, and returns what it returned.
fn in_a_child(child: impl FnOnce() -> u8) -> i32 {
    // SAFETY: the child calls nothing but `child`, which takes no lock that another thread of this
    // program could hold (allocations are safe with glibc), and leaves by `_exit`.
    let process = unsafe { libc::fork() };
    if process == 0 {
        // SAFETY: a number.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(255);
        // SAFETY: always.
        unsafe { libc::_exit(code.into()) };
    }
    let mut status = 0;
    // SAFETY: our own child, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(process, &raw mut status, 0) }, process);
    libc::WEXITSTATUS(status)
}

#[test]
fn a_child_that_was_forked_off_cannot_use_the_driver_and_harms_nothing() {
    let fake = Fake::new(1, 1);
    let gpu = fake.driver().unwrap().device(0).unwrap();
    let memory = gpu.alloc(4096).unwrap();
    let copies = Copies::new(&gpu, 1).unwrap();
    let mut bytes = vec![0_u8; 4096];
    // SAFETY: the bytes are there until the copy is over.
    let copy = unsafe { copies.start_to_host(&memory, 0, bytes.as_mut_ptr(), 4096) }.unwrap();
    let code = in_a_child(|| {
        let refused = [gpu.alloc(1).map(drop), memory.write_at(0, b"x")];
        let all = refused.iter().all(|it| matches!(it, Err(DeviceError::Forked)));
        // Does not wait for the copy of the other process, nor frees its memory.
        drop((copy, memory, copies, gpu));
        u8::from(!all || fake.in_use().memory != 1)
    });
    assert_eq!(code, 0);
}

#[test]
fn exported_memory_is_the_same_in_another_process() {
    let fake = Fake::new(1, 1);
    let gpu = fake.driver().unwrap().device(0).unwrap();
    let memory = gpu.alloc_exportable(5 << 20).unwrap();
    memory.write_at(0, b"from the parent").unwrap();
    let fd = memory.export().unwrap();
    let code = in_a_child(|| {
        // A driver of its own, as a program that was started has.
        let own = Fake::new(1, 2);
        let gpu = own.driver().unwrap().device(0).unwrap();
        let there = gpu.import(&fd, 5 << 20).unwrap();
        let mut bytes = [0; 15];
        there.read_at(0, &mut bytes).unwrap();
        let near = gpu.alloc(5 << 20).unwrap();
        let copies = Copies::new(&gpu, 2).unwrap();
        copies.start_within((&there, 0), (&near, 0), 5 << 20).unwrap().wait().unwrap();
        near.write_at(0, b"back").unwrap();
        copies.start_within((&near, 0), (&there, 0), 5 << 20).unwrap().wait().unwrap();
        u8::from(&bytes != b"from the parent")
    });
    assert_eq!(code, 0);
    let mut bytes = [0; 15];
    memory.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"back the parent");
    drop((memory, gpu));
    assert_clean(&fake);
}

#[test]
fn a_descriptor_of_something_else_is_refused() {
    let fake = Fake::new(1, 1);
    let gpu = fake.driver().unwrap().device(0).unwrap();
    let mut pipe = [0; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    // SAFETY: they were just made.
    let ends = pipe.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let error = gpu.import(&ends[0], 4096).unwrap_err().to_string();
    assert!(error.contains("cuMemImportFromShareableHandle"), "{error}");
    // Shorter than what it is said to have.
    let short = gpu.alloc_exportable(1).unwrap().export().unwrap();
    assert!(gpu.import(&short, 5 << 20).unwrap_err().to_string().contains("cuMemMap"));
    drop((gpu, short));
    assert_clean(&fake);
}

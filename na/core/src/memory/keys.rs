//! The source of keys for registered memory.
//!
//! A key is 64 random bits of the operating system. Asking it for each costs several times what the
//! rest of a registration does, so they are fetched in batches. A batch lies in a page that the
//! kernel empties in a child process (`MADV_WIPEONFORK`), so that no two processes ever give out
//! the same keys; where it cannot do that, each key is fetched alone. A key that was given out is
//! erased.

use std::fmt;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::Error;

/// Bytes mapped: a page, which is what the kernel empties.
const PAGE_BYTES: usize = 4096;

/// Keys fetched at a time. So few bytes come at once, whatever signals do.
const BATCH: usize = 32;

/// Gives out keys.
///
/// ```
/// use na_core::memory::keys::Keys;
///
/// let mut keys = Keys::default();
/// assert_ne!(keys.next_key()?, keys.next_key()?);
/// # Ok::<(), na_core::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Keys {
    /// `None` until the first key, and where there can be none.
    page: Option<KeyPage>,
}

impl Keys {
    /// A key that nobody can guess, not zero.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the system has no random numbers.
    pub fn next_key(&mut self) -> Result<u64, Error> {
        if self.page.is_none() {
            self.page = KeyPage::map();
        }
        loop {
            let key = match &mut self.page {
                Some(page) => page.batch().next()?,
                None => u64::from_ne_bytes(random()?),
            };
            if key != 0 {
                return Ok(key);
            }
        }
    }
}

fn random<const N: usize>() -> Result<[u8; N], Error> {
    const { assert!(N <= 256) };
    let mut bytes = [0; N];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|errno| Error::io("cannot get random bytes for a memory key", errno))?;
    Ok(bytes)
}

/// Keys to give out. All zero, as mapped and as emptied by the kernel, it has none.
#[repr(C)]
struct Batch {
    left: usize,
    keys: [u64; BATCH],
}

impl Batch {
    fn next(&mut self) -> Result<u64, Error> {
        if self.left == 0 || self.left > BATCH {
            let bytes: [u8; BATCH * 8] = random()?;
            for (key, bytes) in self.keys.iter_mut().zip(bytes.as_chunks().0) {
                *key = u64::from_ne_bytes(*bytes);
            }
            self.left = BATCH;
        }
        self.left -= 1;
        Ok(std::mem::take(&mut self.keys[self.left]))
    }
}

/// A batch in a page of its own, which the kernel empties in children.
struct KeyPage(NonNull<Batch>);

// SAFETY: it owns its page, which is not tied to a thread, and gives access through `&mut` only.
unsafe impl Send for KeyPage {}

impl KeyPage {
    fn map() -> Option<Self> {
        const { assert!(size_of::<Batch>() <= PAGE_BYTES) };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let null = std::ptr::null_mut();
        // SAFETY: a fresh mapping at a place that the kernel chooses; it replaces nothing.
        let mapped =
            unsafe { rustix::mm::mmap_anonymous(null, PAGE_BYTES, protection, MapFlags::PRIVATE) };
        let page = Self(NonNull::new(mapped.ok()?.cast())?);
        // SAFETY:
        // - ours: the page was just mapped, and all of it is this object's;
        // - emptying it is what the object is made for: all zero is a valid `Batch`, and no
        //   reference to it is alive in a child, see `batch`.
        let wiped = unsafe {
            rustix::mm::madvise(page.0.as_ptr().cast(), PAGE_BYTES, Advice::LinuxWipeOnFork)
        };
        wiped.ok().map(|()| page)
    }

    fn batch(&mut self) -> &mut Batch {
        // SAFETY:
        // - valid: mapped until `drop`, aligned to a page, and any bytes are a valid `Batch`;
        // - aliasing: borrows this object mutably, which nobody else has. Only a fork by this very
        //   thread could show the kernel's change to somebody who has the reference; whoever has it
        //   (`Batch::next`) does not fork.
        unsafe { self.0.as_mut() }
    }
}

impl Drop for KeyPage {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with that length; nothing refers to it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), PAGE_BYTES) };
        debug_assert!(unmapped.is_ok(), "the page was mapped");
    }
}

impl fmt::Debug for KeyPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyPage(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_differ_beyond_a_batch_and_between_sources() {
        let mut seen = HashSet::new();
        for _ in 0..2 {
            let mut keys = Keys::default();
            for _ in 0..3 * BATCH {
                let key = keys.next_key().unwrap();
                assert!(key != 0 && seen.insert(key));
            }
        }
    }

    #[test]
    fn a_key_that_was_given_out_is_erased() {
        let mut keys = Keys::default();
        let key = keys.next_key().unwrap();
        let Some(page) = &mut keys.page else { return };
        let batch = page.batch();
        assert_eq!(batch.left, BATCH - 1);
        assert!(!batch.keys.contains(&key));
    }

    #[test]
    fn a_child_has_no_keys_of_its_parent() {
        let mut keys = Keys::default();
        keys.next_key().unwrap();
        let Some(page) = &mut keys.page else { return };
        crate::conformance::hear_of_children();
        // SAFETY: the child calls only `_exit`, which may be called after a fork of a process with
        // several threads; it reads memory of its own.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let batch = page.batch();
            let is_empty = batch.left == 0 && batch.keys == [0; BATCH];
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(i32::from(!is_empty)) };
        }
        assert!(child > 0, "cannot fork");
        let mut status = -1;
        // SAFETY: `status` is a live integer.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0), "the child saw keys");
        assert_eq!(page.batch().left, BATCH - 1, "the parent keeps them");
    }
}

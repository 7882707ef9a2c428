//! Secrets: memory that holds them, and the files that they come from.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use prim::fork::Process;
use prim::sync::{Mutex, lock};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::rand::{GetRandomFlags, getrandom};
use zeroize::Zeroize;

/// Most bytes of a file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Fewest characters of a secret of a cluster.
const SECRET_CHARS_MIN: usize = 32;

/// Most secrets in a file: the one that we prove, and one that is accepted besides.
const SECRETS_MAX: usize = 2;

/// Bytes in pages of their own, which core files leave out, and which are overwritten before they
/// go.
pub struct Secret {
    base: NonNull<u8>,
    /// Bytes that are mapped, at least one.
    mapped: usize,
    len: usize,
}

// SAFETY: the pages belong to this value alone, and are reached through it only.
unsafe impl Send for Secret {}
// SAFETY: a shared one is only read.
unsafe impl Sync for Secret {}

impl Secret {
    /// Takes pages for so many bytes, all of them zero.
    ///
    /// # Errors
    ///
    /// The system has no memory.
    pub fn zeroed(len: usize) -> io::Result<Self> {
        let (mapped, protection) = (len.max(1), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new private mapping wherever the system likes touches no memory of ours.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, protection, MapFlags::PRIVATE) }?;
        // SAFETY: the range is the mapping that was just made; the advice changes no contents.
        // Without it a core file has them: an old system, and no reason not to start.
        let _ = unsafe { madvise(base, mapped, Advice::LinuxDontDump) };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, mapped, len })
    }

    /// Reads at most so many bytes.
    fn read_from(mut file: File, max: usize) -> io::Result<Self> {
        let mut secret = Self::zeroed(max)?;
        let mut filled = 0;
        while filled < max {
            match file.read(&mut secret[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        secret.len = filled;
        Ok(secret)
    }
}

impl Deref for Secret {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: so many bytes are mapped and initialized (by the system, with zeros) for as long
        // as this value lives, and nobody writes to them while it is borrowed.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl DerefMut for Secret {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; it is borrowed by us alone.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.zeroize();
        // SAFETY: the mapping is this value's own, and nothing borrows it any more. It cannot fail
        // for a whole mapping.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// Bytes that are mapped at once for keys.
const PAGE_BYTES: usize = 4096;

/// A key, in memory that core files leave out, and overwritten before it goes. Many of them share a
/// page, where each [`Secret`] has pages of its own.
pub struct SecretKey {
    place: Place,
    process: Process,
}

/// Room for a key, which whoever has the value has for itself. Its memory is never unmapped.
struct Place(NonNull<[u8; KEY_BYTES]>);

// SAFETY: the memory belongs to this value alone, and is reached through it only.
unsafe impl Send for Place {}
// SAFETY: a shared one is only read.
unsafe impl Sync for Place {}

/// The places that no key has, all zero. There are as many as keys have needed at a time.
static PLACES: Mutex<Vec<Place>> = Mutex::new(Vec::new());

impl Place {
    fn take() -> Self {
        let mut places = lock(&PLACES);
        if places.is_empty() {
            let page = match Secret::zeroed(PAGE_BYTES) {
                Ok(page) => NonNull::from(&mut ManuallyDrop::new(page)[..]),
                // A core file has it then, as on a system that cannot leave it out.
                Err(_) => NonNull::from(Box::leak(vec![0; PAGE_BYTES].into_boxed_slice())),
            };
            let first = page.cast::<[u8; KEY_BYTES]>();
            // SAFETY: so many places are one behind the other in the page.
            let place = |at| Self(unsafe { first.add(at) });
            places.extend((0..PAGE_BYTES / KEY_BYTES).map(place));
        }
        places.pop().expect("there are some now")
    }
}

impl SecretKey {
    fn zeroed() -> Self {
        Self { place: Place::take(), process: Process::current() }
    }

    /// The key of these bytes.
    #[must_use]
    pub fn new(bytes: &[u8; KEY_BYTES]) -> Self {
        let mut key = Self::zeroed();
        key.copy_from_slice(bytes);
        key
    }

    /// Draws one that nobody can guess; `None`: the system has no random numbers.
    #[must_use]
    pub fn draw() -> Option<Self> {
        let mut key = Self::zeroed();
        getrandom(&mut key[..], GetRandomFlags::empty()).ok().map(|_| key)
    }
}

impl Deref for SecretKey {
    type Target = [u8; KEY_BYTES];

    fn deref(&self) -> &[u8; KEY_BYTES] {
        // SAFETY: the place is initialized (with zeros) memory that is never unmapped, and nobody
        // writes to it while this value is borrowed.
        unsafe { self.place.0.as_ref() }
    }
}

impl DerefMut for SecretKey {
    fn deref_mut(&mut self) -> &mut [u8; KEY_BYTES] {
        // SAFETY: as in `deref`; it is borrowed by us alone.
        unsafe { self.place.0.as_mut() }
    }
}

impl Drop for SecretKey {
    fn drop(&mut self) {
        self.zeroize();
        // In a child, the lock may be held for ever by a thread that it has not.
        if !self.process.is_other() {
            lock(&PLACES).push(Place(self.place.0));
        }
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(…)")
    }
}

/// Draws bytes that nobody can guess; `None`: the system has no random numbers.
pub fn draw<const N: usize>() -> Option<[u8; N]> {
    const { assert!(N <= 256, "as few bytes come at once, or not at all") };
    let mut bytes = [0; N];
    getrandom(&mut bytes, GetRandomFlags::empty()).ok().map(|_| bytes)
}

/// Compares in a time that does not tell how much is right.
#[must_use]
pub fn is_same<const N: usize>(one: &[u8; N], other: &[u8; N]) -> bool {
    let differs = one.iter().zip(other).fold(0, |differs, (one, other)| differs | (one ^ other));
    std::hint::black_box(differs) == 0
}

/// Others who may read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readers {
    /// Anybody.
    Anybody,
    /// Nobody; but the group where it belongs to root, which is how systems hand keys out.
    Nobody,
}

/// A file as it was when it was read, to see that it has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    path: PathBuf,
    /// Device, inode, bytes, seconds and nanoseconds of its last change.
    state: Option<[i64; 5]>,
}

impl Stamp {
    /// The file as it is now.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let state = std::fs::metadata(path).ok().map(|found| {
            let number = |value: u64| value.cast_signed();
            let place = [number(found.dev()), number(found.ino()), number(found.size())];
            [place[0], place[1], place[2], found.mtime(), found.mtime_nsec()]
        });
        Self { path: path.to_owned(), state }
    }

    /// Returns whether it is another one now.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        Self::of(&self.path) != *self
    }
}

/// Reads a file that only its owner, ourselves or root, may have written.
///
/// # Errors
///
/// The text for people: it cannot be read, or others can write it, or read it.
pub fn read(path: &Path, readers: Readers) -> Result<Secret, String> {
    let shown = path.display();
    let failed = |error| format!("cannot read {shown}: {error}");
    // Without waiting for somebody who writes, should it be a pipe.
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(format!("{shown} is no file"));
    }
    let own = rustix::process::geteuid().as_raw();
    if found.uid() != own && found.uid() != 0 {
        return Err(format!(
            "{shown} belongs to user {}: it must belong to user {own}, which this process runs as, \
             or to root",
            found.uid()
        ));
    }
    let mode = found.mode() & 0o777;
    let (forbidden, may_not) = match readers {
        Readers::Anybody => (0o022, "write"),
        Readers::Nobody if found.uid() == own => (0o077, "read"),
        Readers::Nobody => (0o037, "read"),
    };
    if mode & forbidden != 0 {
        return Err(format!(
            "{shown} has mode {mode:03o}: others must not be able to {may_not} it (chmod {:03o})",
            mode & !forbidden
        ));
    }
    if found.len() > FILE_BYTES_MAX {
        return Err(format!("{shown} has {} bytes, of at most {FILE_BYTES_MAX}", found.len()));
    }
    Secret::read_from(file, found.len() as usize).map_err(failed)
}

/// Returns the secrets of a cluster in the text of a file, one a line: the one that we prove, and
/// one that is accepted besides.
///
/// # Errors
///
/// The text for people: there are too few or too many, or one is too short.
pub fn secrets(text: &[u8]) -> Result<Vec<&[u8]>, String> {
    let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let secrets: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
    if secrets.is_empty() || secrets.len() > SECRETS_MAX {
        let count = secrets.len();
        return Err(format!("it has {count} secrets, one a line: 1 or {SECRETS_MAX} are needed"));
    }
    match secrets.iter().find(|secret| secret.len() < SECRET_CHARS_MIN) {
        Some(secret) => Err(format!(
            "a secret has {} characters: at least {SECRET_CHARS_MIN} are needed",
            secret.len()
        )),
        None => Ok(secrets),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// The flags of the mapping that begins at an address, as the kernel says them.
    fn flags_at(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = maps.lines();
        let begins_before = |line: &str| {
            let (from, to) = line.split(' ').next()?.split_once('-')?;
            let number = |text| usize::from_str_radix(text, 16).ok();
            Some((number(from)?..number(to)?).contains(&address))
        };
        lines.find(|line| begins_before(line) == Some(true)).expect("it is mapped");
        lines.find_map(|line| line.strip_prefix("VmFlags:")).unwrap().to_owned()
    }

    #[test]
    fn a_secret_is_in_no_core_file_and_in_no_text() {
        let mut secret = Secret::zeroed(5000).unwrap();
        secret[4999] = 7;
        assert_eq!((secret.len(), secret[0], secret[4999]), (5000, 0, 7));
        let flags = flags_at(secret.as_ptr() as usize);
        assert!(flags.split(' ').any(|flag| flag == "dd"), "not dumped: {flags}");
        assert_eq!(format!("{secret:?}"), "Secret(…)");
        assert!(Secret::zeroed(0).unwrap().is_empty());
    }

    #[test]
    fn keys_are_in_no_core_file_and_their_places_are_zero_when_they_go() {
        let bytes = draw().unwrap();
        let keys: Vec<_> =
            (0..3 * PAGE_BYTES / KEY_BYTES).map(|_| SecretKey::new(&bytes)).collect();
        let places: HashSet<_> = keys.iter().map(|key| key.as_ptr() as usize).collect();
        assert_eq!(places.len(), keys.len(), "none is another one's");
        for key in [&keys[0], &keys[200], &SecretKey::draw().unwrap()] {
            let flags = flags_at(key.as_ptr() as usize);
            assert!(flags.split(' ').any(|flag| flag == "dd"), "not dumped: {flags}");
        }
        assert!(keys.iter().all(|key| **key == bytes));
        assert_eq!(format!("{:?}", keys[0]), "SecretKey(…)");
        assert_ne!(*SecretKey::draw().unwrap(), *SecretKey::draw().unwrap());
        drop(keys);
        let is_zero = |place: &Place| {
            // SAFETY: the place is ours while the lock is held, and its memory is never unmapped.
            unsafe { *place.0.as_ref() == [0; KEY_BYTES] }
        };
        let free = lock(&PLACES);
        assert!(free.len() >= places.len() && free.iter().all(is_zero));
    }

    #[test]
    fn what_is_drawn_and_compared_is_all_of_it() {
        let [one, other] = [draw::<32>().unwrap(), draw::<32>().unwrap()];
        assert!(is_same(&one, &one) && !is_same(&one, &other));
        for at in 0..32 {
            let mut near = one;
            near[at] ^= 1;
            assert!(!is_same(&one, &near), "byte {at}");
        }
    }

    /// A service may inherit a secret that has no name in a file system.
    #[test]
    fn an_inherited_descriptor_is_a_file_by_its_path_in_proc() {
        use rustix::fs::{MemfdFlags, Mode, fchmod, memfd_create};
        use std::io::Write;
        use std::os::fd::AsRawFd;

        let mut file = File::from(memfd_create("secret", MemfdFlags::empty()).unwrap());
        file.write_all(b"between us").unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        fchmod(&file, Mode::from_raw_mode(0o644)).unwrap();
        assert!(read(&path, Readers::Nobody).unwrap_err().contains("must not be able to read"));
        fchmod(&file, Mode::from_raw_mode(0o600)).unwrap();
        for _ in 0..2 {
            assert_eq!(*read(&path, Readers::Nobody).unwrap(), *b"between us");
        }
    }

    #[test]
    fn secrets_of_a_file_are_one_or_two_and_long() {
        let (one, two) = ("a".repeat(32), "b".repeat(40));
        assert_eq!(secrets(format!("\n {one} \n\n{two}").as_bytes()).unwrap().len(), 2);
        for (text, said) in [
            (String::new(), "it has 0 secrets"),
            (format!("{one}\n{two}\n{one}"), "it has 3 secrets"),
            (format!("{one}\nshort"), "a secret has 5 characters"),
        ] {
            assert!(secrets(text.as_bytes()).unwrap_err().starts_with(said), "{text:?}");
        }
    }
}

//! The libfabric library, opened at run time.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "symbols are looked up, and given their types, as one thing"
)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::sync::Once;

use crate::raw::{fi_fabric_attr, fi_info, fid_fabric};

/// The oldest library that can be used.
pub const OLDEST: Version = Version { major: 1, minor: 13 };

/// Versions of the interface that are asked for; a library gets the latest one that it knows.
/// No version between these matters here. A provider that gives an earlier version than its
/// library's (`cxi` does) is not found when a later version is asked for.
///
/// - 1.20, as C Mercury asks for then: errors in completion queues name the sender.
/// - 1.18: without it `efa` does not use its adapter for transfers.
const ASKED: [Version; 3] =
    [Version { major: 1, minor: 20 }, Version { major: 1, minor: 18 }, OLDEST];

/// Names under which the library is looked for, in this order.
const NAMES: [&str; 2] = ["libfabric.so.1", "libfabric.so"];

/// The variable that names another library.
const PATH_VARIABLE: &str = "MARGO_LIBFABRIC";

type GetInfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const fi_info,
    *mut *mut fi_info,
) -> c_int;
type FreeInfo = unsafe extern "C" fn(*mut fi_info);
type DupInfo = unsafe extern "C" fn(*const fi_info) -> *mut fi_info;
type OpenFabric =
    unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int;
type GetVersion = unsafe extern "C" fn() -> u32;
type StrError = unsafe extern "C" fn(c_int) -> *const c_char;

/// The reason why there is no library.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LoadError {
    /// The library could not be opened under any of its names.
    #[error(
        "libfabric cannot be opened (tried {tried}); install it (Debian: libfabric1), or name it \
         in MARGO_LIBFABRIC"
    )]
    NotFound {
        /// Each name with the message of the dynamic linker.
        tried: String,
    },
    /// The library was opened and lacks a symbol.
    #[error("{name} lacks {symbol}: {reason}; libfabric {OLDEST} or later is needed")]
    Lacks {
        /// The library.
        name: String,
        /// The symbol that it lacks.
        symbol: &'static str,
        /// The message of the dynamic linker.
        reason: String,
    },
    /// The library was opened and is older than [`OLDEST`].
    #[error("{name} is libfabric {version}; {OLDEST} or later is needed")]
    TooOld {
        /// The library.
        name: String,
        /// The version.
        version: Version,
    },
}

/// A version of the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The number before the point.
    pub major: u16,
    /// The number after the point.
    pub minor: u16,
}

impl Version {
    /// Returns the version as libfabric's one number (`FI_VERSION`).
    pub const fn number(self) -> u32 {
        (self.major as u32) << 16 | self.minor as u32
    }

    /// Returns the version of the interface that a library of this version is asked for.
    pub fn asked(self) -> Self {
        ASKED.into_iter().find(|asked| *asked <= self).unwrap_or(OLDEST)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The opened library. It is never closed: providers leave threads and handlers behind.
pub struct Library {
    name: String,
    /// Done once the providers are loaded.
    providers: Once,
    getinfo: GetInfo,
    freeinfo: FreeInfo,
    dupinfo: DupInfo,
    fabric: OpenFabric,
    version: GetVersion,
    strerror: StrError,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Library({} {})", self.name, self.version())
    }
}

impl Library {
    /// Opens the library: the one that the environment variable `MARGO_LIBFABRIC` names, else the
    /// installed one.
    ///
    /// This, and the first [`getinfo`](Self::getinfo), leave the process's handlers of signals as
    /// they are, though libraries that libfabric may be linked with install their own, for SIGINT
    /// and SIGTERM, too.
    ///
    /// # Errors
    ///
    /// [`LoadError`] with what was tried.
    pub fn open() -> Result<Self, LoadError> {
        match std::env::var(PATH_VARIABLE) {
            Ok(path) => Self::open_one_of(&[&path]),
            Err(_) => Self::open_one_of(&NAMES),
        }
    }

    /// Opens the first of `names` that can be opened.
    ///
    /// # Errors
    ///
    /// [`LoadError`] with what was tried.
    pub fn open_one_of(names: &[&str]) -> Result<Self, LoadError> {
        let mut tried = Vec::new();
        for name in names {
            let opened = kept_signals::keep(|| {
                // SAFETY: runs the constructors of libfabric and of what it is linked with, which
                // are made to be run in any process at any time; it is never closed again. What
                // they do to the process's signal handlers is undone next.
                unsafe { libloading::os::unix::Library::new(name) }
            });
            match opened {
                Ok(library) => return Self::with(library, name),
                Err(error) => tried.push(format!("{name}: {error}")),
            }
        }
        Err(LoadError::NotFound { tried: tried.join("; ") })
    }

    fn with(library: libloading::os::unix::Library, name: &str) -> Result<Self, LoadError> {
        let handle = library.into_raw();
        let find = |symbol: &CStr, version: Option<&CStr>| {
            // SAFETY: `handle` is that of an opened library; both names are strings with an end.
            unsafe {
                match version {
                    Some(version) => libc::dlvsym(handle, symbol.as_ptr(), version.as_ptr()),
                    None => libc::dlsym(handle, symbol.as_ptr()),
                }
            }
        };
        // SAFETY: each symbol of these names and versions is a function of the type that is meant
        // (`include/rdma/fabric.h`, `fi_errno.h`), and the library is never closed.
        unsafe { Self::from_symbols(name, find) }
    }

    /// Makes a library of the functions that `find` returns by name and version of the symbol; null
    /// for a symbol that it lacks. This is for code that stands in for libfabric within the
    /// process.
    ///
    /// # Errors
    ///
    /// [`LoadError::Lacks`], [`LoadError::TooOld`].
    ///
    /// # Safety
    ///
    /// `find` returns null, or libfabric's function of that name, or a function of the same type
    /// that keeps the same contract; the function is there as long as the process.
    pub unsafe fn from_symbols(
        name: &str,
        find: impl Fn(&CStr, Option<&CStr>) -> *mut c_void,
    ) -> Result<Self, LoadError> {
        let symbol = |symbol: &'static CStr, version: Option<&CStr>| {
            let found = find(symbol, version);
            if found.is_null() {
                let name = name.to_owned();
                let reason = match version {
                    Some(version) => format!("not in version {}", version.to_string_lossy()),
                    None => "no such symbol".to_owned(),
                };
                let symbol = symbol.to_str().unwrap_or("a symbol");
                return Err(LoadError::Lacks { name, symbol, reason });
            }
            Ok(found)
        };
        // The structures of `raw.rs` are those of these symbol versions (`src/abi_1_0.c` of
        // libfabric): 1.3 holds from libfabric 1.9 to 1.19 without change. Later ones keep it, and
        // fill in what it lacks with zeros, whichever interface version is asked for.
        let (of_info, of_fabric) = (Some(c"FABRIC_1.3"), Some(c"FABRIC_1.1"));
        let getinfo = symbol(c"fi_getinfo", of_info)?;
        let freeinfo = symbol(c"fi_freeinfo", of_info)?;
        let dupinfo = symbol(c"fi_dupinfo", of_info)?;
        let fabric = symbol(c"fi_fabric", of_fabric)?;
        let version = symbol(c"fi_version", None)?;
        let strerror = symbol(c"fi_strerror", None)?;
        // SAFETY: functions of these types, by the caller's word.
        let library = unsafe {
            Self {
                name: name.to_owned(),
                providers: Once::new(),
                getinfo: std::mem::transmute::<*mut c_void, GetInfo>(getinfo),
                freeinfo: std::mem::transmute::<*mut c_void, FreeInfo>(freeinfo),
                dupinfo: std::mem::transmute::<*mut c_void, DupInfo>(dupinfo),
                fabric: std::mem::transmute::<*mut c_void, OpenFabric>(fabric),
                version: std::mem::transmute::<*mut c_void, GetVersion>(version),
                strerror: std::mem::transmute::<*mut c_void, StrError>(strerror),
            }
        };
        new_enough(name, library.version())?;
        Ok(library)
    }

    /// Returns the name under which it was found.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the version of the library.
    pub fn version(&self) -> Version {
        // SAFETY: takes nothing and may be called at any time.
        let version = unsafe { (self.version)() };
        Version { major: (version >> 16) as u16, minor: version as u16 }
    }

    /// Returns libfabric's text for an error number (positive).
    pub fn strerror(&self, errno: c_int) -> String {
        // SAFETY: any number is allowed.
        let text = unsafe { (self.strerror)(errno) };
        if text.is_null() {
            return format!("error {errno}");
        }
        // SAFETY: a string with an end, of the library's or the system's tables; it is copied
        // before anything else is called.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// `fi_getinfo` of the version of the interface that fits the library ([`Version::asked`]).
    ///
    /// # Safety
    ///
    /// `node`, `service` and `hints` are null or point to live values of their kind; `info` to a
    /// place for the result, to be given to [`freeinfo`](Self::freeinfo) when this returns 0.
    pub unsafe fn getinfo(
        &self,
        node: *const c_char,
        service: *const c_char,
        flags: u64,
        hints: *const fi_info,
        info: *mut *mut fi_info,
    ) -> c_int {
        let asked = self.version().asked().number();
        // SAFETY: the caller's.
        let getinfo = || unsafe { (self.getinfo)(asked, node, service, flags, hints, info) };
        // The first one loads the providers, which may be libraries of their own.
        let mut result = None;
        self.providers.call_once(|| result = Some(kept_signals::keep(getinfo)));
        result.unwrap_or_else(getinfo)
    }

    /// `fi_freeinfo`.
    ///
    /// # Safety
    ///
    /// `info` came from [`getinfo`](Self::getinfo) or [`dupinfo`](Self::dupinfo), and everything in
    /// it was allocated by the library or with `malloc`; it is not used any more.
    pub unsafe fn freeinfo(&self, info: *mut fi_info) {
        // SAFETY: the caller's.
        unsafe { (self.freeinfo)(info) }
    }

    /// `fi_dupinfo`; of null (`fi_allocinfo`), one with all parts and everything in them zero. Null
    /// when there is no memory.
    ///
    /// # Safety
    ///
    /// `info` is null or points to a live value.
    pub unsafe fn dupinfo(&self, info: *const fi_info) -> *mut fi_info {
        // SAFETY: the caller's.
        unsafe { (self.dupinfo)(info) }
    }

    /// `fi_fabric`.
    ///
    /// # Safety
    ///
    /// `attr` is that of an info of this library; `fabric` points to a place for the result.
    pub unsafe fn fabric(&self, attr: *mut fi_fabric_attr, fabric: *mut *mut fid_fabric) -> c_int {
        // SAFETY: the caller's.
        unsafe { (self.fabric)(attr, fabric, std::ptr::null_mut()) }
    }
}

fn new_enough(name: &str, version: Version) -> Result<(), LoadError> {
    match version < OLDEST {
        true => Err(LoadError::TooOld { name: name.to_owned(), version }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_library_is_told_with_both_versions() {
        let check = |major, minor| new_enough("libfabric.so.1", Version { major, minor });
        let error = check(1, 12).unwrap_err().to_string();
        assert!(error.contains("1.12") && error.contains("1.13"), "{error}");
        assert!(check(1, 13).is_ok() && check(2, 0).is_ok());
    }

    #[test]
    fn a_library_is_asked_for_the_latest_interface_that_both_know() {
        for (major, minor, asked) in [
            (1, 13, (1, 13)),
            (1, 17, (1, 13)),
            (1, 18, (1, 18)),
            (1, 19, (1, 18)),
            (1, 20, (1, 20)),
            (1, 22, (1, 20)),
            (2, 0, (1, 20)),
            (2, 7, (1, 20)),
        ] {
            let version = Version { major, minor }.asked();
            assert_eq!((version.major, version.minor), asked, "{major}.{minor}");
            assert_eq!(version.number(), 1 << 16 | u32::from(asked.1));
        }
    }

    #[test]
    fn a_missing_library_is_told_with_what_was_tried() {
        let error = Library::open_one_of(&["libno-such-fabric.so.9"]).unwrap_err().to_string();
        assert!(error.contains("libno-such-fabric.so.9: "), "{error}");
        assert!(error.contains("MARGO_LIBFABRIC"), "{error}");
    }

    #[test]
    fn another_library_is_told_apart() {
        let error = Library::open_one_of(&["libc.so.6"]).unwrap_err();
        assert!(matches!(error, LoadError::Lacks { symbol: "fi_getinfo", .. }), "{error}");
    }

    #[test]
    fn the_installed_library_tells_its_version_and_errors() {
        let library = match Library::open() {
            Ok(library) => library,
            Err(error) => return println!("SKIPPED: {error}"),
        };
        assert!(library.version() >= OLDEST, "{library:?}");
        assert!(!library.strerror(11).is_empty());
    }
}

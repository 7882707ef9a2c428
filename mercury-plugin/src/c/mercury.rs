//! The functions of Mercury that a plugin calls, found in the process that has loaded it.
//!
//! The library is linked with nothing of Mercury: one build serves whatever Mercury loads it. The
//! functions are looked up by name when a class is to be opened, first among what all of the
//! process sees, then in each library that is loaded (an interpreter loads Mercury for one
//! extension only).

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::ptr;
use std::sync::OnceLock;

use super::abi::{CompletionData, NA_VERSION, NaContext, ProtocolInfo};

/// Functions of Mercury.
#[derive(Clone, Copy)]
pub struct Mercury {
    /// `na_cb_completion_add`
    pub completion_add: unsafe extern "C" fn(*mut NaContext, *mut CompletionData),
    /// `na_protocol_info_alloc`
    pub protocol_info_alloc:
        unsafe extern "C" fn(*const c_char, *const c_char, *const c_char) -> *mut ProtocolInfo,
    /// `NA_Version_get`
    pub version_get: unsafe extern "C" fn(*mut c_uint, *mut c_uint, *mut c_uint),
}

impl fmt::Debug for Mercury {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mercury")
    }
}

/// Why there is no Mercury that this plugin can serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// A function was not found.
    Missing(&'static CStr),
    /// A Mercury with another plugin interface.
    Version(c_uint, c_uint),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(name) => {
                let name = name.to_string_lossy();
                write!(f, "no library of this process has Mercury's function `{name}`")
            }
            Self::Version(major, minor) => write!(
                f,
                "the Mercury of this process has version {major}.{minor} of the NA layer, and this \
                 plugin was made for version {NA_VERSION}, which Mercury 2.4.1 has: use that \
                 Mercury, or another version of margo"
            ),
        }
    }
}

/// The functions, looked up once.
static FOUND: OnceLock<Result<Mercury, Unfit>> = OnceLock::new();

/// Mercury's functions, if its plugin interface is the one that this plugin has.
pub(crate) fn get() -> Result<&'static Mercury, &'static Unfit> {
    FOUND.get_or_init(|| look_up().and_then(check)).as_ref()
}

/// Makes `functions` the Mercury of this process, for tests that play its part. Too late after the
/// first use.
#[doc(hidden)]
pub fn install(functions: Mercury) {
    FOUND.get_or_init(|| check(functions));
}

fn check(mercury: Mercury) -> Result<Mercury, Unfit> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: it writes to those that are not null, which are live variables.
    unsafe { (mercury.version_get)(&raw mut major, &raw mut minor, ptr::null_mut()) };
    if major == NA_VERSION { Ok(mercury) } else { Err(Unfit::Version(major, minor)) }
}

fn look_up() -> Result<Mercury, Unfit> {
    let find = |name: &'static CStr| symbol(name).ok_or(Unfit::Missing(name));
    let version_get = find(c"NA_Version_get")?;
    let completion_add = find(c"na_cb_completion_add")?;
    let protocol_info_alloc = find(c"na_protocol_info_alloc")?;
    Ok(Mercury {
        // SAFETY: Mercury's function of that name, which has had these types since version 4.
        version_get: unsafe {
            std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(*mut c_uint, *mut c_uint, *mut c_uint),
            >(version_get)
        },
        // SAFETY: as above; it is not called before the version was looked at.
        completion_add: unsafe {
            std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(*mut NaContext, *mut CompletionData),
            >(completion_add)
        },
        // SAFETY: as above.
        protocol_info_alloc: unsafe {
            std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(
                    *const c_char,
                    *const c_char,
                    *const c_char,
                ) -> *mut ProtocolInfo,
            >(protocol_info_alloc)
        },
    })
}

/// The address of a function that some library of this process has.
fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name ends with a zero byte.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if !found.is_null() {
        return Some(found);
    }
    let mut paths: Vec<CString> = Vec::new();
    // SAFETY: `note_path` is called before this returns, with this pointer, and does not unwind.
    unsafe { libc::dl_iterate_phdr(Some(note_path), (&raw mut paths).cast()) };
    // Not in there: to open a library takes locks that are to be taken before the one of the list.
    paths.iter().find_map(|path| symbol_in(path, name))
}

/// Notes the path of one library.
unsafe extern "C" fn note_path(
    object: *mut libc::dl_phdr_info,
    _: libc::size_t,
    paths: *mut c_void,
) -> c_int {
    // SAFETY: `symbol` has passed one, and nobody else uses it meanwhile.
    let paths = unsafe { &mut *paths.cast::<Vec<CString>>() };
    // SAFETY: the loader passes one.
    let path = unsafe { (*object).dlpi_name };
    if !path.is_null() {
        // SAFETY: a path of the loader's, which ends with a zero byte.
        paths.push(unsafe { CStr::from_ptr(path) }.to_owned());
    }
    0
}

fn symbol_in(path: &CStr, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: it ends with a zero byte; nothing is loaded that is not there.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return None;
    }
    // SAFETY: open until it is closed below.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    // SAFETY: opened above; the process holds it, too, as it was there before.
    unsafe { libc::dlclose(library) };
    (!found.is_null()).then_some(found)
}

/// A Mercury for tests of this library, in which no program hears of anything: the one before.
#[cfg(test)]
pub(crate) static OLDER: Mercury = {
    unsafe extern "C" fn add(_: *mut NaContext, _: *mut CompletionData) {}

    unsafe extern "C" fn info(
        _: *const c_char,
        _: *const c_char,
        _: *const c_char,
    ) -> *mut ProtocolInfo {
        ptr::null_mut()
    }

    unsafe extern "C" fn older(major: *mut c_uint, minor: *mut c_uint, _: *mut c_uint) {
        for (place, number) in [(major, NA_VERSION - 1), (minor, 2)] {
            // SAFETY: the caller passes variables for these two.
            unsafe { place.write(number) };
        }
    }

    Mercury { completion_add: add, protocol_info_alloc: info, version_get: older }
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_plugin_interface_is_refused() {
        let unfit = check(OLDER).unwrap_err();
        assert_eq!(unfit, Unfit::Version(5, 2));
        assert!(unfit.to_string().contains("has version 5.2 of the NA layer"));
        // No Mercury is in this process.
        let missing = look_up().unwrap_err();
        assert!(missing.to_string().contains("NA_Version_get"), "{missing}");
    }

    #[test]
    fn functions_are_found_in_libraries_that_are_loaded() {
        assert!(symbol(c"malloc").is_some());
        assert_eq!(symbol(c"no_such_function_anywhere"), None);
        let mut paths: Vec<CString> = Vec::new();
        // SAFETY: as in `symbol`.
        unsafe { libc::dl_iterate_phdr(Some(note_path), (&raw mut paths).cast()) };
        assert!(paths.iter().any(|path| symbol_in(path, c"malloc").is_some()));
    }
}

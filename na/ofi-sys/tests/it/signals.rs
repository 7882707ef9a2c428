//! The signal handlers of a program stay its own. There is one test here, because libfabric is
//! loaded once in a process and never closed.

use std::ptr::{null, null_mut};

use kept_signals::Saved;
use ofi_sys::{Library, LoadError};

#[test]
fn the_library_and_its_providers_change_no_handler_and_no_stack() {
    let before = Saved::now();
    let library = match Library::open() {
        Ok(library) => library,
        Err(LoadError::NotFound { tried }) => return eprintln!("SKIPPED: {tried}"),
        Err(error) => panic!("{error}"),
    };
    assert!(before.is_now(), "{library:?} has installed its own");
    let mut info = null_mut();
    // SAFETY: nothing is asked for, and the result has room.
    let found = unsafe { library.getinfo(null(), null(), 0, null(), &raw mut info) };
    assert!(before.is_now(), "a provider has installed its own");
    if found == 0 {
        // SAFETY: it came from `getinfo` and is used no more.
        unsafe { library.freeinfo(info) };
    }
}

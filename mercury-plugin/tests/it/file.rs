//! The file that Mercury loads, and its table.

use std::ffi::CStr;
use std::path::PathBuf;
use std::ptr;

use na_plugin_margo::abi::{ClassOps, ProtocolInfo};

use super::mercury::{OK, call, set_up};

fn file() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.parent().unwrap();
    let mut found = folder.join("libna_plugin_margo.so");
    if !found.exists() {
        found = folder.parent().unwrap().join("libna_plugin_margo.so");
    }
    found
}

#[test]
fn the_file_has_the_table_and_refuses_a_process_without_mercury() {
    // SAFETY: a library of ours, whose initialisers do nothing.
    let library = unsafe { libloading::Library::new(file()) }.unwrap();
    // SAFETY: the symbol is a table of that type.
    let table = unsafe { library.get::<*const ClassOps>(b"na_margo_class_ops_g\0") }.unwrap();
    // SAFETY: as above; the library is not closed.
    let table = unsafe { &**table };
    // SAFETY: a text of the library.
    assert_eq!(unsafe { CStr::from_ptr(table.class_name) }, c"margo");
    // SAFETY: the argument is a text.
    assert!(!unsafe { table.check_protocol.unwrap()(c"sm".as_ptr()) }, "there is no Mercury");
    let mut list: *mut ProtocolInfo = ptr::dangling_mut();
    // SAFETY: the arguments are those that Mercury passes.
    let code = unsafe { table.get_protocol_info.unwrap()(ptr::null(), &raw mut list) };
    assert_eq!((code, list), (OK, ptr::null_mut()));
}

#[test]
fn protocols_are_listed_by_name() {
    set_up();
    for (name, known) in [(c"sm", true), (c"tcp", true), (c"all", true), (c"ofi", false)] {
        assert_eq!(call!(check_protocol(name.as_ptr())), known, "{name:?}");
    }
    assert!(!call!(check_protocol(ptr::null())));
    assert!(!call!(check_protocol(c"\xFF".as_ptr())));
    let mut list: *mut ProtocolInfo = ptr::null_mut();
    assert_eq!(call!(get_protocol_info(ptr::null(), &raw mut list)), OK);
    let mut names = Vec::new();
    while !list.is_null() {
        // SAFETY: made by the list of this test.
        let entry = unsafe { &*list };
        let texts = [entry.class_name, entry.protocol_name, entry.device_name].map(|text| {
            // SAFETY: as above.
            unsafe { CStr::from_ptr(text) }.to_str().unwrap()
        });
        names.push(texts);
        list = entry.next;
    }
    let expected = [["margo", "sm", "shm"], ["margo", "tcp", "ip"], ["margo", "all", "shm+ip"]];
    assert_eq!(names, expected);
}

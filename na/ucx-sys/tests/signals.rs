//! A program's signal handlers stay its own. The only test here: UCX reads what it is to do with
//! them when it is loaded, which is once in a process.

use kept_signals::Saved;

#[test]
fn the_library_changes_no_handler_and_no_stack() {
    // SAFETY: no other thread of this program reads or changes the environment.
    unsafe { std::env::set_var("UCX_HANDLE_ERRORS", "bt") };
    let before = Saved::now();
    if let Err(error) = ucx_sys::library() {
        return eprintln!("SKIPPED: {error}");
    }
    assert!(before.is_now());
}

//! The table of Argobots' cases in `README.md` names tests that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The programs in `test/basic` of Argobots.
const CASES: &str = "
    init_finalize xstream_create xstream_revive xstream_rank xstream_affinity xstream_barrier
    xstream_set_main_sched main_sched thread_create thread_create2 thread_create3 thread_create4
    thread_create_on_xstream thread_revive thread_attr thread_attr2 thread_get_stack thread_yield
    thread_yield2 thread_yield_to thread_exit thread_self_suspend_resume thread_get_last_xstream
    thread_get_func_arg thread_id thread_migrate thread_data thread_data2 task_data task_data2
    task_create task_create_on_xstream task_revive thread_task thread_task_arg thread_task_num
    self_yield_to self_suspend_to self_resume_to self_exit_to self_rank_id self_type sched_basic
    sched_basic_wait sched_prio sched_randws sched_set_main sched_stack sched_on_thread
    sched_user_ws sched_config pool_config pool_custom pool_user_def unit mutex mutex_spinlock
    mutex_unlock_se mutex_prio mutex_recursive mutex_static cond_test cond_join
    cond_signal_in_main cond_static cond_timedwait eventual_timedwait rwlock_writer_excl
    rwlock_reader_writer_excl rwlock_reader_incl future_create eventual_create eventual_test
    eventual_static barrier sync_no_contention ext_thread ext_thread2 ext_thread_mutex
    ext_thread_cond ext_thread_eventual ext_thread_future ext_thread_barrier ext_thread_rwlock
    ext_thread_join stack_guard info_print info_print_stack info_query info_stackdump
    info_stackdump2 timer error
";

/// A row: the case, and what stands beside it.
fn rows(text: &str) -> Vec<(&str, &str)> {
    let cells = text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    cells.collect()
}

/// Yields each `file.rs::function` between back-quotes.
fn tests(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter_map(|name| name.split_once("::")).filter(|(file, _)| file.ends_with(".rs"))
}

fn readme() -> (std::path::PathBuf, String) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let text = fs::read_to_string(folder.join("README.md")).unwrap();
    (folder.join("it"), text)
}

#[test]
fn every_case_has_a_test_or_a_reason() {
    let (_, text) = readme();
    let expected: BTreeSet<&str> = CASES.split_whitespace().collect();
    assert_eq!(expected.len(), 93);
    let rows = rows(&text);
    let named: BTreeSet<&str> = rows.iter().map(|(case, _)| *case).collect();
    assert_eq!(named.len(), rows.len(), "a case stands twice in the table");
    assert_eq!(named, expected);
    for (case, cell) in rows {
        let has_reason = cell.starts_with("Does not apply: ") && cell.len() > 40;
        assert!(has_reason || tests(cell).next().is_some(), "`{case}`: {cell}");
    }
}

#[test]
fn every_test_that_the_table_names_exists() {
    let (folder, text) = readme();
    for (file, function) in tests(&text) {
        let path = folder.join(file);
        let code = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{file}: {e}"));
        let start = format!("#[test]\nfn {function}() {{");
        assert!(code.contains(&start), "{file} has no test `{function}`");
    }
}

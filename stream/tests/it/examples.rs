//! The examples do what they say.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// `cargo test` builds the examples beside the test programs.
fn built(name: &str) -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    let path = path.join("examples").join(name);
    assert!(path.exists(), "{} is not built; run `cargo build --examples`", path.display());
    path
}

fn printed(process: Child) -> String {
    let output = process.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn start(example: &str, arguments: &[&str], folder: &Path) -> Child {
    let mut command = Command::new(built(example));
    command.args(arguments).current_dir(folder).stdout(Stdio::piped()).spawn().unwrap()
}

/// A file beside the examples.
fn beside(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name).display().to_string()
}

#[test]
fn word_count_counts_the_words_of_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a"), "To be, or not to be:\nthat is the question").unwrap();
    std::fs::write(folder.path().join("b"), "The question is: the words").unwrap();
    let output = Command::new(built("word_count")).arg(folder.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let words: Vec<_> =
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
    assert_eq!(words[..4], [["3", "the"], ["2", "be"], ["2", "is"], ["2", "question"]]);
}

#[test]
fn three_groups_count_as_one_process_does() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["docs", "target"] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
    }
    for name in ["a", "b", "c"] {
        let text = format!("{name} is a file\nof two lines\n");
        std::fs::write(folder.path().join("docs").join(name), text).unwrap();
    }
    let start = |arguments: &[&str]| start("three_groups", arguments, folder.path());
    assert_eq!(printed(start(&[])), "6 21 75\n");
    for transports in ["sm", "tcp", "mixed"] {
        let file = beside(&format!("three_groups.{transports}.json"));
        let groups = ["G1a", "G1b", "G2", "G3"].map(|name| start(&["--group", name, &file]));
        assert_eq!(groups.map(printed), ["", "", "", "6 21 75\n"], "{transports}");
    }
}

#[test]
fn nexmark_has_the_results_of_loops() {
    // Windows of 15 seconds; it fails if there are others.
    let printed = printed(start("nexmark", &["150000"], Path::new(".")));
    let results = |query: &str| {
        let line = printed.lines().find(|line| line.trim_start().starts_with(query)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap()
    };
    assert_eq!([0, 1].map(|query| results(&format!("q{query}"))), [150_000, 138_000]);
    assert_eq!([4, 5, 7].map(|query| results(&format!("q{query}"))), [5, 8, 2]);
    assert!([2, 3, 6, 8].iter().all(|query| results(&format!("q{query}")) > 100), "{printed}");
}

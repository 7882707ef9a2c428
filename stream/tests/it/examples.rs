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
    let start = |arguments: &[&str]| {
        let mut command = Command::new(built("three_groups"));
        command.args(arguments).current_dir(folder.path()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let printed = |process: Child| {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(printed(start(&[])), "6 21 75\n");
    for transports in ["sm", "tcp", "mixed"] {
        let file = format!("examples/three_groups.{transports}.json");
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file).display().to_string();
        let groups = ["G1a", "G1b", "G2", "G3"].map(|name| start(&["--group", name, &file]));
        assert_eq!(groups.map(printed), ["", "", "", "6 21 75\n"], "{transports}");
    }
}

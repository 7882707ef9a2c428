//! The examples do what they say.

use std::path::PathBuf;
use std::process::Command;

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

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

#[test]
fn log_analysis_counts_by_minute_and_path() {
    let expected = "minute  requests  errors  p95 bytes  path
13:55          2       0          0  /index.html
13:55          2       1          0  /search
13:56          1       0       5120  /index.html
13:56          2       1         64  /upload
";
    assert_eq!(printed(start("log_analysis", &[], Path::new("."))), expected);
    let folder = tempfile::tempdir().unwrap();
    let mut lines = String::from("something else\n");
    for n in 0..100 {
        lines += &format!("h - - [01/Jan/2026:00:0{}:00 -0700] \"GET / H\" 200 {n}\n", n / 60);
    }
    std::fs::write(folder.path().join("log"), lines).unwrap();
    let printed = printed(start("log_analysis", &["log", "log"], folder.path()));
    let rows: Vec<Vec<_>> =
        printed.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows, [["00:00", "120", "0", "56", "/"], ["00:01", "80", "0", "97", "/"]]);
}

#[test]
fn image_pipeline_blurs_in_one_process_and_in_groups() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("target")).unwrap();
    let start = |arguments: &[&str]| start("image_pipeline", arguments, folder.path());
    assert_eq!(printed(start(&[])), "made: 640 x 480, mean brightness 87\n");
    // A white column on the left, by three bytes and by one.
    let column = |colours: usize| [vec![255; colours], vec![0; 3 * colours]].concat().repeat(2);
    let colour = [b"P6 # a comment\n4 2\n255\n".as_slice(), &column(3)].concat();
    std::fs::write(folder.path().join("a.ppm"), colour).unwrap();
    std::fs::write(
        folder.path().join("b.pgm"),
        [b"P5\n4 2\n255\n".as_slice(), &column(1)].concat(),
    )
    .unwrap();
    let blurred = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    let expected = [b"P5\n4 2\n255\n".as_slice(), &[127, 85, 0, 0, 127, 85, 0, 0]].concat();
    let says = |name| format!("{name}.blurred.pgm: 4 x 2, mean brightness 53");
    for is_cut in [false, true] {
        let text = if is_cut {
            let file = beside("image_pipeline.json");
            let blur = start(&["--group", "G2", &file]);
            let read = start(&["a.ppm", "b.pgm", "--group", "G1", &file]);
            assert_eq!(printed(read), "");
            printed(blur)
        } else {
            printed(start(&["a.ppm", "b.pgm"]))
        };
        let mut lines: Vec<_> = text.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, [says("a"), says("b")]);
        for name in ["a.blurred.pgm", "b.blurred.pgm"] {
            assert_eq!(blurred(name), expected);
            std::fs::remove_file(folder.path().join(name)).unwrap();
        }
    }
}

//! A disk that is full: a small file system, mounted where only a child process sees it.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::*;

/// Tells the child where its small file system is.
const MOUNTED: &str = "MARGO_TEST_KV_SMALL_DISK";

/// A command that runs `script` where it may mount; as root, or as a user where that is allowed.
fn with_own_mounts(script: &str) -> Command {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "--kill-child", "--fork", "sh", "-ec", script]);
    command
}

#[test]
fn full_until_there_is_room() {
    if let Some(dir) = std::env::var_os(MOUNTED) {
        let dir = Path::new(&dir);
        return every_store(dir)[2..].iter().for_each(|config| fill(config, dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let mount = format!("mount -t tmpfs -o size=8m tmpfs \"${MOUNTED}\"");
    let can = with_own_mounts(&mount)
        .env(MOUNTED, dir.path())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !can {
        eprintln!("SKIPPED: mounting is not permitted here (needs root or user namespaces)");
        return;
    }
    let output = with_own_mounts(&format!("{mount}\nexec \"$@\""))
        .arg("sh")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "engine::tests::full_disk::full_until_there_is_room", "--nocapture"])
        .env(MOUNTED, dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
}

/// Writes until the disk is full, makes room, writes again.
fn fill(config: &StoreConfig, dir: &Path) {
    let ballast = dir.join("ballast");
    std::fs::write(&ballast, vec![1; 4 << 20]).unwrap();
    let database = Database::open(config).unwrap();
    // Stores compress what can be.
    let value = |number: u32| {
        let mut random = fastrand::Rng::with_seed(number.into());
        (0..20_000).map(|_| random.u8(..)).collect::<Vec<_>>()
    };
    let write = |number: u32| {
        let changes =
            vec![put(format!("a {number}"), value(number)), put(format!("b {number}"), "")];
        database.now(all(changes))
    };
    let mut made = 0;
    let error = loop {
        match write(made) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
        assert!(made < 1000, "there is room for less");
    };
    assert!(matches!(&error, KvError::Full(why) if why.contains("No space left")), "{error}");
    assert!(made > 10, "{made}");
    let check = |made: u32| {
        for number in 0..made {
            assert_eq!(database.value(format!("a {number}")), Some(value(number)));
            assert_eq!(database.value(format!("b {number}")), Some(Vec::new()));
        }
    };
    // Readers go on, and changes are refused, unless to open it again has made a little room.
    check(made);
    assert_eq!(database.value(format!("a {made}")), None);
    let until = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < until {
        match write(made) {
            Ok(_) => made += 1,
            Err(error) => assert!(matches!(error, KvError::Full(_)), "{error}"),
        }
    }
    check(made);
    std::fs::remove_file(ballast).unwrap();
    let until = Instant::now() + Duration::from_secs(300);
    while let Err(error) = write(made) {
        assert!(matches!(error, KvError::Full(_)), "{error}");
        assert!(Instant::now() < until, "{error}");
        std::thread::yield_now();
    }
    check(made + 1);
    drop(database);
    let database = Database::open(config).unwrap();
    assert_eq!(database.value(format!("a {made}")), Some(value(made)));
    drop(database);
    // The next store wants all of it.
    match config.kind {
        StoreKind::Redb => std::fs::remove_file(config.path.as_ref().unwrap()).unwrap(),
        _ => std::fs::remove_dir_all(config.path.as_ref().unwrap()).unwrap(),
    }
}

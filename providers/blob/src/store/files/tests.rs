//! The store against real file systems, in each of the ways it can work.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use tempfile::TempDir;

use super::blocks::file_len;
use super::confine::Resolver;
use super::*;
use crate::BlobEntry;

fn name(text: &str) -> BlobName {
    BlobName::new(text).unwrap()
}

const WANTED: Wanted<'static> = &|| true;
const GIVEN_UP: Wanted<'static> = &|| false;

fn put(store: &FileStore, blob: &str, data: &[u8], overwrite: bool) -> Result<(), BlobError> {
    let incoming = store.begin(&name(blob))?;
    incoming.blob().write_at(0, data)?;
    incoming.publish(overwrite, WANTED)
}

fn get(store: &FileStore, blob: &str) -> Result<Vec<u8>, BlobError> {
    read(&*store.open(&name(blob))?)
}

fn read(blob: &dyn Blob) -> Result<Vec<u8>, BlobError> {
    let mut data = vec![0; usize::try_from(blob.stat()?.len).unwrap()];
    blob.read_at(0, &mut data).map(|()| data)
}

fn names(store: &FileStore) -> Vec<String> {
    let page = store.list("", "", usize::MAX, WANTED).unwrap();
    assert!(!page.more);
    page.blobs.into_iter().map(|entry| entry.name).collect()
}

/// Everything below `dir`, links not followed.
fn tree(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(tree(&path));
        }
        found.push(path);
    }
    found.sort();
    found
}

/// A store in `dir/blobs`, beside `dir/outside/secret`.
fn store_in(dir: &TempDir, resolver: Resolver, scratch: Scratch) -> FileStore {
    fs::create_dir_all(dir.path().join("outside")).unwrap();
    fs::write(dir.path().join("outside/secret"), b"secret").unwrap();
    let mut store = FileStore::open(&BlobConfig::new(dir.path().join("blobs"))).unwrap();
    let directory = Arc::get_mut(&mut store.0).unwrap();
    directory.root.resolver = resolver;
    directory.scratch = scratch;
    store
}

/// Runs `body` on a new store, once for each way of working.
fn each_way(body: impl Fn(&FileStore, &Path)) {
    for resolver in [Resolver::Kernel, Resolver::Steps] {
        for scratch in [Scratch::Unnamed, Scratch::Named] {
            for sync in [false, true] {
                let dir = tempfile::tempdir().unwrap();
                let mut store = store_in(&dir, resolver, scratch);
                Arc::get_mut(&mut store.0).unwrap().sync = sync;
                let blobs = dir.path().join("blobs");
                body(&store, &blobs);
                let left = tree(&blobs).into_iter().find(|path| {
                    path.file_name().unwrap().to_string_lossy().starts_with(RESERVED_PREFIX)
                });
                assert_eq!(left, None, "{resolver:?} {scratch:?}: a temporary file is left");
                assert_eq!(fs::read(dir.path().join("outside/secret")).unwrap(), b"secret");
                assert_eq!(tree(&dir.path().join("outside")).len(), 1);
            }
        }
    }
}

#[test]
fn uses_the_best_that_the_system_has() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(&BlobConfig::new(dir.path())).unwrap();
    let fd = store.0.root.fd();
    let none = Mode::empty();
    let kernel =
        rustix::fs::openat2(fd, ".", OFlags::PATH, none, rustix::fs::ResolveFlags::BENEATH);
    assert_eq!(store.0.root.resolver == Resolver::Kernel, kernel.is_ok());
    let unnamed = rustix::fs::openat(fd, ".", OFlags::TMPFILE | OFlags::RDWR, FILE_MODE);
    assert_eq!(store.0.scratch == Scratch::Unnamed, unnamed.is_ok());
}

#[test]
fn blobs_come_and_go() {
    each_way(|store, blobs| {
        put(store, "a", b"one", false).unwrap();
        put(store, "x/y/z", b"two", false).unwrap();
        put(store, "x/y/empty", b"", true).unwrap();
        assert_eq!(names(store), ["a", "x/y/empty", "x/y/z"]);
        assert_eq!(get(store, "a").unwrap(), b"one");
        assert_eq!(fs::metadata(blobs.join("x/y/z")).unwrap().len(), file_len(3));

        put(store, "a", b"another", true).unwrap();
        assert_eq!(get(store, "a").unwrap(), b"another");
        let exists = BlobError::AlreadyExists { name: "a".into() };
        assert_eq!(put(store, "a", b"third", false).unwrap_err(), exists);
        assert_eq!(get(store, "a").unwrap(), b"another");

        for blob in ["x/y/z", "a", "x/y/empty"] {
            store.remove(&name(blob), WANTED).unwrap();
            let missing = BlobError::NotFound { name: blob.into() };
            assert_eq!(store.remove(&name(blob), WANTED).unwrap_err(), missing);
            assert_eq!(get(store, blob).unwrap_err(), missing);
        }
        assert_eq!(tree(blobs), Vec::<PathBuf>::new(), "empty folders are removed");
    });
}

#[test]
fn what_was_given_up_changes_nothing() {
    each_way(|store, blobs| {
        put(store, "f/b", b"acknowledged", false).unwrap();
        for (blob, overwrite) in [("f/b", true), ("f/removed", true), ("g/h/removed", false)] {
            let blob = name(blob);
            let incoming = store.begin(&blob).unwrap();
            incoming.blob().write_at(0, b"late").unwrap();
            let error = incoming.publish(overwrite, GIVEN_UP).unwrap_err();
            assert_eq!(error, BlobError::GivenUp { name: blob.to_string() });
        }
        let error = store.remove(&name("f/b"), GIVEN_UP).unwrap_err();
        assert_eq!(error, BlobError::GivenUp { name: "f/b".into() });
        assert_eq!(get(store, "f/b").unwrap(), b"acknowledged");
        assert_eq!(tree(blobs), [blobs.join("f"), blobs.join("f/b")]);
    });
}

#[test]
fn empty_folders_of_a_killed_process_do_not_keep_a_name() {
    each_way(|store, blobs| {
        for (overwrite, blob) in [(false, "a"), (true, "a"), (false, "x/y"), (true, "x/y")] {
            fs::create_dir_all(blobs.join(blob).join("b/c")).unwrap();
            fs::create_dir_all(blobs.join(blob).join("b/d/e")).unwrap();
            put(store, blob, b"data", overwrite).unwrap();
            assert_eq!(get(store, blob).unwrap(), b"data");
            store.remove(&name(blob), WANTED).unwrap();
            fs::create_dir_all(blobs.join(blob).join("b")).unwrap();
            store.refuse_existing(&name(blob)).unwrap();
            put(store, blob, b"data", overwrite).unwrap();
            store.remove(&name(blob), WANTED).unwrap();
        }
        // What others have put there is theirs.
        fs::create_dir_all(blobs.join("a/b/lost\\found")).unwrap();
        symlink("b", blobs.join("b")).unwrap();
        let before = tree(blobs);
        for (overwrite, blob) in [(false, "a"), (true, "a/b"), (false, "b"), (true, "b")] {
            let error = put(store, blob, b"data", overwrite).unwrap_err();
            assert!(matches!(error, BlobError::Conflict { .. }), "{blob}: {error}");
        }
        assert_eq!(tree(blobs), before);
    });
}

#[test]
fn a_name_is_a_blob_or_a_folder() {
    each_way(|store, blobs| {
        put(store, "f/b", b"1", false).unwrap();
        for overwrite in [false, true] {
            let error = put(store, "f", b"2", overwrite).unwrap_err();
            assert!(error.to_string().contains("is a folder"), "{error}");
            let error = put(store, "f/b/c/d", b"2", overwrite).unwrap_err();
            assert!(error.to_string().contains("is no folder"), "{error}");
        }
        assert!(get(store, "f").unwrap_err().to_string().contains("is a folder"));
        assert!(store.remove(&name("f"), WANTED).unwrap_err().to_string().contains("is a folder"));
        let missing = BlobError::NotFound { name: "f/b/c".into() };
        assert_eq!(get(store, "f/b/c").unwrap_err(), missing);
        assert_eq!(tree(blobs), [blobs.join("f"), blobs.join("f/b")]);
    });
}

#[test]
fn an_open_blob_outlives_its_replacement_and_removal() {
    each_way(|store, _| {
        put(store, "a", b"old", false).unwrap();
        let old = store.open(&name("a")).unwrap();
        put(store, "a", b"newer", true).unwrap();
        let replaced = store.open(&name("a")).unwrap();
        store.remove(&name("a"), WANTED).unwrap();
        assert_eq!(read(&*old).unwrap(), b"old");
        for gone in [old, replaced] {
            let missing = BlobError::NotFound { name: "a".into() };
            assert_eq!(gone.write_at(0, b"new").unwrap_err(), missing);
            assert_eq!(gone.append(b"new", 3).unwrap_err(), missing);
            assert_eq!(gone.set_len(0).unwrap_err(), missing);
        }
    });
}

#[test]
fn what_is_not_published_is_not_there() {
    each_way(|store, blobs| {
        let incoming = store.begin(&name("a")).unwrap();
        incoming.blob().write_at(0, b"half").unwrap();
        let files = tree(blobs).len();
        assert_eq!(files, usize::from(store.0.scratch == Scratch::Named));
        assert_eq!(names(store), Vec::<String>::new());
        drop(incoming);
        assert_eq!(tree(blobs), Vec::<PathBuf>::new());
    });
}

#[test]
fn folders_made_in_vain_are_removed_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_in(&dir, Resolver::Kernel, Scratch::Named);
    let blobs = dir.path().join("blobs");
    for overwrite in [false, true] {
        let blob = name("f/g/h");
        let incoming = store.begin(&blob).unwrap();
        for file in tree(&blobs) {
            fs::remove_file(file).unwrap(); // so that publishing fails after the folders are made
        }
        incoming.publish(overwrite, WANTED).unwrap_err();
        assert_eq!(tree(&blobs), Vec::<PathBuf>::new());
    }
}

#[test]
fn links_and_devices_are_never_followed() {
    each_way(|store, blobs| {
        symlink("../outside", blobs.join("folder")).unwrap();
        symlink("../outside/secret", blobs.join("file")).unwrap();
        symlink("../outside/new", blobs.join("dangling")).unwrap();
        symlink(".", blobs.join("self")).unwrap();
        symlink("/proc/self/root", blobs.join("magic")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            blobs.join("fifo"),
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let before = tree(blobs);
        let odd = [
            "folder",
            "folder/secret",
            "folder/new",
            "folder/new/x",
            "file",
            "file/x",
            "dangling",
            "self",
            "self/self/x",
            "magic/etc/hostname",
            "fifo",
        ];
        for odd in odd {
            assert!(get(store, odd).is_err(), "read {odd}");
            assert!(put(store, odd, b"x", false).is_err(), "put {odd}");
            assert!(put(store, odd, b"x", true).is_err(), "overwrite {odd}");
            assert!(store.remove(&name(odd), WANTED).is_err(), "remove {odd}");
        }
        for link in ["folder/secret", "file", "self/x", "magic/etc/hostname"] {
            let error = get(store, link).unwrap_err().to_string();
            assert!(error.contains("symbolic link"), "{link}: {error}");
        }
        for prefix in ["", "folder/", "self/", "magic/", "../", "/", "magic/etc/", "\0"] {
            let listed = store.list(prefix, "", 1000, WANTED).unwrap();
            assert_eq!(listed.blobs, [], "{prefix:?}");
        }
        assert_eq!(tree(blobs), before);
    });
}

#[test]
fn a_second_store_is_refused_while_the_first_lives() {
    let dir = tempfile::tempdir().unwrap();
    let config = BlobConfig::new(dir.path().join("new/folder"));
    let first = FileStore::open(&config).unwrap();
    let error = FileStore::open(&config).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    drop(first);
    FileStore::open(&config).unwrap();
}

#[test]
fn files_of_others_are_refused() {
    each_way(|store, blobs| {
        for (blob, data) in [("short", &b"text"[..]), ("long", &[b'x'; 10_000])] {
            fs::write(blobs.join(blob), data).unwrap();
            for error in [get(store, blob).map(drop), store.refuse_existing(&name(blob))] {
                let text = error.unwrap_err().to_string();
                assert!(text.contains("no file of a store of this version"), "{text}");
            }
        }
        assert_eq!(names(store), ["long"], "what is shorter than any blob is not listed");
    });
}

#[test]
fn damage_is_told_with_the_blob_and_the_block() {
    let dir = tempfile::tempdir().unwrap();
    let store = &store_in(&dir, Resolver::Kernel, Scratch::Unnamed);
    put(store, "f/blob", &[7; 3 * BLOCK_BYTES as usize], false).unwrap();
    let path = dir.path().join("blobs/f/blob");
    let mut bytes = fs::read(&path).unwrap();
    let place = file_len(BLOCK_BYTES) as usize + 5;
    bytes[place] ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = get(store, "f/blob").unwrap_err();
    assert_eq!(error, BlobError::Damaged { name: "f/blob".into(), block: 1, bytes: BLOCK_BYTES });
    assert_eq!(error.to_string(), "block 1 of blob `f/blob` is damaged: bytes 65536 to 131071");
    // Nor is a copy made of it.
    let elsewhere = tempfile::tempdir().unwrap();
    let other = store_in(&elsewhere, Resolver::Kernel, Scratch::Unnamed);
    assert_eq!(super::super::copy(store, &other).unwrap_err(), error);
    let blob = store.open(&name("f/blob")).unwrap();
    let found = blob.scrub(0, u64::MAX).unwrap();
    assert_eq!(found, Found { blocks: 3, sealed: 0, damaged: vec![1] });
}

#[test]
fn a_directory_that_cannot_be_used_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    for path in [file.clone(), file.join("below")] {
        let error = FileStore::open(&BlobConfig::new(&path)).unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
    }
}

#[test]
fn that_the_directory_was_removed_is_said() {
    for scratch in [Scratch::Unnamed, Scratch::Named] {
        let dir = tempfile::tempdir().unwrap();
        let store = &store_in(&dir, Resolver::Kernel, scratch);
        fs::remove_dir(dir.path().join("blobs")).unwrap();
        for overwrite in [false, true] {
            let error = put(store, "f/b", b"data", overwrite).unwrap_err();
            let said = error.to_string().contains("the directory of the store was removed");
            assert!(said && matches!(error, BlobError::Io { .. }), "{error}");
        }
    }
}

#[test]
fn leftovers_of_a_killed_process_are_removed_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let leftover = dir.path().join(format!("{RESERVED_PREFIX}123-4"));
    fs::write(&leftover, b"half a blob").unwrap();
    fs::File::create(dir.path().join("blob")).unwrap().set_len(file_len(5)).unwrap();
    let store = FileStore::open(&BlobConfig::new(dir.path())).unwrap();
    assert_eq!(names(&store), ["blob"]);
    assert!(!leftover.exists());
}

#[test]
fn readers_see_one_version_or_the_other() {
    const LEN: usize = 256 << 10;
    let dir = tempfile::tempdir().unwrap();
    let store = &store_in(&dir, Resolver::Kernel, Scratch::Unnamed);
    put(store, "f/blob", &[0; LEN], false).unwrap();
    let done = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = || {
            let mut reads = 0;
            while !done.load(Ordering::Acquire) || reads == 0 {
                let data = get(store, "f/blob").unwrap();
                let first = data[0];
                assert_eq!(data.len(), LEN - usize::from(first));
                assert!(data.iter().all(|&byte| byte == first), "a mixture of versions");
                reads += 1;
            }
        };
        scope.spawn(reader);
        scope.spawn(reader);
        for version in 0..100u8 {
            put(store, "f/blob", &vec![version; LEN - usize::from(version)], true).unwrap();
            // Other blobs of the folder come and go meanwhile.
            put(store, "f/other", b"", false).unwrap();
            store.remove(&name("f/other"), WANTED).unwrap();
        }
        done.store(true, Ordering::Release);
    });
}

#[test]
fn publishing_and_removing_in_one_folder_do_not_disturb_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let store = &store_in(&dir, Resolver::Kernel, Scratch::Unnamed);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let blob = format!("deep/er/{thread}");
                for _ in 0..200 {
                    put(store, &blob, b"x", false).unwrap();
                    store.remove(&name(&blob), WANTED).unwrap();
                }
            });
        }
    });
    assert_eq!(tree(&dir.path().join("blobs")), Vec::<PathBuf>::new());
}

#[test]
fn long_lists_come_in_pages() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_in(&dir, Resolver::Kernel, Scratch::Unnamed);
    let all: Vec<String> = (0..2500).map(|i| format!("f{}/{i:05}", i / 700)).collect();
    for blob in &all {
        put(&store, blob, b"xy", false).unwrap();
    }
    let mut listed: Vec<String> = Vec::new();
    let mut pages = 0;
    loop {
        let after = listed.last().cloned().unwrap_or_default();
        let page = store.list("", &after, usize::MAX, WANTED).unwrap();
        assert!(page.blobs.iter().all(|entry| entry.len == 2));
        listed.extend(page.blobs.into_iter().map(|entry| entry.name));
        pages += 1;
        if !page.more {
            break;
        }
    }
    assert_eq!(listed, all);
    assert_eq!(pages, 3);
}

/// Names from few letters, so that they collide in interesting ways.
fn any_blob() -> impl Strategy<Value = String> {
    proptest::collection::vec("[ab.\\-0é]{1,3}", 1..4).prop_map(|parts| parts.join("/"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A store behaves as a sorted map from names to contents.
    #[test]
    fn is_a_sorted_map(
        blobs in proptest::collection::vec((any_blob(), 0..3u8), 1..30),
        prefix in "[ab./\\-0]{0,3}",
        after in "[ab./\\-0é]{0,4}",
        max in 1..8usize,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let store = store_in(&dir, Resolver::Kernel, Scratch::Unnamed);
        let mut model = BTreeMap::new();
        for (blob, action) in &blobs {
            let Ok(valid) = BlobName::new(blob) else { continue };
            if *action == 0 {
                prop_assert_eq!(store.remove(&valid, WANTED).is_ok(), model.remove(blob).is_some());
            } else if put(&store, blob, blob.as_bytes(), true).is_ok() {
                model.insert(blob.clone(), blob.len() as u64);
            }
        }
        let wanted: Vec<_> = model
            .iter()
            .filter(|(blob, _)| blob.starts_with(&prefix) && **blob > after)
            .map(|(name, len)| BlobEntry { name: name.clone(), len: *len })
            .collect();
        let page = store.list(&prefix, &after, max, WANTED).unwrap();
        prop_assert_eq!(page.more, wanted.len() > max);
        prop_assert_eq!(&page.blobs, &wanted[..wanted.len().min(max)]);
        for blob in model.keys() {
            prop_assert_eq!(get(&store, blob).unwrap(), blob.as_bytes());
        }
    }

    /// Whatever a peer asks for, and whatever links are inside, nothing outside is touched.
    #[test]
    fn nothing_escapes(
        texts in proptest::collection::vec(
            r"(\.\./|\./|/|up/|self/|abs/|secret|a|\\|\.\.){1,5}", 1..20),
        steps in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let resolver = if steps { Resolver::Steps } else { Resolver::Kernel };
        let store = store_in(&dir, resolver, Scratch::Unnamed);
        let outside = dir.path().join("outside");
        let blobs = dir.path().join("blobs");
        symlink("../outside", blobs.join("up")).unwrap();
        symlink(".", blobs.join("self")).unwrap();
        symlink(&outside, blobs.join("abs")).unwrap();
        for text in &texts {
            let _ = store.list(text, text, 10, WANTED).unwrap();
            let Ok(blob) = BlobName::new(text) else { continue };
            let _ = put(&store, text, b"overwritten", true);
            if let Ok(data) = get(&store, text) {
                prop_assert_ne!(data, b"secret");
            }
            let _ = store.remove(&blob, WANTED);
        }
        prop_assert_eq!(fs::read(outside.join("secret")).unwrap(), b"secret");
        prop_assert_eq!(tree(&outside), [outside.join("secret")]);
        prop_assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}

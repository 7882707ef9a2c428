//! Snapshots of every store, restored to every other one.

use super::*;

#[test]
fn a_snapshot_has_all_records_and_their_versions() {
    let dir = tempfile::tempdir().unwrap();
    for (number, config) in every_store(dir.path()).into_iter().enumerate() {
        let database = Database::open(&config).unwrap();
        let changes = (0..300).map(|number| put(format!("{number}"), vec![7; 4_000]));
        database.now(each(changes.collect())).unwrap();
        database.now(each(vec![put("7", ""), erase("8"), put("", "x")])).unwrap();
        let records = database.all_records().unwrap();
        let path = dir.path().join(format!("snapshot {number}"));
        let view = database.snapshot().unwrap();
        database.now(each(vec![put("later", ""), erase("9")])).unwrap();
        let mut seen = 0;
        let all = (Bound::Unbounded, Bound::Unbounded);
        view.scan(all, true, &mut |_, _| {
            seen += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(seen, records.len());
        assert_eq!(view.get(b"9", &mut |_| {}), Ok(true));
        assert_eq!(view.get(b"later", &mut |_| {}), Ok(false));

        let records = database.all_records().unwrap();
        assert_eq!(database.snapshot_to(&path), Ok(300));
        assert!(matches!(database.snapshot_to(&path), Err(KvError::Failed(_))), "it is there");
        let folder = dir.path().join(format!("restored {number}"));
        std::fs::create_dir(&folder).unwrap();
        for config in every_store(&folder) {
            let restored = Database::open(&config).unwrap();
            let missing = restored.restore(&dir.path().join("missing")).unwrap_err();
            assert!(missing.to_string().contains("missing: there is no such file"), "{missing}");
            restored.restore(&path).unwrap();
            assert_eq!(restored.all_records().unwrap(), records);
            assert_eq!(restored.stats().id, database.stats().id);
            let refused = restored.restore(&path).unwrap_err();
            assert!(refused.to_string().contains("to an empty database only"), "{refused}");
            let Ok(Changed::Put { version }) = restored.one(put("new", "")) else { panic!() };
            assert!(records.iter().all(|(_, other, _)| *other < version));
        }
    }
}

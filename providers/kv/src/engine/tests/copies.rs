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
        assert_eq!(database.scrub(), Ok(300));
        let refused = Database::restore(&config, &path);
        assert!(config.kind == StoreKind::Memory || refused.is_err(), "it is open");
        let kind = [StoreKind::Redb, StoreKind::Fjall][number % 2];
        let restored = StoreConfig::new(kind, dir.path().join(format!("restored {number}")));
        assert_eq!(Database::restore(&restored, &path), Ok(300));
        assert!(Database::restore(&restored, &path).is_err(), "it is not empty");
        let restored = Database::open(&restored).unwrap();
        assert_eq!(restored.all_records().unwrap(), records);
        let Ok(Changed::Put { version }) = restored.one(put("new", "")) else { panic!() };
        assert!(records.iter().all(|(_, other, _)| *other < version));
    }
    let nowhere = StoreConfig::new(StoreKind::Redb, dir.path().join("nowhere"));
    let error = Database::restore(&nowhere, &dir.path().join("missing")).unwrap_err();
    assert!(error.to_string().contains("missing: there is no such file"), "{error}");
    assert!(!nowhere.path.unwrap().exists());
}

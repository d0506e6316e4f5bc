//! The shortest way through a posix store.
use dafs_mem::VolatileSlice;
use dafs_store::*;

#[test]
fn a_file_is_made_written_listed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let s =
        PosixStore::open(dir.path(), PosixOptions::new(ExportSecret::generate().unwrap())).unwrap();
    let cred = Cred::new(0, 0);
    let mode = OpenMode { read: true, write: true };
    let c =
        s.create(&cred, &s.root(), b"x", CreateHow::Guarded, &SetAttr::default(), mode).unwrap();
    c.file
        .write_at(
            &[VolatileSlice::from_mut(&mut *b"hello".to_vec())],
            0,
            Stability::File,
            Wait::Allowed,
        )
        .unwrap();
    let mut names = Vec::new();
    assert!(
        s.readdir(&cred, &s.root(), 0, true, &mut |e| {
            names.push((e.name.to_vec(), e.object.unwrap().0));
            true
        })
        .unwrap()
    );
    assert_eq!(names, [(b"x".to_vec(), c.id)]);
    assert_eq!(s.getattr(&c.id).unwrap().size, 5);
    s.remove(&cred, &s.root(), b"x").unwrap();
    s.getattr(&c.id).unwrap();
    drop(c.file);
    assert_eq!(s.getattr(&c.id), Err(StoreError::Stale));
}

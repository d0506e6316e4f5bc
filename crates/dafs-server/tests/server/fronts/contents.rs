//! Data, sizes and change attributes: changes through one front end are visible through the others.

use super::harness::{Served, existing, refused};
use dafs_client::{Create, File, OpenOptions, Stability};
use dafs_nfs_client::v3::Client3;
use dafs_nfs_client::{Handle, Identity, OpenFile, Options, Session, connect, patiently};
use dafs_wire::nfs3;
use dafs_wire::nfs4::{DENY_NONE, SeekWhat, SetAttributes, ShareAccess, StableHow, Status};

const NAME: &[u8] = b"contents";

/// Makes the file, and opens it through all front ends.
fn open_by_all(served: &Served, owner: &[u8]) -> (File, Session, OpenFile, Client3, Handle) {
    let options = OpenOptions::read_write().create(Create::New).mode(0o666);
    let file = served.dafs().open(NAME, &options).unwrap();
    let (session, root) = served.v4(owner);
    let open = session.open(&root, NAME, &existing(ShareAccess::BOTH, DENY_NONE)).unwrap();
    let (v3, root3) = served.v3();
    let handle3 = v3.lookup(&root3, NAME).unwrap();
    (file, session, open, v3, handle3)
}

#[test]
fn each_reads_what_the_others_wrote() {
    let served = Served::new();
    let (file, session, open, v3, handle3) = open_by_all(&served, b"contents");
    for round in 0..20u8 {
        let data = vec![round; 5000 + usize::from(round)];
        let len = data.len();
        match round % 3 {
            0 => assert_eq!(file.write_at(&data, 0, Stability::Unstable).unwrap(), len),
            1 => {
                let stable = StableHow::Unstable;
                let wrote = session.write(&open.handle, open.stateid, 0, &data, stable).unwrap();
                assert_eq!(wrote.count as usize, len);
            }
            _ => {
                let wrote = v3.write(&handle3, 0, &data, nfs3::Stability::Unstable).unwrap();
                assert_eq!(wrote as usize, len);
            }
        }
        let mut read = vec![0; len + 1];
        assert_eq!(file.read_at(&mut read, 0).unwrap(), len);
        assert_eq!(read[..len], data);
        let whole = u32::try_from(len).unwrap();
        let over = session.read(&open.handle, open.stateid, 0, whole + 1).unwrap();
        assert_eq!(over, (data.clone(), true));
        assert_eq!(v3.read(&handle3, 0, whole + 1).unwrap(), (data, true));
    }
    file.commit(0, 0).unwrap();
    session.commit(&open.handle, 0, 0).unwrap();
    v3.commit(&handle3, 0, 0).unwrap();
    session.close(&open).unwrap();
}

#[test]
fn every_change_moves_the_change_attribute() {
    let served = Served::new();
    let (file, session, open, v3, handle3) = open_by_all(&served, b"changes");
    let mut seen = vec![session.stat(&open.handle).unwrap().change];
    for round in 0..30u8 {
        match round % 5 {
            0 => drop(file.write_at(&[round], 0, Stability::Unstable).unwrap()),
            1 => {
                let stable = StableHow::Unstable;
                session.write(&open.handle, open.stateid, 0, &[round], stable).unwrap();
            }
            2 => drop(v3.write(&handle3, 0, &[round], nfs3::Stability::Unstable).unwrap()),
            3 => {
                let mode = Some(0o600 + u32::from(round) % 8);
                let new = nfs3::SetAttributes { mode, ..nfs3::SetAttributes::default() };
                v3.setattr(&handle3, new).unwrap();
            }
            _ => file.set_size(u64::from(round)).unwrap(),
        }
        let now = session.stat(&open.handle).unwrap().change;
        assert_eq!(file.attributes().unwrap().change, now, "round {round}");
        assert!(!seen.contains(&now), "round {round} left the change attribute at {now}");
        seen.push(now);
    }
}

#[test]
fn truncation_is_seen_by_all() {
    let served = Served::new();
    let (file, session, open, v3, handle3) = open_by_all(&served, b"sizes");
    for (round, size) in [10_000u64, 3, 70_000, 0, 9].into_iter().enumerate() {
        match round % 3 {
            0 => file.set_size(size).unwrap(),
            1 => {
                let new = SetAttributes { size: Some(size), ..SetAttributes::default() };
                patiently(|| session.setattr(&open.handle, open.stateid, &new)).unwrap();
            }
            _ => {
                let new =
                    nfs3::SetAttributes { size: Some(size), ..nfs3::SetAttributes::default() };
                v3.setattr(&handle3, new).unwrap();
            }
        }
        assert_eq!(file.attributes().unwrap().size, size);
        assert_eq!(session.stat(&open.handle).unwrap().size, size);
        assert_eq!(v3.getattr(&handle3).unwrap().size, size);
        assert_eq!(std::fs::metadata(served.path().join("contents")).unwrap().len(), size);
    }
}

/// Linux does the same with O_RDONLY | O_CREAT | O_TRUNC: a user with write access to the file
/// empties it.
#[test]
fn an_open_for_reading_that_empties_a_file_does_so() {
    let served = Served::new();
    let path = served.path().join("contents");
    let fill = || std::fs::write(&path, b"before").unwrap();
    let len = || std::fs::metadata(&path).unwrap().len();
    fill();
    let dafs = served.dafs();
    let options = OpenOptions::read().create(Create::IfMissing).truncate(true);
    let file = dafs.open(NAME, &options).unwrap();
    assert_eq!((file.attributes().unwrap().size, len()), (0, 0));
    assert!(file.write_at(b"no", 0, Stability::Unstable).is_err(), "it is open for reading");
    fill();
    let empty = SetAttributes { size: Some(0), ..SetAttributes::default() };
    let create = dafs_nfs_client::Create::Unchecked(empty);
    let options = dafs_nfs_client::OpenOptions { create, ..existing(ShareAccess::READ, DENY_NONE) };
    let (session, root) = served.v4(b"contents");
    let open = session.open(&root, NAME, &options).unwrap();
    assert_eq!((session.stat(&open.handle).unwrap().size, len()), (0, 0));
    if std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&path).unwrap()) != 0 {
        // The server acts as its own user for every caller.
        return;
    }
    fill();
    let others = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&path, others).unwrap();
    let identity = Identity::sys("other", 1000, 1000, &[]);
    let other = connect(served.nfs, &Options { identity, ..Options::new(b"other") }).unwrap();
    let root = other.root().unwrap();
    assert_eq!(refused(other.open(&root, NAME, &options)), Status::Access);
    assert_eq!(len(), 6, "who may only read it does not empty it");
}

#[test]
fn holes_are_found_in_what_dafs_left_out() {
    let served = Served::new();
    let dafs = served.dafs();
    let options = OpenOptions::read_write().create(Create::New).mode(0o666);
    let file = dafs.open(NAME, &options).unwrap();
    file.write_at(&[1; 4096], 1 << 20, Stability::FileSync).unwrap();
    let (session, root) = served.v4(b"holes");
    let open = session.open(&root, NAME, &existing(ShareAccess::READ, DENY_NONE)).unwrap();
    let seek = |offset, what| session.seek(&open.handle, open.stateid, offset, what).unwrap();
    // A file system without holes has data everywhere.
    let data = seek(0, SeekWhat::Data).unwrap();
    assert!(data == 0 || data == 1 << 20, "data at {data}");
    let end = (1 << 20) + 4096;
    assert!(matches!(seek(1 << 20, SeekWhat::Hole), None | Some(_)));
    let hole = seek(1 << 20, SeekWhat::Hole).unwrap_or(end);
    assert_eq!(hole, end);
}

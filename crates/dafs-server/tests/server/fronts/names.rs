//! Names: removal of open files, renames, directories as seen through all front ends.

use super::harness::{Served, existing, refused};
use dafs_client::{Create, OpenOptions, Stability};
use dafs_wire::nfs3;
use dafs_wire::nfs4::{DENY_NONE, ShareAccess, StableHow, Status};

#[test]
fn a_removed_file_lives_while_another_front_door_has_it_open() {
    let served = Served::new();
    let dafs = served.dafs();
    let (session, root) = served.v4(b"removal");
    let (v3, root3) = served.v3();
    let options = OpenOptions::read_write().create(Create::New).mode(0o666);
    for remover in ["dafs", "v4", "v3"] {
        let file = dafs.open(b"doomed", &options).unwrap();
        file.write_at(b"alive", 0, Stability::Unstable).unwrap();
        let open = session.open(&root, b"doomed", &existing(ShareAccess::BOTH, DENY_NONE)).unwrap();
        match remover {
            "dafs" => dafs.remove(&dafs.root(), b"doomed").unwrap(),
            "v4" => drop(session.remove(&root, b"doomed").unwrap()),
            _ => v3.remove(&root3, b"doomed").unwrap(),
        }
        assert_eq!(refused(session.lookup(&root, b"doomed")), Status::NoEnt, "{remover}");
        let gone = v3.lookup(&root3, b"doomed").unwrap_err();
        assert_eq!(gone.status3(), Some(nfs3::Status::NoEnt));
        let mut read = [0; 5];
        assert_eq!(file.read_at(&mut read, 0).unwrap(), 5, "{remover}");
        let over = session.read(&open.handle, open.stateid, 0, 10).unwrap();
        assert_eq!(over, (b"alive".to_vec(), true), "{remover}");
        let stable = StableHow::FileSync;
        session.write(&open.handle, open.stateid, 0, b"still", stable).unwrap();
        assert_eq!(file.read_at(&mut read, 0).unwrap(), 5);
        assert_eq!(&read, b"still");
        assert_eq!(file.attributes().unwrap().links, 0, "{remover}");
        session.close(&open).unwrap();
        file.close().unwrap();
    }
}

#[test]
fn a_renamed_file_stays_open_and_is_found_under_its_new_name() {
    let served = Served::new();
    let dafs = served.dafs();
    let (session, root) = served.v4(b"renames");
    let (v3, root3) = served.v3();
    let options = OpenOptions::read_write().create(Create::New).mode(0o666);
    let file = dafs.open(b"name0", &options).unwrap();
    file.write_at(b"same", 0, Stability::Unstable).unwrap();
    let open = session.open(&root, b"name0", &existing(ShareAccess::READ, DENY_NONE)).unwrap();
    session.mkdir(&root, b"sub").unwrap();
    let sub = session.lookup(&root, b"sub").unwrap();
    dafs.rename(&dafs.root(), b"name0", &dafs.root(), b"name1").unwrap();
    session.rename(&root, b"name1", &sub, b"name2").unwrap();
    let sub3 = v3.lookup(&root3, b"sub").unwrap();
    v3.rename(&sub3, b"name2", &root3, b"name3").unwrap();
    let found = session.lookup(&root, b"name3").unwrap();
    let fileid = session.stat(&found).unwrap().fileid;
    assert_eq!(session.stat(&open.handle).unwrap().fileid, fileid);
    assert_eq!(file.attributes().unwrap().file_id, fileid);
    let handle3 = v3.lookup(&root3, b"name3").unwrap();
    assert_eq!(v3.getattr(&handle3).unwrap().file_id, fileid);
    assert_eq!(session.read(&open.handle, open.stateid, 0, 9).unwrap().0, b"same");
    assert_eq!(refused(session.lookup(&root, b"name0")), Status::NoEnt);
}

#[test]
fn all_list_the_same_directory() {
    let served = Served::new();
    let dafs = served.dafs();
    let (session, root) = served.v4(b"lists");
    let (v3, root3) = served.v3();
    let directory = session.mkdir(&root, b"many").unwrap();
    for number in 0..300 {
        let name = format!("entry-{number:04}");
        match number % 3 {
            0 => {
                let path = format!("many/{name}");
                let options = OpenOptions::write().create(Create::New).mode(0o644);
                dafs.open(path.as_bytes(), &options).unwrap().close().unwrap();
            }
            1 => {
                let open = session.create(&directory, name.as_bytes()).unwrap();
                session.close(&open).unwrap();
            }
            _ => {
                let directory3 = v3.lookup(&root3, b"many").unwrap();
                v3.mkdir(&directory3, name.as_bytes()).unwrap();
            }
        }
    }
    let mut wanted: Vec<Vec<u8>> =
        (0..300).map(|number| format!("entry-{number:04}").into_bytes()).collect();
    wanted.sort();
    let mut names: Vec<_> = session
        .read_directory(&directory, 4096)
        .unwrap()
        .into_iter()
        .map(|entry| entry.name)
        .collect();
    names.sort();
    assert_eq!(names, wanted);
    let directory3 = v3.lookup(&root3, b"many").unwrap();
    let mut names: Vec<_> = v3
        .read_directory(&directory3, 4096)
        .unwrap()
        .into_iter()
        .map(|entry| entry.name)
        .filter(|name| name != b"." && name != b"..")
        .collect();
    names.sort();
    assert_eq!(names, wanted);
    let handle = dafs.lookup(&dafs.root(), b"many").unwrap();
    let mut names: Vec<_> =
        dafs.read_dir(&handle).map(|entry| entry.unwrap().name.to_vec()).collect();
    names.sort();
    assert_eq!(names, wanted);
}

#[test]
fn handles_of_one_front_door_name_the_same_object_at_another() {
    let served = Served::new();
    let (session, root) = served.v4(b"handles");
    let (v3, root3) = served.v3();
    assert_eq!(root, root3);
    let open = session.create(&root, b"file").unwrap();
    let handle3 = v3.lookup(&root3, b"file").unwrap();
    assert_eq!(open.handle, handle3);
    assert_eq!(v3.getattr(&open.handle).unwrap().file_id, session.stat(&handle3).unwrap().fileid);
    let removed = {
        session.close(&open).unwrap();
        v3.remove(&root3, b"file").unwrap();
        refused(session.stat(&handle3))
    };
    assert_eq!(removed, Status::Stale);
    assert_eq!(v3.getattr(&handle3).unwrap_err().status3(), Some(nfs3::Status::Stale));
}

//! The store, and data servers of its process.

use crate::support::{self, make, placed, served};
use dafs_gluster::{DataPlace, DataServerOptions, GlusterOptions, GlusterStore, OpenError};
use dafs_store::*;
use dafs_testkit::{Cached, eventually, store_suite, stores};
use std::path::{Path, PathBuf};

store_suite! {
    root: support::world(false),
    other_user: support::world(true);
    { tree::space_is_told }
}

// The suite leaves out files without a name, which GlusterFS does not have, and modes with the
// sticky bit, which it takes for its own mark on regular files.

#[test]
fn files_without_a_name_are_not_supported() {
    let Some(w) = support::world(false) else { return };
    let attr = SetAttr::default();
    let made = w.store.create_unlinked(&w.cred, &w.root(), &attr, stores::READ_WRITE);
    assert_eq!(made.err(), Some(StoreError::NotSupported));
}

#[test]
fn every_mode_bit_survives_but_the_sticky_one_of_files() {
    let Some(w) = support::world(false) else { return };
    for bits in [0, 0o7777, 0o4755, 0o2711, 0o1777, 0o6000, 0o111, 0o222, 0o444] {
        let mode = SetAttr { mode: Some(bits), ..SetAttr::default() };
        let (how, name) = (CreateHow::Guarded, format!("file{bits:o}"));
        let root = w.root();
        let made = w
            .store
            .create(&w.cred, &root, name.as_bytes(), how, &mode, stores::READ_WRITE)
            .unwrap();
        assert_eq!(made.attr.mode, bits & !0o1000, "{bits:o}");
        let again = w.store.setattr(&w.cred, &made.id, &mode, None).unwrap();
        assert_eq!(again.mode, bits & !0o1000, "{bits:o}");
        let dir = w.make(&root, &format!("dir{bits:o}"), NewObject::Directory, &mode).unwrap();
        assert_eq!(dir.attr.mode, bits, "{bits:o}");
        let fifo = w.make(&root, &format!("fifo{bits:o}"), NewObject::Fifo, &mode).unwrap();
        assert_eq!(fifo.attr.mode, bits, "{bits:o}");
    }
}

#[test]
fn writing_ends_the_rights_that_a_program_runs_with() {
    let Some(w) = support::world(true) else { return };
    let made = w.create(&w.root(), "program");
    let mode = SetAttr { mode: Some(0o6755), ..SetAttr::default() };
    let set = || assert_eq!(w.store.setattr(&w.cred, &made.id, &mode, None).unwrap().mode, 0o6755);
    let mode_now = || w.store.getattr(&made.id).unwrap().mode;
    set();
    let file = w.store.open(&w.cred, &made.id, stores::WRITE).unwrap();
    assert_eq!(mode_now(), 0o6755, "opening is not writing");
    stores::write(&*file, 0, b"other code").unwrap();
    assert_eq!(mode_now(), 0o755);
    set();
    stores::write(&*file, 0, b"again").unwrap();
    assert_eq!(mode_now(), 0o755, "by an open that was there before");
    set();
    let size = SetAttr { size: Some(3), ..SetAttr::default() };
    assert_eq!(w.store.setattr(&w.cred, &made.id, &size, None).unwrap().mode, 0o755);
    set();
    let root = Cred::new(0, 0);
    let file = w.store.open(&root, &made.id, stores::WRITE).unwrap();
    stores::write(&*file, 0, b"root's").unwrap();
    assert_eq!(mode_now(), 0o6755, "root may");
}

#[test]
fn ids_and_content_outlive_the_store() {
    let Some((store, options)) = support::fresh(&stores::me()) else { return };
    stores::ids_and_content_outlive(store, || GlusterStore::open(&options).unwrap());
}

#[test]
fn changes_of_another_client_are_visible_at_once() {
    let Some((store, mut options)) = support::fresh(&stores::me()) else { return };
    // With another port option it is another client of the volume.
    options.servers[0].1 = Some(24007);
    let other = GlusterStore::open(&options).unwrap();
    let (cred, attr, how) = (stores::me(), SetAttr::default(), CreateHow::Guarded);
    let root = store.root();
    for round in 0..20_u8 {
        let name = [b'a' + round];
        assert_eq!(other.lookup(&cred, &root, &name).err(), Some(StoreError::NotFound));
        let made = store.create(&cred, &root, &name, how, &attr, stores::READ_WRITE).unwrap();
        assert_eq!(other.lookup(&cred, &root, &name).unwrap().0, made.id);
        let there = other.open(&cred, &made.id, stores::READ_WRITE).unwrap();
        stores::write(&*made.file, 0, &[round; 100]).unwrap();
        assert_eq!(stores::read(&*there, 0, 200).unwrap(), [round; 100]);
        assert_eq!(other.getattr(&made.id).unwrap().size, 100);
        stores::write(&*there, 50, &[99; 100]).unwrap();
        assert_eq!(stores::read(&*made.file, 60, 200).unwrap(), [99; 90]);
        made.file.set_size(10).unwrap();
        assert_eq!(there.attr().unwrap().size, 10);
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        other.setattr(&cred, &made.id, &mode, None).unwrap();
        assert_eq!(store.getattr(&made.id).unwrap().mode, 0o600);
        other.remove(&cred, &root, &name).unwrap();
        assert_eq!(store.lookup(&cred, &root, &name).err(), Some(StoreError::NotFound));
    }
}

#[test]
fn wrong_options_are_named() {
    let Some(cluster) = support::cluster() else { return };
    let mut wrong = support::options(&cluster.server, "/");
    wrong.volume = "no-such-volume".to_owned();
    let error = GlusterStore::open(&wrong).unwrap_err().to_string();
    assert!(error.contains("volume"), "{error}");
    let gone = support::options(&cluster.server, "/not/there");
    let error = GlusterStore::open(&gone).unwrap_err();
    assert!(matches!(error, OpenError::Root(StoreError::NotFound)), "{error}");
    let nobody = support::options("127.0.0.1", "/");
    let error = GlusterStore::open(&nobody).unwrap_err().to_string();
    assert!(error.contains("glusterd"), "{error}");
    let mut none = support::options(&cluster.server, "/");
    none.servers.clear();
    assert!(matches!(GlusterStore::open(&none), Err(OpenError::Servers)));
}

#[test]
fn data_servers_have_the_same_files_past_glusterfs() {
    let Some((store, servers)) = served() else { return };
    let layouts = store.layouts().unwrap();
    let mut used = [0; 3];
    for number in 0..24_u8 {
        let made = make(&store, &format!("file {number}"));
        let before = store.getattr(&made.id).unwrap();
        let (at, id) = placed(&store, &made.id);
        used[at] += 1;
        let file = servers[at].open(&id).unwrap();
        stores::write(&*file, 5, &[number; 100]).unwrap();
        assert_eq!(stores::read(&*made.file, 0, 200).unwrap()[5..], [number; 100]);
        assert_eq!(store.getattr(&made.id).unwrap().size, 105);
        stores::write(&*made.file, 0, b"front").unwrap();
        assert_eq!(stores::read(&*file, 0, 200).unwrap()[..5], *b"front");
        made.file.set_size(50).unwrap();
        assert_eq!(stores::read(&*file, 0, 200).unwrap().len(), 50);
        file.commit(0, 0).unwrap();
        let early = SetTime::To(TimeSpec { seconds: 7, nanoseconds: 0 });
        let early = SetAttr { mtime: Some(early), ..SetAttr::default() };
        store.setattr(&stores::me(), &made.id, &early, None).unwrap();
        assert_eq!(layouts.commit(&made.id, Some(51)), Err(StoreError::Invalid));
        assert_eq!(layouts.commit(&made.id, Some(50)), Ok(50));
        let after = store.getattr(&made.id).unwrap();
        assert_ne!(after.change, before.change);
        assert!(after.mtime >= before.mtime, "{:?}", after.mtime);
    }
    assert!(used.iter().all(|&count| count > 0), "all on some bricks: {used:?}");
    let astray: u64 = servers.iter().map(|server| server.indirect_bytes()).sum();
    assert_eq!(astray, 0);
}

/// Finds the file with this name below a directory of a brick.
fn find(dir: &Path, name: &str) -> Option<PathBuf> {
    std::fs::read_dir(dir).unwrap().find_map(|entry| {
        let path = entry.unwrap().path();
        match path.file_name() {
            Some(last) if last == name => Some(path),
            Some(last) if last != ".glusterfs" && path.is_dir() => find(&path, name),
            _ => None,
        }
    })
}

#[test]
fn advice_reaches_the_cache_of_the_brick() {
    const BYTES: usize = 1 << 20;
    let (Some((store, servers)), Some(cluster)) = (served(), support::cluster()) else { return };
    let made = make(&store, "hinted");
    let (at, id) = placed(&store, &made.id);
    let file = servers[at].open(&id).unwrap();
    stores::write(&*file, 0, &vec![7; BYTES]).unwrap();
    file.commit(0, 0).unwrap();
    let brick = cluster.dir.join((at + 1).to_string()).join("brick");
    let local = Cached::of(&find(&brick, "hinted").unwrap());
    local.drop_all();
    if local.bytes() > 0 {
        stores::skipped("the file system keeps everything in memory");
        return;
    }
    assert_eq!(file.advise(0, 0, CacheAdvice::WillNeed), Ok(Advised::Followed));
    eventually("the brick reads ahead", || local.bytes() == BYTES);
    assert_eq!(file.advise(0, 0, CacheAdvice::LeaveFirst), Ok(Advised::Followed));
    assert_eq!(local.bytes(), BYTES);
    // A page that is still being read does not leave.
    eventually("the brick drops it", || {
        assert_eq!(file.advise(0, 0, CacheAdvice::DontNeed), Ok(Advised::Followed));
        local.bytes() == 0
    });
    stores::write(&*file, 0, &vec![8; BYTES]).unwrap();
    assert_eq!(file.advise(0, 0, CacheAdvice::DontNeed), Ok(Advised::Followed));
    file.commit(0, 0).unwrap();
    assert_eq!(local.bytes(), 0, "written data leaves when it is stable");
    assert_eq!(file.advise(0, 0, CacheAdvice::Random), Ok(Advised::Ignored));
    // The library has no call for advice, but a read reaches the brick.
    assert_eq!(made.file.advise(0, 0, CacheAdvice::DontNeed), Ok(Advised::Ignored));
    assert_eq!(made.file.advise(0, 0, CacheAdvice::WillNeed), Ok(Advised::Followed));
    assert_eq!(local.bytes(), BYTES);
}

#[test]
fn the_end_of_a_layout_sets_the_mtime_of_uncommitted_writes() {
    let Some((store, servers)) = served() else { return };
    let layouts = store.layouts().unwrap();
    let made = make(&store, "f");
    let early = SetTime::To(TimeSpec { seconds: 7, nanoseconds: 0 });
    let early = SetAttr { mtime: Some(early), ..SetAttr::default() };
    store.setattr(&stores::me(), &made.id, &early, None).unwrap();
    let (at, id) = placed(&store, &made.id);
    layouts.recover_size(&made.id).unwrap();
    assert_eq!(store.getattr(&made.id).unwrap().mtime.seconds, 7, "nothing was written");
    stores::write(&*servers[at].open(&id).unwrap(), 0, b"x").unwrap();
    layouts.recover_size(&made.id).unwrap();
    assert!(store.getattr(&made.id).unwrap().mtime.seconds > 7);
}

#[test]
fn misplaced_files_are_served_counted_and_reported() {
    let Some((store, servers)) = served() else { return };
    let layouts = store.layouts().unwrap();
    let made = make(&store, "misplaced");
    let (at, id) = placed(&store, &made.id);
    let wrong = &servers[(at + 1) % 3];
    let file = wrong.open(&id).unwrap();
    stores::write(&*file, 0, b"by way of GlusterFS").unwrap();
    assert_eq!(stores::read(&*made.file, 0, 50).unwrap(), b"by way of GlusterFS");
    assert_eq!(stores::read(&*file, 7, 50).unwrap(), b"of GlusterFS");
    file.commit(0, 0).unwrap();
    assert!(wrong.indirect_bytes() >= 19);
    // The mark of a file that is being moved, on the brick.
    let cluster = support::cluster().unwrap();
    let brick = cluster.dir.join(format!("{}/brick", at + 1));
    let name = std::fs::read_dir(&brick).unwrap().flatten().find_map(|dir| {
        let path = dir.path().join("misplaced");
        let same = std::fs::read(&path).is_ok_and(|text| text == b"by way of GlusterFS");
        same.then_some(path)
    });
    let name = name.expect("the file is on its brick");
    let direct = servers[at].open(&id).unwrap();
    assert_eq!(stores::read(&*direct, 0, 2).unwrap(), b"by");
    assert_eq!(servers[at].indirect_bytes(), 0);
    std::fs::set_permissions(&name, std::os::unix::fs::PermissionsExt::from_mode(0o1644)).unwrap();
    assert_eq!(layouts.placement(&made.id, true).unwrap(), None, "it has no place for good");
    assert_eq!(stores::read(&*direct, 0, 2).unwrap(), b"by");
    assert_eq!(servers[at].indirect_bytes(), 2);
    let mut moved = Vec::new();
    while moved.is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(20));
        layouts.take_moved(&mut |id| moved.push(id));
    }
    assert_eq!(moved, [made.id]);
}

#[test]
fn programs_are_written_through_the_metadata_server() {
    let Some((store, servers)) = served() else { return };
    let layouts = store.layouts().unwrap();
    let made = make(&store, "f");
    let (at, id) = placed(&store, &made.id);
    let mode = SetAttr { mode: Some(0o4755), ..SetAttr::default() };
    store.setattr(&stores::me(), &made.id, &mode, None).unwrap();
    stores::write(&*servers[at].open(&id).unwrap(), 0, b"by the old layout").unwrap();
    assert_eq!(store.getattr(&made.id).unwrap().mode, 0o755);
    store.setattr(&stores::me(), &made.id, &mode, None).unwrap();
    assert_eq!(layouts.placement(&made.id, true).unwrap(), None);
    assert!(layouts.placement(&made.id, false).unwrap().is_some());
    let dir = store.root();
    assert_eq!(layouts.placement(&dir, false).unwrap(), None);
}

#[test]
fn removed_files_are_gone_at_data_servers_too() {
    let Some((store, servers)) = served() else { return };
    let made = make(&store, "f");
    let (at, id) = placed(&store, &made.id);
    let file = servers[at].open(&id).unwrap();
    stores::write(&*file, 0, b"x").unwrap();
    drop(made.file);
    store.remove(&stores::me(), &store.root(), b"f").unwrap();
    assert_eq!(stores::read(&*file, 0, 1), Err(StoreError::Stale));
    assert_eq!(stores::write(&*file, 0, b"y"), Err(StoreError::Stale));
    store.layouts().unwrap().recover_size(&made.id).unwrap();
    let forged = FileId([7; FILE_ID_BYTES]);
    assert_eq!(servers[at].open(&forged).err(), Some(StoreError::BadHandle));
    assert_eq!(servers[at].open(&made.id).err(), Some(StoreError::BadHandle), "an id is no handle");
}

#[test]
fn bricks_that_cannot_be_used_are_said() {
    let Some(cluster) = support::cluster() else { return };
    let open = |brick: String| {
        let addresses = NfsAddresses::over_tcp(vec!["127.0.0.1:1".parse().unwrap()]);
        let data_servers = vec![DataServerOptions { place: DataPlace::Here(addresses), brick }];
        let options = GlusterOptions { data_servers, ..support::options(&cluster.server, "/") };
        GlusterStore::open(&options).err().unwrap().to_string()
    };
    let error = open("elsewhere:/brick".to_owned());
    assert!(error.contains("no brick") && error.contains("/2/brick"), "{error}");
}

//! No access leads out of an export, and a broken disk gives errors.

use crate::common::open_posix;
use dafs_posix::{PosixOptions, PosixStore};
use dafs_store::*;
use dafs_testkit::stores::*;
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A directory with an export inside and a secret beside it.
fn with_outside() -> (TempDir, World) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("outside/sub")).unwrap();
    fs::write(dir.path().join("outside/secret"), "secret").unwrap();
    fs::create_dir(dir.path().join("export")).unwrap();
    let store = open(dir.path().join("export"));
    (dir, World { store, cred: me(), dir: None })
}

fn open(path: impl AsRef<std::path::Path>) -> Arc<PosixStore> {
    Arc::new(PosixStore::open(path, PosixOptions::new(secret())).unwrap())
}

#[test]
fn symlinks_are_never_followed() {
    let (dir, w) = with_outside();
    let root = w.root();
    let outside = dir.path().join("outside");
    let targets = [
        ("absolute", outside.clone()),
        ("relative", "../outside".into()),
        ("file", outside.join("secret")),
        ("magic", "/proc/self/root".into()),
        ("loop", "loop".into()),
    ];
    for (name, target) in &targets {
        symlink(target, dir.path().join("export").join(name)).unwrap();
        let id = w.lookup(&root, name).unwrap();
        assert_eq!(w.store.getattr(&id).unwrap().kind, Kind::Symlink, "{name}");
        assert_eq!(w.lookup(&id, "secret"), Err(StoreError::NotDirectory));
        assert_eq!(w.store.open(&w.cred, &id, READ_WRITE).err(), Some(StoreError::Symlink));
        let listed = w.store.readdir(&w.cred, &id, 0, true, &mut |_| true);
        assert_eq!(listed, Err(StoreError::NotDirectory));
        let (how, none) = (CreateHow::Unchecked, SetAttr::default());
        let made = w.store.create(&w.cred, &root, name.as_bytes(), how, &none, READ_WRITE);
        assert_eq!(made.err(), Some(StoreError::Symlink));
        let made = w.store.create(&w.cred, &id, b"new", how, &none, READ_WRITE);
        assert_eq!(made.err(), Some(StoreError::NotDirectory));
        assert_eq!(
            w.make(&id, "new", NewObject::Directory, &none).err(),
            Some(StoreError::NotDirectory)
        );
        let mode = SetAttr { mode: Some(0o777), ..none };
        w.store.setattr(&w.cred, &id, &mode, None).unwrap();
        w.store.link(&w.cred, &id, &root, b"hard").unwrap();
        assert_eq!(w.lookup(&root, "hard"), Ok(id));
        w.remove(&root, "hard").unwrap();
    }
    assert_eq!(fs::read(outside.join("secret")).unwrap(), b"secret");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 2);
}

#[test]
fn an_id_from_outside_is_refused() {
    let (dir, w) = with_outside();
    let outside = open(dir.path());
    let (id, _) = outside.lookup(&w.cred, &outside.root(), b"outside").unwrap();
    let (secret, _) = outside.lookup(&w.cred, &id, b"secret").unwrap();
    for id in [id, secret, outside.root()] {
        assert_eq!(w.store.getattr(&id), Err(StoreError::BadHandle));
        assert_eq!(w.lookup(&id, "secret"), Err(StoreError::BadHandle));
        assert_eq!(w.store.link(&w.cred, &id, &w.root(), b"x"), Err(StoreError::BadHandle));
        refuses_extras(&w, &id);
    }
}

/// The other calls that take an id refuse this one.
fn refuses_extras(w: &World, id: &FileId) {
    let refused = StoreError::BadHandle;
    let (store, cred) = (&w.store, &w.cred);
    assert_eq!(store.peek(cred, id, b"secret"), Err(refused));
    let any = RemoveKind::Any;
    assert_eq!(store.peek_of_kind(cred, id, b"secret", any), Err(refused));
    assert_eq!(store.remove_known(cred, id, b"secret", id, any), Err(refused));
    assert_eq!(store.xattr(cred, id, b"x"), Err(refused));
    assert_eq!(store.set_xattr(cred, id, b"x", b"", SetXattr::Either), Err(refused));
    assert_eq!(store.list_xattrs(cred, id), Err(refused));
    assert_eq!(store.remove_xattr(cred, id, b"x"), Err(refused));
    assert_eq!(store.acl(id), Err(refused));
    assert_eq!(store.set_acl(cred, id, &Acl::from_mode(0o777, false)), Err(refused));
    assert_ne!(store.watch(id, Watch::Changes), Ok(()));
    store.unwatch(id);
}

#[test]
fn extras_do_not_follow_symlinks() {
    let (dir, w) = with_outside();
    let outside = dir.path().join("outside/secret");
    symlink(&outside, dir.path().join("export/link")).unwrap();
    let (id, kind) = w.store.peek(&w.cred, &w.root(), b"link").unwrap();
    assert_eq!((w.lookup(&w.root(), "link"), kind), (Ok(id), Kind::Symlink));
    let set = w.store.set_xattr(&w.cred, &id, b"x", b"y", SetXattr::Either);
    assert_eq!(set, Err(StoreError::NotSupported));
    assert_eq!(w.store.xattr(&w.cred, &id, b"x"), Err(StoreError::NoXattr));
    assert_eq!(w.store.list_xattrs(&w.cred, &id), Ok(vec![]));
    let acl = Acl::from_mode(0o777, false);
    assert_eq!(w.store.set_acl(&w.cred, &id, &acl), Err(StoreError::NotSupported));
    assert_eq!(w.store.watch(&id, Watch::Changes), Err(StoreError::NotSupported));
    // A wrong hint has no effect.
    let other = w.create(&w.root(), "other");
    let kind = RemoveKind::NoDirectory;
    w.store.remove_known(&w.cred, &w.root(), b"link", &other.id, kind).unwrap();
    assert_eq!(w.lookup(&w.root(), "link"), Err(StoreError::NotFound));
    assert_eq!(w.lookup(&w.root(), "other"), Ok(other.id));
    assert_eq!(w.store.getattr(&other.id).unwrap().links, 1);
    assert_eq!(fs::read(outside).unwrap(), b"secret");
}

#[test]
fn a_directory_moved_out_is_lost() {
    let (dir, w) = with_outside();
    let a = w.mkdir(&w.root(), "a");
    let b = w.mkdir(&a, "b");
    fs::rename(dir.path().join("export/a"), dir.path().join("outside/a")).unwrap();
    // A call for the parent checks each time.
    assert_eq!(w.store.parent(&w.cred, &a), Err(StoreError::Stale));
    assert_eq!(w.store.parent(&w.cred, &b), Err(StoreError::Stale));
    // A new store, which never saw the directory inside, does not find it.
    let fresh = open(dir.path().join("export"));
    assert_eq!(fresh.getattr(&a), Err(StoreError::Stale));
    assert_eq!(fresh.lookup(&w.cred, &b, b"x").err(), Some(StoreError::Stale));
    // The first store notices soon.
    let deadline = Instant::now() + Duration::from_secs(30);
    while w.store.lookup(&w.cred, &b, b"x") != Err(StoreError::Stale) {
        assert!(Instant::now() < deadline, "still reachable");
        std::thread::sleep(Duration::from_millis(10));
    }
    fs::rename(dir.path().join("outside/a"), dir.path().join("export/back")).unwrap();
    assert_eq!(w.lookup(&w.root(), "back"), Ok(a));
    assert_eq!(w.store.parent(&w.cred, &b), Ok(a));
}

#[test]
fn the_export_itself_may_move_or_vanish() {
    let (dir, w) = with_outside();
    let a = w.mkdir(&w.root(), "a");
    fs::rename(dir.path().join("export"), dir.path().join("renamed")).unwrap();
    assert_eq!(w.store.parent(&w.cred, &a), Ok(w.root()));
    w.create(&a, "f");
    fs::remove_dir_all(dir.path().join("renamed")).unwrap();
    assert_eq!(w.lookup(&w.root(), "a"), Err(StoreError::Stale));
    assert_eq!(w.lookup(&a, "f"), Err(StoreError::Stale));
    let made = w.make(&w.root(), "x", NewObject::Directory, &SetAttr::default());
    assert_eq!(made.err(), Some(StoreError::Stale));
}

#[test]
fn mounts_below_the_export_are_not_entered() {
    if !in_own_mounts("escape::mounts_below_the_export_are_not_entered") {
        return;
    }
    let (dir, w) = with_outside();
    for name in ["tmpfs", "bind"] {
        w.mkdir(&w.root(), name);
    }
    w.create(&w.root(), "plain");
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    if !mount(&["-t", "tmpfs", "none", &at("export/tmpfs")])
        || !mount(&["--bind", &at("outside"), &at("export/bind")])
    {
        return;
    }
    for w in [World { store: open(dir.path().join("export")), ..w }] {
        for name in ["tmpfs", "bind"] {
            assert_eq!(w.lookup(&w.root(), name), Err(StoreError::CrossDevice));
            assert_eq!(w.remove(&w.root(), name), Err(StoreError::Access));
        }
        let mut seen = Vec::new();
        w.store
            .readdir(&w.cred, &w.root(), 0, true, &mut |entry| {
                seen.push((
                    String::from_utf8(entry.name.to_vec()).unwrap(),
                    entry.object.is_some(),
                ));
                true
            })
            .unwrap();
        seen.sort();
        let want = [("bind", false), ("plain", true), ("tmpfs", false)];
        assert_eq!(seen, want.map(|(name, known)| (name.to_string(), known)));
    }
    // An export that is a bind mount itself cannot rely on paths.
    let bound = open(dir.path().join("export/bind"));
    let (sub, _) = bound.lookup(&me(), &bound.root(), b"sub").unwrap();
    assert_eq!(bound.parent(&me(), &sub), Ok(bound.root()));
    fs::rename(dir.path().join("outside/sub"), dir.path().join("gone")).unwrap();
    assert_eq!(bound.parent(&me(), &sub), Err(StoreError::Stale));
    assert_eq!(bound.parent(&me(), &bound.root()), Err(StoreError::NotFound));
}

/// Runs a test of this module in mounts of its own. There returns a new file system in memory, with
/// these options.
fn on_tmpfs(test: &str, options: &[&str]) -> Option<(TempDir, String)> {
    if !in_own_mounts(&format!("escape::{test}")) {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap().to_owned();
    let arguments = [&["-t", "tmpfs"], options, &["none", &path]].concat();
    mount(&arguments).then_some((dir, path))
}

#[test]
fn a_full_disk_gives_the_short_count_then_the_error() {
    let test = "a_full_disk_gives_the_short_count_then_the_error";
    let Some((dir, _)) = on_tmpfs(test, &["-o", "size=256k,nr_inodes=10"]) else { return };
    let w = World { store: Arc::new(open_posix(&dir)), cred: me(), dir: None };
    let file = w.create(&w.root(), "f").file;
    let written = write(&*file, 0, &[1; 300 << 10]).unwrap();
    assert!(written > 0 && written <= 256 << 10, "{written}");
    assert_eq!(write(&*file, written as u64, &[1; 10]), Err(StoreError::NoSpace));
    assert_eq!(w.store.fs_stat(&w.cred, &w.root()).unwrap().space_available, 0);
    file.set_size(0).unwrap();
    assert_eq!(write(&*file, 0, &[1; 10]), Ok(10));
    let error = (0..20).find_map(|i| {
        let name = format!("n{i}");
        w.make(&w.root(), &name, NewObject::Fifo, &SetAttr::default()).err()
    });
    assert_eq!(error, Some(StoreError::NoSpace));
    w.remove(&w.root(), "f").unwrap();
    assert_eq!(read(&*file, 0, 20).unwrap(), [1; 10]);
}

#[test]
fn a_listed_object_is_not_shown_where_it_is_mounted() {
    let Some((dir, _)) = on_tmpfs("a_listed_object_is_not_shown_where_it_is_mounted", &[]) else {
        return;
    };
    let w = World { store: Arc::new(open_posix(&dir)), cred: me(), dir: None };
    let [inner, over] = ["inner", "over"].map(|name| w.mkdir(&w.root(), name));
    let list = || {
        let mut seen = HashMap::new();
        let end = w.store.readdir(&w.cred, &w.root(), 0, true, &mut |entry| {
            seen.insert(entry.name.to_vec(), entry.object.map(|(id, _)| id));
            true
        });
        assert_eq!(end, Ok(true));
        [&b"inner"[..], b"over"].map(|name| seen[name])
    };
    // From then on the store remembers the ids that it lists.
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!([list(), list()], [[Some(inner), Some(over)]; 2]);
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    if mount(&["--bind", &at("inner"), &at("over")]) {
        assert_eq!(list(), [Some(inner), None]);
    }
}

#[test]
fn a_read_only_disk_says_so() {
    let Some((dir, path)) = on_tmpfs("a_read_only_disk_says_so", &[]) else { return };
    fs::write(dir.path().join("f"), "x").unwrap();
    assert!(mount(&["-o", "remount,ro", &path]));
    let w = World { store: Arc::new(open_posix(&dir)), cred: me(), dir: None };
    let f = w.lookup(&w.root(), "f").unwrap();
    assert_eq!(w.remove(&w.root(), "f"), Err(StoreError::ReadOnly));
    assert_eq!(w.store.open(&w.cred, &f, WRITE).err(), Some(StoreError::ReadOnly));
    assert!(w.store.fs_stat(&w.cred, &f).unwrap().read_only);
    let all = AccessMask::READ | AccessMask::MODIFY;
    assert_eq!(w.store.access(&w.cred, &f, all), Ok(AccessMask::READ));
}

#[test]
fn file_systems_without_handles_work_by_numbers() {
    let test = "file_systems_without_handles_work_by_numbers";
    let Some((dir, path)) = on_tmpfs(test, &[]) else { return };
    for sub in ["lower", "upper", "work", "merged"] {
        fs::create_dir(dir.path().join(sub)).unwrap();
    }
    let options = format!("lowerdir={path}/lower,upperdir={path}/upper,workdir={path}/work");
    if !mount(&["-t", "overlay", "-o", &options, "overlay", &format!("{path}/merged")]) {
        return;
    }
    let mut count = 0;
    let mut run = |suite: fn(&World)| {
        count += 1;
        let root = dir.path().join(format!("merged/{count}"));
        fs::create_dir(&root).unwrap();
        suite(&World { store: open(root), cred: me(), dir: None });
    };
    run(data::content_reads_back);
    run(data::attributes_change_one_by_one_and_together);
    run(data::named_attributes_behave_as_files);
    run(tree::directories_go_up_to_the_root_and_no_further);
    run(tree::exclusive_creates_know_their_own);
    run(tree::hard_links_are_one_object);
    run(tree::listings_in_pages_miss_and_repeat_nothing);
    run(tree::removed_directories_are_stale);
    run(tree::removed_files_live_until_closed);
    run(tree::renames_replace_what_fits);
    let before = World { store: open(dir.path().join("merged")), cred: me(), dir: None };
    assert_eq!(before.root().0[1], 1, "the file system has handles after all");
    let id = before.create(&before.root(), "f").id;
    fs::rename(dir.path().join("merged/f"), dir.path().join("merged/1/g")).unwrap();
    let after = open(dir.path().join("merged"));
    // A scan may take several calls.
    let mut found = std::iter::repeat_with(|| after.getattr(&id).map(|attr| attr.size));
    assert_eq!(found.find(|size| *size != Err(StoreError::Busy)), Some(Ok(0)));
}

/// With `subtree_check` a file that a local process moved out is stale by all names and opens. A
/// file that still has a name inside, or that was removed while open, stays usable.
#[test]
fn a_file_that_was_moved_out_is_stale() {
    let (dir, mut w) = with_outside();
    let path = |name: &str| dir.path().join(name);
    let open_store = || {
        let options = PosixOptions { subtree_check: true, ..PosixOptions::new(secret()) };
        Arc::new(PosixStore::open(path("export"), options).unwrap())
    };
    w.store = open_store();
    fs::create_dir(path("export/sub")).unwrap();
    let moved = [
        ("moved", "outside/moved"),
        ("held", "outside/held"),
        ("named", "outside/named (deleted)"),
        ("beside", "export-beside"),
    ];
    let kept = ["linked", "renamed", "committed", "inside (deleted)"];
    let names = moved.iter().map(|(name, _)| *name).chain(kept).chain(["removed", "sub/below"]);
    let names: Vec<&str> = names.collect();
    for name in &names {
        fs::write(path("export").join(name), name).unwrap();
    }
    let id = |name: &str| match name.split_once('/') {
        Some((sub, name)) => w.lookup(&w.lookup(&w.root(), sub).unwrap(), name).unwrap(),
        None => w.lookup(&w.root(), name).unwrap(),
    };
    let ids: HashMap<&str, FileId> = names.iter().map(|&name| (name, id(name))).collect();
    let held = w.store.open(&w.cred, &ids["held"], READ_WRITE).unwrap();
    let below = w.store.open(&w.cred, &ids["sub/below"], READ_WRITE).unwrap();
    let removed = w.store.open(&w.cred, &ids["removed"], READ_WRITE).unwrap();

    for (name, target) in &moved {
        fs::rename(path("export").join(name), path(target)).unwrap();
    }
    fs::rename(path("export/sub"), path("outside/sub")).unwrap();
    fs::hard_link(path("export/linked"), path("outside/other")).unwrap();
    fs::rename(path("export/renamed"), path("export/renamed anew")).unwrap();
    // As programs replace a file: they make a second name, then remove the first one.
    fs::hard_link(path("export/committed"), path("export/final")).unwrap();
    fs::remove_file(path("export/committed")).unwrap();
    fs::remove_file(path("export/removed")).unwrap();

    // Retries while a scan is under way, and while an earlier check is valid.
    let end = Instant::now() + Duration::from_secs(20);
    let settles = |ask: &dyn Fn() -> Option<StoreError>, wanted: Option<StoreError>| {
        loop {
            let answer = ask();
            if answer == wanted {
                return;
            }
            assert!(Instant::now() < end, "{answer:?} instead of {wanted:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    // A server that may not open by handle cannot distinguish a moved file from a removed one.
    let moved_or_gone = |answer| match answer {
        Some(StoreError::Stale) if !is_root() => Some(StoreError::MovedOut),
        answer => answer,
    };
    let look = |w: &World, name: &str, wanted| {
        settles(&|| moved_or_gone(w.store.getattr(&ids[name]).err()), wanted);
        settles(&|| moved_or_gone(w.store.open(&w.cred, &ids[name], READ_WRITE).err()), wanted);
    };
    for _ in 0..2 {
        for (name, _) in &moved {
            look(&w, name, Some(StoreError::MovedOut));
        }
        look(&w, "sub/below", Some(StoreError::MovedOut));
        for file in [&held, &below] {
            settles(&|| file.attr().err(), Some(StoreError::MovedOut));
            settles(&|| read(&**file, 0, 1).err(), Some(StoreError::MovedOut));
            settles(&|| write(&**file, 0, b"x").err(), Some(StoreError::MovedOut));
            settles(&|| file.set_size(0).err(), Some(StoreError::MovedOut));
        }
        // Longer than a check is valid.
        std::thread::sleep(Duration::from_millis(1100));
        for name in kept {
            look(&w, name, None);
        }
        assert_eq!(removed.attr().map(|attr| attr.links), Ok(0));
    }
    // Commits of other files succeed.
    let touched: Vec<FileId> = names.iter().map(|&name| ids[name]).collect();
    w.store.commit_names(&touched).unwrap();
    for (name, target) in &moved {
        fs::rename(path(target), path("export").join(name)).unwrap();
        look(&w, name, None);
    }
    // A server that has just started has an empty index.
    fs::rename(path("export/moved"), path("outside/moved")).unwrap();
    w.store = open_store();
    look(&w, "moved", Some(StoreError::MovedOut));
    for name in kept {
        look(&w, name, None);
    }
}

/// From any depth the way up leads to the root. The kernel may not return the path of a very deep
/// directory.
#[test]
fn a_tree_of_any_depth_is_inside() {
    const LEVELS: usize = 5000;
    let (_dir, w) = with_outside();
    let mut levels = vec![w.root()];
    for _ in 0..LEVELS {
        levels.push(w.mkdir(&levels[levels.len() - 1], "d"));
    }
    // Longer than a check is valid.
    std::thread::sleep(Duration::from_millis(150));
    assert!(w.names(&levels[LEVELS]).is_empty());
    for dir in levels[..LEVELS].iter().rev() {
        w.remove(dir, "d").unwrap();
    }
}

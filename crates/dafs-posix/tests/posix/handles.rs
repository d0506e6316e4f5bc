//! Ids of a posix store outlive the store, renames and changes of the server's privileges, with a
//! large and with a tiny cache.

use crate::common::open_posix;
use dafs_posix::{PosixOptions, PosixStore};
use dafs_store::*;
use dafs_testkit::stores::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use tempfile::TempDir;

fn open(dir: &TempDir) -> World {
    World { store: std::sync::Arc::new(open_posix(dir)), cred: me(), dir: None }
}

#[test]
fn ids_outlive_restarts_and_renames_behind_our_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let w = open(&dir);
    let mut ids = vec![w.mkdir(&w.root(), "a")];
    for name in ["b", "c", "d"] {
        ids.push(w.mkdir(ids.last().unwrap(), name));
    }
    let deep = w.create(&ids[3], "f").id;
    let link = w.make(&ids[1], "l", NewObject::Symlink(b"x"), &SetAttr::default()).unwrap().id;
    let (fs_id, root) = (w.store.fs_id(), w.root());
    drop(w);
    let w = open(&dir);
    assert_eq!((w.store.fs_id(), w.root()), (fs_id, root));
    assert_eq!(
        w.store.getattr(&deep).unwrap().file_id,
        fs::metadata(path("a/b/c/d/f")).unwrap().ino()
    );
    fs::rename(path("a/b"), path("elsewhere")).unwrap();
    fs::rename(path("elsewhere/c/d/f"), path("top")).unwrap();
    for _ in 0..2 {
        let w = open(&dir);
        assert_eq!(
            w.store.getattr(&deep).unwrap().file_id,
            fs::metadata(path("top")).unwrap().ino()
        );
        assert_eq!(w.store.readlink(&w.cred, &link).unwrap(), b"x");
        assert_eq!(w.store.parent(&w.cred, &ids[3]), Ok(ids[2]));
        assert_eq!(w.store.parent(&w.cred, &ids[1]), Ok(root));
        assert_eq!(w.lookup(&ids[2], "d"), Ok(ids[3]));
        assert_eq!(w.lookup(&root, "top"), Ok(deep));
    }
    // The store that knew the old places finds the new ones as well.
    assert_eq!(w.store.open(&w.cred, &deep, READ).unwrap().id(), deep);
    assert_eq!(w.names(&ids[2]), ["d"]);
}

#[test]
fn a_lost_name_does_not_lose_the_object_under_its_other_name() {
    let dir = tempfile::tempdir().unwrap();
    let w = open(&dir);
    let sub = w.mkdir(&w.root(), "d");
    let first = w.create(&w.root(), "f").id;
    w.store.link(&w.cred, &first, &sub, b"g").unwrap();
    let second = w.create(&sub, "h").id;
    w.store.link(&w.cred, &second, &w.root(), b"i").unwrap();
    assert_eq!(w.lookup(&sub, "h"), Ok(second));
    // No scan can find an object in a directory that may not be listed.
    let shut = SetAttr { mode: Some(0o300), ..SetAttr::default() };
    w.store.setattr(&w.cred, &sub, &shut, None).unwrap();
    w.remove(&w.root(), "f").unwrap();
    w.remove(&w.root(), "i").unwrap();
    for id in [first, second] {
        assert_eq!(w.store.getattr(&id).unwrap().links, 1);
    }
    let open = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    w.store.setattr(&w.cred, &sub, &open, None).unwrap();
}

#[test]
fn a_rename_forgets_what_it_replaces_also_if_the_caller_knows_it() {
    let dir = tempfile::tempdir().unwrap();
    let w = open(&dir);
    let root = w.root();
    let (f, g) = (w.create(&root, "f").id, w.create(&root, "g").id);
    // Its descriptor is kept now.
    assert_eq!(w.lookup(&root, "g"), Ok(g));
    let (one, two) = ((&root, &b"f"[..]), (&root, &b"g"[..]));
    w.store.rename_known(&w.cred, one, two, Some(&g)).unwrap();
    let fds = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let paths = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
    let held = paths.filter(|path| path.starts_with(dir.path().join("g (deleted)"))).count();
    assert_eq!(held, 0);
    assert_eq!(w.store.getattr(&g), Err(StoreError::Stale));
    assert_eq!(w.lookup(&root, "g"), Ok(f));
    w.store.rename_known(&w.cred, two, one, None).unwrap();
    assert_eq!((w.lookup(&root, "f"), w.names(&root)), (Ok(f), vec!["f".into()]));
}

#[test]
fn files_that_others_removed_or_replaced_are_stale() {
    let dir = tempfile::tempdir().unwrap();
    let w = open(&dir);
    let (f, g) = (w.create(&w.root(), "f").id, w.create(&w.root(), "g").id);
    fs::remove_file(dir.path().join("f")).unwrap();
    fs::write(dir.path().join("new"), "x").unwrap();
    fs::rename(dir.path().join("new"), dir.path().join("g")).unwrap();
    for w in [w, open(&dir)] {
        assert_eq!(w.store.getattr(&f), Err(StoreError::Stale));
        assert_eq!(w.store.open(&w.cred, &g, READ).err(), Some(StoreError::Stale));
        assert_ne!(w.lookup(&w.root(), "g").unwrap(), g);
    }
}

#[test]
fn a_removal_refuses_the_wrong_kind_also_of_what_others_made() {
    let dir = tempfile::tempdir().unwrap();
    let (file, folder) = (dir.path().join("f"), dir.path().join("d"));
    for (name, wrong, right) in [
        ("f", RemoveKind::Directory, RemoveKind::NoDirectory),
        ("d", RemoveKind::NoDirectory, RemoveKind::Directory),
    ] {
        fs::write(&file, "x").unwrap();
        fs::create_dir_all(&folder).unwrap();
        let w = open(&dir);
        let id = w.lookup(&w.root(), name).unwrap();
        let remove = |kind| w.store.remove_known(&w.cred, &w.root(), name.as_bytes(), &id, kind);
        let refused = if name == "f" { StoreError::NotDirectory } else { StoreError::IsDirectory };
        assert_eq!(remove(wrong), Err(refused));
        assert!(file.exists() && folder.exists());
        remove(right).unwrap();
        assert!(!dir.path().join(name).exists());
    }
}

#[test]
fn a_sweep_frees_the_space_of_files_that_others_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_posix(&dir);
    let how = CreateHow::Guarded;
    let made =
        store.create(&me(), &store.root(), b"f", how, &SetAttr::default(), READ_WRITE).unwrap();
    let held = || {
        let fds = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let paths = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
        paths.filter(|path| path.starts_with(dir.path().join("f (deleted)"))).count()
    };
    fs::remove_file(dir.path().join("f")).unwrap();
    drop(made.file);
    store.sweep();
    assert_eq!(held(), 0);
}

#[test]
fn ids_of_one_export_mean_nothing_to_another() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::write(dir.path().join("sub/f"), "x").unwrap();
    let w = open(&dir);
    let sub = w.lookup(&w.root(), "sub").unwrap();
    let f = w.lookup(&sub, "f").unwrap();
    let narrow = PosixStore::open(dir.path().join("sub"), PosixOptions::new(secret())).unwrap();
    let other_secret = PosixOptions::new(ExportSecret::generate().unwrap());
    let resecret = PosixStore::open(dir.path(), other_secret).unwrap();
    for store in [narrow, resecret] {
        for id in [f, sub, w.root()] {
            assert_eq!(store.getattr(&id), Err(StoreError::BadHandle));
            assert_eq!(store.open(&me(), &id, READ).err(), Some(StoreError::BadHandle));
        }
    }
}

#[test]
fn a_tiny_cache_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let options = PosixOptions { nodes_max: Some(1), ..PosixOptions::new(secret()) };
    let store = std::sync::Arc::new(PosixStore::open(dir.path(), options).unwrap());
    let w = World { store, cred: me(), dir: None };
    let mut made = Vec::new();
    for i in 0..50 {
        let sub = w.mkdir(&w.root(), &format!("d{i}"));
        for j in 0..10 {
            made.push((sub, format!("f{j}"), w.create(&sub, &format!("f{j}")).id));
        }
    }
    for (sub, name, id) in &made {
        assert_eq!(w.store.getattr(id).unwrap().kind, Kind::Regular);
        assert_eq!(w.lookup(sub, name), Ok(*id));
        w.remove(sub, name).unwrap();
        assert_eq!(w.store.getattr(id), Err(StoreError::Stale));
    }
}

/// Prints the ids of a tree, for a comparison across processes.
#[test]
fn print_ids_when_asked() {
    let Some(path) = std::env::var_os("DAFS_STORE_TEST_IDS") else { return };
    let store = PosixStore::open(path, PosixOptions::new(secret())).unwrap();
    let (sub, _) = store.lookup(&me(), &store.root(), b"sub").unwrap();
    let (f, _) = store.lookup(&me(), &sub, b"f").unwrap();
    println!("ids {:?} {:?} {sub:?} {f:?} end", store.fs_id(), store.root());
}

#[test]
fn ids_do_not_depend_on_privileges() {
    use std::os::unix::process::CommandExt;
    if !is_root() {
        return skipped("comparing two users needs root");
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::set_permissions(dir.path().join("sub"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(dir.path().join("sub/f"), "x").unwrap();
    let ids = |uid: u32| {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "handles::print_ids_when_asked", "--nocapture"]).current_dir("/");
        let output = command.env("DAFS_STORE_TEST_IDS", dir.path()).uid(uid).gid(uid).output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        let ids = text.split("ids ").nth(1).and_then(|rest| rest.split(" end").next());
        ids.unwrap_or_else(|| panic!("no ids in {text:?}")).to_string()
    };
    assert_eq!(ids(0), ids(65_534));
}

#[test]
fn few_descriptors_are_enough() {
    if std::env::var_os("DAFS_STORE_TEST_FEW").is_some() {
        return;
    }
    let script = "ulimit -n 40 && exec \"$0\" handles:: --test-threads 1 --nocapture \
                  --skip few_descriptors_are_enough";
    let mut command = std::process::Command::new("sh");
    command.arg("-c").arg(script).arg(std::env::current_exe().unwrap());
    let output = command.env("DAFS_STORE_TEST_FEW", "1").output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{errors}", String::from_utf8_lossy(&output.stdout));
}

//! Names, attributes, directories, paths.

use super::harness::{PLAIN, Served, WAYS, mount};
use dafs_nfs_client::mount::{
    Create, File, FileType, Follow, Mount, MountError, MountOptions, NfsUrl, NfsVersion,
    OpenOptions, Owner, SetAttributes, SetTime, SpecialFile, Time,
};
use dafs_wire::nfs4::Status;
use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, symlink};

#[test]
fn names_are_made_changed_and_removed() {
    for way in WAYS {
        let served = Served::new();
        let mount = served.mount(way);
        let here = |name: &str| served.path().join(name);
        let root = mount.resolve(b"/", Follow::Yes).unwrap().handle;
        let dir = mount.mkdir(&root, b"dir", &SetAttributes::mode(0o750)).unwrap();
        assert_eq!(here("dir").metadata().unwrap().mode() & 0o7777, 0o750);
        mount.symlink(&dir, b"link", b"../file").unwrap();
        assert_eq!(std::fs::read_link(here("dir/link")).unwrap().to_str(), Some("../file"));
        let (link, attributes) = mount.lookup(&dir, b"link").unwrap();
        assert!(attributes.is_symlink());
        assert_eq!(mount.readlink(&link).unwrap(), b"../file");
        mount.mknod(&dir, b"pipe", SpecialFile::Fifo, &SetAttributes::mode(0o600)).unwrap();
        assert_eq!(mount.lookup(&dir, b"pipe").unwrap().1.kind, FileType::Fifo);
        std::fs::write(here("file"), b"content").unwrap();
        let (file, attributes) = mount.lookup(&root, b"file").unwrap();
        assert_eq!((attributes.kind, attributes.size), (FileType::Regular, 7));
        assert_eq!(attributes.owner, Owner::Id(here("file").metadata().unwrap().uid()));
        mount.link(&file, &dir, b"other").unwrap();
        assert_eq!(mount.attributes(&file).unwrap().links, 2);
        mount.rename(&dir, b"other", &root, b"renamed").unwrap();
        assert_eq!(std::fs::read(here("renamed")).unwrap(), b"content");
        let time = Time { seconds: 1_000_000_000, nanoseconds: 5 };
        let new = SetAttributes {
            mode: Some(0o604),
            size: Some(3),
            modified: Some(SetTime::Client(time)),
            ..SetAttributes::default()
        };
        mount.set_attributes(&file, &new).unwrap();
        let attributes = mount.attributes(&file).unwrap();
        assert_eq!((attributes.mode, attributes.size, attributes.modified), (0o604, 3, time));
        let full = mount.rmdir(&root, b"dir").unwrap_err();
        assert_eq!(full.status(), Some(Status::NotEmpty), "{way:?}");
        for name in ["link", "pipe"] {
            mount.remove(&dir, name.as_bytes()).unwrap();
        }
        mount.rmdir(&root, b"dir").unwrap();
        assert!(!here("dir").exists());
        assert_eq!(mount.lookup(&root, b"dir").unwrap_err().status(), Some(Status::NoEnt));
        let status = mount.fs_status(&root).unwrap();
        assert!(status.space_total.unwrap() > 0 && status.name_bytes_max == Some(255));
    }
}

#[test]
fn long_listings_are_whole() {
    for way in WAYS {
        let served = Served::new();
        let names: BTreeSet<String> =
            (0..1500).map(|at| format!("a rather long name {at}")).collect();
        names.iter().for_each(|name| std::fs::write(served.path().join(name), b"x").unwrap());
        let mount = served.mount(way);
        let root = mount.resolve(b"/", Follow::Yes).unwrap().handle;
        let mut seen = BTreeSet::new();
        for entry in mount.read_dir(&root) {
            let entry = entry.unwrap();
            let attributes = entry.attributes.expect("attributes");
            assert_eq!((attributes.kind, attributes.size), (FileType::Regular, 1));
            assert!(entry.handle.is_some());
            assert!(seen.insert(String::from_utf8(entry.name).unwrap()));
        }
        assert!(seen == names, "{way:?}");
    }
}

#[test]
fn paths_lead_through_links_and_up() {
    for way in WAYS {
        let served = Served::new();
        let here = |name: &str| served.path().join(name);
        std::fs::create_dir_all(here("a/b")).unwrap();
        std::fs::write(here("a/b/file"), b"content").unwrap();
        symlink("a/b", here("relative")).unwrap();
        symlink("/a", here("absolute")).unwrap();
        symlink("circle", here("circle")).unwrap();
        let mount = served.mount(way);
        let size = |path: &str| {
            let found = mount.resolve(path.as_bytes(), Follow::Yes);
            found.map(|found| found.attributes.size)
        };
        for path in [
            "/a/b/file",
            "a//b/./file",
            "/relative/file",
            "/absolute/b/file",
            "/relative/../b/file",
            "/../a/b/../../absolute/b/file",
        ] {
            assert_eq!(size(path).unwrap(), 7, "{way:?}: {path}");
        }
        let link = mount.resolve(b"/relative", Follow::No).unwrap();
        assert!(link.attributes.is_symlink());
        assert!(matches!(size("/circle/x"), Err(MountError::SymlinkLoop(_))));
        assert_eq!(size("/a/b/file/x").unwrap_err().status(), Some(Status::NotDir));
        assert_eq!(size("/a/x/file").unwrap_err().status(), Some(Status::NoEnt));
        assert!(size(&"/x".repeat(3000)).is_err());
        assert!(mount.open(b"/relative/file", &OpenOptions::read()).is_ok());
        let place = mount.resolve_parent(b"/relative/new").unwrap();
        assert_eq!(place.name, b"new");
        assert_eq!(mount.lookup(&place.dir, b"file").unwrap().1.size, 7);
        assert!(mount.resolve_parent(b"/").is_err());
    }
}

#[test]
fn an_open_by_a_path_follows_links_and_makes_what_is_missing() {
    for way in WAYS {
        let served = Served::new();
        let here = |name: &str| served.path().join(name);
        std::fs::create_dir(here("d")).unwrap();
        std::fs::write(here("d/f"), b"content").unwrap();
        for (text, link) in [("d/f", "to-f"), ("d", "to-d"), ("none", "to-none")] {
            symlink(text, here(link)).unwrap();
        }
        let mount = served.mount(way);
        let open = |path: &str, options: &OpenOptions| {
            mount.open(path.as_bytes(), options).and_then(File::close)
        };
        let status = |path: &str, options: &OpenOptions| open(path, options).unwrap_err().status();
        let (read, write) = (OpenOptions::read(), OpenOptions::write());
        let (either, new) = (write.create(Create::IfMissing), write.create(Create::New));
        for path in ["/d/f", "/to-d/f", "/to-f", "to-f"] {
            open(path, &read).unwrap();
            open(path, &either).unwrap();
        }
        assert_eq!(status("/to-d/f", &new), Some(Status::Exist), "{way:?}");
        assert_eq!(std::fs::read(here("d/f")).unwrap(), b"content");
        open("/to-f", &either.truncate(true)).unwrap();
        assert_eq!(std::fs::read(here("d/f")).unwrap(), b"");
        assert!(here("to-f").symlink_metadata().unwrap().is_symlink(), "{way:?}");
        for path in ["/to-none", "/none", "/d/none", "/none/f"] {
            assert_eq!(status(path, &read), Some(Status::NoEnt), "{way:?}: {path}");
        }
        assert_eq!(status("/d/f/x", &either), Some(Status::NotDir), "{way:?}");
        assert_eq!(status("/none/f", &either), Some(Status::NoEnt), "{way:?}");
        for (path, options) in [("/to-d/one", &either), ("other", &new)] {
            open(path, options).unwrap();
        }
        assert!(here("d/one").exists() && here("other").exists(), "{way:?}");
    }
}

#[test]
fn a_slash_behind_a_name_asks_for_a_directory() {
    for way in WAYS {
        let served = Served::new();
        let here = |name: &str| served.path().join(name);
        std::fs::create_dir_all(here("d/inner")).unwrap();
        std::fs::write(here("f"), b"content").unwrap();
        symlink("d", here("to-d")).unwrap();
        symlink("f/", here("to-f")).unwrap();
        let mount = served.mount(way);
        let status = |result: Result<(), MountError>| result.unwrap_err().status().unwrap();
        for path in ["/f/", "/f/.", "/f/..", "/f/../d", "/to-f", "/to-f/."] {
            let found = mount.resolve(path.as_bytes(), Follow::No).map(drop);
            let opened = mount.open(path.as_bytes(), &OpenOptions::read()).map(drop);
            if path != "/to-f" {
                assert_eq!(status(found), Status::NotDir, "{way:?}: {path}");
            }
            assert_eq!(status(opened), Status::NotDir, "{way:?}: {path}");
        }
        for path in ["/f/", "/f/.", "/to-d/"] {
            let place = mount.resolve_parent(path.as_bytes()).map(drop);
            assert_eq!(status(place), Status::NotDir, "{way:?}: {path}");
        }
        assert_eq!(status(mount.resolve_parent(b"/new/").map(drop)), Status::NoEnt, "{way:?}");
        assert_eq!(mount.resolve_new_directory(b"/new/").unwrap().name, b"new");
        for path in ["/to-d/", "/to-d/.", "/d/inner/..", "/", "/."] {
            let found = mount.resolve(path.as_bytes(), Follow::No).unwrap();
            assert!(found.attributes.is_directory(), "{way:?}: {path}");
        }
        let options = OpenOptions::write().create(Create::IfMissing).truncate(true);
        for path in ["/f/", "/new/", "/d/"] {
            let opened = mount.open(path.as_bytes(), &options).map(drop);
            assert_eq!(status(opened), Status::IsDir, "{way:?}: {path}");
        }
        let rename =
            |from: &str, to: &str| mount.resolve_rename(from.as_bytes(), to.as_bytes()).map(drop);
        assert_eq!(status(rename("/f/", "/g")), Status::NotDir, "{way:?}");
        assert_eq!(status(rename("/f", "/g/")), Status::NotDir, "{way:?}");
        rename("/d/inner/", "/d/other/").unwrap();
        assert!(!here("new").exists());
        assert_eq!(std::fs::read(here("f")).unwrap(), b"content");
    }
}

#[test]
fn the_best_version_is_taken() {
    let served = Served::new();
    let address = served.relay(PLAIN).address();
    let url = NfsUrl::parse(&format!("nfs://{address}/")).unwrap();
    assert_eq!(mount(&url).version(), NfsVersion::V42);
}

#[test]
fn without_a_server_the_error_says_where_it_was_looked_for() {
    let url = NfsUrl::parse("nfs://127.0.0.1:1/x").unwrap();
    let error = Mount::connect(&url, &MountOptions::default()).unwrap_err();
    assert!(error.is_fatal());
    let text = error.to_string();
    assert!(text.contains("127.0.0.1:1") && text.contains("check that"), "{text}");
}

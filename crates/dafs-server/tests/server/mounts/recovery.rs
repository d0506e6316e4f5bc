//! Cut connections and restarted servers.

use super::harness::{PLAIN, SHARED, Served, WAYS, bytes_of};
use crate::common::{filled, new_file, pattern};
use dafs_nfs_client::mount::{
    Create, Follow, Mount, MountError, MountOptions, OpenOptions, SetAttributes, StableHow,
};
use std::time::Duration;

#[test]
fn a_cut_connection_is_made_again() {
    for way in WAYS {
        let served = Served::new();
        let mount = served.mount(way);
        let file = new_file(&mount, "/file");
        let content = pattern(200_000, 9);
        let memory = filled(&mount, &content);
        file.write(memory.whole(), 0, StableHow::FileSync).unwrap();
        memory.view().fill(0);
        let before = served.relay(way).connections();
        for round in 0..5 {
            let piece = memory.slice(round * 40_000..(round + 1) * 40_000).unwrap();
            let read = file.submit_read(piece, round as u64 * 40_000).unwrap();
            served.relay(way).cut();
            assert_eq!(read.wait().unwrap(), 40_000, "{way:?}");
        }
        assert!(served.relay(way).connections() > before);
        assert!(bytes_of(&memory, content.len()) == content);
        file.close().unwrap();
    }
}

/// A second execution of each of these would be refused.
#[test]
fn changes_whose_answer_is_lost_are_made_once() {
    for way in WAYS {
        let served = Served::new();
        let mount = served.mount(way);
        let root = mount.resolve(b"/", Follow::Yes).unwrap().handle;
        let lose_answer = || served.relay(way).swallow_next_answer();
        let was_lost = || assert!(!served.relay(way).will_swallow());
        lose_answer();
        mount.mkdir(&root, b"dir", &SetAttributes::mode(0o755)).unwrap();
        was_lost();
        lose_answer();
        mount.rename(&root, b"dir", &root, b"renamed").unwrap();
        was_lost();
        lose_answer();
        mount.rmdir(&root, b"renamed").unwrap();
        was_lost();
        lose_answer();
        let options = OpenOptions::read_write().create(Create::New);
        let file = mount.open_at(&root, b"file", &options).unwrap();
        was_lost();
        lose_answer();
        mount.link(file.handle(), &root, b"link").unwrap();
        was_lost();
        lose_answer();
        file.close().unwrap();
        mount.remove(&root, b"file").unwrap();
        let names: Vec<_> = mount.read_dir(&root).map(|entry| entry.unwrap().name).collect();
        assert_eq!(names, [b"link"], "{way:?}");
    }
}

#[test]
fn many_transfers_survive_cuts() {
    const PIECE: usize = 10_000;
    const COUNT: usize = 300;
    for way in WAYS {
        let served = Served::new();
        let mount = served.mount(way);
        let file = new_file(&mount, "/file");
        let content = pattern(PIECE * COUNT, 11);
        let memory = filled(&mount, &content);
        let piece = |at: usize| memory.slice(at * PIECE..(at + 1) * PIECE).unwrap();
        let mut writes = Vec::new();
        for at in 0..COUNT {
            let offset = (at * PIECE) as u64;
            // Not every write has to wait for the device.
            let how = if at % 10 == 0 { StableHow::FileSync } else { StableHow::Unstable };
            writes.push(file.submit_write(piece(at), offset, how).unwrap());
            if at % 100 == 50 {
                served.relay(way).cut();
            }
        }
        for write in writes {
            write.wait().unwrap();
        }
        assert!(std::fs::read(served.path().join("file")).unwrap() == content, "{way:?}");
    }
}

#[test]
fn opens_survive_a_restart_of_the_server() {
    for grace in [Duration::ZERO, Duration::from_secs(2)] {
        for way in WAYS {
            let mut served = Served::with(|config| config.nfs.grace_time = Some(grace));
            let mount = served.mount(way);
            let file = new_file(&mount, "/file");
            let content = pattern(50_000, 13);
            let memory = filled(&mount, &content);
            file.write(memory.whole(), 0, StableHow::FileSync).unwrap();
            memory.view().fill(0);
            // One read is under way when the server stops, and one begins while there is none.
            let early = file.submit_read(memory.slice(0..25_000).unwrap(), 0).unwrap();
            served.stop();
            let late = std::thread::scope(|scope| {
                let rest = memory.slice(25_000..50_000).unwrap();
                let late = scope.spawn(|| file.read(rest, 25_000));
                served.start();
                late.join().unwrap()
            });
            assert_eq!(early.wait().unwrap(), 25_000, "{way:?}");
            assert_eq!(late.unwrap(), 25_000);
            assert!(bytes_of(&memory, content.len()) == content);
            let again = filled(&mount, b"again");
            file.write(again.whole(), 0, StableHow::FileSync).unwrap();
            let root = mount.resolve(b"/", Follow::Yes).unwrap().handle;
            mount.mkdir(&root, b"dir", &SetAttributes::mode(0o755)).unwrap();
            file.close().unwrap();
            assert_eq!(&std::fs::read(served.path().join("file")).unwrap()[..5], b"again");
        }
    }
}

/// No request is under way here: a server that crashes may still be writing to shared memory, so
/// requests under way fail.
#[test]
fn mounts_over_shared_memory_survive_a_restart_of_the_server() {
    for way in SHARED {
        let mut served = Served::new();
        let mount = served.mount(way);
        let file = new_file(&mount, "/file");
        let content = pattern(50_000, 17);
        let memory = filled(&mount, &content);
        file.write(memory.whole(), 0, StableHow::FileSync).unwrap();
        served.stop();
        served.start();
        memory.view().fill(0);
        assert_eq!(file.read(memory.whole(), 0).unwrap(), content.len(), "{way:?}");
        assert!(bytes_of(&memory, content.len()) == content);
        file.close().unwrap();
    }
}

#[test]
fn data_that_a_restarted_server_may_have_lost_is_told_of() {
    for way in WAYS {
        let mut served = Served::new();
        let mount = served.mount(way);
        let file = new_file(&mount, "/file");
        let memory = filled(&mount, &pattern(1000, 1));
        let written = file.write(memory.whole(), 0, StableHow::Unstable).unwrap();
        assert_eq!(written.stable, StableHow::Unstable);
        served.stop();
        served.start();
        assert!(matches!(file.commit(), Err(MountError::WritesLost)), "{way:?}");
        // A repeated write is safe.
        let written = file.write(memory.whole(), 0, StableHow::Unstable).unwrap();
        assert_eq!(file.commit().unwrap(), written.verifier);
    }
}

#[test]
fn a_file_that_is_gone_after_a_restart_is_told_of() {
    let mut served = Served::new();
    let mount = served.mount(PLAIN);
    std::fs::write(served.path().join("file"), b"content").unwrap();
    let file = mount.open(b"/file", &OpenOptions::read()).unwrap();
    served.stop();
    std::fs::remove_file(served.path().join("file")).unwrap();
    served.start();
    let memory = mount.allocate(7).unwrap();
    for _ in 0..2 {
        let error = file.read(memory.whole(), 0).unwrap_err();
        assert!(matches!(error, MountError::OpenLost(_)), "{error}");
    }
    file.close().unwrap();
    assert!(mount.resolve(b"/", Follow::Yes).is_ok());
}

#[test]
fn an_idle_mount_keeps_its_lease() {
    let served = Served::with(|config| config.lease_time = Duration::from_secs(3));
    let mount = served.mount(PLAIN);
    let file = new_file(&mount, "/file");
    let before = served.relay(PLAIN).connections();
    std::thread::sleep(Duration::from_secs(5));
    // A client whose lease is over loses its state to a conflicting request.
    let other = served.mount(PLAIN);
    other.open(b"/file", &OpenOptions::read_write()).unwrap();
    let memory = filled(&mount, b"content");
    file.write(memory.whole(), 0, StableHow::FileSync).unwrap();
    assert_eq!(served.relay(PLAIN).connections(), before + 1);
}

#[test]
fn a_server_that_does_not_come_back_is_given_up() {
    for way in WAYS {
        let mut served = Served::new();
        let options =
            MountOptions { retry_timeout: Duration::from_millis(300), ..MountOptions::default() };
        let url = served.url(way, "");
        let mount = Mount::connect(&url, &options).unwrap();
        let root = mount.resolve(b"/", Follow::Yes).unwrap().handle;
        served.stop();
        let error = mount.attributes(&root).unwrap_err();
        assert!(error.is_fatal() && error.to_string().contains("check it"), "{error}");
        served.start();
        mount.attributes(&root).unwrap();
    }
}

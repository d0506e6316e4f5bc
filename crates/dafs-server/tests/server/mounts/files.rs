//! Data of files.

use super::harness::{PLAIN, SHARED, Served, WAYS, bytes_of};
use crate::common::{filled, new_file, pattern};
use dafs_mem::Site;
use dafs_nfs_client::mount::{Create, File, MountError, OpenOptions, SetAttributes, StableHow};
use dafs_wire::nfs4::Status;

#[test]
fn data_is_written_and_read_at_any_length() {
    for way in WAYS.into_iter().chain(SHARED) {
        let served = Served::new();
        let mount = served.mount_with(way, "&rsize=64k&wsize=32k");
        assert_eq!((mount.read_bytes_max(), mount.write_bytes_max()), (64 << 10, 32 << 10));
        assert_eq!((mount.version(), mount.transport()), (way.version, way.transport));
        let options = OpenOptions::read_write().create(Create::New).mode(0o640);
        let file = mount.open(b"/file", &options).unwrap();
        let mut expected = Vec::new();
        for (at, len) in [(0, 1), (1, 3), (4, 4096), (4100, 300_001)] {
            let bytes = pattern(len, at);
            let memory = filled(&mount, &bytes);
            let written = file.write(memory.whole(), at, StableHow::Unstable).unwrap();
            assert_eq!(written.bytes, len);
            assert_eq!(file.commit().unwrap(), written.verifier);
            expected.extend_from_slice(&bytes);
        }
        assert_eq!(std::fs::read(served.path().join("file")).unwrap(), expected);
        let attributes = file.attributes().unwrap();
        assert_eq!((attributes.size, attributes.mode), (expected.len() as u64, 0o640));
        // The request exceeds the file, so that the read meets the end.
        let memory = mount.allocate(expected.len() + 10).unwrap();
        assert_eq!(file.read(memory.whole(), 0).unwrap(), expected.len());
        assert!(bytes_of(&memory, expected.len()) == expected, "{way:?}");
        assert_eq!(file.read(memory.slice(0..100).unwrap(), 1 << 40).unwrap(), 0);
        file.close().unwrap();
    }
}

#[test]
fn many_transfers_are_under_way_and_waited_for_in_any_order() {
    const PIECE: usize = 5000;
    // More transfers than a session has slots.
    const COUNT: usize = 600;
    for way in WAYS.into_iter().chain(SHARED) {
        let served = Served::new();
        let mount = served.mount(way);
        let options = OpenOptions::read_write().create(Create::IfMissing);
        let file = mount.open(b"/file", &options).unwrap();
        let content = pattern(PIECE * COUNT, 5);
        let memory = filled(&mount, &content);
        let piece = |at: usize| memory.slice(at * PIECE..(at + 1) * PIECE).unwrap();
        let writes: Vec<_> = (0..COUNT)
            .map(|at| {
                let offset = (at * PIECE) as u64;
                file.submit_write(piece(at), offset, StableHow::Unstable).unwrap()
            })
            .collect();
        for write in writes.into_iter().rev() {
            assert_eq!(write.wait().unwrap().bytes, PIECE);
        }
        assert!(std::fs::read(served.path().join("file")).unwrap() == content);
        memory.view().fill(0);
        let reads: Vec<_> = (0..COUNT)
            .map(|at| file.submit_read(piece(at), (at * PIECE) as u64).unwrap())
            .collect();
        for read in reads.into_iter().rev() {
            assert_eq!(read.wait().unwrap(), PIECE);
        }
        assert!(bytes_of(&memory, content.len()) == content, "{way:?}");
    }
}

#[test]
fn transfers_that_nobody_waits_for_take_no_slot_for_ever() {
    let served = Served::new();
    let mount = served.mount(PLAIN);
    std::fs::write(served.path().join("file"), pattern(100, 1)).unwrap();
    let file = mount.open(b"/file", &OpenOptions::read()).unwrap();
    let memory = mount.allocate(100).unwrap();
    for _ in 0..1000 {
        drop(file.submit_read(memory.whole(), 0).unwrap());
    }
    assert_eq!(file.read(memory.whole(), 0).unwrap(), 100);
    assert_eq!(bytes_of(&memory, 100), pattern(100, 1));
}

fn read_in_order(file: &File, from: u64, piece_bytes: usize, read_ahead: u32) -> Vec<u8> {
    let mut reader = file.reader(from, piece_bytes, read_ahead).unwrap();
    let mut all = Vec::new();
    while let Some(piece) = reader.next_piece().unwrap() {
        assert_eq!(piece.offset, from + all.len() as u64);
        all.extend_from_slice(&piece.view.to_vec(Site::Inspect));
    }
    assert!(reader.next_piece().unwrap().is_none());
    all
}

#[test]
fn a_file_is_read_in_order_at_every_depth() {
    for way in WAYS.into_iter().chain(SHARED) {
        let served = Served::new();
        let mount = served.mount(way);
        let content = pattern(1_000_003, 3);
        std::fs::write(served.path().join("file"), &content).unwrap();
        std::fs::write(served.path().join("empty"), b"").unwrap();
        let file = mount.open(b"/file", &OpenOptions::read()).unwrap();
        for read_ahead in [0, 1, 7, 32] {
            assert!(read_in_order(&file, 0, 64 << 10, read_ahead) == content);
        }
        assert!(read_in_order(&file, 999_000, 4096, 4) == content[999_000..]);
        assert!(read_in_order(&file, 2_000_000, 4096, 4).is_empty());
        let empty = mount.open(b"/empty", &OpenOptions::read()).unwrap();
        assert!(read_in_order(&empty, 0, 4096, 4).is_empty());
    }
}

/// Data behind the former end, once the file has grown, is not returned as if it followed earlier
/// data.
#[test]
fn a_growing_file_is_read_without_gaps() {
    const PIECE: usize = 4096;
    for way in WAYS {
        let served = Served::new();
        let mount = served.mount(way);
        let file = new_file(&mount, "/file");
        let content = pattern(PIECE * 4, 3);
        let memory = filled(&mount, &content);
        let write = |from: usize, to: usize| {
            let part = memory.slice(from..to).unwrap();
            file.write(part, from as u64, StableHow::FileSync).unwrap();
        };
        write(0, PIECE + 100);
        let mut reader = file.reader(0, PIECE, 1).unwrap();
        let mut read = reader.next_piece().unwrap().unwrap().view.len();
        write(PIECE + 100, content.len());
        while let Some(piece) = reader.next_piece().unwrap() {
            assert_eq!(piece.offset, read as u64, "{way:?}");
            read += piece.view.len();
        }
        assert!(read == PIECE + 100 || read == content.len(), "{way:?}");
    }
}

#[test]
fn opening_does_what_the_options_say() {
    for way in WAYS.into_iter().chain(SHARED) {
        let served = Served::new();
        let mount = served.mount(way);
        let path = served.path().join("file");
        let missing = mount.open(b"/file", &OpenOptions::read()).unwrap_err();
        assert_eq!(missing.status(), Some(Status::NoEnt));
        let new = OpenOptions::write().create(Create::New);
        mount.open(b"/file", &new).unwrap().close().unwrap();
        assert_eq!(mount.open(b"/file", &new).unwrap_err().status(), Some(Status::Exist));
        std::fs::write(&path, b"content").unwrap();
        let kept = OpenOptions::write().create(Create::IfMissing);
        mount.open(b"/file", &kept).unwrap().close().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"content");
        mount.open(b"/file", &kept.truncate(true)).unwrap().close().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        std::fs::write(&path, b"content").unwrap();
        let root = mount.resolve(b"/", dafs_nfs_client::mount::Follow::Yes).unwrap().handle;
        mount.open_at(&root, b"file", &kept.truncate(true)).unwrap().close().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        let file = mount.open(b"/file", &OpenOptions::write()).unwrap();
        let longer = SetAttributes { size: Some(9), ..SetAttributes::default() };
        file.set_attributes(&longer).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [0; 9]);
        std::fs::create_dir(served.path().join("dir")).unwrap();
        let directory = mount.open(b"/dir", &OpenOptions::read()).unwrap_err();
        assert_eq!(directory.status(), Some(Status::IsDir), "{way:?}");
    }
}

#[test]
fn wrong_arguments_are_refused_before_anything_is_sent() {
    let served = Served::new();
    let mount = served.mount(PLAIN);
    let file = new_file(&mount, "/file");
    let memory = mount.allocate(10).unwrap();
    let none = file.submit_read(memory.slice(3..3).unwrap(), 0).unwrap_err();
    assert!(matches!(none, MountError::Argument(_)));
    let far = file.submit_read(memory.whole(), u64::MAX - 5).unwrap_err();
    assert!(matches!(far, MountError::Argument(_)));
    assert!(mount.open(b"/a/..", &OpenOptions::write().create(Create::New)).is_err());
}

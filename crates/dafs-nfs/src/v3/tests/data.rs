//! READ, WRITE, COMMIT, and the information about the file system.

use super::*;
use dafs_wire::nfs3::{
    CommitArgs, CommitOk, FSF_CAN_SET_TIME, FSF_LINK, FSF_SYMLINK, FsInfoOk, FsStatOk, PathConfOk,
    ReadArgs, ReadOk, Stability, WriteArgs, WriteOk,
};

fn write(
    world: &World,
    file: &Fh,
    offset: u64,
    data: &[u8],
    stable: Stability,
) -> Result<WriteOk, Status> {
    let count = data.len() as u32;
    let args = WriteArgs { file: FileHandle(file), offset, count, stable, data: data.into() };
    let results = world.call(Procedure::Write, &args);
    let result = decode_results::<WriteOk, ChangeFailure>(&results).unwrap();
    result.map_err(|failure| failure.status)
}

fn read(world: &World, file: &Fh, offset: u64, count: u32) -> Result<(Vec<u8>, bool), Status> {
    let args = ReadArgs { file: FileHandle(file), offset, count };
    let results = world.call(Procedure::Read, &args);
    match decode_results::<ReadOk<'_>, ObjectFailure>(&results).unwrap() {
        Ok(ok) => {
            assert_eq!(ok.count as usize, ok.data.len());
            assert_eq!(ok.attributes, world.getattr(file).ok());
            Ok((ok.data.here().unwrap().to_vec(), ok.eof))
        }
        Err(failure) => Err(failure.status),
    }
}

#[test]
fn v3_reads_return_written_data() {
    let world = World::new();
    let file = world.file("f");
    for (offset, stable) in
        [(0, Stability::Unstable), (5, Stability::DataSync), (10, Stability::FileSync)]
    {
        let ok = write(&world, &file, offset, b"hello", stable).unwrap();
        assert_eq!((ok.count, ok.committed), (5, stable));
        assert_eq!(ok.wcc.after.map(|after| after.size), Some(offset + 5));
        assert_eq!(ok.verifier, world.shared.write_verifier.current());
    }
    assert_eq!(read(&world, &file, 0, 15), Ok((b"hellohellohello".to_vec(), true)));
    assert_eq!(read(&world, &file, 0, 14), Ok((b"hellohellohell".to_vec(), false)));
    assert_eq!(read(&world, &file, 10, 100), Ok((b"hello".to_vec(), true)));
    assert_eq!(read(&world, &file, 15, 100), Ok((Vec::new(), true)));
    assert_eq!(read(&world, &file, 16, 100), Ok((Vec::new(), true)));
    assert_eq!(read(&world, &file, 0, 0), Ok((Vec::new(), false)));
    assert_eq!(read(&world, &file, 15, 0), Ok((Vec::new(), true)));
}

#[test]
fn long_transfers_are_cut_to_what_fsinfo_says() {
    let world = World::new();
    let file = world.file("f");
    let data: Vec<u8> = (0..1 << 20).map(|at: u32| (at >> 7) as u8).collect();
    assert_eq!(write(&world, &file, 0, &data, Stability::Unstable).map(|ok| ok.count), Ok(1 << 20));
    assert_eq!(write(&world, &file, 1 << 20, b"x", Stability::Unstable).map(|ok| ok.count), Ok(1));
    let (all, eof) = read(&world, &file, 0, u32::MAX).unwrap();
    assert!(all == data && !eof);
    let (odd, _) = read(&world, &file, 1, 70_001).unwrap();
    assert!(odd == data[1..70_002]);
}

#[test]
fn offsets_that_no_file_reaches_are_refused_or_empty() {
    let world = World::new();
    let file = world.file("f");
    for offset in [u64::MAX, u64::MAX - 4, 1 << 63, (1 << 63) - 1] {
        assert_eq!(write(&world, &file, offset, b"hello", Stability::Unstable), Err(Status::FBig));
        assert_eq!(read(&world, &file, offset, u32::MAX), Ok((Vec::new(), true)));
        let args = CommitArgs { file: FileHandle(&file), offset, count: u32::MAX };
        assert!(!world.call(Procedure::Commit, &args).is_empty());
    }
    assert_eq!(world.getattr(&file).unwrap().size, 0);
}

#[test]
fn the_count_of_a_write_is_that_of_its_data() {
    let world = World::new();
    let file = world.file("f");
    for count in [0, 2, 4, u32::MAX] {
        let stable = Stability::Unstable;
        let args =
            WriteArgs { file: FileHandle(&file), offset: 0, count, stable, data: b"abc".into() };
        let results = world.call(Procedure::Write, &args);
        assert_eq!(failure::<ChangeFailure>(&results).status, Status::Inval, "{count}");
    }
}

#[test]
fn only_files_have_data() {
    let world = World::new();
    let root = world.root();
    assert_eq!(read(&world, &root, 0, 10), Err(Status::Inval));
    assert_eq!(write(&world, &root, 0, b"x", Stability::Unstable), Err(Status::Inval));
}

#[test]
fn rights_are_those_of_the_caller() {
    let mut world = World::new();
    let file = world.file("f");
    world.sender.who.cred = Cred::new(1001, 1001);
    assert_eq!(read(&world, &file, 0, 10), Ok((Vec::new(), true)));
    assert_eq!(write(&world, &file, 0, b"x", Stability::Unstable), Err(Status::Acces));
}

#[test]
fn commit_tells_the_verifier_and_it_changes_when_data_is_lost() {
    let world = World::new();
    let file = world.file("f");
    let first = write(&world, &file, 0, b"x", Stability::Unstable).unwrap().verifier;
    let commit = || {
        let args = CommitArgs { file: FileHandle(&file), offset: 0, count: 0 };
        let results = world.call(Procedure::Commit, &args);
        let ok = decode_results::<CommitOk, ChangeFailure>(&results).unwrap().unwrap();
        assert_eq!(ok.wcc.after, world.getattr(&file).ok());
        ok.verifier
    };
    assert_eq!(commit(), first);
    world.shared.write_verifier.change();
    assert_ne!(commit(), first);
}

#[test]
fn the_file_system_says_what_it_can() {
    let world = World::new();
    let root = world.root();
    let args = GetattrArgs { object: FileHandle(&root) };
    let results = world.call(Procedure::FsInfo, &args);
    let info = decode_results::<FsInfoOk, ObjectFailure>(&results).unwrap().unwrap();
    assert_eq!((info.read_max, info.write_max), (1 << 20, 1 << 20));
    assert!(info.readdir_preferred >= 64 << 10);
    let all = FSF_LINK | FSF_SYMLINK | FSF_CAN_SET_TIME;
    assert_eq!(info.properties & all, all);
    assert_eq!(info.attributes, world.getattr(&root).ok());
    let results = world.call(Procedure::FsStat, &args);
    let stat = decode_results::<FsStatOk, ObjectFailure>(&results).unwrap().unwrap();
    assert!(stat.bytes_available <= stat.bytes_total && stat.files_free <= stat.files_total);
    let results = world.call(Procedure::PathConf, &args);
    let conf = decode_results::<PathConfOk, ObjectFailure>(&results).unwrap().unwrap();
    assert_eq!((conf.name_bytes_max, conf.no_truncation), (255, true));
}

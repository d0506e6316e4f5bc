//! Arguments whose data a transport has moved separately.

use super::*;
use crate::args::Beside;
use dafs_mem::VolatileSlice;
use dafs_rpc::Reply;
use dafs_wire::nfs3::{ReadArgs, ReadOk, Stability, SymlinkArgs, WriteArgs, WriteOk};
use dafs_wire::xdr::{Decoder, MovedData, MovedItem, Payload};

/// Separately moved data, in memory of its own.
struct Moved(Vec<u8>);

impl Beside for Moved {
    fn data(&self, apart: &MovedData) -> Option<VolatileSlice<'_>> {
        assert_eq!(apart.index, 0);
        crate::io::source(&self.0).slice(0, apart.len)
    }

    fn reply(&self) -> Reply {
        Reply::new()
    }
}

impl World {
    /// Sends a request from which data was moved out of position `at`.
    fn send_apart(
        &self,
        (xid, procedure): (u32, Procedure),
        args: &impl Encode,
        at: usize,
        data: &[u8],
    ) -> Option<Vec<u8>> {
        let bytes = bytes(args);
        let items = [MovedItem { at: Some(at), len: data.len() }];
        let moved = Moved(data.to_vec());
        let args = Args::with(Decoder::with_moved(&bytes, &items), &moved);
        match call(&self.shared, self.sender.clone(), xid, procedure.number(), args) {
            Answer::Reply(reply) => Some(reply.to_bytes()),
            Answer::Parked(parked) => Some(parked.run(args).unwrap().to_bytes()),
            Answer::Garbage | Answer::Drop | Answer::NoProcedure | Answer::TooWeak => None,
        }
    }

    fn write_apart(&self, xid: u32, file: &Fh, at: usize, data: &[u8]) -> Option<WriteOk> {
        let args = write(file, data.len());
        let results = self.send_apart((xid, Procedure::Write), &args, at, data)?;
        Some(decode_results::<WriteOk, ChangeFailure>(&results).unwrap().unwrap())
    }

    fn content(&self, file: &Fh) -> Vec<u8> {
        let args = ReadArgs { file: FileHandle(file), offset: 0, count: 100 };
        let results = self.call(Procedure::Read, &args);
        let ok = decode_results::<ReadOk<'_>, ObjectFailure>(&results).unwrap().unwrap();
        ok.data.here().unwrap().to_vec()
    }
}

fn write(file: &Fh, len: usize) -> WriteArgs<'_> {
    let data = Payload::Moved(MovedData { index: 0, len });
    let stable = Stability::FileSync;
    WriteArgs { file: FileHandle(file), offset: 0, count: len as u32, stable, data }
}

/// Returns the offset of the data of a WRITE.
fn data_at(file: &Fh) -> usize {
    bytes(&write(file, 0)).len()
}

#[test]
fn data_that_came_apart_is_written() {
    let world = World::new();
    let file = world.file("f");
    let ok = world.write_apart(1, &file, data_at(&file), b"apart").unwrap();
    assert_eq!((ok.count, ok.committed), (5, Stability::FileSync));
    assert_eq!(world.content(&file), b"apart");
}

#[test]
fn data_that_belongs_nowhere_is_no_request() {
    let world = World::new();
    let file = world.file("f");
    let at = data_at(&file);
    for (xid, at) in [0, 4, at - 4, at + 4, usize::MAX].into_iter().enumerate() {
        assert_eq!(world.write_apart(xid as u32, &file, at, b"apart"), None, "{at}");
    }
    let getattr = GetattrArgs { object: FileHandle(&file) };
    assert_eq!(world.send_apart((90, Procedure::Getattr), &getattr, 4, &file), None);
    let shorter = world.send_apart((91, Procedure::Write), &write(&file, 6), at, b"apart");
    assert_eq!(shorter, None, "the request says six bytes");
    assert_eq!(world.content(&file), b"");
}

#[test]
fn requests_that_differ_only_in_what_came_apart_are_two() {
    let world = World::new();
    let file = world.file("f");
    let at = data_at(&file);
    world.write_apart(7, &file, at, b"first").unwrap();
    world.write_apart(7, &file, at, b"other").unwrap();
    assert_eq!(world.content(&file), b"other");
    // A copy of the first request gets its answer and is not executed again.
    world.write_apart(7, &file, at, b"first").unwrap();
    assert_eq!(world.content(&file), b"other");
}

#[test]
fn the_text_of_a_link_may_come_apart() {
    let world = World::new();
    let root = world.root();
    let place = DirOpArgs { dir: FileHandle(&root), name: b"l" };
    let target = |len| Payload::Moved(MovedData { index: 0, len });
    let args =
        |len| SymlinkArgs { place, attributes: SetAttributes::default(), target: target(len) };
    let at = bytes(&args(0)).len();
    let long = [b'x'; 5000];
    let results = world.send_apart((1, Procedure::Symlink), &args(5000), at, &long).unwrap();
    assert_eq!(made(&results), Err(Status::NameTooLong));
    let results = world.send_apart((2, Procedure::Symlink), &args(5), at, b"there").unwrap();
    let (link, _) = made(&results).unwrap();
    let results = world.call(Procedure::Readlink, &GetattrArgs { object: FileHandle(&link) });
    let ok = decode_results::<dafs_wire::nfs3::ReadlinkOk<'_>, ObjectFailure>(&results);
    assert_eq!(ok.unwrap().unwrap().target, b"there".into());
}

//! NFSv3 and MOUNT through the handler, as the RPC server calls it.

use crate::common::{World, bytes};
use crate::ops::misses::Kernel;
use dafs_rpc::{AcceptStatus, Handled, Handler as _, Rejection, VersionRange};
use dafs_wire::mount3::{self, Path, decode_mounted};
use dafs_wire::nfs_acl3;
use dafs_wire::nfs3::{
    self, ChangeFailure, CreateArgs, CreateHow, CreateOk, DirOpArgs, FileHandle, ObjectFailure,
    Procedure, ReadArgs, ReadOk, SetAttributes, Stability, WriteArgs, WriteOk, decode_results,
};
use dafs_wire::xdr::Encode;

fn results(handled: Handled) -> Vec<u8> {
    let Handled::Reply(reply) = handled else { panic!("no reply: {handled:?}") };
    reply.to_bytes()
}

fn refusal(handled: Handled) -> AcceptStatus {
    let Handled::Reject(Rejection::Accept(status)) = handled else { panic!("{handled:?}") };
    status
}

impl World {
    fn any(&mut self, procedure: (u32, u32, u32), args: &[u8]) -> Handled {
        self.call(procedure, 1, 0, args)
    }

    fn v3(&mut self, procedure: Procedure, args: &impl Encode) -> Handled {
        self.any((nfs3::PROGRAM, nfs3::VERSION, procedure.number()), &bytes(args))
    }

    fn mount(&mut self) -> Vec<u8> {
        let number = mount3::Procedure::Mnt.number();
        let program = (mount3::PROGRAM, mount3::VERSION, number);
        let results = results(self.any(program, &bytes(&Path(b"/"))));
        decode_mounted(&results).unwrap().unwrap().0.0.to_vec()
    }
}

#[test]
fn versions_and_procedures_that_are_not_there_are_named() {
    let mut server = World::default();
    for version in [0, 2, 5] {
        let handled = server.any((nfs3::PROGRAM, version, 0), &[]);
        let range = VersionRange { low: 3, high: 4 };
        assert_eq!(refusal(handled), AcceptStatus::ProgramMismatch(range));
    }
    for (program, version) in [(mount3::PROGRAM, 1), (nfs_acl3::PROGRAM, 2)] {
        let range = VersionRange { low: 3, high: 3 };
        let handled = server.any((program, version, 0), &[]);
        assert_eq!(refusal(handled), AcceptStatus::ProgramMismatch(range));
    }
    let past = [(nfs3::PROGRAM, 22), (mount3::PROGRAM, 6), (nfs_acl3::PROGRAM, 3)];
    for (program, procedure) in past {
        let handled = server.any((program, 3, procedure), &[]);
        assert_eq!(refusal(handled), AcceptStatus::ProcedureUnavailable);
    }
    for (program, procedure) in [(nfs3::PROGRAM, 1), (mount3::PROGRAM, 1), (nfs_acl3::PROGRAM, 2)] {
        let handled = server.any((program, 3, procedure), &[0xff; 8]);
        assert_eq!(refusal(handled), AcceptStatus::GarbageArgs);
    }
    for program in [nfs3::PROGRAM, mount3::PROGRAM, nfs_acl3::PROGRAM] {
        assert!(results(server.any((program, 3, 0), &[])).is_empty());
    }
}

#[test]
fn a_file_is_made_written_and_read() {
    let mut server = World::default();
    let root = server.mount();
    let place = DirOpArgs { dir: FileHandle(&root), name: b"f" };
    let how = CreateHow::Guarded(SetAttributes::default());
    let made = results(server.v3(Procedure::Create, &CreateArgs { place, how }));
    let made = decode_results::<CreateOk<'_>, ChangeFailure>(&made).unwrap().unwrap();
    let file = made.object.unwrap();
    let (count, data) = (5, &b"hello"[..]);
    let stable = Stability::FileSync;
    let write = WriteArgs { file, offset: 0, count, stable, data: data.into() };
    let handled = server.v3(Procedure::Write, &write);
    assert!(matches!(handled, Handled::Later), "a stable write may wait for a disk");
    let written = server.finish().unwrap();
    let written = decode_results::<WriteOk, ChangeFailure>(&written).unwrap().unwrap();
    assert_eq!((written.count, written.committed), (5, stable));
    let read = results(server.v3(Procedure::Read, &ReadArgs { file, offset: 1, count: 100 }));
    let read = decode_results::<ReadOk<'_>, ObjectFailure>(&read).unwrap().unwrap();
    assert_eq!((read.data.here().unwrap(), read.eof), (&b"ello"[..], true));
}

#[test]
fn the_kernel_reads_what_is_not_in_memory() {
    let kernel = Kernel::default();
    let mut server = kernel.serve();
    let root = server.mount();
    let place = DirOpArgs { dir: FileHandle(&root), name: b"f" };
    let how = CreateHow::Guarded(SetAttributes::default());
    let made = results(server.v3(Procedure::Create, &CreateArgs { place, how }));
    let made = decode_results::<CreateOk<'_>, ChangeFailure>(&made).unwrap().unwrap();
    let file = made.object.unwrap();
    let (count, data) = (5, &b"hello"[..]);
    let write =
        WriteArgs { file, offset: 0, count, stable: Stability::Unstable, data: data.into() };
    results(server.v3(Procedure::Write, &write));
    let read = ReadArgs { file, offset: 1, count: 100 };
    for is_missing_again in [false, true] {
        kernel.cool();
        assert!(matches!(server.v3(Procedure::Read, &read), Handled::Later));
        assert_eq!(server.handler.turn_over(0), None, "nothing has come yet");
        let range = if is_missing_again { kernel.end() } else { kernel.warm() };
        assert_eq!(range, (1, 4), "it ends with the file");
        assert_eq!(server.handler.turn_over(0), Some(0));
        assert_eq!(server.pool.run(), usize::from(is_missing_again));
        let read = server.collect().pop().unwrap().unwrap().to_bytes();
        let read = decode_results::<ReadOk<'_>, ObjectFailure>(&read).unwrap().unwrap();
        assert_eq!((read.data.here().unwrap(), read.eof), (&b"ello"[..], true));
    }
    let counts = server.shared.counts();
    assert_eq!((counts.ring_reads, counts.pool_reads), (2, 1));
}

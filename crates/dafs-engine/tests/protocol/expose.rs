//! X_EXPOSE_GET for a client that cannot map memory of the server. Tests of the client show the rest,
//! over shared memory.

use crate::common::*;
use dafs_wire::dafs::{
    self, EXPOSED_WINDOWS_MAX, FsAttrMask, Reply, Request, Seq, Status, XExposeGetReply,
};

fn get(file: File, windows: u32) -> dafs::XExposeGet {
    let (fh, state_id) = (file.fh, file.id);
    dafs::XExposeGet { fh, state_id, window: 0, exposure: 0, windows, known: 0 }
}

#[test]
fn a_client_that_cannot_map_memory_is_shown_none() {
    let (mut world, client, file) = World::with_file(Setup::default());
    for windows in [1, EXPOSED_WINDOWS_MAX as u32] {
        let answer = world.call(client, &Request::XExposeGet(get(file, windows)));
        let nothing =
            XExposeGetReply { exposure: 0, windows: Seq::empty(), segments: Seq::empty() };
        assert_eq!(answer.reply(), Ok(Reply::XExposeGet(nothing)));
    }
    for windows in [0, EXPOSED_WINDOWS_MAX as u32 + 1, u32::MAX] {
        let ask = Request::XExposeGet(get(file, windows));
        assert_eq!(world.status(client, &ask), Status::Inval);
    }
    let attributes = FsAttrMask::SUPPORTED_FSATTR | FsAttrMask::X_OPTIMISTIC;
    let ask = Request::GetFsAttr(dafs::GetFsAttr { fh: file.fh, attributes });
    let answer = world.call(client, &ask);
    let Reply::GetFsAttr(reply) = answer.reply().unwrap() else { panic!() };
    assert_eq!(reply.attributes.x_optimistic, Some(false));
    let supported = FsAttrMask(reply.attributes.supported_fsattr.unwrap());
    assert!(supported.contains(FsAttrMask::X_OPTIMISTIC));
    world.end();
}

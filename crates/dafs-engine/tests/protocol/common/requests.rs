//! Requests and answers that several test files use.

use super::{World, bind_request, connect_auth};
use dafs_wire::dafs::{
    self, AttrMask, ByteOrder, FileHandle, Reply, Request, SessionId, SessionOptions, Status,
};

pub fn attributes(world: &mut World, client: usize, fh: FileHandle) -> Result<Attr, Status> {
    let wanted = AttrMask::OBJECT_SIZE
        .union(AttrMask::MODE)
        .union(AttrMask::NUM_LINKS)
        .union(AttrMask::OBJECT_TYPE);
    let get = Request::GetAttrInline(dafs::GetAttrInline { fh, attributes: wanted });
    let answer = world.call(client, &get);
    match answer.reply()? {
        Reply::GetAttrInline(reply) => Ok(Attr {
            size: reply.attributes.object_size.unwrap(),
            mode: reply.attributes.mode.unwrap(),
            links: reply.attributes.num_links.unwrap(),
        }),
        other => panic!("{other:?}"),
    }
}

#[derive(Debug, PartialEq)]
pub struct Attr {
    pub size: u64,
    pub mode: u32,
    pub links: u32,
}

/// Runs a test where the server accesses the client's memory by RDMA only, and where it maps it.
pub fn both_ways(test: impl Fn(bool)) {
    test(false);
    test(true);
}

/// Makes a session with a back-control channel, whose BC_NULL has been answered.
pub fn with_channel(
    world: &mut World,
    host: u32,
    name: &str,
    options: SessionOptions,
) -> (usize, usize) {
    let client = world.connect(host);
    let answer = world.call(client, &connect_auth(name, 1, options));
    let Ok(Reply::ClientConnectAuth(reply)) = answer.reply() else { panic!() };
    let session = reply.session_id;
    world.clients[client].checksums = options.use_checksums;
    (client, listen(world, client, session))
}

/// Binds a channel and answers its BC_NULL.
pub fn listen(world: &mut World, client: usize, session_id: SessionId) -> usize {
    let channel = bind_beside(world, client, session_id);
    world.clients[channel].checksums = world.clients[client].checksums;
    world.settle();
    let call = world.clients[channel].calls.pop().unwrap();
    world.clients[channel].answer(&call, 4, &Reply::BcNull);
    world.settle();
    channel
}

/// Binds a channel from the process of `client`, so that it shares its memory.
pub fn bind_beside(world: &mut World, client: usize, session_id: SessionId) -> usize {
    let channel = world.connect_beside(client, 2, ByteOrder::Little);
    let request = Request::ConnectBind(bind_request(session_id));
    assert_eq!(world.status(channel, &request), Status::Ok);
    channel
}

//! Short forms of operations, and a client that sends them.

use crate::common::{Answer, Session, World, channel, create_session, with_sequence};
use dafs_wire::nfs4::*;

/// A client with a session that has room for large reads and writes.
pub(crate) struct Client {
    pub(crate) world: World,
    pub(crate) session: Session,
}

impl Client {
    pub(crate) fn new(minor: u32) -> Self {
        Self::of(World::default(), minor)
    }

    pub(crate) fn of(mut world: World, minor: u32) -> Self {
        world.minor = minor;
        let session = session(&mut world, b"client");
        Self { world, session }
    }

    /// Makes a client with the file "f" open for both. Returns its handle and state-id, too.
    pub(crate) fn with_file(minor: u32) -> (Self, Vec<u8>, Stateid) {
        let mut client = Self::new(minor);
        let (fh, stateid) = client.file(b"f");
        (client, fh, stateid)
    }

    /// Sends a compound that starts at the root.
    pub(crate) fn at_root(&mut self, ops: &[Op<'_>]) -> Answer {
        let mut all = vec![Op::Putrootfh(PutrootfhArgs)];
        all.extend_from_slice(ops);
        self.send(&all)
    }

    pub(crate) fn send(&mut self, ops: &[Op<'_>]) -> Answer {
        self.session.sequence += 1;
        let sequence = SequenceArgs { cache_this: false, ..self.session.sequence_args() };
        self.world.send(1, 0, &with_sequence(sequence, ops))
    }

    /// Makes a file below the root, opened for both. Returns its handle and state-id.
    pub(crate) fn file(&mut self, name: &[u8]) -> (Vec<u8>, Stateid) {
        // No delegation, which would keep the file as an open does.
        let access = ShareAccess::BOTH | Want::None.number();
        let answer = self.at_root(&[open(name, access, unchecked(NOTHING)), getfh()]);
        assert_eq!(answer.status(), Status::Ok, "{:?}", answer.results());
        let ResultBody::Open(opened) = answer.body(2) else { panic!() };
        (handle(&answer, 3), opened.stateid)
    }

    /// Makes a directory below the root. Returns its handle.
    pub(crate) fn directory(&mut self, name: &[u8]) -> Vec<u8> {
        let answer = self.at_root(&[make(CreateType::Plain(FileType::Directory), name), getfh()]);
        assert_eq!(answer.status(), Status::Ok);
        handle(&answer, 3)
    }

    /// Returns the status of a compound that starts at the root.
    pub(crate) fn status(&mut self, ops: &[Op<'_>]) -> Status {
        self.at_root(ops).status()
    }
}

/// Makes a session with room for large reads and writes.
pub(crate) fn session(world: &mut World, owner: &[u8]) -> Session {
    let exchanged = world.exchange(0, owner, 1);
    let mut args = create_session(exchanged.client_id, exchanged.sequence_id);
    let size = 2 << 20;
    args.fore = ChannelAttributes {
        request_bytes_max: size,
        response_bytes_max: size,
        response_bytes_max_cached: size,
        ..channel()
    };
    let mut session = world.session(1, args);
    world.complete(&mut session);
    session
}

pub(crate) const NOTHING: Fattr<'static> = Fattr { mask: Bitmap::EMPTY, values: b"" };

pub(crate) fn handle(answer: &Answer, at: usize) -> Vec<u8> {
    let ResultBody::Getfh(result) = answer.body(at) else { panic!("{:?}", answer.results()) };
    result.handle.to_vec()
}

pub(crate) fn putfh(handle: &[u8]) -> Op<'_> {
    Op::Putfh(PutfhArgs { handle })
}

pub(crate) fn getfh() -> Op<'static> {
    Op::Getfh(GetfhArgs)
}

pub(crate) fn savefh() -> Op<'static> {
    Op::Savefh(SavefhArgs)
}

pub(crate) fn lookup(name: &[u8]) -> Op<'_> {
    Op::Lookup(LookupArgs { name })
}

pub(crate) fn unchecked(attributes: Fattr<'_>) -> OpenHow<'_> {
    OpenHow::Unchecked(attributes)
}

pub(crate) fn open<'a>(name: &'a [u8], access: u32, how: OpenHow<'a>) -> Op<'a> {
    open_by(b"owner", OpenClaim::Null(name), access, DENY_NONE, how)
}

pub(crate) fn open_by<'a>(
    owner: &'a [u8],
    claim: OpenClaim<'a>,
    access: u32,
    share_deny: u32,
    how: OpenHow<'a>,
) -> Op<'a> {
    Op::Open(OpenArgs {
        seqid: 0,
        share_access: ShareAccess(access),
        share_deny,
        owner: StateOwner { client_id: 0, owner },
        how,
        claim,
    })
}

pub(crate) fn make<'a>(kind: CreateType<'a>, name: &'a [u8]) -> Op<'a> {
    Op::Create(CreateArgs { kind, name, attributes: NOTHING })
}

pub(crate) fn read(stateid: Stateid, offset: u64, count: u32) -> Op<'static> {
    Op::Read(ReadArgs { stateid, offset, count })
}

pub(crate) fn write(stateid: Stateid, offset: u64, data: &[u8]) -> Op<'_> {
    write_stable(stateid, offset, data, StableHow::Unstable)
}

pub(crate) fn write_stable(
    stateid: Stateid,
    offset: u64,
    data: &[u8],
    stable: StableHow,
) -> Op<'_> {
    Op::Write(WriteArgs { stateid, offset, stable, data: data.into() })
}

pub(crate) fn close(stateid: Stateid) -> Op<'static> {
    Op::Close(CloseArgs { seqid: 0, stateid })
}

pub(crate) fn getattr(attrs: &[Attr]) -> Op<'static> {
    Op::Getattr(GetattrArgs { request: Attr::set(attrs) })
}

/// Decodes the attributes of a GETATTR result.
pub(crate) fn attributes<'a>(answer: &'a Answer, at: usize) -> Attributes<'a> {
    let ResultBody::Getattr(result) = answer.body(at) else { panic!("{:?}", answer.results()) };
    // The bytes live in the answer, not in the decoded result.
    Attributes::decode(&result.attributes).unwrap()
}

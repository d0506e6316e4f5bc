//! The actions of clients, their requests, and the rights that clients hold.

use crate::client::SLOTS;
use crate::server::encode;
use dafs_wire::nfs4::*;

/// Names of each slot.
pub(crate) const NAMES: usize = 3;
/// Files that all clients share. The first ones are locked, the last one is opened with denials.
pub(crate) const SHARED_FILES: usize = 3;
pub(crate) const LOCK_FILES: usize = 2;
/// The owner of a client's permanent opens.
pub(crate) const BASE: u8 = 255;

/// The object of a name: none, a directory, or a file with this content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    Nothing,
    Directory,
    File(Vec<u8>),
}

/// The right of an owner on a shared file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    Open { access: u32, deny: u32 },
    Lock { first: u64, length: u64, writes: bool },
}

impl Right {
    /// True if two owners cannot have these rights at once.
    pub(crate) fn conflicts(self, other: Self) -> bool {
        match (self, other) {
            (Self::Open { access, deny }, Self::Open { access: access2, deny: deny2 }) => {
                access & deny2 != 0 || access2 & deny != 0
            }
            (
                Self::Lock { first, length, writes },
                Self::Lock { first: first2, length: length2, writes: writes2 },
            ) => (writes || writes2) && first < first2 + length2 && first2 < first + length,
            _ => false,
        }
    }
}

/// A right that was granted.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    pub(crate) owner: u8,
    pub(crate) file: usize,
    pub(crate) right: Right,
    pub(crate) stateid: Stateid,
    /// The server that granted it has crashed. Until this time the client may reclaim it.
    pub(crate) lost_until_ns: Option<u64>,
}

/// One request of a slot.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    MakeDirectory(usize),
    MakeFile(usize, u8),
    Write(usize, u8),
    Remove(usize),
    Rename(usize, usize),
    Look(usize),
    /// Acquires a right, or reclaims it.
    Take {
        owner: u8,
        file: usize,
        right: Right,
        reclaim: bool,
    },
    Release(Hold),
    Complete,
}

/// The handles that a client works on.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) directory: Vec<u8>,
    pub(crate) files: Vec<Vec<u8>>,
}

pub(crate) fn name(slot: usize, at: usize) -> Vec<u8> {
    format!("{slot}-{at}").into_bytes()
}

fn owner_name(owner: u8) -> Vec<u8> {
    format!("owner {owner}").into_bytes()
}

fn putfh(handle: &[u8]) -> Op<'_> {
    Op::Putfh(PutfhArgs { handle })
}

pub(crate) fn open<'a>(
    owner: &'a [u8],
    access: u32,
    share_deny: u32,
    how: OpenHow<'a>,
    claim: OpenClaim<'a>,
) -> Op<'a> {
    Op::Open(OpenArgs {
        seqid: 0,
        share_access: ShareAccess(access | Want::None.number()),
        share_deny,
        owner: StateOwner { client_id: 0, owner },
        how,
        claim,
    })
}

pub(crate) const PLAIN: Fattr<'static> = Fattr { mask: Bitmap::EMPTY, values: b"" };

/// Returns the request for an action. `base` is the client's open of the file that it locks.
pub(crate) fn request(
    sequence: SequenceArgs,
    place: &Place,
    slot: usize,
    action: &Action,
    base: Option<Stateid>,
) -> Vec<u8> {
    let here = putfh(&place.directory);
    let both = ShareAccess::BOTH;
    let mut ops = vec![Op::Sequence(sequence)];
    let (first, second);
    let data;
    let close = Op::Close(CloseArgs { seqid: 0, stateid: Stateid::CURRENT });
    match action {
        Action::MakeDirectory(at) => {
            first = name(slot, *at);
            let kind = CreateType::Plain(FileType::Directory);
            ops.push(here);
            ops.push(Op::Create(CreateArgs { kind, name: &first, attributes: PLAIN }));
        }
        Action::MakeFile(at, value) | Action::Write(at, value) => {
            first = name(slot, *at);
            data = [*value];
            let makes = matches!(action, Action::MakeFile(..));
            let how = if makes { OpenHow::Guarded(PLAIN) } else { OpenHow::NoCreate };
            let stable = if value & 1 == 0 { StableHow::Unstable } else { StableHow::FileSync };
            ops.push(here);
            ops.push(open(b"maker", both, DENY_NONE, how, OpenClaim::Null(&first)));
            let write = WriteArgs {
                stateid: Stateid::CURRENT,
                offset: 0,
                stable,
                data: data.as_slice().into(),
            };
            ops.push(Op::Write(write));
            ops.push(close);
        }
        Action::Remove(at) => {
            first = name(slot, *at);
            ops.push(here);
            ops.push(Op::Remove(RemoveArgs { name: &first }));
        }
        Action::Rename(from, to) => {
            (first, second) = (name(slot, *from), name(slot, *to));
            ops.push(here);
            ops.push(Op::Savefh(SavefhArgs));
            ops.push(Op::Rename(RenameArgs { old_name: &first, new_name: &second }));
        }
        Action::Look(at) => {
            first = name(slot, *at);
            ops.push(here);
            ops.push(Op::Lookup(LookupArgs { name: &first }));
            let stateid = Stateid::ANONYMOUS;
            ops.push(Op::Read(ReadArgs { stateid, offset: 0, count: 16 }));
        }
        Action::Take { owner, file, right: Right::Open { access, deny }, reclaim } => {
            first = owner_name(*owner);
            ops.push(putfh(&place.files[*file]));
            let previous = OpenClaim::Previous(DelegationType::None);
            let claim = if *reclaim { previous } else { OpenClaim::Handle };
            ops.push(open(&first, *access, *deny, OpenHow::NoCreate, claim));
        }
        Action::Take { owner, file, right: Right::Lock { first: at, length, writes }, reclaim } => {
            first = owner_name(*owner);
            ops.push(putfh(&place.files[*file]));
            let owner = StateOwner { client_id: 0, owner: &first };
            let open = base.expect("locks are taken under an open");
            let locker = Locker::New { open_seqid: 0, open, lock_seqid: 0, owner };
            let kind = if *writes { LockType::Write } else { LockType::Read };
            let (offset, length) = (*at, *length);
            ops.push(Op::Lock(LockArgs { kind, reclaim: *reclaim, offset, length, locker }));
        }
        Action::Release(hold) => {
            ops.push(putfh(&place.files[hold.file]));
            ops.push(release(hold));
        }
        Action::Complete => {
            ops.push(Op::ReclaimComplete(ReclaimCompleteArgs { one_fs: false }));
        }
    }
    encode(1, &ops)
}

fn release(hold: &Hold) -> Op<'static> {
    // A seqid of zero stands for the current version.
    let stateid = Stateid { seqid: 0, ..hold.stateid };
    match hold.right {
        Right::Open { .. } => Op::Close(CloseArgs { seqid: 0, stateid }),
        Right::Lock { first, length, .. } => {
            let kind = LockType::Write;
            Op::Locku(LockuArgs { kind, seqid: 0, stateid, offset: first, length })
        }
    }
}

pub(crate) fn sequence(session_id: SessionId, slot_id: u32, sequence_id: u32) -> SequenceArgs {
    let highest_slot_id = SLOTS as u32 - 1;
    SequenceArgs { session_id, sequence_id, slot_id, highest_slot_id, cache_this: true }
}

pub(crate) fn exchange_id(owner_id: &[u8]) -> Op<'_> {
    Op::ExchangeId(ExchangeIdArgs {
        owner: ClientOwner { verifier: Verifier([1; 8]), owner_id },
        flags: ExchangeFlags::empty(),
        state_protect: StateProtectArgs::None,
        implementation: None,
    })
}

pub(crate) fn create_session(
    client_id: u64,
    sequence: u32,
    bytes_max: u32,
    requests_max: u32,
) -> Op<'static> {
    let channel = ChannelAttributes {
        header_pad_bytes: 0,
        request_bytes_max: bytes_max,
        response_bytes_max: bytes_max,
        response_bytes_max_cached: 8192,
        operations_max: 16,
        requests_max,
        rdma_ird: None,
    };
    Op::CreateSession(CreateSessionArgs {
        client_id,
        sequence,
        flags: CreateSessionFlags::empty(),
        fore: channel,
        back: channel,
        callback_program: 0x4000_0000,
        security: vec![CallbackSecurity::None],
    })
}

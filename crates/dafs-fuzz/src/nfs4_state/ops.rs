//! Operations made from fuzzer bytes: mostly sensible, with handles, state-ids, names, offsets and
//! flags that may be anybody's or nobody's.

use crate::input::Input;
use dafs_wire::nfs4::*;

impl<'a> Input<'a> {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end.max(1)
    }

    pub(crate) fn bytes(&mut self, max: usize) -> &'a [u8] {
        let len = self.below(max + 1);
        self.take(len)
    }

    /// Small numbers mostly, and those at the ends.
    pub(crate) fn number(&mut self) -> u64 {
        match self.byte() {
            byte @ 0..=199 => u64::from(byte % 16),
            200..=219 => u64::from(self.byte()) << 12,
            220..=229 => u64::MAX - u64::from(self.byte() % 4),
            230..=239 => i64::MAX as u64 - 1 + u64::from(self.byte() % 4),
            _ => u64::from(self.u32()) << 32 | u64::from(self.u32()),
        }
    }
}

const NAMES: [&[u8]; 8] = [b"a", b"b", b"c", b"d", b"file", b"dir", b"..", b"\xff"];
const OWNERS: [&[u8]; 4] = [b"one", b"two", b"three", b""];
const PLAIN: Fattr<'static> = Fattr { mask: Bitmap::EMPTY, values: b"" };

/// Values from replies so far, to any client.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) handles: Vec<Vec<u8>>,
    pub(crate) stateids: Vec<Stateid>,
    pub(crate) client_ids: Vec<u64>,
    pub(crate) sessions: Vec<SessionId>,
}

/// Takes one of the last few.
fn recent<T: Clone + Default>(input: &mut Input<'_>, all: &[T]) -> T {
    let back = input.below(all.len().min(12));
    all.len().checked_sub(back + 1).map_or_else(T::default, |at| all[at].clone())
}

pub(crate) fn name<'a>(input: &mut Input<'a>) -> &'a [u8] {
    match input.byte() {
        byte @ 0..=239 => NAMES[usize::from(byte) % NAMES.len()],
        _ => input.bytes(40),
    }
}

pub(crate) fn stateid(input: &mut Input<'_>, known: &Known) -> Stateid {
    match input.byte() {
        0..=139 => Stateid { seqid: 0, ..recent(input, &known.stateids) },
        140..=189 => recent(input, &known.stateids),
        190..=209 => Stateid::CURRENT,
        210..=224 => Stateid::ANONYMOUS,
        225..=229 => Stateid::READ_BYPASS,
        230..=234 => Stateid::INVALID,
        235..=244 => Stateid { seqid: input.u32(), ..recent(input, &known.stateids) },
        _ => {
            let mut stateid: Stateid = recent(input, &known.stateids);
            let at = input.below(stateid.other.len());
            stateid.other[at] ^= input.byte();
            stateid
        }
    }
}

fn owner<'a>(input: &mut Input<'_>) -> StateOwner<'a> {
    StateOwner { client_id: 0, owner: OWNERS[input.below(OWNERS.len())] }
}

fn bitmap(input: &mut Input<'_>) -> Bitmap {
    let mut mask = Bitmap::EMPTY;
    (0..input.below(6)).for_each(|_| mask.insert(u32::from(input.byte()) % 96));
    mask
}

fn attributes<'a>(input: &mut Input<'a>) -> Fattr<'a> {
    match input.byte() {
        0..=199 => PLAIN,
        _ => Fattr { mask: bitmap(input), values: input.bytes(32) },
    }
}

fn how<'a>(input: &mut Input<'a>) -> OpenHow<'a> {
    match input.below(8) {
        0..=2 => OpenHow::NoCreate,
        3 | 4 => OpenHow::Unchecked(attributes(input)),
        5 => OpenHow::Guarded(attributes(input)),
        6 => OpenHow::Exclusive41(Verifier([input.byte(); 8]), PLAIN),
        _ => OpenHow::Exclusive(Verifier([input.byte(); 8])),
    }
}

fn open<'a>(input: &mut Input<'_>, claim: OpenClaim<'a>, how: OpenHow<'a>) -> Op<'a> {
    let access = u32::from(input.byte());
    let want = match access >> 2 & 7 {
        0 | 1 => Want::None.number(),
        2 => Want::Read.number(),
        3 => Want::Write.number(),
        4 => Want::Any.number() | ShareAccess::OPEN_XOR_DELEGATION,
        5 => Want::Any.number() | ShareAccess::DELEGATED_TIMESTAMPS,
        6 => 0,
        _ => u32::from(input.byte()) << 8,
    };
    let access = if access & 3 == 0 { ShareAccess::BOTH } else { access & 3 };
    let deny = input.byte();
    // Denials are rare, or nobody would ever share a file.
    let share_deny = if deny < 180 { DENY_NONE } else { u32::from(deny % 5) };
    Op::Open(OpenArgs {
        seqid: 0,
        share_access: ShareAccess(access | want),
        share_deny,
        owner: owner(input),
        how,
        claim,
    })
}

fn lock<'a>(input: &mut Input<'_>, locker: Locker<'a>) -> Op<'a> {
    let kinds = [LockType::Read, LockType::Write, LockType::ReadWait, LockType::WriteWait];
    Op::Lock(LockArgs {
        kind: kinds[input.below(4)],
        reclaim: input.byte() > 230,
        offset: input.number(),
        length: input.number(),
        locker,
    })
}

/// One operation.
pub(crate) fn op<'o, 'a: 'o>(input: &mut Input<'a>, known: &'o Known) -> Op<'o> {
    let choice = input.byte();
    match choice % 48 {
        0 => Op::Putrootfh(PutrootfhArgs),
        1..=5 => {
            let back = input.below(known.handles.len().min(12));
            let at = known.handles.len().checked_sub(back + 1);
            Op::Putfh(PutfhArgs { handle: at.map_or(b"", |at| &known.handles[at]) })
        }
        6 => Op::Putfh(PutfhArgs { handle: input.bytes(64) }),
        7 => Op::Lookup(LookupArgs { name: name(input) }),
        8 => Op::Lookupp(LookuppArgs),
        9 => Op::Getfh(GetfhArgs),
        10..=14 => {
            let claim = OpenClaim::Null(name(input));
            let how = how(input);
            open(input, claim, how)
        }
        15 | 16 => open(input, OpenClaim::Handle, OpenHow::NoCreate),
        17 => {
            let kinds = [DelegationType::None, DelegationType::Read, DelegationType::Write];
            let claim = OpenClaim::Previous(kinds[input.below(3)]);
            open(input, claim, OpenHow::NoCreate)
        }
        18 => {
            let stateid = stateid(input, known);
            let claims = [
                OpenClaim::DelegateCurrent(stateid, name(input)),
                OpenClaim::DelegateCurrentHandle(stateid),
            ];
            let claim = claims[input.below(2)];
            open(input, claim, OpenHow::NoCreate)
        }
        19 | 20 => Op::Close(CloseArgs { seqid: 0, stateid: stateid(input, known) }),
        21 => Op::OpenDowngrade(OpenDowngradeArgs {
            stateid: stateid(input, known),
            seqid: 0,
            share_access: ShareAccess(u32::from(input.byte() % 5)),
            share_deny: u32::from(input.byte() % 5),
        }),
        22..=24 => {
            let (open, owner) = (stateid(input, known), owner(input));
            lock(input, Locker::New { open_seqid: 0, open, lock_seqid: 0, owner })
        }
        25 => {
            let lock_stateid = stateid(input, known);
            lock(input, Locker::Existing { lock: lock_stateid, lock_seqid: 0 })
        }
        26 => Op::Lockt(LocktArgs {
            kind: LockType::Write,
            offset: input.number(),
            length: input.number(),
            owner: owner(input),
        }),
        27 | 28 => Op::Locku(LockuArgs {
            kind: LockType::Write,
            seqid: 0,
            stateid: stateid(input, known),
            offset: input.number(),
            length: input.number(),
        }),
        29 => Op::Delegreturn(DelegreturnArgs { stateid: stateid(input, known) }),
        30 => Op::FreeStateid(FreeStateidArgs { stateid: stateid(input, known) }),
        31 => {
            let stateids = (0..input.below(4)).map(|_| stateid(input, known)).collect();
            Op::TestStateid(TestStateidArgs { stateids })
        }
        _ => other(input, known, choice % 48),
    }
}

/// Operations that hold nothing.
fn other<'a>(input: &mut Input<'a>, known: &Known, choice: u8) -> Op<'a> {
    match choice {
        32 => Op::Read(ReadArgs {
            stateid: stateid(input, known),
            offset: input.number(),
            count: input.number() as u32,
        }),
        33 => Op::Write(WriteArgs {
            stateid: stateid(input, known),
            offset: input.number(),
            stable: [StableHow::Unstable, StableHow::FileSync][input.below(2)],
            data: input.bytes(32).into(),
        }),
        34 => {
            let kind = match input.byte() {
                0..=199 => CreateType::Plain(FileType::Directory),
                _ => CreateType::Symlink(name(input).into()),
            };
            Op::Create(CreateArgs { kind, name: name(input), attributes: attributes(input) })
        }
        35 => Op::Remove(RemoveArgs { name: name(input) }),
        36 => Op::Rename(RenameArgs { old_name: name(input), new_name: name(input) }),
        37 => Op::Link(LinkArgs { name: name(input) }),
        38 => {
            let size = &[0, 0, 0, 0, 0, 0, 0, 7];
            let mut mask = Bitmap::EMPTY;
            mask.insert(4u32);
            let cut = Fattr { mask, values: size };
            let attributes = if input.byte() < 200 { cut } else { attributes(input) };
            Op::Setattr(SetattrArgs { stateid: stateid(input, known), attributes })
        }
        39 => Op::Getattr(GetattrArgs { request: bitmap(input) }),
        40 => Op::Readdir(ReaddirArgs {
            cookie: input.number(),
            cookie_verifier: Verifier([0; 8]),
            directory_bytes: input.number() as u32,
            result_bytes_max: 4096,
            request: bitmap(input),
        }),
        41 => Op::Savefh(SavefhArgs),
        42 => Op::Restorefh(RestorefhArgs),
        43 => Op::ReclaimComplete(ReclaimCompleteArgs { one_fs: input.byte() > 200 }),
        44 => Op::BackchannelCtl(BackchannelCtlArgs {
            callback_program: 0x4000_0001,
            security: vec![CallbackSecurity::None],
        }),
        45 => extents(input, known),
        46 => xattrs(input),
        _ => session(input, known),
    }
}

fn extents<'a>(input: &mut Input<'_>, known: &Known) -> Op<'a> {
    let stateid1 = stateid(input, known);
    let (offset, length) = (input.number(), input.number());
    match input.below(6) {
        0 => Op::Allocate(AllocateArgs { stateid: stateid1, offset, length }),
        1 => Op::Deallocate(DeallocateArgs { stateid: stateid1, offset, length }),
        2 => {
            let what = SeekWhat::Hole;
            Op::Seek(SeekArgs { stateid: stateid1, offset, what })
        }
        3 => Op::ReadPlus(ReadPlusArgs { stateid: stateid1, offset, count: length as u32 }),
        4 => Op::Clone(CloneArgs {
            source_stateid: stateid1,
            destination_stateid: stateid(input, known),
            source_offset: offset,
            destination_offset: input.number(),
            count: length,
        }),
        _ => Op::Copy(CopyArgs {
            source_stateid: stateid1,
            destination_stateid: stateid(input, known),
            source_offset: offset,
            destination_offset: input.number(),
            count: length,
            consecutive: true,
            synchronous: input.byte() & 1 == 0,
            source_servers: Vec::new(),
        }),
    }
}

fn xattrs<'a>(input: &mut Input<'a>) -> Op<'a> {
    match input.below(4) {
        0 => Op::Getxattr(GetxattrArgs { name: name(input) }),
        1 => Op::Setxattr(SetxattrArgs {
            option: SetxattrOption::Either,
            name: name(input),
            value: input.bytes(16),
        }),
        2 => Op::Listxattrs(ListxattrsArgs { cookie: input.number(), result_bytes_max: 1024 }),
        _ => Op::Removexattr(RemovexattrArgs { name: name(input) }),
    }
}

/// Operations on sessions and clients, anybody's.
pub(crate) fn session<'a>(input: &mut Input<'_>, known: &Known) -> Op<'a> {
    let session_id = recent(input, &known.sessions);
    let client_id = recent(input, &known.client_ids);
    match input.below(5) {
        0 => Op::DestroySession(DestroySessionArgs { session_id }),
        1 => Op::DestroyClientid(DestroyClientidArgs { client_id }),
        2 | 3 => Op::BindConnToSession(BindConnToSessionArgs {
            session_id,
            direction: ChannelFromClient::BackOrBoth,
            use_rdma: false,
        }),
        _ => create_session(client_id, u32::from(input.byte() % 8)),
    }
}

pub(crate) fn create_session<'a>(client_id: u64, sequence: u32) -> Op<'a> {
    let channel = ChannelAttributes {
        header_pad_bytes: 0,
        request_bytes_max: 8192,
        response_bytes_max: 8192,
        response_bytes_max_cached: 8192,
        operations_max: 16,
        requests_max: 4,
        rdma_ird: None,
    };
    Op::CreateSession(CreateSessionArgs {
        client_id,
        sequence,
        flags: CreateSessionFlags::CONN_BACK_CHAN,
        fore: channel,
        back: channel,
        callback_program: 0x4000_0000,
        security: vec![CallbackSecurity::None],
    })
}

pub(crate) fn exchange_id(owner_id: &[u8], verifier: u8) -> Op<'_> {
    Op::ExchangeId(ExchangeIdArgs {
        owner: ClientOwner { verifier: Verifier([verifier; 8]), owner_id },
        flags: ExchangeFlags::empty(),
        state_protect: StateProtectArgs::None,
        implementation: None,
    })
}

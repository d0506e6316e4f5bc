//! The requests of a slot, its names in the model, and the expected answers.

use dafs_dat::sim::SimRng;
use dafs_wire::nfs4::*;
use dafs_wire::xdr::{Encode, Encoder, MovedData, Payload};

/// Names of each slot.
const NAMES: u64 = 3;
/// The longest piece of data, in bytes.
pub(crate) const DATA_BYTES_MAX: usize = 40 << 10;
/// The longest piece that a server caches for a retry, in bytes.
pub(crate) const KEPT_BYTES_MAX: usize = 4 << 10;
/// The longest file of a slot, in bytes.
const FILE_BYTES: u64 = 60 << 10;

/// One request. Each gets another answer when it is executed twice, or finds other data when it is
/// executed late.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    MakeDirectory(u64),
    Remove(u64),
    Rename(u64, u64),
    Link(u64),
    Write { offset: u64, len: usize, value: u8 },
    Read { offset: u64, len: usize, kept: bool },
}

/// Returns one action of each kind.
pub(crate) fn one_of_each() -> Vec<Action> {
    vec![
        Action::MakeDirectory(0),
        Action::Link(1),
        Action::Rename(2, 1),
        Action::Remove(2),
        Action::Write { offset: 10, len: 300, value: 7 },
        Action::Write { offset: 10, len: 20_001, value: 8 },
        Action::Read { offset: 0, len: 3_000, kept: true },
        Action::Read { offset: 0, len: 9_001, kept: false },
    ]
}

impl Action {
    pub(crate) fn random(rng: &mut SimRng) -> Self {
        let name = rng.below(NAMES);
        let offset = rng.below(20 << 10);
        match rng.below(9) {
            0 => Self::MakeDirectory(name),
            1 | 2 => Self::Remove(name),
            3 => Self::Rename(name, (name + 1) % NAMES),
            4 => Self::Link(name),
            5 | 6 => {
                let len = 1 + rng.log_below(DATA_BYTES_MAX as u64 - 1) as usize;
                Self::Write { offset, len, value: rng.bits() as u8 }
            }
            _ => {
                let kept = rng.chance(500_000);
                let max = if kept { KEPT_BYTES_MAX } else { DATA_BYTES_MAX };
                Self::Read { offset, len: 1 + rng.log_below(max as u64 - 1) as usize, kept }
            }
        }
    }

    /// Returns the data of a write.
    pub(crate) fn data(&self) -> Option<Vec<u8>> {
        let Self::Write { len, value, .. } = *self else { return None };
        Some((0..len).map(|at| (at / 5) as u8 ^ value).collect())
    }

    /// Encodes the request without the data of a write. Returns the position of that data.
    pub(crate) fn request(
        &self,
        place: &Place,
        sequence: SequenceArgs,
    ) -> (Vec<u8>, Option<usize>) {
        let stateid = Stateid::ANONYMOUS;
        let here = Op::Putfh(PutfhArgs { handle: &place.directory });
        let file = Op::Putfh(PutfhArgs { handle: &place.file });
        let names = [0, 1].map(|other| match *self {
            Self::Rename(from, to) => name(place, [from, to][other]),
            Self::MakeDirectory(at) | Self::Remove(at) | Self::Link(at) => name(place, at),
            _ => Vec::new(),
        });
        let kept = !matches!(self, Self::Read { kept: false, .. });
        let mut ops = vec![Op::Sequence(SequenceArgs { cache_this: kept, ..sequence })];
        match *self {
            Self::MakeDirectory(_) => {
                let kind = CreateType::Plain(FileType::Directory);
                ops.push(here);
                ops.push(Op::Create(CreateArgs { kind, name: &names[0], attributes: PLAIN }));
            }
            Self::Remove(_) => {
                ops.extend([here, Op::Remove(RemoveArgs { name: &names[0] })]);
            }
            Self::Rename(..) => {
                let [old_name, new_name] = &names;
                let rename = Op::Rename(RenameArgs { old_name, new_name });
                ops.extend([here, Op::Savefh(SavefhArgs), rename]);
            }
            Self::Link(_) => {
                let link = Op::Link(LinkArgs { name: &names[0] });
                ops.extend([file, Op::Savefh(SavefhArgs), here, link]);
            }
            Self::Write { offset, len, .. } => {
                let data = Payload::Moved(MovedData { index: 0, len });
                let stable = StableHow::FileSync;
                ops.extend([file, Op::Write(WriteArgs { stateid, offset, stable, data })]);
            }
            Self::Read { offset, len, .. } => {
                let count = len as u32;
                ops.extend([file, Op::Read(ReadArgs { stateid, offset, count })]);
            }
        }
        let mut bytes = compound(&ops, 1);
        let position = matches!(self, Self::Write { .. }).then_some(bytes.len());
        // An operation follows the data.
        Op::Getfh(GetfhArgs).encode(&mut Encoder::new(&mut bytes));
        (bytes, position)
    }
}

/// Encodes a COMPOUND of these operations, and room for `more`.
pub(crate) fn compound(ops: &[Op<'_>], more: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes);
    let op_count = ops.len() as u32 + more;
    CompoundArgs { tag: b"", minor_version: 1, op_count }.encode(&mut encoder);
    ops.iter().for_each(|op| op.encode(&mut encoder));
    bytes
}

pub(crate) const PLAIN: Fattr<'static> = Fattr { mask: Bitmap::EMPTY, values: b"" };

fn name(place: &Place, at: u64) -> Vec<u8> {
    format!("{}-{at}", place.slot).into_bytes()
}

/// The object of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    Nothing,
    Directory,
    Link,
}

/// The directory and file of a slot, which no other slot uses, and their expected state.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) slot: u32,
    pub(crate) directory: Vec<u8>,
    pub(crate) file: Vec<u8>,
    names: [Entry; NAMES as usize],
    content: Vec<u8>,
}

impl Place {
    pub(crate) fn new(slot: u32, directory: Vec<u8>, file: Vec<u8>) -> Self {
        let names = [Entry::Nothing; NAMES as usize];
        Self { slot, directory, file, names, content: Vec::new() }
    }

    /// Executes an action in the model. Returns the expected status, and the data that it reads.
    pub(crate) fn carry_out(&mut self, action: &Action) -> (Status, Vec<u8>) {
        let status = match *action {
            Action::MakeDirectory(at) => self.make(at, Entry::Directory),
            Action::Link(at) => self.make(at, Entry::Link),
            Action::Remove(at) => {
                let entry = &mut self.names[at as usize];
                match std::mem::replace(entry, Entry::Nothing) {
                    Entry::Nothing => Status::NoEnt,
                    _ => Status::Ok,
                }
            }
            Action::Rename(from, to) => {
                let [from, to] = [from, to].map(|at| at as usize);
                match (self.names[from], self.names[to]) {
                    (Entry::Nothing, _) => Status::NoEnt,
                    // Two names of one file: the rename has no effect (RFC 8881 18.26.3).
                    (Entry::Link, Entry::Link) => Status::Ok,
                    (Entry::Directory, Entry::Link) => Status::NotDir,
                    (Entry::Link, Entry::Directory) => Status::Exist,
                    (moved, _) => {
                        (self.names[to], self.names[from]) = (moved, Entry::Nothing);
                        Status::Ok
                    }
                }
            }
            Action::Write { offset, .. } => {
                let data = action.data().expect("a write brings data");
                let (start, end) = (offset as usize, offset as usize + data.len());
                assert!(end as u64 <= FILE_BYTES);
                self.content.resize(self.content.len().max(end), 0);
                self.content[start..end].copy_from_slice(&data);
                Status::Ok
            }
            Action::Read { offset, len, .. } => {
                let end = self.content.len();
                let start = (offset as usize).min(end);
                let data = self.content[start..(start + len).min(end)].to_vec();
                return (Status::Ok, data);
            }
        };
        (status, Vec::new())
    }

    fn make(&mut self, at: u64, entry: Entry) -> Status {
        let there = &mut self.names[at as usize];
        if *there != Entry::Nothing {
            return Status::Exist;
        }
        *there = entry;
        Status::Ok
    }
}

//! Encoding of the messages between the two processes. Numbers are in the byte order of this
//! machine, on which both run.

use crate::kernel::{Agreed, Malformed, NodeId, Reader};
use crate::locking::{Request, Wanted};
use dafs_client::{ClientIdentity, FileHandle, ListingPlace, User};

/// The identity of the client, and the mounted tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Introduction {
    pub(super) identity: ClientIdentity,
    pub(super) root: FileHandle,
    /// The URL.
    pub(super) source: Vec<u8>,
}

/// All objects that the kernel knows or has open.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct State {
    /// The parameters that the kernel and the mount have negotiated.
    pub(super) agreed: Agreed,
    /// Number, handle, and lookups that are not forgotten.
    pub(super) nodes: Vec<(NodeId, FileHandle, u64)>,
    pub(super) files: Vec<FileState>,
    /// The number of the next file. Those below were given, perhaps to a file that is lost: its
    /// program must never use the file of another one.
    pub(super) next_file: u64,
    pub(super) directories: Vec<DirectoryState>,
    pub(super) owners: Vec<OwnerState>,
    /// Requests for locks that were not answered.
    pub(super) waiting: Vec<Request>,
    /// Interrupted requests, perhaps of these.
    pub(super) given_up: Vec<u64>,
}

/// An open file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileState {
    pub(super) number: u64,
    pub(super) node: NodeId,
    pub(super) handle: FileHandle,
    pub(super) flags: i32,
    /// The user that it is used as.
    pub(super) user: Option<User>,
    /// The open's owner at the server.
    pub(super) open_owner: u64,
    pub(super) is_lost: bool,
}

/// An open directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DirectoryState {
    pub(super) number: u64,
    pub(super) handle: FileHandle,
    /// The user that lists it.
    pub(super) user: Option<User>,
    pub(super) listing: ListingState,
}

/// The position of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListingState {
    /// Position before the first cached entry.
    pub(crate) before: u64,
    /// Cookies and names of the cached entries.
    pub(crate) names: Vec<(u64, Vec<u8>)>,
    /// The place at which the server goes on behind them.
    pub(crate) place: ListingPlace,
}

/// A lock owner in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OwnerState {
    pub(super) node: NodeId,
    pub(super) name: u64,
    /// The process that asked last.
    pub(super) process: u32,
    pub(super) handle: FileHandle,
    pub(super) open_owner: u64,
    /// The open files that it locked through.
    pub(super) handles: Vec<u64>,
    /// The user of its open.
    pub(super) user: Option<User>,
    /// First byte, length, and true for an exclusive lock.
    pub(super) locks: Vec<(u64, u64, bool)>,
}

/// A message, or a part of one.
pub(super) trait Codec: Sized {
    fn put(&self, into: &mut Vec<u8>);
    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed>;

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.put(&mut bytes);
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let what = Self::get(&mut reader)?;
        if reader.rest().is_empty() { Ok(what) } else { Err(Malformed) }
    }
}

macro_rules! numbers {
    ($($kind:ident)*) => {$(
        impl Codec for $kind {
            fn put(&self, into: &mut Vec<u8>) {
                into.extend_from_slice(&self.to_ne_bytes());
            }
            fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                from.$kind()
            }
        }
    )*};
}

numbers! { u8 u32 u64 i32 }

/// All fields of a structure, in this order.
macro_rules! structures {
    ($($kind:ident { $($field:ident),* })*) => {$(
        impl Codec for $kind {
            fn put(&self, into: &mut Vec<u8>) {
                $(self.$field.put(into);)*
            }
            fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                $(let $field = Codec::get(from)?;)*
                Ok(Self { $($field),* })
            }
        }
    )*};
}

structures! {
    Introduction { identity, root, source }
    ClientIdentity { name, verifier, next_owner }
    FileHandle { fs, file }
    ListingPlace { cookie, verifier, end }
    State { agreed, nodes, files, next_file, directories, owners, waiting, given_up }
    Agreed { minor, write_bytes, flags, more_flags }
    FileState { number, node, handle, flags, user, open_owner, is_lost }
    DirectoryState { number, handle, user, listing }
    ListingState { before, names, place }
    OwnerState { node, name, process, handle, open_owner, handles, user, locks }
    Request { unique, handle, wanted }
    Wanted { owner, start, end, exclusive, process }
}

impl Codec for bool {
    fn put(&self, into: &mut Vec<u8>) {
        u8::from(*self).put(into);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match from.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }
}

impl Codec for User {
    fn put(&self, into: &mut Vec<u8>) {
        let ids = self.ids();
        (ids.uid, ids.gid).put(into);
        ids.groups.put(into);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (uid, gid) = Codec::get(from)?;
        let groups: Vec<u32> = Codec::get(from)?;
        Ok(Self::new(uid, gid, &groups))
    }
}

impl<T: Codec> Codec for Option<T> {
    fn put(&self, into: &mut Vec<u8>) {
        self.is_some().put(into);
        self.iter().for_each(|value| value.put(into));
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        bool::get(from)?.then(|| T::get(from)).transpose()
    }
}

impl<const N: usize> Codec for [u8; N] {
    fn put(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(self);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.bytes(N)?.try_into().map_err(|_| Malformed)
    }
}

impl<T: Codec> Codec for Vec<T> {
    fn put(&self, into: &mut Vec<u8>) {
        (self.len() as u64).put(into);
        self.iter().for_each(|one| one.put(into));
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let count = u64::get(from)?;
        // The end of the input stops this; the count alone allocates nothing.
        (0..count).map(|_| T::get(from)).collect()
    }
}

impl<A: Codec, B: Codec> Codec for (A, B) {
    fn put(&self, into: &mut Vec<u8>) {
        self.0.put(into);
        self.1.put(into);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok((A::get(from)?, B::get(from)?))
    }
}

impl<A: Codec, B: Codec, C: Codec> Codec for (A, B, C) {
    fn put(&self, into: &mut Vec<u8>) {
        self.0.put(into);
        self.1.put(into);
        self.2.put(into);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok((A::get(from)?, B::get(from)?, C::get(from)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        let handle = FileHandle { fs: [1; 16], file: [2; 48] };
        let wanted = Wanted { owner: 1, start: 2, end: 3, exclusive: true, process: 4 };
        let place = ListingPlace { cookie: 9, verifier: [8; 8], end: false };
        let listing =
            ListingState { before: 3, names: vec![(4, b"a".to_vec()), (5, Vec::new())], place };
        let agreed = Agreed { minor: 36, write_bytes: 1 << 20, flags: 3, more_flags: 4 };
        State {
            agreed,
            nodes: vec![(5, handle, 6), (7, handle, 8)],
            files: vec![FileState {
                number: 1,
                node: 5,
                handle,
                flags: -1,
                user: Some(User::new(1, 2, &[3, 4])),
                open_owner: 77,
                is_lost: true,
            }],
            next_file: 2,
            directories: vec![DirectoryState { number: 2, handle, user: None, listing }],
            owners: vec![OwnerState {
                node: 5,
                name: 6,
                process: 7,
                handle,
                open_owner: 78,
                handles: vec![1],
                user: Some(User::new(5, 6, &[])),
                locks: vec![(0, u64::MAX, true)],
            }],
            waiting: vec![Request { unique: 1, handle: 1, wanted }],
            given_up: vec![1],
        }
    }

    #[test]
    fn all_is_told_and_nothing_else() {
        let bytes = state().encode();
        assert_eq!(State::decode(&bytes), Ok(state()));
        for len in 0..bytes.len() {
            assert_eq!(State::decode(&bytes[..len]), Err(Malformed), "cut to {len}");
        }
        assert_eq!(State::decode(&[&bytes[..], &[0]].concat()), Err(Malformed));
    }

    #[test]
    fn a_count_is_not_believed() {
        assert_eq!(State::decode(&[0xff; 8]), Err(Malformed));
        assert_eq!(State::decode(&[0xff; 800]), Err(Malformed));
    }
}

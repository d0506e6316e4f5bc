//! NFS_ACL, version 3: POSIX access control lists beside NFSv3. No RFC describes the program; the
//! formats are those of Solaris and Linux.
//!
//! Invariants
//! * A list allocates no more than its entries, which the input has proved to hold.
//! * A decoded value encodes to bytes that decode to the same value.

use crate::nfs3::field::{numbers, record};
use crate::nfs3::{Attributes, FileHandle};
use crate::xdr::{Decode, Decoder, Encode, Encoder, XdrError, no_such};

/// The RPC program.
pub const PROGRAM: u32 = 100_227;

/// The version of the program that goes with NFSv3.
pub const VERSION: u32 = 3;

/// The most entries of one list (NFS_ACL_MAX_ENTRIES).
pub const ENTRIES_MAX: usize = 1024;

/// The length of an entry on the wire, in bytes.
const ENTRY_BYTES: usize = 12;

/// The bit that marks the entries of a default list (NA_ACL_DEFAULT, NFS_ACL_DEFAULT).
const DEFAULT_ENTRY: u32 = 0x1000;

numbers! {
    /// Procedure numbers. Those of Solaris for its extended attributes are not served.
    pub enum Procedure {
        Null = 0, "NULL";
        Getacl = 1, "GETACL";
        Setacl = 2, "SETACL";
    }
}

bitflags::bitflags! {
    /// The parts of the lists of an object that a request or a result is about (`mask`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Parts: u32 {
        /// The list that controls access (NA_ACL).
        const ACCESS = 0x1;
        /// The number of its entries (NA_ACLCNT).
        const ACCESS_COUNT = 0x2;
        /// The list that new objects in the directory inherit (NA_DFACL).
        const DEFAULT = 0x4;
        /// The number of its entries (NA_DFACLCNT).
        const DEFAULT_COUNT = 0x8;
    }
}

impl Decode<'_> for Parts {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, XdrError> {
        let bits = decoder.u32()?;
        Self::from_bits(bits).ok_or_else(|| no_such("the mask of NFS_ACL", bits))
    }
}

impl Encode for Parts {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.u32(self.bits());
    }
}

numbers! {
    /// The callers that an entry applies to. The values are those of POSIX lists in Linux, too.
    pub enum Tag {
        /// The owner of the object (USER_OBJ).
        Owner = 0x01,
        /// A user (USER).
        User = 0x02,
        /// The group of the object (GROUP_OBJ).
        Group = 0x04,
        /// A group (GROUP).
        NamedGroup = 0x08,
        /// The most that named users and all groups get (CLASS_OBJ, MASK).
        Mask = 0x10,
        /// All others (OTHER_OBJ).
        Other = 0x20,
    }
}

/// An entry of a list (aclent).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The callers that it applies to.
    pub tag: Tag,
    /// The id of a named user or group. Else that of the owner or the group, or without meaning.
    pub id: u32,
    /// The rights: 4 read, 2 write, 1 execute.
    pub permissions: u8,
}

impl Decode<'_> for Entry {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, XdrError> {
        let (word, id, permissions) = (decoder.u32()?, decoder.u32()?, decoder.u32()?);
        // The list says whether it is a default list.
        let tag = Tag::from_number(word & !DEFAULT_ENTRY).ok_or_else(|| no_such("aclent", word))?;
        // Solaris sets more bits in masks.
        let bits = if tag == Tag::Mask { permissions & 7 } else { permissions };
        let known = u8::try_from(bits).ok().filter(|bits| *bits <= 7);
        let permissions = known.ok_or_else(|| no_such("the rights of an entry", permissions))?;
        Ok(Self { tag, id, permissions })
    }
}

/// One list of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct List {
    /// The number of its entries, also where they are not sent (aclcnt).
    pub count: u32,
    /// The entries. None for a directory without a default list.
    pub entries: Vec<Entry>,
}

impl List {
    /// A list that is sent as a whole.
    pub fn of(entries: Vec<Entry>) -> Self {
        Self { count: u32::try_from(entries.len()).unwrap_or(u32::MAX), entries }
    }

    fn encode(&self, encoder: &mut Encoder<'_>, mark: u32) {
        encoder.u32(self.count);
        encoder.count(self.entries.len());
        for entry in &self.entries {
            encoder.u32(entry.tag.number() | mark);
            encoder.u32(entry.id);
            encoder.u32(entry.permissions.into());
        }
    }
}

impl Decode<'_> for List {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, XdrError> {
        let count = decoder.u32()?;
        if count as usize > ENTRIES_MAX {
            return Err(XdrError::TooLong { len: count, max: ENTRIES_MAX });
        }
        let present = decoder.array_len(ENTRIES_MAX, ENTRY_BYTES)?;
        let mut entries = Vec::with_capacity(present);
        for _ in 0..present {
            entries.push(decoder.value()?);
        }
        Ok(Self { count, entries })
    }
}

/// The lists of an object, or some of them (secattr).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lists {
    /// The parts that are present.
    pub parts: Parts,
    /// The list that controls access.
    pub access: List,
    /// The list that new objects in the directory inherit.
    pub default: List,
}

impl Decode<'_> for Lists {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, XdrError> {
        Ok(Self { parts: decoder.value()?, access: decoder.value()?, default: decoder.value()? })
    }
}

impl Encode for Lists {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.value(&self.parts);
        self.access.encode(encoder, 0);
        self.default.encode(encoder, DEFAULT_ENTRY);
    }
}

record! {
    /// Arguments of GETACL (GETACL3args).
    pub struct GetaclArgs<'a> {
        /// The object.
        pub object: FileHandle<'a>,
        /// The parts that the caller wants.
        pub parts: Parts,
    }

    /// The result of SETACL.
    #[derive(Default)]
    pub struct SetaclOk {
        /// Attributes of the object.
        pub attributes: Option<Attributes>,
    }
}

/// The result of GETACL (GETACL3resok).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GetaclOk {
    /// Attributes of the object.
    pub attributes: Option<Attributes>,
    /// The parts that the caller wants.
    pub lists: Lists,
}

impl Decode<'_> for GetaclOk {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, XdrError> {
        Ok(Self { attributes: decoder.optional()?, lists: decoder.value()? })
    }
}

impl Encode for GetaclOk {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.optional(self.attributes.as_ref());
        encoder.value(&self.lists);
    }
}

/// Arguments of SETACL (SETACL3args).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetaclArgs<'a> {
    /// The object.
    pub object: FileHandle<'a>,
    /// The new lists.
    pub lists: Lists,
}

impl<'a> Decode<'a> for SetaclArgs<'a> {
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(Self { object: decoder.value()?, lists: decoder.value()? })
    }
}

impl Encode for SetaclArgs<'_> {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.value(&self.object);
        encoder.value(&self.lists);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(tag: Tag, id: u32, permissions: u8) -> Entry {
        Entry { tag, id, permissions }
    }

    #[test]
    fn a_request_has_its_bytes() {
        let access = List::of(vec![entry(Tag::User, 7, 6)]);
        let default = List::of(vec![entry(Tag::Mask, 0, 5)]);
        let lists = Lists { parts: Parts::ACCESS | Parts::DEFAULT, access, default };
        let args = SetaclArgs { object: FileHandle(b"hand"), lists };
        let bytes = args.encoded();
        let expected = b"\0\0\0\x04hand\0\0\0\x05\
            \0\0\0\x01\0\0\0\x01\0\0\0\x02\0\0\0\x07\0\0\0\x06\
            \0\0\0\x01\0\0\0\x01\0\0\x10\x10\0\0\0\0\0\0\0\x05";
        assert_eq!(bytes, expected);
        assert_eq!(SetaclArgs::decode(&mut Decoder::new(&bytes)), Ok(args));
        for len in 0..bytes.len() {
            assert!(SetaclArgs::decode(&mut Decoder::new(&bytes[..len])).is_err(), "{len}");
        }
        let args = GetaclArgs { object: FileHandle(b"hand"), parts: Parts::all() };
        assert_eq!(args.encoded(), b"\0\0\0\x04hand\0\0\0\x0f");
    }

    #[test]
    fn a_result_has_its_bytes() {
        let lists = Lists { parts: Parts::ACCESS_COUNT, ..Lists::default() };
        let access = List { count: 4, entries: vec![] };
        let result = GetaclOk { attributes: None, lists: Lists { access, ..lists } };
        let bytes = result.encoded();
        assert_eq!(bytes, b"\0\0\0\0\0\0\0\x02\0\0\0\x04\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(GetaclOk::decode(&mut Decoder::new(&bytes)), Ok(result));
    }

    #[test]
    fn unknown_entries_and_long_lists_are_refused() {
        let words = |words: &[u32]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_be_bytes()).collect()
        };
        let entry_of = |all: [u32; 3]| {
            let bytes = words(&all);
            Entry::decode(&mut Decoder::new(&bytes))
        };
        assert_eq!(entry_of([1, 9, 7]), Ok(entry(Tag::Owner, 9, 7)));
        assert_eq!(entry_of([0x1020, 0, 0]), Ok(entry(Tag::Other, 0, 0)));
        assert_eq!(entry_of([0x10, 0, 0xfffc]), Ok(entry(Tag::Mask, 0, 4)));
        for bad in [[0, 0, 0], [3, 0, 0], [0x40, 0, 0], [0x2001, 0, 0], [1, 0, 8], [2, 0, 1 << 8]] {
            assert!(entry_of(bad).is_err(), "{bad:?}");
        }
        let list_of = |head: [u32; 2]| {
            let mut bytes = words(&head);
            bytes.extend(entry_bytes().repeat(ENTRIES_MAX + 1));
            List::decode(&mut Decoder::new(&bytes)).map(|list| list.entries.len())
        };
        assert_eq!(list_of([1024, 1024]), Ok(1024));
        assert!(list_of([1024, 1025]).is_err() && list_of([1025, 1]).is_err());
        assert!(list_of([0, u32::MAX]).is_err());
        assert!(Parts::decode(&mut Decoder::new(&words(&[0x10]))).is_err());
    }

    fn entry_bytes() -> [u8; ENTRY_BYTES] {
        [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7]
    }

    fn list() -> impl Strategy<Value = List> {
        let one = (0..Tag::ALL.len(), any::<u32>(), 0..8u8);
        let entries = prop::collection::vec(one, 0..9);
        (0..=ENTRIES_MAX as u32, entries).prop_map(|(count, entries)| {
            let entries = entries.into_iter().map(|(tag, id, bits)| entry(Tag::ALL[tag], id, bits));
            List { count, entries: entries.collect() }
        })
    }

    proptest! {
        #[test]
        fn lists_come_back(
            parts in 0..16_u32,
            (access, default) in (list(), list()),
            handle in prop::collection::vec(any::<u8>(), 0..65),
        ) {
            let lists = Lists { parts: Parts::from_bits_truncate(parts), access, default };
            let args = SetaclArgs { object: FileHandle(&handle), lists };
            let bytes = args.encoded();
            prop_assert_eq!(SetaclArgs::decode(&mut Decoder::new(&bytes)), Ok(args));
        }

        #[test]
        fn no_bytes_are_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = SetaclArgs::decode(&mut Decoder::new(&bytes));
            let _ = GetaclArgs::decode(&mut Decoder::new(&bytes));
            let _ = GetaclOk::decode(&mut Decoder::new(&bytes));
        }
    }
}

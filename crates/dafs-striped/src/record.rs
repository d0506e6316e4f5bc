//! The record of a file's placement: an extended attribute of the metadata file.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | version: 1 for stripes, 2 for copies |
//! | 1 | flags: 1 truncation under way; of copies, 2 torn; of stripes, 4 truncations pending |
//! | 2..4 | of stripes, the place of the first one; of copies, a bit for each stale one |
//! | 4..8 | bytes of a stripe |
//! | 8..24 | component id |
//! | 24..32 | the new size of a truncation, else zero |
//! | 32..m | the numbers of the nodes, four bytes each |
//! | m..n-8 | with pending truncations, eight bytes for each node: the size, or all ones for none |
//! | n-8..n | a MAC: SipHash-2-4 of the metadata file's id and the rest, keyed with the secret |
//!
//! Numbers are in little-endian order.
//!
//! Invariants
//! * A record comes only from a store with this secret and belongs to this file: a copy of a
//!   metadata file does not lead to the content of the original.
//! * A record names at least one node, and its first place is one of them.
//! * At least one copy is fresh: it has all data that was acknowledged as stable.

use dafs_store::backend::{STRIPE_BYTES_MAX, STRIPE_BYTES_MIN};
use dafs_store::node::{ComponentId, place_of};
use dafs_store::{Attr, COPIES_MAX, DEVICE_SERVERS_MAX, Result, StoreError};
use siphasher::sip::SipHasher24;
use std::num::NonZeroU32;

/// The extended attribute of the record, without the prefix.
pub(crate) const STRIPES_XATTR: &[u8] = b"dafs.stripes";

const VERSION_STRIPES: u8 = 1;
const VERSION_COPIES: u8 = 2;
const FLAG_TRUNCATING: u8 = 0x01;
const FLAG_PENDING: u8 = 0x04;
const FLAG_TORN: u8 = 0x02;
const NODES: usize = 32;
const MAC_BYTES: usize = 8;

/// The placement of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) component: ComponentId,
    pub(super) unit_bytes: NonZeroU32,
    pub(super) first: u16,
    /// The numbers of the nodes, in round-robin order.
    pub(super) nodes: Vec<u32>,
    /// The size of an unfinished truncation, which must be finished before the file is used.
    pub(super) truncating: Option<u64>,
    /// Pending truncations, in order: the places of nodes that were unreachable, and the sizes to
    /// which their components must be truncated before they are used.
    pub(super) truncations: Vec<(u16, u64)>,
    /// The state of the copies, if each node has the whole file.
    pub(super) whole: Option<Whole>,
}

/// The state of the copies of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Whole {
    /// A bit for each place with a stale copy.
    pub(super) stale: u8,
    /// A writer may be active: data that is not acknowledged as stable may be on some copies only.
    pub(super) torn: bool,
}

impl Whole {
    fn parse(stale: u16, copies: usize, torn: bool) -> Option<Self> {
        let all = all_places(copies)?;
        let stale = u8::try_from(stale).ok()?;
        (stale & !all == 0 && stale != all).then_some(Self { stale, torn })
    }
}

const _: () = assert!(COPIES_MAX <= 8, "there is a bit for each copy");

/// A part of a range that is on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// The place of the node in the record.
    pub(super) place: usize,
    /// The offset in the file and in the component.
    pub(super) offset: u64,
    pub(super) len: usize,
}

/// The identity of the metadata file that owns a record: its number and birth time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    file_id: u64,
    birth: (i64, u32),
}

impl Owner {
    pub(super) fn of(attr: &Attr) -> Self {
        let birth = attr.btime.map_or((0, 0), |time| (time.seconds, time.nanoseconds));
        Self { file_id: attr.file_id, birth }
    }
}

impl Record {
    /// Returns the bytes of the attribute.
    pub(super) fn encode(&self, owner: Owner, key: &[u8; 16]) -> Vec<u8> {
        assert!(usize::from(self.first) < self.nodes.len(), "the first stripe lies on a node");
        assert!(self.whole.is_none() || self.first == 0, "copies have no first stripe");
        let mut bytes = Vec::with_capacity(NODES + 4 * self.nodes.len() + MAC_BYTES);
        bytes.push(if self.whole.is_some() { VERSION_COPIES } else { VERSION_STRIPES });
        let torn = self.whole.is_some_and(|whole| whole.torn);
        let flag = |set, flag| if set { flag } else { 0 };
        let pending = flag(!self.truncations.is_empty(), FLAG_PENDING);
        bytes.push(
            flag(self.truncating.is_some(), FLAG_TRUNCATING) | flag(torn, FLAG_TORN) | pending,
        );
        bytes.extend(self.whole.map_or(self.first, |whole| whole.stale.into()).to_le_bytes());
        bytes.extend(self.unit_bytes.get().to_le_bytes());
        bytes.extend(self.component.0);
        bytes.extend(self.truncating.unwrap_or(0).to_le_bytes());
        self.nodes.iter().for_each(|node| bytes.extend(node.to_le_bytes()));
        if !self.truncations.is_empty() {
            let sizes =
                (0..self.nodes.len()).map(|place| self.truncation(place).unwrap_or(u64::MAX));
            sizes.for_each(|size| bytes.extend(size.to_le_bytes()));
        }
        let mac = mac(owner, key, &bytes);
        bytes.extend(mac);
        bytes
    }

    /// Decodes the bytes of the attribute.
    ///
    /// # Errors
    /// [`StoreError::Io`] for a record that this store has not written, or not for this file. The
    /// placement is unknown then.
    pub(super) fn decode(bytes: &[u8], owner: Owner, key: &[u8; 16]) -> Result<Self> {
        Self::parse(bytes, owner, key).ok_or(StoreError::Io)
    }

    fn parse(bytes: &[u8], owner: Owner, key: &[u8; 16]) -> Option<Self> {
        let (bytes, told) = bytes.split_last_chunk::<MAC_BYTES>()?;
        if mac(owner, key, bytes) != *told {
            return None;
        }
        Self::parse_body(bytes)
    }

    fn parse_body(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(NODES)?;
        let flags = match head[0] {
            VERSION_STRIPES => FLAG_TRUNCATING | FLAG_PENDING,
            VERSION_COPIES => FLAG_TRUNCATING | FLAG_TORN,
            _ => return None,
        };
        let has_pending = head[1] & FLAG_PENDING != 0;
        let count = rest.len() / if has_pending { 12 } else { 4 };
        let (nodes, sizes) = rest.split_at_checked(4 * count)?;
        let whole_bytes = if has_pending { 12 * count } else { 4 * count };
        if head[1] & !flags != 0 || rest.len() != whole_bytes {
            return None;
        }
        let nodes: Vec<_> =
            nodes.as_chunks().0.iter().map(|four| u32::from_le_bytes(*four)).collect();
        let sizes = sizes.as_chunks().0.iter().map(|eight| u64::from_le_bytes(*eight));
        let truncations: Vec<_> = (0..).zip(sizes).filter(|(_, size)| *size != u64::MAX).collect();
        let third = u16::from_le_bytes(*head[2..].first_chunk()?);
        let (first, whole) = match head[0] {
            VERSION_COPIES => {
                let torn = head[1] & FLAG_TORN != 0;
                (0, Some(Whole::parse(third, nodes.len(), torn)?))
            }
            _ => (third, None),
        };
        let unit = u32::from_le_bytes(*head[4..].first_chunk()?);
        let size = u64::from_le_bytes(*head[24..].first_chunk()?);
        let sound = usize::from(first) < nodes.len()
            && nodes.len() <= DEVICE_SERVERS_MAX
            && has_pending != truncations.is_empty()
            && (STRIPE_BYTES_MIN..=STRIPE_BYTES_MAX).contains(&unit)
            && unit.is_multiple_of(64);
        sound.then_some(Self {
            component: ComponentId(*head[8..].first_chunk()?),
            unit_bytes: NonZeroU32::new(unit)?,
            first,
            nodes,
            truncating: (head[1] & FLAG_TRUNCATING != 0).then_some(size),
            truncations,
            whole,
        })
    }

    /// Returns the size of the pending truncation of a component, by its place.
    pub(super) fn truncation(&self, place: usize) -> Option<u64> {
        let found = self.truncations.iter().find(|(at, _)| usize::from(*at) == place);
        found.map(|&(_, size)| size)
    }

    /// Returns a bit for each place with a fresh copy; 0 of stripes.
    pub(super) fn fresh_mask(&self) -> u8 {
        match (self.whole, all_places(self.nodes.len())) {
            (Some(whole), Some(all)) => all & !whole.stale,
            _ => 0,
        }
    }

    /// Iterates over the places with fresh copies.
    pub(super) fn fresh(&self) -> impl Iterator<Item = usize> + use<> {
        places(self.fresh_mask())
    }

    /// Returns the nodes with fresh copies; `None` of stripes.
    pub(super) fn usable(&self) -> Option<Vec<u32>> {
        self.whole.map(|_| self.fresh().map(|at| self.nodes[at]).collect())
    }

    /// Returns the record with only the copies at these places, in this order.
    pub(super) fn keeping(&self, kept: &[usize]) -> Self {
        let fewer = |whole: Whole| Whole { stale: remapped(whole.stale, kept), ..whole };
        let nodes = kept.iter().map(|&at| self.nodes[at]).collect();
        Self { nodes, whole: self.whole.map(fewer), ..self.clone() }
    }

    /// Returns the place of the node that holds a byte.
    pub(super) fn place_of(&self, offset: u64) -> usize {
        place_of(offset, self.unit_bytes, self.first.into(), self.nodes.len())
    }

    /// Iterates over the parts of a range, in order.
    pub(super) fn pieces(&self, offset: u64, len: usize) -> impl Iterator<Item = Piece> {
        let unit = u64::from(self.unit_bytes.get());
        let mut done = 0;
        std::iter::from_fn(move || {
            let offset = offset.checked_add(done as u64)?;
            let left = len.checked_sub(done).filter(|&left| left > 0)?;
            let whole = usize::try_from(unit - offset % unit).unwrap_or(usize::MAX);
            // A single node holds all stripes, one behind the other.
            let len = if self.nodes.len() == 1 { left } else { left.min(whole) };
            done += len;
            Some(Piece { place: self.place_of(offset), offset, len })
        })
    }
}

/// Iterates over the places that have a bit.
pub(super) fn places(mask: u8) -> impl Iterator<Item = usize> {
    (0..8).filter(move |at| mask & 1 << at != 0)
}

/// Returns the bits as they are when only these places are left, in this order.
pub(super) fn remapped(mask: u8, kept: &[usize]) -> u8 {
    let bit = |(now, at): (usize, &usize)| u8::from(mask & 1 << at != 0) << now;
    kept.iter().enumerate().map(bit).fold(0, |all, bit| all | bit)
}

/// Returns a mask with as many bits as copies; `None` for an invalid number of copies.
fn all_places(count: usize) -> Option<u8> {
    let bits = (1..=COPIES_MAX).contains(&count).then(|| (1u16 << count) - 1)?;
    u8::try_from(bits).ok()
}

fn mac(owner: Owner, key: &[u8; 16], bytes: &[u8]) -> [u8; MAC_BYTES] {
    let mut input = Vec::with_capacity(24 + bytes.len());
    input.extend(owner.file_id.to_le_bytes());
    input.extend(owner.birth.0.to_le_bytes());
    input.extend(owner.birth.1.to_le_bytes());
    input.extend(bytes);
    SipHasher24::new_with_key(key).hash(&input).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: [u8; 16] = *b"a striped secret";

    fn owner(file_id: u64) -> Owner {
        Owner { file_id, birth: (5, 7) }
    }

    fn record(nodes: usize) -> Record {
        Record {
            component: ComponentId([9; 16]),
            unit_bytes: NonZeroU32::new(65_536).unwrap(),
            first: (nodes - 1) as u16,
            nodes: (1..=nodes as u32).collect(),
            truncating: Some(77),
            truncations: Vec::new(),
            whole: None,
        }
    }

    #[test]
    fn copies_are_kept_with_what_is_known_of_them() {
        for (nodes, stale, torn) in [(2, 0, true), (3, 0b101, false), (8, 0x7f, true)] {
            let whole = Some(Whole { stale, torn });
            let record = Record { first: 0, whole, ..record(nodes) };
            let bytes = record.encode(owner(1), &KEY);
            assert_eq!(Record::decode(&bytes, owner(1), &KEY), Ok(record.clone()));
            assert_eq!(record.fresh().count(), nodes - stale.count_ones() as usize);
        }
        // No copy is fresh, or there are more copies than possible.
        let whole = Some(Whole { stale: 0b11, torn: false });
        let wrong = [
            Record { first: 0, whole, ..record(2) },
            Record { first: 0, whole: Some(Whole { stale: 0, torn: false }), ..record(9) },
        ];
        for record in wrong {
            let bytes = record.encode(owner(1), &KEY);
            assert_eq!(Record::decode(&bytes, owner(1), &KEY), Err(StoreError::Io));
        }
    }

    #[test]
    fn flags_of_copies_stay_with_them_when_others_leave() {
        let whole = Some(Whole { stale: 0b1010, torn: true });
        let record = Record { first: 0, whole, ..record(4) };
        assert_eq!(record.usable(), Some(vec![1, 3]));
        let fewer = record.keeping(&[1, 2, 3]);
        assert_eq!(fewer.nodes, [2, 3, 4]);
        assert_eq!(fewer.whole, Some(Whole { stale: 0b101, torn: true }));
        assert_eq!(fewer.usable(), Some(vec![3]));
        assert_eq!(remapped(0b1000, &[3]), 1);
        assert_eq!(Record { whole: None, ..fewer }.usable(), None);
    }

    #[test]
    fn a_record_is_read_back_and_belongs_to_one_file() {
        for (nodes, has_pending) in [(1, false), (3, true), (3, false), (DEVICE_SERVERS_MAX, true)]
        {
            let truncations = if has_pending { vec![(0, 5), (2, 1 << 40)] } else { Vec::new() };
            let record = Record { truncations, ..record(nodes) };
            let bytes = record.encode(owner(1), &KEY);
            assert_eq!(Record::decode(&bytes, owner(1), &KEY), Ok(record));
            assert_eq!(Record::decode(&bytes, owner(2), &KEY), Err(StoreError::Io));
            assert_eq!(Record::decode(&bytes, owner(1), &[0; 16]), Err(StoreError::Io));
            assert_eq!(Record::decode(&bytes[1..], owner(1), &KEY), Err(StoreError::Io));
        }
    }

    #[test]
    fn nodes_take_turns_from_the_first_on() {
        let record = record(3);
        let unit = 65_536;
        let places: Vec<_> = (0..5).map(|stripe| record.place_of(stripe * unit)).collect();
        assert_eq!(places, [2, 0, 1, 2, 0]);
        let pieces: Vec<_> = record.pieces(unit - 1, 65_538).collect();
        let piece = |place, offset, len| Piece { place, offset, len };
        let wanted = [piece(2, unit - 1, 1), piece(0, unit, 65_536), piece(1, 2 * unit, 1)];
        assert_eq!(pieces, wanted);
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_bad_record(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            prop_assert!(Record::parse(&bytes, owner(1), &KEY).is_none());
            if let Some(record) = Record::parse_body(&bytes) {
                let kept = record.encode(owner(1), &KEY);
                prop_assert_eq!(Record::parse(&kept, owner(1), &KEY), Some(record));
            }
        }
    }
}

//! One POSIX access control list: its entries, and the form in which the kernel keeps it.

use crate::limits::ACL_ENTRIES_MAX;
use crate::{Result, StoreError};
use std::collections::BTreeMap;

/// Permission bits of one class: 4 read, 2 write, 1 execute.
pub(super) type Bits = u8;

/// The kernel's form: a version and records of tag, permissions and id, in little-endian.
const VERSION: u32 = 2;
const RECORD_BYTES: usize = 8;
const TAG_OWNER: u16 = 0x01;
const TAG_USER: u16 = 0x02;
const TAG_GROUP: u16 = 0x04;
const TAG_NAMED_GROUP: u16 = 0x08;
const TAG_MASK: u16 = 0x10;
const TAG_OTHER: u16 = 0x20;
/// No id of a user or group.
pub(super) const NO_ID: u32 = u32::MAX;

/// One POSIX list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PosixAcl {
    pub(super) owner: Bits,
    pub(super) users: BTreeMap<u32, Bits>,
    pub(super) group: Bits,
    pub(super) groups: BTreeMap<u32, Bits>,
    /// The most that named users and all groups get. Without it they get all of their rights.
    pub(super) mask: Option<Bits>,
    pub(super) other: Bits,
}

/// One entry of a [`PosixAcl`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PosixEntry {
    /// The callers that it applies to.
    pub tag: PosixTag,
    /// Permission bits: 4 read, 2 write, 1 execute.
    pub bits: u8,
}

/// The callers that an entry of a [`PosixAcl`] applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PosixTag {
    /// The owner of the object.
    Owner,
    /// The user with this id.
    User(u32),
    /// Members of the object's group.
    Group,
    /// Members of the group with this id.
    NamedGroup(u32),
    /// The most that named users and all groups get.
    Mask,
    /// All other callers.
    Other,
}

fn low_bits(value: u32) -> Bits {
    (value & 7) as Bits
}

impl PosixAcl {
    /// Makes the list that is equivalent to a mode.
    pub fn from_mode(mode: u32) -> Self {
        let [owner, group, other] = [mode >> 6, mode >> 3, mode].map(low_bits);
        Self { owner, group, other, ..Self::default() }
    }

    /// Returns the nine permission bits, if they are equivalent to the list.
    pub fn as_mode(&self) -> Option<u32> {
        let group = self.group & self.mask.unwrap_or(7);
        let [owner, group, other] = [self.owner, group, self.other].map(u32::from);
        self.is_minimal().then_some(owner << 6 | group << 3 | other)
    }

    pub(super) fn is_minimal(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty()
    }

    /// Makes the list that has these entries, in any order. Without named users and groups, a mask
    /// that equals the group's rights is left out.
    ///
    /// # Errors
    /// `NotSupported` for too many entries; `Invalid` for unknown bits, impossible ids, two entries
    /// for the same callers, an absent entry for the owner, the group or others, and for named users
    /// or groups without a mask.
    pub fn from_entries(entries: &[PosixEntry]) -> Result<Self> {
        if entries.len() > ACL_ENTRIES_MAX {
            return Err(StoreError::NotSupported);
        }
        let mut acl = Self::default();
        let (mut owner, mut group, mut other) = (None, None, None);
        for &PosixEntry { tag, bits } in entries {
            let before = match tag {
                _ if bits > 7 => return Err(StoreError::Invalid),
                PosixTag::User(NO_ID) | PosixTag::NamedGroup(NO_ID) => {
                    return Err(StoreError::Invalid);
                }
                PosixTag::Owner => owner.replace(bits),
                PosixTag::User(id) => acl.users.insert(id, bits),
                PosixTag::Group => group.replace(bits),
                PosixTag::NamedGroup(id) => acl.groups.insert(id, bits),
                PosixTag::Mask => acl.mask.replace(bits),
                PosixTag::Other => other.replace(bits),
            };
            if before.is_some() {
                return Err(StoreError::Invalid);
            }
        }
        let (Some(owner), Some(group), Some(other)) = (owner, group, other) else {
            return Err(StoreError::Invalid);
        };
        (acl.owner, acl.group, acl.other) = (owner, group, other);
        if !acl.is_minimal() && acl.mask.is_none() {
            return Err(StoreError::Invalid);
        }
        if acl.is_minimal() && acl.mask == Some(group) {
            acl.mask = None;
        }
        Ok(acl)
    }

    /// Returns the entries in the order of the kernel: by class, and by id within one. Where the list
    /// has no mask and needs one, it is the least that passes all rights.
    pub fn entries(&self) -> Vec<PosixEntry> {
        let entry = |tag, bits| PosixEntry { tag, bits };
        let mut entries = vec![entry(PosixTag::Owner, self.owner)];
        entries.extend(self.users.iter().map(|(&id, &bits)| entry(PosixTag::User(id), bits)));
        entries.push(entry(PosixTag::Group, self.group));
        let groups = self.groups.iter();
        entries.extend(groups.map(|(&id, &bits)| entry(PosixTag::NamedGroup(id), bits)));
        let needed = (!self.is_minimal()).then(|| self.group_class());
        entries.extend(self.mask.or(needed).map(|bits| entry(PosixTag::Mask, bits)));
        entries.push(entry(PosixTag::Other, self.other));
        entries
    }

    /// Returns the rights of the object's group, without the mask.
    pub fn group_bits(&self) -> u8 {
        self.group
    }

    /// Decodes the kernel's form; `None` for malformed bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (version, records) = bytes.split_first_chunk::<4>()?;
        if u32::from_le_bytes(*version) != VERSION || records.len() % RECORD_BYTES != 0 {
            return None;
        }
        let mut acl = Self::default();
        for record in records.chunks_exact(RECORD_BYTES) {
            let tag = u16::from_le_bytes([record[0], record[1]]);
            let bits = low_bits(u32::from(u16::from_le_bytes([record[2], record[3]])));
            let id = u32::from_le_bytes([record[4], record[5], record[6], record[7]]);
            match tag {
                TAG_OWNER => acl.owner = bits,
                TAG_USER => drop(acl.users.insert(id, bits)),
                TAG_GROUP => acl.group = bits,
                TAG_NAMED_GROUP => drop(acl.groups.insert(id, bits)),
                TAG_MASK => acl.mask = Some(bits),
                TAG_OTHER => acl.other = bits,
                _ => return None,
            }
        }
        Some(acl)
    }

    /// Encodes the kernel's form of the [`entries`](Self::entries).
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for PosixEntry { tag, bits } in self.entries() {
            let (tag, id) = match tag {
                PosixTag::Owner => (TAG_OWNER, NO_ID),
                PosixTag::User(id) => (TAG_USER, id),
                PosixTag::Group => (TAG_GROUP, NO_ID),
                PosixTag::NamedGroup(id) => (TAG_NAMED_GROUP, id),
                PosixTag::Mask => (TAG_MASK, NO_ID),
                PosixTag::Other => (TAG_OTHER, NO_ID),
            };
            bytes.extend(tag.to_le_bytes());
            bytes.extend(u16::from(bits).to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    /// Returns the list with the mask applied, and without a mask.
    pub(super) fn masked(&self) -> Self {
        let mut acl = self.clone();
        if let Some(mask) = acl.mask.take() {
            acl.group &= mask;
            acl.users.values_mut().chain(acl.groups.values_mut()).for_each(|bits| *bits &= mask);
        }
        acl
    }

    /// Returns the rights of all classes except the owner and others.
    pub(super) fn group_class(&self) -> Bits {
        self.groups_bits() | self.users.values().fold(0, |all, bits| all | bits)
    }

    pub(super) fn groups_bits(&self) -> Bits {
        self.groups.values().fold(self.group, |all, bits| all | bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_kernel_forms_are_no_lists() {
        let good = PosixAcl::from_mode(0o640).encode();
        assert_eq!(PosixAcl::decode(&good), Some(PosixAcl::from_mode(0o640)));
        for len in (0..good.len()).filter(|len| len % RECORD_BYTES != 4) {
            assert_eq!(PosixAcl::decode(&good[..len]), None, "{len}");
        }
        assert_eq!(PosixAcl::decode(&[1, 0, 0, 0]), None);
    }

    #[test]
    fn entries_that_make_no_list_are_refused() {
        let entry = |tag, bits| PosixEntry { tag, bits };
        let (owner, group) = (entry(PosixTag::Owner, 6), entry(PosixTag::Group, 4));
        let (mask, other) = (entry(PosixTag::Mask, 4), entry(PosixTag::Other, 0));
        let user = |id| entry(PosixTag::User(id), 7);
        let from = PosixAcl::from_entries;
        assert_eq!(from(&[owner, group, other]), Ok(PosixAcl::from_mode(0o640)));
        assert_eq!(from(&[other, mask, group, owner]), Ok(PosixAcl::from_mode(0o640)));
        assert!(from(&[owner, user(7), group, mask, other]).is_ok());
        let invalid: [&[PosixEntry]; 8] = [
            &[],
            &[owner, group],
            &[group, other],
            &[owner, other, mask],
            &[owner, group, other, owner],
            &[owner, user(7), group, other],
            &[owner, user(7), user(7), group, mask, other],
            &[owner, user(NO_ID), group, mask, other],
        ];
        for entries in invalid {
            assert_eq!(from(entries), Err(StoreError::Invalid), "{entries:?}");
        }
        let wide = entry(PosixTag::Other, 8);
        assert_eq!(from(&[owner, group, wide]), Err(StoreError::Invalid));
        let fixed = [owner, group, mask, other];
        let many = |count| (0..count).map(user).chain(fixed).collect::<Vec<_>>();
        let most = ACL_ENTRIES_MAX as u32 - 4;
        assert!(from(&many(most)).is_ok());
        assert_eq!(from(&many(most + 1)), Err(StoreError::NotSupported));
    }
}

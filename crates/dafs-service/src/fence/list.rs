//! Fence lists: the subjects on them, and their updates (DAFS 11, O44 to O46).
//!
//! A name on a list is one of:
//!
//! | name | lets in |
//! |---|---|
//! | `nfs:OWNER` | the NFSv4 client that calls itself OWNER (co_ownerid, RFC 8881 18.35) |
//! | `addr:192.0.2.0/24` | NFS clients of any version at these addresses |
//! | anything else | the DAFS sessions that gave this fence id when they connected |
//!
//! Invariants
//! * A list that exists shuts out every subject that is not on it. An empty one shuts out all.
//! * A subject that an update has shut out stays out: no remaining name admits a removed one, or
//!   the update is refused.

use crate::hosts::Host;
use crate::limits::{FENCE_NAME_BYTES_MAX, FENCE_NAMES_MAX};
use crate::network::AddressRange;
use crate::{Result, ServiceError};
use dafs_store::StoreError;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Prefix of the name of an NFSv4 client.
const NFS: &[u8] = b"nfs:";

/// Prefix of a range of network addresses.
const ADDRESS: &[u8] = b"addr:";

/// The subject of a request, for fences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject<'a> {
    /// The server itself, or a caller that is not subject to fences.
    Server,
    /// A DAFS session with its fence id. A session without one (empty) is on no list (DAFS O46).
    Session(&'a [u8]),
    /// An NFS caller.
    Nfs {
        /// The client's own name. Callers of NFSv3 have none.
        owner: Option<&'a [u8]>,
        /// The caller's address.
        address: IpAddr,
        /// The host whose share of resources the caller takes. Fences do not use it.
        host: Host,
    },
}

/// A change of a fence list (DAFS O44).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceUpdate<'a> {
    /// Lifts the fence: every subject has access.
    Lift,
    /// Only these have access, or none at all if the list is empty.
    Install(&'a [&'a [u8]]),
    /// These get access, too. Without a list before, only these have access.
    Add(&'a [&'a [u8]]),
    /// These lose access.
    Remove(&'a [&'a [u8]]),
}

/// One name, parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name<'a> {
    Session(&'a [u8]),
    Nfs(&'a [u8]),
    Address(AddressRange),
}

impl<'a> Name<'a> {
    fn parse(name: &'a [u8]) -> Result<Self> {
        let invalid = || ServiceError::Store(StoreError::Invalid);
        if name.is_empty() || name.len() > FENCE_NAME_BYTES_MAX {
            return Err(invalid());
        }
        if let Some(range) = name.strip_prefix(ADDRESS) {
            let range = std::str::from_utf8(range).ok().and_then(|text| text.parse().ok());
            return range
                .map(|range: AddressRange| Self::Address(range.network()))
                .ok_or_else(invalid);
        }
        match name.strip_prefix(NFS) {
            Some([]) => Err(invalid()),
            Some(owner) => Ok(Self::Nfs(owner)),
            None => Ok(Self::Session(name)),
        }
    }
}

/// True if a session may use this fence id. Ids in the form of an NFS client's name would be on no
/// list.
pub fn is_fence_id(id: &[u8]) -> bool {
    id.is_empty() || matches!(Name::parse(id), Ok(Name::Session(_)))
}

/// The subjects that have access to an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct FenceList {
    sessions: BTreeSet<Vec<u8>>,
    owners: BTreeSet<Vec<u8>>,
    ranges: Vec<AddressRange>,
}

impl FenceList {
    /// Makes a list of these names.
    ///
    /// # Errors
    /// `Invalid` for bytes that are no name, `Resource` for too many.
    pub(crate) fn of(names: &[&[u8]]) -> Result<Self> {
        let mut list = Self::default();
        list.add(names)?;
        Ok(list)
    }

    /// Returns the list after an update. `None` means no list.
    ///
    /// # Errors
    /// `Invalid` for bytes that are no name, for a removal without a list (DAFS O44), for the
    /// removal of addresses that another range still admits, and for an empty addition without a
    /// list. `Resource` for too many names.
    pub(crate) fn updated(before: Option<&Self>, update: FenceUpdate<'_>) -> Result<Option<Self>> {
        let invalid = ServiceError::Store(StoreError::Invalid);
        match update {
            FenceUpdate::Lift => Ok(None),
            FenceUpdate::Install(names) => Self::of(names).map(Some),
            FenceUpdate::Add([]) if before.is_none() => Err(invalid),
            FenceUpdate::Add(names) => {
                let mut list = before.cloned().unwrap_or_default();
                list.add(names)?;
                Ok(Some(list))
            }
            FenceUpdate::Remove(names) => {
                let mut list = before.ok_or(invalid)?.clone();
                list.remove(names)?;
                Ok(Some(list))
            }
        }
    }

    fn add(&mut self, names: &[&[u8]]) -> Result<()> {
        for name in names {
            match Name::parse(name)? {
                Name::Session(id) => {
                    self.sessions.insert(id.to_vec());
                }
                Name::Nfs(owner) => {
                    self.owners.insert(owner.to_vec());
                }
                Name::Address(range) if self.ranges.contains(&range) => {}
                Name::Address(range) => self.ranges.push(range),
            }
            if self.len() > FENCE_NAMES_MAX {
                return Err(ServiceError::Resource);
            }
        }
        Ok(())
    }

    fn remove(&mut self, names: &[&[u8]]) -> Result<()> {
        let mut gone = Vec::new();
        for name in names {
            match Name::parse(name)? {
                Name::Session(id) => {
                    self.sessions.remove(id);
                }
                Name::Nfs(owner) => {
                    self.owners.remove(owner);
                }
                Name::Address(range) => gone.push(range),
            }
        }
        self.ranges.retain(|range| !gone.contains(range));
        let still_in = |gone: &AddressRange| self.ranges.iter().any(|range| range.overlaps(gone));
        if gone.iter().any(still_in) {
            return Err(StoreError::Invalid.into());
        }
        Ok(())
    }

    fn len(&self) -> usize {
        self.sessions.len() + self.owners.len() + self.ranges.len()
    }

    /// True if the subject has access.
    pub(crate) fn admits(&self, subject: &Subject<'_>) -> bool {
        match *subject {
            Subject::Server => true,
            // No list holds an empty name.
            Subject::Session(id) => self.sessions.contains(id),
            Subject::Nfs { owner, address, .. } => {
                owner.is_some_and(|owner| self.owners.contains(owner))
                    || self.ranges.iter().any(|range| range.contains(address))
            }
        }
    }

    /// Returns the names as they were given.
    pub(crate) fn names(&self) -> Vec<Vec<u8>> {
        let owners = self.owners.iter().map(|owner| [NFS, owner].concat());
        let ranges = self.ranges.iter();
        let ranges = ranges.map(|range| [ADDRESS, range.to_string().as_bytes()].concat());
        self.sessions.iter().cloned().chain(owners).chain(ranges).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INVALID: ServiceError = ServiceError::Store(StoreError::Invalid);

    fn nfs(owner: Option<&'static str>, address: &str) -> Subject<'static> {
        let (owner, address) = (owner.map(str::as_bytes), address.parse().unwrap());
        Subject::Nfs { owner, address, host: Host::of(address) }
    }

    fn updated(before: &FenceList, update: FenceUpdate<'_>) -> Result<FenceList> {
        FenceList::updated(Some(before), update).map(Option::unwrap)
    }

    #[test]
    fn everybody_is_judged_by_names_of_his_kind() {
        let list = FenceList::of(&[b"n1", b"nfs:n2", b"addr:192.0.2.77/24"]).unwrap();
        assert!(list.admits(&Subject::Session(b"n1")));
        assert!(!list.admits(&Subject::Session(b"n2")) && !list.admits(&Subject::Session(b"")));
        assert!(!list.admits(&Subject::Session(b"nfs:n2")));
        assert!(list.admits(&nfs(Some("n2"), "10.0.0.1")));
        assert!(!list.admits(&nfs(Some("n1"), "10.0.0.1")));
        assert!(list.admits(&nfs(None, "192.0.2.1")) && !list.admits(&nfs(None, "10.0.0.1")));
        assert!(list.admits(&Subject::Server));
        let names = list.names();
        assert_eq!(names, [&b"n1"[..], b"nfs:n2", b"addr:192.0.2.0/24"]);
    }

    #[test]
    fn an_empty_list_is_not_no_list() {
        let one = FenceList::of(&[b"n1"]).unwrap();
        let none = updated(&one, FenceUpdate::Remove(&[b"n1"])).unwrap();
        assert!(!none.admits(&Subject::Session(b"n1")) && none.names().is_empty());
        assert_eq!(FenceList::updated(Some(&none), FenceUpdate::Lift), Ok(None));
        let nothing = FenceList::updated(None, FenceUpdate::Remove(&[b"n1"]));
        assert_eq!(nothing, Err(INVALID));
        assert_eq!(FenceList::updated(None, FenceUpdate::Add(&[])), Err(INVALID));
        let first = FenceList::updated(None, FenceUpdate::Add(&[b"n1"]));
        assert_eq!(first, Ok(Some(one)));
    }

    #[test]
    fn an_invalid_name_is_refused() {
        let long = [b'x'; FENCE_NAME_BYTES_MAX + 1];
        for name in [&b""[..], b"nfs:", b"addr:", b"addr:10.0.0.0/33", b"addr:\xff", &long] {
            assert_eq!(FenceList::of(&[name]), Err(INVALID), "{}", name.escape_ascii());
        }
        let names: Vec<_> = (0..=FENCE_NAMES_MAX).map(|number| number.to_string()).collect();
        let names: Vec<_> = names.iter().map(String::as_bytes).collect();
        assert_eq!(FenceList::of(&names), Err(ServiceError::Resource));
        assert!(FenceList::of(&names[1..]).is_ok());
        assert!(is_fence_id(b"") && is_fence_id(b"n1"));
        assert!(!is_fence_id(b"nfs:n1") && !is_fence_id(b"addr:10.0.0.1") && !is_fence_id(&long));
    }

    #[test]
    fn addresses_that_another_range_lets_in_cannot_be_taken_off() {
        let list = FenceList::of(&[b"addr:10.0.0.0/8", b"addr:192.0.2.1"]).unwrap();
        let remove = |name: &[u8]| updated(&list, FenceUpdate::Remove(&[name]));
        assert_eq!(remove(b"addr:10.1.0.0/16"), Err(INVALID));
        assert_eq!(remove(b"addr:0.0.0.0/0"), Err(INVALID));
        let left = remove(b"addr:10.0.0.0/8").unwrap();
        assert!(!left.admits(&nfs(None, "10.1.2.3")) && left.admits(&nfs(None, "192.0.2.1")));
        assert_eq!(remove(b"addr:2001:db8::/32"), Ok(list.clone()));
    }
}

//! POSIX access control lists, and their conversion to and from NFSv4 lists.
//!
//! A POSIX list has one entry per class: the owner, named users, the group, named groups, all
//! others. The first class that matches a caller decides, except that any matching group may grant.
//! A server evaluates an NFSv4 list in order until every right is decided.
//!
//! Decisions (RFC 8881 6.3, 6.4, and the practice of other servers)
//! * From POSIX to NFSv4 only the mask entry is lost, after it was applied. Denials come before the
//!   grants of classes that would otherwise grant more. [`PosixAcl::entries`] keeps it.
//! * From NFSv4 to POSIX the conversion errs towards less access. A denial for one group applies to
//!   all callers that may be in it. Write permission needs all the rights that belong to it.
//! * POSIX gives some rights to the owner or to all callers (such as reading attributes). Entries
//!   neither grant nor deny them; the conversion ignores them.
//! * Inheritance applies to files and directories alike; an entry for one of them counts for both.
//!   Entries that are inherited one level only are rejected, and so are audits.

use super::list::{Bits, NO_ID, PosixAcl};
use super::{Ace, AceFlags, AceKind, AceMask, AceWho, Acl};
use crate::limits::ACL_ENTRIES_MAX;
use crate::{Result, StoreError};
use std::collections::BTreeMap;

const READ: Bits = 4;
const WRITE: Bits = 2;
const EXECUTE: Bits = 1;

/// The rights of every caller that can name an object.
const ANYBODY: AceMask =
    AceMask::READ_ATTRIBUTES.union(AceMask::READ_ACL).union(AceMask::SYNCHRONIZE);

/// The additional rights of the owner.
const OWNER: AceMask = AceMask::WRITE_ATTRIBUTES.union(AceMask::WRITE_ACL);

const INHERIT: AceFlags = AceFlags::FILE_INHERIT.union(AceFlags::DIRECTORY_INHERIT);

/// The lists of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PosixAcls {
    /// The list that controls access to the object.
    pub access: PosixAcl,
    /// The list that new objects in the directory inherit.
    pub default: Option<PosixAcl>,
}

impl PosixAcl {
    /// Appends the equivalent NFSv4 entries of a list without a mask.
    fn append_to(&self, entries: &mut Vec<Ace>, directory: bool, flags: AceFlags) {
        let mask = |bits| mask_of(bits, directory);
        // A later class may have more rights than an earlier one, and its entry would grant them to
        // members of the earlier one. So the rights that the earlier one lacks are denied. All
        // groups count together.
        let owner_lacks = !self.owner & (self.group_class() | self.other);
        let deny = |entries: &mut Vec<Ace>, who, lacks: Bits| {
            if lacks != 0 {
                entries.push(Ace { kind: AceKind::Deny, flags, mask: mask(lacks), who });
            }
        };
        let allow = |entries: &mut Vec<Ace>, who, bits: Bits| {
            let own = if who == AceWho::Owner { OWNER } else { AceMask::empty() };
            let mask = mask(bits) | ANYBODY | own;
            entries.push(Ace { kind: AceKind::Allow, flags, mask, who });
        };
        deny(entries, AceWho::Owner, owner_lacks);
        allow(entries, AceWho::Owner, self.owner);
        for (&id, &bits) in &self.users {
            deny(entries, AceWho::User(id), !bits & (self.groups_bits() | self.other));
            allow(entries, AceWho::User(id), bits);
        }
        let group = std::iter::once((AceWho::Group, self.group));
        let groups = self.groups.iter().map(|(&id, &bits)| (AceWho::NamedGroup(id), bits));
        let all: Vec<_> = group.chain(groups).collect();
        all.iter().for_each(|&(who, bits)| allow(entries, who, bits));
        all.iter().for_each(|&(who, bits)| deny(entries, who, !bits & self.other));
        allow(entries, AceWho::Everyone, self.other);
    }
}

fn mask_of(bits: Bits, directory: bool) -> AceMask {
    let mut mask = AceMask::empty();
    mask.set(AceMask::READ_DATA, bits & READ != 0);
    mask.set(write_mask(directory), bits & WRITE != 0);
    mask.set(AceMask::EXECUTE, bits & EXECUTE != 0);
    mask
}

/// Returns all the rights that write permission includes.
fn write_mask(directory: bool) -> AceMask {
    let change = AceMask::WRITE_DATA | AceMask::APPEND_DATA;
    if directory { change | AceMask::DELETE_CHILD } else { change }
}

impl PosixAcls {
    /// Makes the lists that are equivalent to a mode.
    pub fn from_mode(mode: u32) -> Self {
        Self { access: PosixAcl::from_mode(mode), default: None }
    }

    /// Returns the nine permission bits, if they are equivalent to the lists.
    pub fn as_mode(&self) -> Option<u32> {
        self.access.as_mode().filter(|_| self.default.is_none())
    }

    /// Returns the equivalent NFSv4 list.
    pub fn to_acl(&self, directory: bool) -> Acl {
        let mut entries = Vec::new();
        self.access.masked().append_to(&mut entries, directory, AceFlags::empty());
        if let Some(default) = &self.default {
            // A file or a directory may inherit the entry, so it names all write rights.
            default.masked().append_to(&mut entries, true, INHERIT | AceFlags::INHERIT_ONLY);
        }
        Acl { entries }
    }

    /// Converts an NFSv4 list of a directory or of another object.
    ///
    /// # Errors
    /// `NotSupported` for entries that POSIX lists cannot express, and for too many of them;
    /// `Invalid` for inheritance of an object that is not a directory, and for impossible ids.
    pub fn from_acl(acl: &Acl, directory: bool) -> Result<Self> {
        if acl.entries.len() > ACL_ENTRIES_MAX {
            return Err(StoreError::NotSupported);
        }
        for ace in &acl.entries {
            if ace.flags.intersects(AceFlags::NO_PROPAGATE_INHERIT | AceFlags::INHERITED) {
                return Err(StoreError::NotSupported);
            }
            let inherits = ace.flags.intersects(INHERIT);
            let only = ace.flags.contains(AceFlags::INHERIT_ONLY);
            if (inherits && !directory) || (only && !inherits) {
                return Err(StoreError::Invalid);
            }
            if matches!(ace.who, AceWho::User(NO_ID) | AceWho::NamedGroup(NO_ID)) {
                return Err(StoreError::Invalid);
            }
        }
        let own = |ace: &&Ace| !ace.flags.contains(AceFlags::INHERIT_ONLY);
        let handed_down = |ace: &&Ace| ace.flags.intersects(INHERIT);
        let access = Classes::decide(acl.entries.iter().filter(own)).into_acl(directory);
        let default = acl.entries.iter().any(|ace| handed_down(&ace));
        // Files inherit the entries, too, so DELETE_CHILD is not required.
        let default = default
            .then(|| Classes::decide(acl.entries.iter().filter(handed_down)).into_acl(false));
        Ok(Self { access, default })
    }
}

/// The rights of one class that are decided so far.
#[derive(Debug, Clone, Copy, Default)]
struct Decided {
    allowed: AceMask,
    denied: AceMask,
}

impl Decided {
    fn decide(&mut self, kind: AceKind, mask: AceMask) {
        match kind {
            AceKind::Allow => self.allowed |= mask - self.denied,
            AceKind::Deny => self.denied |= mask - self.allowed,
        }
    }

    fn bits(&self, directory: bool) -> Bits {
        let has = |mask, bits| if self.allowed.contains(mask) { bits } else { 0 };
        has(AceMask::READ_DATA, READ)
            | has(write_mask(directory), WRITE)
            | has(AceMask::EXECUTE, EXECUTE)
    }
}

/// All classes of an NFSv4 list.
#[derive(Debug, Default)]
struct Classes {
    owner: Decided,
    users: BTreeMap<u32, Decided>,
    group: Decided,
    groups: BTreeMap<u32, Decided>,
    other: Decided,
}

impl Classes {
    fn decide<'a>(entries: impl Iterator<Item = &'a Ace> + Clone) -> Self {
        let mut classes = Self::default();
        for ace in entries.clone() {
            match ace.who {
                AceWho::User(id) => drop(classes.users.insert(id, Decided::default())),
                AceWho::NamedGroup(id) => drop(classes.groups.insert(id, Decided::default())),
                AceWho::Owner | AceWho::Group | AceWho::Everyone => {}
            }
        }
        entries.for_each(|ace| classes.apply(ace));
        classes
    }

    fn apply(&mut self, ace: &Ace) {
        let (kind, mask) = (ace.kind, ace.mask);
        match (ace.who, kind) {
            (AceWho::Owner, _) => self.owner.decide(kind, mask),
            (AceWho::Everyone, _) => {
                self.owner.decide(kind, mask);
                self.users.values_mut().for_each(|class| class.decide(kind, mask));
                self.group.decide(kind, mask);
                self.groups.values_mut().for_each(|class| class.decide(kind, mask));
                self.other.decide(kind, mask);
            }
            (AceWho::User(id), _) => {
                if let Some(class) = self.users.get_mut(&id) {
                    class.decide(kind, mask);
                }
                if kind == AceKind::Deny {
                    // The user may be the owner.
                    self.owner.decide(kind, mask);
                }
            }
            (AceWho::Group, AceKind::Allow) => self.group.decide(kind, mask),
            (AceWho::NamedGroup(id), AceKind::Allow) => {
                if let Some(class) = self.groups.get_mut(&id) {
                    class.decide(kind, mask);
                }
            }
            // The owner, a named user, or a member of another group may be a member of this one.
            (AceWho::Group | AceWho::NamedGroup(_), AceKind::Deny) => {
                self.owner.decide(kind, mask);
                self.users.values_mut().for_each(|class| class.decide(kind, mask));
                self.group.decide(kind, mask);
                self.groups.values_mut().for_each(|class| class.decide(kind, mask));
            }
        }
    }

    fn into_acl(self, directory: bool) -> PosixAcl {
        let bits = |class: &Decided| class.bits(directory);
        let named = |classes: &BTreeMap<u32, Decided>| {
            classes.iter().map(|(&id, class)| (id, bits(class))).collect()
        };
        PosixAcl {
            owner: bits(&self.owner),
            users: named(&self.users),
            group: bits(&self.group),
            groups: named(&self.groups),
            mask: None,
            other: bits(&self.other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn acl(entries: &[(AceKind, AceWho, AceMask)]) -> Acl {
        let ace = |&(kind, who, mask)| Ace { kind, flags: AceFlags::empty(), mask, who };
        Acl { entries: entries.iter().map(ace).collect() }
    }

    fn mode(acl: &Acl) -> Option<u32> {
        PosixAcls::from_acl(acl, false).unwrap().access.as_mode()
    }

    #[test]
    fn every_mode_makes_a_list_that_says_the_same() {
        for bits in 0..0o1000 {
            let access = PosixAcl::from_mode(bits);
            let lists = PosixAcls { access, default: None };
            for directory in [false, true] {
                let back = PosixAcls::from_acl(&lists.to_acl(directory), directory).unwrap();
                assert_eq!(back, lists, "{bits:o}");
            }
            assert_eq!(lists.access.as_mode(), Some(bits));
        }
    }

    #[test]
    fn the_first_entry_that_names_a_right_decides() {
        use AceKind::{Allow, Deny};
        let read = AceMask::READ_DATA;
        let (owner, everyone) = (AceWho::Owner, AceWho::Everyone);
        assert_eq!(mode(&acl(&[(Deny, owner, read), (Allow, everyone, read)])), Some(0o044));
        assert_eq!(mode(&acl(&[(Allow, everyone, read), (Deny, owner, read)])), Some(0o444));
        assert_eq!(
            mode(&acl(&[(Deny, AceWho::Group, read), (Allow, everyone, read)])),
            Some(0o004)
        );
        assert_eq!(mode(&Acl::default()), Some(0));
    }

    #[test]
    fn write_permission_needs_every_right_that_belongs_to_it() {
        use AceKind::Allow;
        let some = acl(&[(Allow, AceWho::Owner, AceMask::WRITE_DATA)]);
        assert_eq!(mode(&some), Some(0));
        let all = acl(&[(Allow, AceWho::Owner, AceMask::WRITE_DATA | AceMask::APPEND_DATA)]);
        assert_eq!(mode(&all), Some(0o200));
        let directory = PosixAcls::from_acl(&all, true).unwrap();
        assert_eq!(directory.access.as_mode(), Some(0), "DELETE_CHILD is missing");
    }

    #[test]
    fn entries_without_a_posix_form_are_refused() {
        let ace = |flags, who| Ace { kind: AceKind::Allow, flags, mask: AceMask::READ_DATA, who };
        let from = |ace, directory| PosixAcls::from_acl(&Acl { entries: vec![ace] }, directory);
        let one_level = AceFlags::FILE_INHERIT | AceFlags::NO_PROPAGATE_INHERIT;
        let everyone = AceWho::Everyone;
        assert_eq!(from(ace(one_level, everyone), true), Err(StoreError::NotSupported));
        assert_eq!(from(ace(AceFlags::INHERITED, everyone), true), Err(StoreError::NotSupported));
        assert_eq!(from(ace(INHERIT, everyone), false), Err(StoreError::Invalid));
        assert_eq!(from(ace(AceFlags::INHERIT_ONLY, everyone), true), Err(StoreError::Invalid));
        let nobody = ace(AceFlags::empty(), AceWho::User(NO_ID));
        assert_eq!(from(nobody, false), Err(StoreError::Invalid));
        let many = vec![ace(AceFlags::empty(), everyone); ACL_ENTRIES_MAX + 1];
        let refused = PosixAcls::from_acl(&Acl { entries: many }, false);
        assert_eq!(refused, Err(StoreError::NotSupported));
    }

    fn lists() -> impl Strategy<Value = PosixAcl> {
        let named = || prop::collection::btree_map(0..5u32, 0..8u8, 0..4);
        (0..8u8, named(), 0..8u8, named(), 0..8u8).prop_map(
            |(owner, users, group, groups, other)| {
                let mask = None;
                PosixAcl { owner, users, group, groups, mask, other }
            },
        )
    }

    /// A caller that asks for access.
    #[derive(Debug)]
    struct Principal {
        owner: bool,
        uid: u32,
        in_group: bool,
        groups: Vec<u32>,
    }

    impl Principal {
        fn is(&self, who: AceWho) -> bool {
            match who {
                AceWho::Owner => self.owner,
                AceWho::Group => self.in_group,
                AceWho::Everyone => true,
                AceWho::User(id) => self.uid == id,
                AceWho::NamedGroup(id) => self.groups.contains(&id),
            }
        }

        /// True if the NFSv4 list grants all of these rights (RFC 8881 6.2.1).
        fn granted_by_acl(&self, acl: &Acl, rights: AceMask) -> bool {
            rights.iter().all(|right| {
                let decides = |ace: &&Ace| ace.mask.contains(right) && self.is(ace.who);
                acl.entries.iter().find(decides).is_some_and(|ace| ace.kind == AceKind::Allow)
            })
        }

        /// Returns the rights that the POSIX list grants.
        fn granted_by_posix(&self, acl: &PosixAcl) -> Bits {
            if self.owner {
                return acl.owner;
            }
            if let Some(&bits) = acl.users.get(&self.uid) {
                return bits;
            }
            let named = acl.groups.iter().filter(|(id, _)| self.groups.contains(id));
            let mut fitting: Vec<Bits> = named.map(|(_, &bits)| bits).collect();
            fitting.extend(self.in_group.then_some(acl.group));
            fitting.into_iter().reduce(|all, bits| all | bits).unwrap_or(acl.other)
        }
    }

    fn principals() -> impl Strategy<Value = Principal> {
        let groups = prop::collection::vec(0..3u32, 0..3);
        (any::<bool>(), 0..3u32, any::<bool>(), groups)
            .prop_map(|(owner, uid, in_group, groups)| Principal { owner, uid, in_group, groups })
    }

    fn entries() -> impl Strategy<Value = Ace> {
        let who = prop_oneof![
            Just(AceWho::Owner),
            Just(AceWho::Group),
            Just(AceWho::Everyone),
            (0..3u32).prop_map(AceWho::User),
            (0..3u32).prop_map(AceWho::NamedGroup),
        ];
        (any::<bool>(), who, 0..0x80u32).prop_map(|(allow, who, mask)| Ace {
            kind: if allow { AceKind::Allow } else { AceKind::Deny },
            flags: AceFlags::empty(),
            mask: AceMask::from_bits_truncate(mask),
            who,
        })
    }

    proptest! {
        #[test]
        fn a_posix_list_grants_no_more_than_the_nfs_list(
            entries in prop::collection::vec(entries(), 0..8),
            principal in principals(),
            directory in any::<bool>(),
        ) {
            let acl = Acl { entries };
            let access = PosixAcls::from_acl(&acl, directory).unwrap().access;
            let bits = principal.granted_by_posix(&access);
            for bit in [READ, WRITE, EXECUTE] {
                let granted = principal.granted_by_acl(&acl, mask_of(bit, directory));
                prop_assert!(bits & bit == 0 || granted, "{bit} {access:?}");
            }
        }

        #[test]
        fn posix_lists_survive_the_way_through_nfs(
            access in lists(),
            default in prop::option::of(lists()),
        ) {
            let lists = PosixAcls { access, default };
            let back = PosixAcls::from_acl(&lists.to_acl(true), true).unwrap();
            prop_assert_eq!(&back, &lists);
            let file = PosixAcls { default: None, ..lists };
            prop_assert_eq!(&PosixAcls::from_acl(&file.to_acl(false), false).unwrap(), &file);
            let kept = PosixAcl::decode(&file.access.encode()).unwrap();
            prop_assert_eq!(kept.masked(), file.access);
        }

        #[test]
        fn masks_are_kept_and_limit_the_nfs_list(
            list in lists(),
            mask in 0..8u8,
            principal in principals(),
        ) {
            let list = PosixAcl { mask: Some(mask), ..list };
            let decoded = PosixAcl::decode(&list.encode());
            prop_assert_eq!(decoded.as_ref(), Some(&list));
            let entries = list.entries();
            let back = PosixAcl::from_entries(&entries).unwrap();
            // Without named entries, the mask says the same as the group where both are equal.
            let is_said_twice = list.is_minimal() && mask == list.group;
            let mask = (!is_said_twice).then_some(mask);
            prop_assert_eq!(&back, &PosixAcl { mask, ..list.clone() });
            let acl = PosixAcls { access: list.clone(), default: None }.to_acl(false);
            let bits = principal.granted_by_posix(&list.masked());
            for bit in [READ, WRITE, EXECUTE] {
                let granted = principal.granted_by_acl(&acl, mask_of(bit, false));
                prop_assert_eq!(bits & bit != 0, granted, "{} {:?}", bit, list);
            }
        }
    }
}

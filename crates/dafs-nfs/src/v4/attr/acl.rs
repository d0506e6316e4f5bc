//! Access control lists between the wire and the store (RFC 8881 6.2.1).

use super::owner::Names;
use dafs_service::OwnerKind;
use dafs_store::{ACL_ENTRIES_MAX, Ace, AceFlags, AceKind, AceMask, AceWho, Acl};
use dafs_wire::nfs4::{
    self, ACE_ALARM, ACE_ALLOWED, ACE_AUDIT, ACE_DENIED, AceFlags as WireFlags,
    AceMask as WireMask, Status,
};
use dafs_wire::xdr::Encoder;

/// Writes a list. Writes an empty one where there is none.
pub(super) fn encode(e: &mut Encoder<'_>, acl: Option<&Acl>, names: &Names<'_>) {
    let entries = acl.map_or(&[][..], |acl| &acl.entries);
    e.count(entries.len());
    for entry in entries {
        let text;
        let (who, group): (&[u8], bool) = match entry.who {
            AceWho::Owner => (b"OWNER@", false),
            // The flag marks this special name as a group (RFC 8881 6.2.1.4.1).
            AceWho::Group => (b"GROUP@", true),
            AceWho::Everyone => (b"EVERYONE@", false),
            AceWho::User(uid) => {
                text = names.text(OwnerKind::User, uid);
                (text.as_bytes(), false)
            }
            AceWho::NamedGroup(gid) => {
                text = names.text(OwnerKind::Group, gid);
                (text.as_bytes(), true)
            }
        };
        let mut flags = WireFlags::from_bits_retain(entry.flags.bits());
        flags.set(WireFlags::IDENTIFIER_GROUP, group);
        let kind = match entry.kind {
            AceKind::Allow => ACE_ALLOWED,
            AceKind::Deny => ACE_DENIED,
        };
        let mask = WireMask::from_bits_retain(entry.mask.bits());
        e.value(&nfs4::Ace { kind, flags, mask, who });
    }
}

/// Decodes the list that a client sets.
///
/// # Errors
/// `AttrNotSupp` for audit and alarm entries, `BadOwner`, `Inval`, `Delay`.
pub(super) fn decode(acl: &nfs4::Acl<'_>, names: &Names<'_>) -> Result<Acl, Status> {
    if acl.aces.len() > ACL_ENTRIES_MAX {
        return Err(Status::Inval);
    }
    let entries = acl.aces.iter().map(|ace| entry(ace, names)).collect::<Result<_, _>>()?;
    Ok(Acl { entries })
}

fn entry(ace: &nfs4::Ace<'_>, names: &Names<'_>) -> Result<Ace, Status> {
    let kind = match ace.kind {
        ACE_ALLOWED => AceKind::Allow,
        ACE_DENIED => AceKind::Deny,
        ACE_AUDIT | ACE_ALARM => return Err(Status::AttrNotSupp),
        _ => return Err(Status::Inval),
    };
    if ace.flags.has_unknown() || ace.mask.has_unknown() {
        return Err(Status::Inval);
    }
    let group = ace.flags.contains(WireFlags::IDENTIFIER_GROUP);
    let who = match ace.who {
        b"OWNER@" => AceWho::Owner,
        b"GROUP@" => AceWho::Group,
        b"EVERYONE@" => AceWho::Everyone,
        who if group => AceWho::NamedGroup(names.parse(OwnerKind::Group, who)?),
        who => AceWho::User(names.parse(OwnerKind::User, who)?),
    };
    // Flags that the store does not know have no effect on rights here.
    let flags = AceFlags::from_bits_truncate(ace.flags.bits());
    Ok(Ace { kind, flags, mask: AceMask::from_bits_truncate(ace.mask.bits()), who })
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_wire::xdr::{Decode, Decoder};

    #[test]
    fn lists_travel_both_ways() {
        let ace =
            |kind, who| Ace { kind, flags: AceFlags::FILE_INHERIT, mask: AceMask::EXECUTE, who };
        let acl = Acl {
            entries: vec![
                ace(AceKind::Allow, AceWho::Owner),
                ace(AceKind::Deny, AceWho::Group),
                ace(AceKind::Allow, AceWho::Everyone),
                ace(AceKind::Allow, AceWho::User(7)),
                ace(AceKind::Deny, AceWho::NamedGroup(8)),
            ],
        };
        let mut bytes = Vec::new();
        encode(&mut Encoder::new(&mut bytes), Some(&acl), &Names::default());
        let wire = nfs4::Acl::decode(&mut Decoder::new(&bytes)).unwrap();
        assert_eq!(decode(&wire, &Names::default()), Ok(acl));
    }

    #[test]
    fn an_acl_that_the_store_cannot_keep_is_refused() {
        let ace = |kind, who| nfs4::Ace {
            kind,
            flags: WireFlags::empty(),
            mask: WireMask::READ_DATA,
            who,
        };
        let entry = |kind, who| entry(&ace(kind, who), &Names::default());
        assert_eq!(entry(ACE_AUDIT, b"OWNER@"), Err(Status::AttrNotSupp));
        assert_eq!(entry(9, b"OWNER@"), Err(Status::Inval));
        assert_eq!(entry(ACE_ALLOWED, b"anna@example.org"), Err(Status::BadOwner));
    }
}

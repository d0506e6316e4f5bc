//! GETACL and SETACL of NFS_ACL, with the handles, rights and statuses of NFSv3.
//!
//! Decisions
//! * Each object has a list, if only that of its mode, because a client that hears of none asks again
//!   for every file. A list with more than a mode can say is NOTSUPP where the store keeps modes alone.
//! * A list always has an entry for the mask on the wire, as Solaris demands. Linux removes it again.
//! * A request that names one of the lists keeps the other as it is.

use super::{Args, Context, Done, Stop, args, attr_of};
use dafs_service::durable::Change;
use dafs_store::{Attr, Kind, PosixAcl, PosixAcls, PosixEntry, PosixTag, SetAttr};
use dafs_wire::nfs_acl3::{
    ENTRIES_MAX, Entry, GetaclArgs, GetaclOk, List, Lists, Parts, Procedure, SetaclArgs, SetaclOk,
    Tag,
};
use dafs_wire::nfs3::{ObjectFailure, Status};

pub(super) fn dispatch(cx: &mut Context<'_>, procedure: Procedure, args: Args<'_>) -> Done {
    match procedure {
        Procedure::Null => Ok(Status::Ok),
        Procedure::Getacl => getacl(cx, args),
        Procedure::Setacl => setacl(cx, args),
    }
}

fn getacl(cx: &mut Context<'_>, wire: Args<'_>) -> Done {
    let args: GetaclArgs<'_> = args(wire)?;
    let outcome = getacl_of(cx, &args);
    cx.finish(outcome, |cx| ObjectFailure { attributes: cx.attributes_of(args.object) })
}

fn getacl_of(cx: &mut Context<'_>, args: &GetaclArgs<'_>) -> Result<(), Stop> {
    let handle = cx.handle(args.object)?;
    let attr = cx.service().delegations.attributes(cx.caller(), &handle)?;
    let kept = cx.service().posix_acls(&handle)?;
    let part = |list: Option<&PosixAcl>, whole: Parts, count: Parts| {
        if !args.parts.intersects(whole | count) {
            return Ok(List::default());
        }
        let mut part = List::of(list.map_or_else(Vec::new, |list| entries(list, &attr)));
        if part.entries.len() > ENTRIES_MAX {
            return Err(Status::NotSupp);
        }
        if !args.parts.contains(whole) {
            part.entries.clear();
        }
        Ok(part)
    };
    let access = part(Some(&kept.access), Parts::ACCESS, Parts::ACCESS_COUNT)?;
    let default = part(kept.default.as_ref(), Parts::DEFAULT, Parts::DEFAULT_COUNT)?;
    let lists = Lists { parts: args.parts, access, default };
    cx.ok(&GetaclOk { attributes: attr_of(&handle, &attr), lists })
}

fn setacl(cx: &mut Context<'_>, wire: Args<'_>) -> Done {
    let args: SetaclArgs<'_> = args(wire)?;
    let outcome = setacl_of(cx, &args);
    cx.finish(outcome, |cx| ObjectFailure { attributes: cx.attributes_of(args.object) })
}

fn setacl_of(cx: &mut Context<'_>, args: &SetaclArgs<'_>) -> Result<(), Stop> {
    let handle = cx.handle(args.object)?;
    let Lists { parts, access, default } = &args.lists;
    let kept = cx.service().posix_acls(&handle)?;
    let is_set = |part| parts.contains(part);
    let lists = PosixAcls {
        access: if is_set(Parts::ACCESS) { list_of(access)? } else { kept.access },
        default: match default {
            _ if !is_set(Parts::DEFAULT) => kept.default,
            List { count: 0, entries } if entries.is_empty() => None,
            list => Some(list_of(list)?),
        },
    };
    let is_directory = cx.service().getattr(&handle)?.kind == Kind::Directory;
    let (change, acl) = (SetAttr::default(), lists.to_acl(is_directory));
    cx.guard(&Change::SetAttr { file: &handle, change: &change, masked: None, acl: Some(&acl) })?;
    cx.service().set_posix_acls(cx.caller(), &handle, &lists)?;
    let attributes = cx.attributes(&handle);
    cx.ok(&SetaclOk { attributes })
}

/// Returns the entries of a list of an object for the wire.
fn entries(list: &PosixAcl, attr: &Attr) -> Vec<Entry> {
    let mut entries: Vec<_> = list.entries().into_iter().map(|entry| wire(entry, attr)).collect();
    if !entries.iter().any(|entry| entry.tag == Tag::Mask) {
        let mask = Entry { tag: Tag::Mask, id: 0, permissions: list.group_bits() };
        // The entry for others stays the last.
        entries.insert(entries.len().saturating_sub(1), mask);
    }
    entries
}

fn wire(entry: PosixEntry, attr: &Attr) -> Entry {
    let (tag, id) = match entry.tag {
        PosixTag::Owner => (Tag::Owner, attr.uid),
        PosixTag::User(id) => (Tag::User, id),
        PosixTag::Group => (Tag::Group, attr.gid),
        PosixTag::NamedGroup(id) => (Tag::NamedGroup, id),
        PosixTag::Mask => (Tag::Mask, 0),
        PosixTag::Other => (Tag::Other, 0),
    };
    Entry { tag, id, permissions: entry.bits }
}

/// Returns the list of a request, whose entries all have come.
fn list_of(list: &List) -> Result<PosixAcl, Stop> {
    if list.count as usize != list.entries.len() {
        return Err(Status::Inval.into());
    }
    let entry = |entry: &Entry| {
        let tag = match entry.tag {
            Tag::Owner => PosixTag::Owner,
            Tag::User => PosixTag::User(entry.id),
            Tag::Group => PosixTag::Group,
            Tag::NamedGroup => PosixTag::NamedGroup(entry.id),
            Tag::Mask => PosixTag::Mask,
            Tag::Other => PosixTag::Other,
        };
        PosixEntry { tag, bits: entry.permissions }
    };
    Ok(PosixAcl::from_entries(&list.entries.iter().map(entry).collect::<Vec<_>>())?)
}

//! Conversion between the attributes of the wire and those of the interface.
//!
//! Owners and groups travel as strings (DAFS 14). Numbers are sent and understood in decimal, as
//! NFS does where no names are mapped.

use crate::attributes::{Attributes, FileHandle, FsStatus, ObjectType, Owner, SetAttributes};
use dafs_wire::dafs as wire;
use dafs_wire::dafs::{AttrMask, FsAttrMask};

/// The attributes that fill an [`Attributes`].
pub(crate) const WANTED: AttrMask = AttrMask::NAMED_ATTR
    .union(AttrMask::OBJECT_TYPE)
    .union(AttrMask::MODE)
    .union(AttrMask::NUM_LINKS)
    .union(AttrMask::CHANGE)
    .union(AttrMask::OBJECT_SIZE)
    .union(AttrMask::FILE_ID)
    .union(AttrMask::SPACE_USED)
    .union(AttrMask::TIME_ACCESS)
    .union(AttrMask::TIME_CREATE)
    .union(AttrMask::TIME_METADATA)
    .union(AttrMask::TIME_MODIFY)
    .union(AttrMask::RAW_DEV)
    .union(AttrMask::FILEHANDLE)
    .union(AttrMask::OWNER)
    .union(AttrMask::OWNER_GROUP);

/// The attributes that fill an [`FsStatus`].
pub(crate) const FS_WANTED: FsAttrMask = FsAttrMask::LEASE_TIME
    .union(FsAttrMask::MAX_APPEND)
    .union(FsAttrMask::MAX_LINK)
    .union(FsAttrMask::MAX_NAME)
    .union(FsAttrMask::FILES_AVAILABLE)
    .union(FsAttrMask::FILES_FREE)
    .union(FsAttrMask::FILES_TOTAL)
    .union(FsAttrMask::MAX_FILE_SIZE)
    .union(FsAttrMask::MAX_READ)
    .union(FsAttrMask::MAX_WRITE)
    .union(FsAttrMask::SPACE_AVAILABLE)
    .union(FsAttrMask::SPACE_FREE)
    .union(FsAttrMask::SPACE_TOTAL)
    .union(FsAttrMask::QUOTA_HARD)
    .union(FsAttrMask::QUOTA_USED)
    .union(FsAttrMask::PREF_IO_SIZE);

/// Converts attributes that the server sent. `object` is the handle if the server sends none.
pub(crate) fn attributes(found: &wire::Attributes<'_>, object: &FileHandle) -> Attributes {
    let device = found.raw_dev.unwrap_or_default();
    Attributes {
        kind: found.object_type.unwrap_or(ObjectType::Invalid),
        mode: found.mode.unwrap_or_default(),
        links: found.num_links.unwrap_or_default(),
        owner: owner(found.owner),
        group: owner(found.owner_group),
        size: found.object_size.unwrap_or_default(),
        space_used: found.space_used.unwrap_or_default(),
        file_id: found.file_id.unwrap_or_default(),
        change: found.change.unwrap_or_default(),
        raw_device: (device.major, device.minor),
        accessed: found.time_access,
        modified: found.time_modify,
        changed: found.time_metadata,
        created: found.time_create,
        has_named_attributes: found.named_attr.unwrap_or_default(),
        handle: found.filehandle.unwrap_or(*object),
    }
}

fn owner(text: Option<&[u8]>) -> Owner {
    let Some(text) = text else { return Owner::Unknown };
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    match number {
        Some(id) if text.first().is_some_and(u8::is_ascii_digit) => Owner::Id(id),
        _ => Owner::Name(text.to_vec()),
    }
}

/// Converts attributes that the server sent.
pub(crate) fn fs_status(found: &wire::FsAttributes<'_>) -> FsStatus {
    FsStatus {
        space_total: found.space_total,
        space_free: found.space_free,
        space_available: found.space_available,
        files_total: found.files_total,
        files_free: found.files_free,
        files_available: found.files_available,
        name_bytes_max: found.max_name,
        links_max: found.max_link,
        file_bytes_max: found.max_file_size,
        read_bytes_max: found.max_read,
        write_bytes_max: found.max_write,
        append_bytes_max: found.max_append,
        io_bytes_preferred: found.pref_io_size,
        lease_seconds: found.lease_time,
        quota_used: found.quota_used,
        // The largest number is no limit.
        quota_left: found
            .quota_hard
            .filter(|hard| *hard != u64::MAX)
            .zip(found.quota_used)
            .map(|(hard, used)| hard.saturating_sub(used)),
    }
}

/// Owner and group in decimal, for the wire to borrow.
pub(crate) struct OwnerText {
    owner: Option<String>,
    group: Option<String>,
}

impl OwnerText {
    pub(crate) fn new(change: &SetAttributes) -> Self {
        let text = |id: Option<u32>| id.map(|id| id.to_string());
        Self { owner: text(change.owner), group: text(change.group) }
    }

    pub(crate) fn attributes(&self, change: &SetAttributes) -> wire::Attributes<'_> {
        wire::Attributes {
            mode: change.mode,
            object_size: change.size,
            time_access_set: change.accessed,
            time_modify_set: change.modified,
            owner: self.owner.as_deref().map(str::as_bytes),
            owner_group: self.group.as_deref().map(str::as_bytes),
            ..wire::Attributes::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_numbers_or_names() {
        assert_eq!(owner(Some(b"1000")), Owner::Id(1000));
        assert_eq!(owner(Some(b"+1000")), Owner::Name(b"+1000".into()));
        assert_eq!(owner(Some(b"4294967296")), Owner::Name(b"4294967296".into()));
        assert_eq!(owner(Some(b"root@here")), Owner::Name(b"root@here".into()));
        assert_eq!(owner(None), Owner::Unknown);
    }

    #[test]
    fn only_what_changes_is_sent() {
        let change = SetAttributes { owner: Some(7), ..SetAttributes::mode(0o640) };
        let text = OwnerText::new(&change);
        let sent = text.attributes(&change);
        assert_eq!(sent.valid(), AttrMask::MODE | AttrMask::OWNER);
        assert_eq!(sent.owner, Some(&b"7"[..]));
    }
}

//! Converts between the wire's types and the service's.

use dafs_store::{Attr, FsId, Kind, NAME_BYTES_MAX, SetAttr, SetTime, Stability, TimeSpec};
use dafs_wire::nfs3::{self, Attributes, FileType, SetAttributes, Status, Time};

/// The permission bits of a mode.
const MODE_BITS: u32 = 0o7777;

/// Returns the file system id of NFSv3: half of ours, which is a hash.
fn file_system(fs: &FsId) -> u64 {
    let (half, _) = fs.0.split_at(8);
    half.try_into().map_or(0, u64::from_be_bytes)
}

fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::Regular | Kind::NamedAttr => FileType::Regular,
        Kind::Directory | Kind::AttrDirectory => FileType::Directory,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::CharDevice => FileType::CharDevice,
        Kind::Symlink => FileType::Symlink,
        Kind::Socket => FileType::Socket,
        Kind::Fifo => FileType::Fifo,
    }
}

/// Converts a time to the wire's range, which begins in 1970 and ends in 2106.
pub(super) fn time(time: TimeSpec) -> Time {
    let seconds = time.seconds.clamp(0, u32::MAX.into()) as u32;
    Time { seconds, nanoseconds: time.nanoseconds }
}

/// Converts the attributes of an object of this file system.
#[inline]
pub(crate) fn attributes(fs: &FsId, attr: &Attr) -> Attributes {
    Attributes {
        file_type: file_type(attr.kind),
        mode: attr.mode,
        links: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        used: attr.space_used,
        device: attr.raw_device,
        file_system: file_system(fs),
        file_id: attr.file_id,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
    }
}

fn set_time(wire: nfs3::SetTime) -> Result<Option<SetTime>, Status> {
    match wire {
        nfs3::SetTime::Keep => Ok(None),
        nfs3::SetTime::ToServer => Ok(Some(SetTime::Now)),
        nfs3::SetTime::ToClient(Time { seconds, nanoseconds }) if nanoseconds < 1_000_000_000 => {
            Ok(Some(SetTime::To(TimeSpec { seconds: seconds.into(), nanoseconds })))
        }
        nfs3::SetTime::ToClient(_) => Err(Status::Inval),
    }
}

/// Converts attributes to set. Bits of the mode that are no permissions are dropped, because
/// clients send the type there too.
pub(super) fn set_attr(wire: &SetAttributes) -> Result<SetAttr, Status> {
    Ok(SetAttr {
        mode: wire.mode.map(|mode| mode & MODE_BITS),
        uid: wire.uid,
        gid: wire.gid,
        size: wire.size,
        atime: set_time(wire.atime)?,
        mtime: set_time(wire.mtime)?,
    })
}

/// Converts the requested stability of a write.
pub(super) fn stability(wire: nfs3::Stability) -> Stability {
    match wire {
        nfs3::Stability::Unstable => Stability::Unstable,
        nfs3::Stability::DataSync => Stability::Data,
        nfs3::Stability::FileSync => Stability::File,
    }
}

/// A name: a component, or one of the two special names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name<'a> {
    /// "."
    Same,
    /// ".."
    Above,
    /// A component.
    Below(&'a [u8]),
}

/// Parses a name.
pub(super) fn name(name: &[u8]) -> Result<Name<'_>, Status> {
    match name {
        b"." => Ok(Name::Same),
        b".." => Ok(Name::Above),
        b"" => Err(Status::Inval),
        _ if name.len() > NAME_BYTES_MAX => Err(Status::NameTooLong),
        _ if name.iter().any(|&byte| byte == b'/' || byte == 0) => Err(Status::Inval),
        _ => Ok(Name::Below(name)),
    }
}

/// Checks the name of a new object. "." and ".." exist already (RFC 1813 3.3.9).
pub(super) fn new_name(text: &[u8]) -> Result<&[u8], Status> {
    match name(text)? {
        Name::Below(name) => Ok(name),
        Name::Same | Name::Above => Err(Status::Exist),
    }
}

/// Checks the name of an object to remove or rename.
pub(super) fn old_name(text: &[u8]) -> Result<&[u8], Status> {
    match name(text)? {
        Name::Below(name) => Ok(name),
        Name::Same | Name::Above => Err(Status::Inval),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_stay_in_the_range_of_the_wire() {
        let at = |seconds| time(TimeSpec { seconds, nanoseconds: 5 }).seconds;
        let cases = [(-1, 0), (0, 0), (7, 7), (1 << 32, u32::MAX), (i64::MIN, 0)];
        for (seconds, want) in cases {
            assert_eq!(at(seconds), want, "{seconds}");
        }
        let bad = nfs3::SetTime::ToClient(Time { seconds: 1, nanoseconds: 1_000_000_000 });
        let wire = SetAttributes { mtime: bad, ..SetAttributes::default() };
        assert_eq!(set_attr(&wire), Err(Status::Inval));
        let wire = SetAttributes { mode: Some(0o100_644), ..SetAttributes::default() };
        assert_eq!(set_attr(&wire).map(|set| set.mode), Ok(Some(0o644)));
    }

    #[test]
    fn names_are_single_components() {
        for bad in [&b""[..], b"a/b", b"/", b"a\0"] {
            assert_eq!(name(bad), Err(Status::Inval), "{bad:?}");
            assert_eq!(new_name(bad), Err(Status::Inval), "{bad:?}");
        }
        assert_eq!(name(&[b'a'; 256]), Err(Status::NameTooLong));
        assert_eq!(name(b"..."), Ok(Name::Below(b"...")));
        for special in [&b"."[..], b".."] {
            assert_eq!(new_name(special), Err(Status::Exist));
            assert_eq!(old_name(special), Err(Status::Inval));
        }
    }
}

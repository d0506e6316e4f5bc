//! The intent of a change, logged before its execution: its arguments and its pre-image, by which
//! recovery decides if the change has happened.

use super::Change;
use super::attributes::{Attributes, Xattr};
use super::bytes::{Reader, Writer};
use crate::handle::Handle;
use dafs_store::{Attr, Cred, FileId, Kind, SetAttr, SetTime, Store, StoreError, TimeSpec};

/// The pre-image of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Old {
    pub(super) file: FileId,
    /// Its size, in bytes.
    pub(super) size: u64,
    pub(super) change: u64,
}

/// The creator of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Maker {
    pub(super) cred: Cred,
    /// The last change of the directory before, by the clock of the file system.
    pub(super) since: TimeSpec,
}

/// A change with its pre-image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Intent {
    /// Makes a file, directory or other object, or empties a file.
    Make {
        dir: Handle,
        dir_before: u64,
        name: Vec<u8>,
        kind: Kind,
        old: Option<Old>,
        /// Empties an old file.
        empties: bool,
        /// The attributes of a new object, which may be set after it was made.
        attr: SetAttr,
        maker: Maker,
    },
    Remove {
        dir: Handle,
        dir_before: u64,
        name: Vec<u8>,
        old: Option<FileId>,
    },
    Rename {
        from_dir: Handle,
        from_before: u64,
        from: Vec<u8>,
        to_dir: Handle,
        to_before: u64,
        to: Vec<u8>,
        /// The renamed object. `None` when it does not exist, or has both names.
        source: Option<FileId>,
        /// The object that has the new name already.
        target: Option<FileId>,
    },
    Link {
        source: Handle,
        dir: Handle,
        dir_before: u64,
        name: Vec<u8>,
        /// The name existed already.
        exists: bool,
    },
    SetAttr {
        file: Handle,
        attributes: Attributes,
    },
    SetXattr {
        file: Handle,
        xattr: Xattr,
    },
    Write {
        file: Handle,
        offset: u64,
        len: u64,
        digest: Option<u32>,
    },
    /// Its offset is known. It is chosen when no other caller can change the file any more, and
    /// none can until the journal knows the result.
    Append {
        file: Handle,
        offset: u64,
        len: u64,
        digest: u32,
    },
}

/// The credential with which the journal reads files. The service itself checks the rights of a
/// request.
pub(super) fn server() -> Cred {
    Cred::new(0, 0)
}

/// Finds the object of a name, if there is one.
pub(super) fn find(
    store: &dyn Store,
    dir: &Handle,
    name: &[u8],
) -> Result<Option<(FileId, Kind)>, StoreError> {
    match store.peek(&server(), &dir.file, name) {
        Ok(found) => Ok(Some(found)),
        // The name is missing, or every request on it is refused.
        Err(
            StoreError::NotFound
            | StoreError::Stale
            | StoreError::MovedOut
            | StoreError::NotDirectory
            | StoreError::NameTooLong
            | StoreError::Invalid
            | StoreError::BadHandle
            | StoreError::NotSupported
            | StoreError::CrossDevice
            | StoreError::Access,
        ) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads the attributes of an object of a change. `None` if it is gone.
///
/// # Errors
/// `BadHandle` for an object that never existed: its change would be made stable together with
/// those of others, and fail all of them. The store's error if it cannot tell.
pub(super) fn look(store: &dyn Store, file: &FileId) -> Result<Option<Attr>, StoreError> {
    match store.getattr(file) {
        Ok(attr) => Ok(Some(attr)),
        Err(error) if is_gone(error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// True if the error says that an object is gone.
pub(super) fn is_gone(error: StoreError) -> bool {
    matches!(error, StoreError::Stale | StoreError::MovedOut | StoreError::NotFound)
}

/// True if the error says nothing about the object: a retry may find another answer.
pub(super) fn is_passing(error: StoreError) -> bool {
    matches!(
        error,
        StoreError::Io
            | StoreError::Busy
            | StoreError::Crowded
            | StoreError::TooManyOpen
            | StoreError::WouldBlock
    )
}

/// Returns the change attribute of an object of a change. 0 if it is gone.
fn change_of(store: &dyn Store, object: &Handle) -> Result<u64, StoreError> {
    Ok(look(store, &object.file)?.map_or(0, |attr| attr.change))
}

impl Maker {
    /// Keeps only those groups that a new object in `dir` could have.
    fn of(cred: &Cred, wish: &SetAttr, dir: Option<&Attr>) -> Self {
        let matters = |gid| Some(gid) == wish.gid || dir.is_some_and(|dir| gid == dir.gid);
        let mut groups: Vec<_> = cred.groups.iter().copied().filter(|&gid| matters(gid)).collect();
        groups.sort_unstable();
        groups.dedup();
        let since = dir.map_or(TimeSpec { seconds: i64::MIN, nanoseconds: 0 }, |dir| dir.ctime);
        Self { cred: Cred { groups: groups.into(), ..*cred }, since }
    }

    fn encode(&self, out: &mut Writer<'_>) {
        let Cred { uid, gid, groups } = &self.cred;
        out.u32(*uid);
        out.u32(*gid);
        out.u32(groups.len() as u32);
        groups.iter().for_each(|&gid| out.u32(gid));
        out.time(self.since);
    }

    fn decode(from: &mut Reader<'_>) -> Option<Self> {
        let (uid, gid, count) = (from.u32()?, from.u32()?, from.u32()?);
        let groups = (0..count).map(|_| from.u32()).collect::<Option<_>>()?;
        Some(Self { cred: Cred { uid, gid, groups }, since: from.time()? })
    }
}

impl Intent {
    /// Reads the pre-image of a change. `None` for an append, which is recorded when its offset is
    /// known.
    pub(super) fn pre_image(
        store: &dyn Store,
        change: &Change<'_>,
        cred: &Cred,
    ) -> Result<Option<Self>, StoreError> {
        let made = |dir: &Handle, name: &[u8], kind, attr: &SetAttr, empties| {
            let old = match find(store, dir, name)? {
                None => None,
                Some((file, _)) => {
                    let attr = look(store, &file)?;
                    let (size, change) = attr.map_or((0, 0), |attr| (attr.size, attr.change));
                    Some(Old { file, size, change })
                }
            };
            let at = look(store, &dir.file)?;
            Ok(Some(Self::Make {
                dir: *dir,
                dir_before: at.map_or(0, |at| at.change),
                maker: Maker::of(cred, attr, at.as_ref()),
                name: name.to_vec(),
                kind,
                old,
                empties,
                attr: SetAttr { size: None, ..*attr },
            }))
        };
        Ok(Some(match *change {
            Change::Create { dir, name, attr } => {
                return made(dir, name, Kind::Regular, attr, change.empties());
            }
            Change::Make { dir, name, kind, attr } => return made(dir, name, kind, attr, false),
            Change::Remove { dir, name } => Self::Remove {
                dir: *dir,
                dir_before: change_of(store, dir)?,
                name: name.to_vec(),
                old: find(store, dir, name)?.map(|(file, _)| file),
            },
            Change::Rename { from_dir, from, to_dir, to } => {
                let source = find(store, from_dir, from)?.map(|(file, _)| file);
                let target = find(store, to_dir, to)?.map(|(file, _)| file);
                Self::Rename {
                    from_dir: *from_dir,
                    from_before: change_of(store, from_dir)?,
                    from: from.to_vec(),
                    to_dir: *to_dir,
                    to_before: change_of(store, to_dir)?,
                    to: to.to_vec(),
                    source: source.filter(|_| source != target),
                    target,
                }
            }
            Change::Link { source, dir, name } => Self::Link {
                source: *source,
                dir: *dir,
                dir_before: change_of(store, dir)?,
                name: name.to_vec(),
                exists: find(store, dir, name)?.is_some(),
            },
            Change::SetAttr { file, change, masked, acl } => {
                let attributes = Attributes::pre_image(store, &file.file, change, masked, acl)?;
                Self::SetAttr { file: *file, attributes }
            }
            Change::SetXattr { file, name, value, how } => {
                let xattr = Xattr::pre_image(store, &file.file, name, value, how)?;
                Self::SetXattr { file: *file, xattr }
            }
            Change::Write { file, offset, len, digest, .. } => {
                Self::Write { file: *file, offset, len, digest }
            }
            Change::Append { .. } => return Ok(None),
        }))
    }

    /// An object in its export.
    pub(super) fn place(&self) -> &Handle {
        match self {
            Self::Make { dir, .. } | Self::Remove { dir, .. } | Self::Link { dir, .. } => dir,
            Self::Rename { to_dir, .. } => to_dir,
            Self::SetAttr { file, .. }
            | Self::SetXattr { file, .. }
            | Self::Write { file, .. }
            | Self::Append { file, .. } => file,
        }
    }

    /// The file that it empties.
    pub(super) fn emptied(&self) -> Option<FileId> {
        match self {
            Self::Make { old: Some(old), empties: true, .. } => Some(old.file),
            _ => None,
        }
    }

    /// True if it is an append.
    pub(super) fn appends(&self) -> bool {
        matches!(self, Self::Append { .. })
    }

    /// True if it changes names or attributes.
    pub(super) fn touches_names(&self) -> bool {
        !matches!(self, Self::Write { .. } | Self::Append { .. })
    }

    /// Adds the objects whose names or attributes it changes, which are to be made stable after its
    /// execution. The writers themselves make data stable.
    pub(super) fn touched(&self, store: &dyn Store, ids: &mut Vec<FileId>) {
        match self {
            Self::Make { dir, name, old, empties, attr, .. } => {
                // Attributes that are set after the creation are not made stable with the
                // directory. The object comes first, so that one sync does for both where the file
                // system writes in order.
                match old {
                    None if is_set_later(attr) => {
                        ids.extend(find(store, dir, name).ok().flatten().map(|(file, _)| file));
                    }
                    Some(old) if *empties => ids.push(old.file),
                    _ => {}
                }
                ids.push(dir.file);
            }
            Self::Remove { dir, .. } | Self::Link { dir, .. } => ids.push(dir.file),
            Self::Rename { from_dir, to_dir, .. } => ids.extend([from_dir.file, to_dir.file]),
            Self::SetAttr { file, .. } | Self::SetXattr { file, .. } => ids.push(file.file),
            Self::Write { .. } | Self::Append { .. } => {}
        }
    }

    pub(super) fn encode(&self, out: &mut Writer<'_>) {
        match self {
            Self::Make { dir, dir_before, name, kind, old, empties, attr, maker } => {
                out.u8(10);
                out.handle(dir);
                out.u64(*dir_before);
                out.bytes(name);
                out.u8(kind_code(*kind));
                out.option(old.as_ref(), |out, old| {
                    out.raw(&old.file.0);
                    out.u64(old.size);
                    out.u64(old.change);
                });
                out.flag(*empties);
                encode_set_attr(attr, out);
                maker.encode(out);
            }
            Self::Remove { dir, dir_before, name, old } => {
                out.u8(2);
                out.handle(dir);
                out.u64(*dir_before);
                out.bytes(name);
                out.option(*old, |out, file| out.raw(&file.0));
            }
            Self::Rename { from_dir, from_before, from, to_dir, to_before, to, source, target } => {
                out.u8(11);
                out.handle(from_dir);
                out.u64(*from_before);
                out.bytes(from);
                out.handle(to_dir);
                out.u64(*to_before);
                out.bytes(to);
                for found in [source, target] {
                    out.option(found.as_ref(), |out, file| out.raw(&file.0));
                }
            }
            Self::Link { source, dir, dir_before, name, exists } => {
                out.u8(4);
                out.handle(source);
                out.handle(dir);
                out.u64(*dir_before);
                out.bytes(name);
                out.flag(*exists);
            }
            Self::SetAttr { file, attributes } => {
                out.u8(12);
                out.handle(file);
                attributes.encode(out);
            }
            Self::SetXattr { file, xattr } => {
                out.u8(13);
                out.handle(file);
                xattr.encode(out);
            }
            Self::Write { file, offset, len, digest } => {
                out.u8(6);
                out.handle(file);
                out.u64(*offset);
                out.u64(*len);
                out.option(*digest, Writer::u32);
            }
            Self::Append { file, offset, len, digest } => {
                out.u8(8);
                out.handle(file);
                out.u64(*offset);
                out.u64(*len);
                out.u32(*digest);
            }
        }
    }

    pub(super) fn decode(from: &mut Reader<'_>) -> Option<Self> {
        Some(match from.u8()? {
            10 => Self::Make {
                dir: from.handle()?,
                dir_before: from.u64()?,
                name: from.bytes()?.to_vec(),
                kind: kind_from(from.u8()?)?,
                old: from.option(|from| {
                    Some(Old { file: from.file()?, size: from.u64()?, change: from.u64()? })
                })?,
                empties: from.flag()?,
                attr: decode_set_attr(from)?,
                maker: Maker::decode(from)?,
            },
            2 => Self::Remove {
                dir: from.handle()?,
                dir_before: from.u64()?,
                name: from.bytes()?.to_vec(),
                old: from.option(Reader::file)?,
            },
            11 => Self::Rename {
                from_dir: from.handle()?,
                from_before: from.u64()?,
                from: from.bytes()?.to_vec(),
                to_dir: from.handle()?,
                to_before: from.u64()?,
                to: from.bytes()?.to_vec(),
                source: from.option(Reader::file)?,
                target: from.option(Reader::file)?,
            },
            4 => Self::Link {
                source: from.handle()?,
                dir: from.handle()?,
                dir_before: from.u64()?,
                name: from.bytes()?.to_vec(),
                exists: from.flag()?,
            },
            12 => Self::SetAttr { file: from.handle()?, attributes: Attributes::decode(from)? },
            13 => Self::SetXattr { file: from.handle()?, xattr: Xattr::decode(from)? },
            6 => Self::Write {
                file: from.handle()?,
                offset: from.u64()?,
                len: from.u64()?,
                digest: from.option(Reader::u32)?,
            },
            8 => Self::Append {
                file: from.handle()?,
                offset: from.u64()?,
                len: from.u64()?,
                digest: from.u32()?,
            },
            _ => return None,
        })
    }
}

/// True if attributes of a new object are set after its creation. The creation itself sets the
/// mode, except for special bits.
pub(super) fn is_set_later(attr: &SetAttr) -> bool {
    SetAttr { mode: None, ..*attr } != SetAttr::default()
        || attr.mode.is_some_and(|mode| mode & !0o777 != 0)
}

/// True if an object has all attributes that were to be set. A time that the server chooses cannot
/// be compared.
pub(super) fn has_all(attr: &Attr, wish: &SetAttr) -> bool {
    let time = |wish: Option<SetTime>, have: TimeSpec| match wish {
        Some(SetTime::To(wish)) => wish == have,
        Some(SetTime::Now) | None => true,
    };
    wish.mode.is_none_or(|mode| mode & 0o7777 == attr.mode)
        && wish.uid.is_none_or(|uid| uid == attr.uid)
        && wish.gid.is_none_or(|gid| gid == attr.gid)
        && wish.size.is_none_or(|size| size == attr.size)
        && time(wish.atime, attr.atime)
        && time(wish.mtime, attr.mtime)
}

pub(super) fn encode_set_attr(change: &SetAttr, out: &mut Writer<'_>) {
    let SetAttr { mode, uid, gid, size, atime, mtime } = *change;
    [mode, uid, gid].into_iter().for_each(|value| out.option(value, Writer::u32));
    out.option(size, Writer::u64);
    for time in [atime, mtime] {
        out.option(time, |out, time| {
            let to = if let SetTime::To(to) = time { Some(to) } else { None };
            out.option(to, Writer::time);
        });
    }
}

pub(super) fn decode_set_attr(from: &mut Reader<'_>) -> Option<SetAttr> {
    let time = |from: &mut Reader<'_>| {
        let to = from.option(Reader::time)?;
        Some(to.map_or(SetTime::Now, SetTime::To))
    };
    Some(SetAttr {
        mode: from.option(Reader::u32)?,
        uid: from.option(Reader::u32)?,
        gid: from.option(Reader::u32)?,
        size: from.option(Reader::u64)?,
        atime: from.option(time)?,
        mtime: from.option(time)?,
    })
}

/// Kinds by their number in records.
const KINDS: [Kind; 9] = [
    Kind::Regular,
    Kind::Directory,
    Kind::BlockDevice,
    Kind::CharDevice,
    Kind::Symlink,
    Kind::Socket,
    Kind::Fifo,
    Kind::AttrDirectory,
    Kind::NamedAttr,
];

fn kind_code(kind: Kind) -> u8 {
    KINDS.iter().position(|known| *known == kind).unwrap_or(0) as u8
}

fn kind_from(code: u8) -> Option<Kind> {
    KINDS.get(usize::from(code)).copied()
}

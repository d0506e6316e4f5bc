//! Operations by name, besides opening.

use crate::attributes;
use crate::failure::{Errno, Result};
use crate::limits::PATH_BYTES_MAX;
use crate::location::{Last, Location};
use crate::session;
use dafs_client::limits::{NAME_BYTES_MAX, SYMLINKS_FOLLOWED_MAX};
use dafs_client::{
    AccessMask, Attributes, Client, Create, Error, FileHandle, Follow, Found, FsStatus,
    OpenOptions, Place, SetAttributes, SetTime, Status, Time, posix,
};
use libc::{c_int, mode_t};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

/// The file mode creation mask of this process, which the kernel does not apply here.
static MASK: AtomicU32 = AtomicU32::new(0o022);

/// Reads the mask from the kernel, which requires setting it.
pub(crate) fn learn_mask() {
    // SAFETY: system calls without memory; no other thread runs yet.
    let mask = unsafe {
        let mask = libc::syscall(libc::SYS_umask, 0o077);
        libc::syscall(libc::SYS_umask, mask);
        mask
    };
    set_mask(mask as mode_t);
}

pub(crate) fn set_mask(mask: mode_t) {
    MASK.store(mask & 0o777, Ordering::Relaxed);
}

/// The permissions of a new object.
pub(crate) fn masked(mode: mode_t) -> u32 {
    mode & 0o7777 & !MASK.load(Ordering::Relaxed)
}

fn client(at: &Location) -> Result<Client> {
    session::client(session::number(at.mount))
}

/// The directory that the path of a place starts at.
pub(crate) fn start(client: &Client, at: &Location) -> FileHandle {
    at.start.as_ref().map_or_else(|| client.root(), |(handle, _)| *handle)
}

/// The error of resolving a path: a removed directory has no entries.
pub(crate) fn missed(at: &Location, error: Error) -> Errno {
    match error.status() {
        Some(Status::Stale) if at.start.is_some() => Errno(libc::ENOENT),
        _ => error.into(),
    }
}

/// The place of a path's last name. A path with another end must lead to a directory, and fails
/// with `others`.
pub(crate) fn place(
    client: &Client,
    at: &Location,
    others: impl FnOnce(Last) -> c_int,
) -> Result<Place> {
    match at.last() {
        Last::Name => client
            .resolve_new_directory_from(&start(client, at), &at.path)
            .map_err(|error| missed(at, error)),
        last => {
            find(at, Follow::Yes)?;
            Err(Errno(others(last)))
        }
    }
}

/// The place of a name for a new object that is no directory. A slash behind the name demands an
/// existing directory.
fn place_for_new(client: &Client, at: &Location) -> Result<Place> {
    let place = place(client, at, |_| libc::EEXIST)?;
    if at.wants_directory() {
        client.lookup(&place.dir, &place.name).map_err(|error| missed(at, error))?;
        return Err(Errno(libc::EEXIST));
    }
    Ok(place)
}

pub(crate) fn find(at: &Location, follow: Follow) -> Result<(Client, Found)> {
    let client = client(at)?;
    let resolve = |follow| {
        let found = client.resolve_from(&start(&client, at), &at.path, follow);
        found.map_err(|error| missed(at, error))
    };
    let mut found = resolve(follow)?;
    if at.wants_directory() && !found.attributes.is_directory() {
        // A path that demands a directory follows a link as well.
        found = resolve(Follow::Yes)?;
        if !found.attributes.is_directory() {
            return Err(Errno(libc::ENOTDIR));
        }
    }
    Ok((client, found))
}

pub(crate) fn attributes(at: &Location, follow: Follow) -> Result<Attributes> {
    Ok(find(at, follow)?.1.attributes)
}

pub(crate) fn space(at: &Location) -> Result<FsStatus> {
    let (client, found) = find(at, Follow::Yes)?;
    Ok(client.fs_status(&found.handle)?)
}

/// True if the server allows this process the access `mode` (`R_OK` and so on).
pub(crate) fn access(at: &Location, mode: c_int, follow: Follow) -> Result<()> {
    let (client, found) = find(at, follow)?;
    access_found(&client, &found.handle, found.attributes.is_directory(), mode)
}

pub(crate) fn access_found(
    client: &Client,
    handle: &FileHandle,
    is_directory: bool,
    mode: c_int,
) -> Result<()> {
    let mut wanted = AccessMask::empty();
    wanted.set(AccessMask::READ, mode & libc::R_OK != 0);
    wanted.set(AccessMask::MODIFY, mode & libc::W_OK != 0);
    let execute = if is_directory { AccessMask::LOOKUP } else { AccessMask::EXECUTE };
    wanted.set(execute, mode & libc::X_OK != 0);
    match wanted.is_empty() || client.access(handle, wanted)?.contains(wanted) {
        true => Ok(()),
        false => Err(Errno(libc::EACCES)),
    }
}

pub(crate) fn make_directory(at: &Location, mode: mode_t) -> Result<()> {
    let client = client(at)?;
    let place = place(&client, at, |_| libc::EEXIST)?;
    // Set-id bits are not for a new directory.
    let attributes = SetAttributes::mode(masked(mode & 0o1777));
    client.mkdir(&place.dir, &place.name, &attributes).map_err(|error| missed(at, error))?;
    Ok(())
}

/// Removes a name; `directory` says whether it must name a directory.
pub(crate) fn remove(at: &Location, directory: bool) -> Result<()> {
    let client = client(at)?;
    let place = place(&client, at, |last| match (directory, last) {
        (false, _) => libc::EISDIR,
        (true, Last::Dot) => libc::EINVAL,
        (true, Last::Up) => libc::ENOTEMPTY,
        (true, _) => libc::EBUSY,
    })?;
    let found = client.lookup_attributes(&place.dir, &place.name);
    let (_, found) = found.map_err(|error| missed(at, error))?;
    match (found.is_directory(), directory) {
        (true, false) => return Err(Errno(libc::EISDIR)),
        (false, true) => return Err(Errno(libc::ENOTDIR)),
        (false, false) if at.wants_directory() => return Err(Errno(libc::ENOTDIR)),
        _ => {}
    }
    Ok(client.remove(&place.dir, &place.name)?)
}

/// Checks that two places are on one server.
fn both<'a>(from: &'a Location, to: &'a Location) -> Result<Client> {
    if std::ptr::eq(from.mount, to.mount) { client(from) } else { Err(Errno(libc::EXDEV)) }
}

/// Renames. Errors take precedence in the order of Linux: first those of resolving both places.
pub(crate) fn rename(from: &Location, to: &Location, flags: u32) -> Result<()> {
    let keeps = match flags {
        0 => false,
        libc::RENAME_NOREPLACE => true,
        _ => return Err(Errno(libc::EINVAL)),
    };
    let client = both(from, to)?;
    let is_too_long = |name: &[u8]| name.len() > NAME_BYTES_MAX;
    let place_of = |at: &Location| match at.last() {
        // The lookup detects this.
        Last::Name if is_too_long(at.name()) => {
            let dir = find(&at.parent(), Follow::Yes)?.1.handle;
            Ok(Some(Place { dir, name: at.name().to_vec() }))
        }
        Last::Name => place(&client, at, |_| libc::EBUSY).map(Some),
        // The path has no name that could be replaced.
        _ => find(at, Follow::Yes).map(|_| None),
    };
    let (source, target) = (place_of(from)?, place_of(to)?);
    let source = source.ok_or(Errno(libc::EBUSY))?;
    let target = target.ok_or(Errno(if keeps { libc::EEXIST } else { libc::EBUSY }))?;
    let wants_directory = from.wants_directory() || to.wants_directory();
    if wants_directory || keeps || is_too_long(&target.name) {
        let found = client.lookup_attributes(&source.dir, &source.name);
        let is_directory = found.map_err(|error| missed(from, error))?.1.is_directory();
        if is_too_long(&target.name) {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        if keeps {
            // Another client may make it in between: the server has no atomic variant.
            match client.lookup(&target.dir, &target.name) {
                Ok(_) => return Err(Errno(libc::EEXIST)),
                Err(error) if error.to_errno() == libc::ENOENT => {}
                Err(error) => return Err(missed(to, error)),
            }
        }
        if wants_directory && !is_directory {
            return Err(Errno(libc::ENOTDIR));
        }
    }
    let renamed = client.rename(&source.dir, &source.name, &target.dir, &target.name);
    renamed.map_err(|error| match (&from.start, &to.start) {
        (None, None) => error.into(),
        (Some(_), _) => missed(from, error),
        _ => missed(to, error),
    })
}

pub(crate) fn link(from: &Location, to: &Location, follow: Follow) -> Result<()> {
    both(from, to)?;
    let (client, found) = find(from, follow)?;
    link_found(&client, &found.handle, found.attributes.is_directory(), to)
}

/// Gives an object another name.
pub(crate) fn link_found(
    client: &Client,
    handle: &FileHandle,
    is_directory: bool,
    to: &Location,
) -> Result<()> {
    let place = place_for_new(client, to)?;
    if is_directory {
        return match client.lookup(&place.dir, &place.name) {
            Ok(_) => Err(Errno(libc::EEXIST)),
            Err(_) => Err(Errno(libc::EPERM)),
        };
    }
    client.link(handle, &place.dir, &place.name).map_err(|error| missed(to, error))
}

/// The error of `mknod` for an object other than a file, which is not served.
pub(crate) fn cannot_make(at: &Location) -> Result<Errno> {
    let client = client(at)?;
    let place = place_for_new(&client, at)?;
    match client.lookup(&place.dir, &place.name) {
        Ok(_) => Err(Errno(libc::EEXIST)),
        Err(error) if error.to_errno() == libc::ENOENT => Ok(Errno(libc::EOPNOTSUPP)),
        Err(error) => Err(missed(at, error)),
    }
}

/// `mknod` of a file.
pub(crate) fn make_file(at: &Location, mode: mode_t) -> Result<()> {
    let client = client(at)?;
    let place = place_for_new(&client, at)?;
    let how = OpenOptions::write().create(Create::New).mode(masked(mode));
    let made = client.open_at(&place.dir, &place.name, &how);
    Ok(made.map_err(|error| missed(at, error))?.close()?)
}

pub(crate) fn symlink(text: &[u8], at: &Location) -> Result<()> {
    match text.len() {
        0 => return Err(Errno(libc::ENOENT)),
        PATH_BYTES_MAX.. => return Err(Errno(libc::ENAMETOOLONG)),
        _ => {}
    }
    let client = client(at)?;
    let place = place_for_new(&client, at)?;
    client.symlink(&place.dir, &place.name, text).map_err(|error| missed(at, error))?;
    Ok(())
}

pub(crate) fn read_link(at: &Location) -> Result<Vec<u8>> {
    let (client, found) = find(at, Follow::No)?;
    match found.attributes.is_symlink() {
        true => Ok(client.readlink(&found.handle)?),
        false => Err(Errno(libc::EINVAL)),
    }
}

pub(crate) fn change(at: &Location, follow: Follow, change: &SetAttributes) -> Result<()> {
    let (client, found) = find(at, follow)?;
    Ok(client.set_attributes(&found.handle, change)?)
}

/// The change of `chown`; -1 leaves an id unchanged.
pub(crate) fn owners(owner: u32, group: u32) -> SetAttributes {
    let some = |id: u32| (id != u32::MAX).then_some(id);
    SetAttributes { owner: some(owner), group: some(group), ..SetAttributes::default() }
}

/// `chown` of an object.
pub(crate) fn own(client: &Client, object: &FileHandle, owners: &SetAttributes) -> Result<()> {
    match owners.is_empty() {
        true => Ok(posix::chown_to_same(client, object)?),
        false => Ok(client.set_attributes(object, owners)?),
    }
}

/// The change of `utimensat`; `None` means now.
pub(crate) fn times(times: Option<[libc::timespec; 2]>) -> Result<SetAttributes> {
    let one = |time: libc::timespec| match time.tv_nsec {
        libc::UTIME_NOW => Ok(Some(SetTime::Server)),
        libc::UTIME_OMIT => Ok(None),
        nanoseconds => match u32::try_from(nanoseconds) {
            Ok(nseconds) if nseconds < 1_000_000_000 => {
                Ok(Some(SetTime::Client(Time { seconds: time.tv_sec, nseconds })))
            }
            _ => Err(Errno(libc::EINVAL)),
        },
    };
    let (accessed, modified) = match times {
        None => (Some(SetTime::Server), Some(SetTime::Server)),
        Some([accessed, modified]) => (one(accessed)?, one(modified)?),
    };
    Ok(SetAttributes { accessed, modified, ..SetAttributes::default() })
}

/// The attributes of a place, for `stat`.
pub(crate) fn stat(at: &Location, follow: Follow) -> Result<libc::stat> {
    Ok(attributes::stat(&attributes(at, follow)?))
}

/// An object, and the path to it without links as the program knows it. Outside the prefix, the
/// path is that of the request.
#[derive(Debug)]
pub(crate) struct Real {
    pub(crate) client: Client,
    pub(crate) attributes: Attributes,
    pub(crate) shown: Vec<u8>,
}

/// Resolves a path component by component, through all links.
pub(crate) fn real(at: &Location) -> Result<Real> {
    let client = client(at)?;
    let ask = |error| missed(at, error);
    let (mut names, rest) = match at.behind_prefix() {
        Some((names, rest)) => (Some(names), rest),
        None => (None, at.path.as_slice()),
    };
    let base = at.mount.base.as_slice();
    let top = || client.resolve(&[base, b"/"].concat(), Follow::Yes).map(|top| top.handle);
    let mut here = match &at.start {
        Some((handle, _)) => *handle,
        None => top().map_err(ask)?,
    };
    let (mut left, mut links) = (VecDeque::new(), 0);
    let put = |left: &mut VecDeque<Vec<u8>>, path: &[u8]| {
        if path.ends_with(b"/") {
            left.push_front(b".".to_vec());
        }
        let parts = path.rsplit(|&byte| byte == b'/').filter(|part| !part.is_empty());
        parts.for_each(|part| left.push_front(part.to_vec()));
    };
    put(&mut left, rest);
    let mut is_directory = true;
    while let Some(name) = left.pop_front() {
        if !is_directory {
            return Err(Errno(libc::ENOTDIR));
        }
        if name == b"." {
            continue;
        }
        if name == b".." {
            // Above the prefix an object has no name.
            names = names.filter(|names| !names.is_empty());
            if let Some(names) = &mut names {
                names.pop();
            }
            if here != client.root() {
                here = client.parent(&here).map_err(ask)?;
            }
            continue;
        }
        let (handle, attributes) = client.lookup_attributes(&here, &name).map_err(ask)?;
        if !attributes.is_symlink() {
            (here, is_directory) = (handle, attributes.is_directory());
            if let Some(names) = &mut names {
                names.push(name);
            }
            continue;
        }
        links += 1;
        if links > SYMLINKS_FOLLOWED_MAX {
            return Err(Errno(libc::ELOOP));
        }
        let text = client.readlink(&handle).map_err(ask)?;
        let mut rest = text.as_slice();
        if text.first() == Some(&b'/') {
            (here, names) = (client.root(), None);
            let behind = text.strip_prefix(base).filter(|rest| rest.first() == Some(&b'/'));
            if let Some(behind) = behind {
                (here, names, rest) = (top().map_err(ask)?, Some(Vec::new()), behind);
            }
        }
        put(&mut left, rest);
    }
    let attributes = client.attributes(&here).map_err(ask)?;
    if at.wants_directory() && !attributes.is_directory() {
        return Err(Errno(libc::ENOTDIR));
    }
    let shown = names.map_or_else(
        || at.shown.clone(),
        |names| {
            let behind_prefix = names.iter().map(Vec::as_slice);
            std::iter::once(&*at.mount.prefix).chain(behind_prefix).collect::<Vec<_>>().join(&b'/')
        },
    );
    Ok(Real { client, attributes, shown })
}

//! What is done by names, beside opening.

use crate::attributes;
use crate::failure::{Errno, Result};
use crate::limits::{DIRECTORY_ENTRIES_MAX, PATH_BYTES_MAX};
use crate::location::Location;
use crate::session;
use dafs_client::{
    AccessMask, Attributes, Client, FileHandle, Follow, Found, FsStatus, Place, SetAttributes,
    SetTime, SplitPath, Time,
};
use libc::{c_int, mode_t};
use std::sync::atomic::{AtomicU32, Ordering};

/// The file mode creation mask of this process, which the kernel does not apply here.
static MASK: AtomicU32 = AtomicU32::new(0o022);

/// Asks the kernel for the mask, which takes setting it.
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

/// The permissions that a new object gets.
pub(crate) fn masked(mode: mode_t) -> u32 {
    mode & 0o7777 & !MASK.load(Ordering::Relaxed)
}

fn client(at: &Location) -> Result<Client> {
    session::client(session::number(at.mount))
}

/// The directory that the path of a place starts at.
pub(crate) fn start(client: &Client, at: &Location) -> FileHandle {
    at.start.unwrap_or_else(|| client.root())
}

/// Refuses a path that can be no name: the root of a server has none, and neither have `.` and `..`.
fn named(at: &Location, for_root: c_int) -> Result<()> {
    let split = SplitPath::of(&at.path);
    if split.name.is_empty() || split.ends_in_dots() { Err(Errno(for_root)) } else { Ok(()) }
}

/// Where a name is or is to be. A slash behind it asks for a directory that exists.
fn place(client: &Client, at: &Location, for_root: c_int) -> Result<Place> {
    named(at, for_root)?;
    Ok(client.resolve_parent_from(&start(client, at), &at.path)?)
}

pub(crate) fn find(at: &Location, follow: Follow) -> Result<(Client, Found)> {
    let client = client(at)?;
    let found = client.resolve_from(&start(&client, at), &at.path, follow)?;
    if at.path.ends_with(b"/") && !found.attributes.is_directory() {
        // A slash at the end asks for a directory, also through a link.
        let behind = client.resolve_from(&start(&client, at), &at.path, Follow::Yes)?;
        if !behind.attributes.is_directory() {
            return Err(Errno(libc::ENOTDIR));
        }
        return Ok((client, behind));
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

/// Whether the server lets this process do what `mode` says (`R_OK` and so on).
pub(crate) fn access(at: &Location, mode: c_int, follow: Follow) -> Result<()> {
    let (client, found) = find(at, follow)?;
    let is_directory = found.attributes.is_directory();
    let mut wanted = AccessMask::empty();
    wanted.set(AccessMask::READ, mode & libc::R_OK != 0);
    wanted.set(AccessMask::MODIFY, mode & libc::W_OK != 0);
    let execute = if is_directory { AccessMask::LOOKUP } else { AccessMask::EXECUTE };
    wanted.set(execute, mode & libc::X_OK != 0);
    match wanted.is_empty() || client.access(&found.handle, wanted)?.contains(wanted) {
        true => Ok(()),
        false => Err(Errno(libc::EACCES)),
    }
}

pub(crate) fn make_directory(at: &Location, mode: mode_t) -> Result<()> {
    let client = client(at)?;
    named(at, libc::EEXIST)?;
    let place = client.resolve_new_directory_from(&start(&client, at), &at.path)?;
    client.mkdir(&place.dir, &place.name, &SetAttributes::mode(masked(mode)))?;
    Ok(())
}

/// Removes a name; `directory` says what it must be the name of.
pub(crate) fn remove(at: &Location, directory: bool) -> Result<()> {
    let client = client(at)?;
    let place = place(&client, at, libc::EBUSY)?;
    let found = client.resolve_from(&place.dir, &place.name, Follow::No)?;
    match (found.attributes.is_directory(), directory) {
        (true, false) => return Err(Errno(libc::EISDIR)),
        (false, true) => return Err(Errno(libc::ENOTDIR)),
        _ => {}
    }
    Ok(client.remove(&place.dir, &place.name)?)
}

/// Two places that have to be on one server.
fn both<'a>(from: &'a Location, to: &'a Location) -> Result<Client> {
    if std::ptr::eq(from.mount, to.mount) { client(from) } else { Err(Errno(libc::EXDEV)) }
}

pub(crate) fn rename(from: &Location, to: &Location, flags: u32) -> Result<()> {
    let client = both(from, to)?;
    named(from, libc::EBUSY)?;
    named(to, libc::EBUSY)?;
    let (source, target) = client
        .resolve_rename((&start(&client, from), &from.path), (&start(&client, to), &to.path))?;
    match flags {
        0 => {}
        libc::RENAME_NOREPLACE => {
            // Somebody may make it in between; the server has no such rename.
            match client.lookup(&target.dir, &target.name) {
                Ok(_) => return Err(Errno(libc::EEXIST)),
                Err(error) if error.to_errno() == libc::ENOENT => {}
                Err(error) => return Err(error.into()),
            }
        }
        _ => return Err(Errno(libc::EINVAL)),
    }
    Ok(client.rename(&source.dir, &source.name, &target.dir, &target.name)?)
}

pub(crate) fn link(from: &Location, to: &Location, follow: Follow) -> Result<()> {
    let client = both(from, to)?;
    let found = client.resolve_from(&start(&client, from), &from.path, follow)?;
    link_handle(&client, &found.handle, to)
}

pub(crate) fn link_handle(client: &Client, handle: &FileHandle, to: &Location) -> Result<()> {
    let place = place(client, to, libc::EEXIST)?;
    Ok(client.link(handle, &place.dir, &place.name)?)
}

pub(crate) fn symlink(text: &[u8], at: &Location) -> Result<()> {
    let client = client(at)?;
    let place = place(&client, at, libc::EEXIST)?;
    client.symlink(&place.dir, &place.name, text)?;
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

/// The change that `chown` asks for; all ones leave alone.
pub(crate) fn owners(owner: u32, group: u32) -> SetAttributes {
    let some = |id: u32| (id != u32::MAX).then_some(id);
    SetAttributes { owner: some(owner), group: some(group), ..SetAttributes::default() }
}

/// The change that `utimensat` asks for; nothing means now.
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

/// The attributes of a place as `stat` tells them.
pub(crate) fn stat(at: &Location, follow: Follow) -> Result<libc::stat> {
    Ok(attributes::stat(&attributes(at, follow)?))
}

/// The path of a directory as the program knows it. It is what is shown of `at` unless a `..` in
/// there stands behind a link: then it is looked for from the directory upwards.
pub(crate) fn path_of(client: &Client, at: &Location, dir: &FileHandle) -> Result<Vec<u8>> {
    if !at.climbs {
        return Ok(at.shown.clone());
    }
    let rest = at.shown.strip_prefix(at.mount.prefix.as_slice()).unwrap_or_default();
    let at_its_word = [at.mount.base.as_slice(), rest, b"/"].concat();
    if client.resolve(&at_its_word, Follow::Yes).is_ok_and(|found| found.handle == *dir) {
        return Ok(at.shown.clone());
    }
    let top = client.resolve(&[at.mount.base.as_slice(), b"/"].concat(), Follow::Yes)?.handle;
    let (mut below, mut names) = (*dir, Vec::new());
    while below != top {
        let above = client.parent(&below)?;
        if above == below || names.len() > PATH_BYTES_MAX / 2 {
            return Err(Errno(libc::ENOENT));
        }
        names.push(name_in(client, &above, &below)?);
        below = above;
    }
    let mut path = at.mount.prefix.clone();
    for name in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    Ok(path)
}

/// A place without `..` in its path.
pub(crate) fn straight(at: Location) -> Result<Location> {
    if !at.climbs {
        return Ok(at);
    }
    let client = client(&at)?;
    let path = match client.resolve_parent_from(&start(&client, &at), &at.path) {
        Ok(place) => {
            // Its directory has the name of the whole without what is behind the last slash.
            let end = at.shown.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
            let above = Location { shown: at.shown[..end].to_vec(), ..at.clone() };
            [path_of(&client, &above, &place.dir)?.as_slice(), &place.name].join(&b'/')
        }
        Err(_) => path_of(&client, &at, &find(&at, Follow::Yes)?.1.handle)?,
    };
/// `chown` of an object.
pub(crate) fn own(client: &Client, object: &FileHandle, owners: &SetAttributes) -> Result<()> {
    match owners.is_empty() {
        true => Ok(posix::chown_to_same(client, object)?),
        false => Ok(client.set_attributes(object, owners)?),
    }
}

    crate::location::find(libc::AT_FDCWD, &path)?.ok_or(Errno(libc::ENOENT))
}

fn name_in(client: &Client, dir: &FileHandle, of: &FileHandle) -> Result<Vec<u8>> {
    for entry in client.read_dir(dir).take(DIRECTORY_ENTRIES_MAX) {
        let entry = entry?;
        if entry.attributes.is_some_and(|attributes| attributes.handle == *of) {
            return Ok(entry.name);
        }
    }
    Err(Errno(libc::ENOENT))
}

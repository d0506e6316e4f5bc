//! From a path of the program to a place on a server.
//!
//! Invariants
//! * Only a path that stays below a prefix is served: a path whose `..` leaves the prefix is not.
//! * The server resolves the part below the prefix as it stands, because `..` behind a symbolic
//!   link does not mean the lexical parent. A path that climbs out of the prefix and comes back is
//!   resolved lexically instead: the server has no directories above the prefix.
//! * A relative path starts at the directory itself, whatever its present name.

use crate::config::{self, Config, Mount};
use crate::descriptor::{Kind, Record};
use crate::failure::{Errno, Result};
use crate::limits::PATH_BYTES_MAX;
use crate::{report, table};
use dafs_client::FileHandle;
use libc::c_int;
use std::sync::Arc;

/// A place on a server.
#[derive(Debug, Clone)]
pub(crate) struct Location {
    pub(crate) mount: &'static Mount,
    /// The directory that the path starts at, and its shown path. `None` for the root of the
    /// server.
    pub(crate) start: Option<(FileHandle, Vec<u8>)>,
    /// The path on the server.
    pub(crate) path: Vec<u8>,
    /// The path as the program knows it: absolute, with `..` resolved lexically.
    pub(crate) shown: Vec<u8>,
}

/// The last component of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Last {
    /// No component: the root.
    Root,
    /// `.`
    Dot,
    /// `..`
    Up,
    /// A name, perhaps with slashes behind it.
    Name,
}

impl Location {
    /// The last component; empty for the root.
    pub(crate) fn name(&self) -> &[u8] {
        let last = self.path.rsplit(|&byte| byte == b'/').find(|part| !part.is_empty());
        last.unwrap_or_default()
    }

    /// The kind of the last component.
    pub(crate) fn last(&self) -> Last {
        match self.name() {
            b"" => Last::Root,
            b"." => Last::Dot,
            b".." => Last::Up,
            _ => Last::Name,
        }
    }

    /// True if the path can only name a directory, by its end (POSIX 4.13).
    pub(crate) fn wants_directory(&self) -> bool {
        self.path.ends_with(b"/") || self.last() != Last::Name
    }

    /// The directory of the path's last name; for a path without one, that path itself.
    pub(crate) fn parent(&self) -> Self {
        let end = self.path.iter().rposition(|&byte| byte != b'/').map_or(0, |at| at + 1);
        let start = self.path[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
        let path = if start == 0 { b"./".to_vec() } else { self.path[..start].to_vec() };
        Self { path, ..self.clone() }
    }

    /// The directory that the path starts at, if the path names just that.
    pub(crate) fn start_itself(&self) -> Option<FileHandle> {
        let (handle, _) = self.start.as_ref()?;
        parts(&self.path).next().is_none().then_some(*handle)
    }

    /// True if the path contains a `..`.
    pub(crate) fn climbs(&self) -> bool {
        parts(&self.path).any(|part| part == b"..")
    }

    /// The names from the prefix to the directory that the path starts at, and the rest of the
    /// path.
    pub(crate) fn behind_prefix(&self) -> Option<(Vec<Vec<u8>>, &[u8])> {
        let (shown, rest) = match &self.start {
            Some((_, shown)) => (shown.as_slice(), self.path.as_slice()),
            None => (self.mount.prefix.as_slice(), self.path.strip_prefix(&*self.mount.base)?),
        };
        let names = parts(below(shown, &self.mount.prefix)?).map(<[u8]>::to_vec);
        Some((names.collect(), rest))
    }
}

/// A path without empty and `.` components and a slash at the end, with `..` resolved lexically.
/// Relative paths keep a `..` that climbs out of them.
pub(crate) fn normal(path: &[u8]) -> Vec<u8> {
    let absolute = path.first() == Some(&b'/');
    let mut kept: Vec<&[u8]> = Vec::new();
    for part in path.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if kept.last().is_some_and(|last| *last != b"..") => {
                kept.pop();
            }
            b".." if absolute => {}
            part => kept.push(part),
        }
    }
    let mut normal = if absolute { b"/".to_vec() } else { Vec::new() };
    normal.extend(kept.join(&b'/'));
    normal
}

/// The rest of `path` behind `prefix`: empty, or with a slash in front.
fn below<'a>(path: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    path.strip_prefix(prefix).filter(|rest| rest.first().is_none_or(|&byte| byte == b'/'))
}

/// The rest of an absolute, not necessarily normal path behind the components of the prefix, if it
/// begins with them.
fn behind<'a>(path: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let mut wanted = prefix.split(|&byte| byte == b'/').filter(|part| !part.is_empty());
    let mut rest = path;
    let mut next = wanted.next();
    while let Some(want) = next {
        let slashes = rest.iter().take_while(|&&byte| byte == b'/').count();
        rest = &rest[slashes..];
        let end = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        match part {
            b"." if slashes != 0 => {}
            part if part == want => next = wanted.next(),
            _ => return None,
        }
        rest = after;
    }
    (lowest(rest) >= 0).then_some(rest)
}

fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".")
}

/// The lowest depth of a path relative to its start: below zero if it climbs out.
fn lowest(path: &[u8]) -> isize {
    let (mut depth, mut lowest) = (0, 0);
    for part in parts(path) {
        depth += if part == b".." { -1 } else { 1 };
        lowest = lowest.min(depth);
    }
    lowest
}

/// The place of an absolute path, if it is served.
pub(crate) fn absolute(config: &'static Config, path: &[u8]) -> Option<Location> {
    let shown = normal(path);
    // The parent of a prefix need not exist: like the parent of a root, it is the prefix itself.
    if path.ends_with(b"/..") {
        let before = normal(&path[..path.len() - 3]);
        if config.mounts.iter().any(|mount| mount.prefix == before) {
            return absolute(config, &before);
        }
    }
    let mount = config.mounts.iter().filter(|mount| below(&shown, &mount.prefix).is_some());
    let mount = mount.max_by_key(|mount| mount.prefix.len())?;
    if config.bypass.iter().any(|bypass| below(&shown, bypass).is_some()) {
        report::bypassed(&shown);
        return None;
    }
    // Unchanged if possible, with its `..` and the slash at its end.
    let rest = match behind(path, &mount.prefix) {
        Some(rest) => rest,
        None => below(&shown, &mount.prefix)?,
    };
    let mut on_server = mount.base.clone();
    if rest.first() != Some(&b'/') {
        on_server.push(b'/');
    }
    on_server.extend_from_slice(rest);
    Some(Location { mount, start: None, path: on_server, shown })
}

/// True if a path could be served, judged by its text alone. [`find`] decides about a relative path
/// that begins at a directory of this machine. Takes no lock and allocates nothing.
pub(crate) fn may_be_served(config: &Config, dir: c_int, path: &[u8]) -> bool {
    if path.first() != Some(&b'/') {
        return !path.is_empty() && (table::may_be_inside(dir) || may_lead_below(config, path));
    }
    let mut room = [0; PATH_BYTES_MAX];
    let Some(shown) = normal_in(&mut room, path) else { return true };
    let is_below = |mount: &Mount| below(shown, &mount.prefix).is_some();
    // The parent of a prefix means the prefix.
    config.mounts.iter().any(is_below) || path.ends_with(b"/..")
}

/// True if a relative path from a directory of this machine could lead below a prefix: it has to
/// name a component of the prefix, or to climb first.
fn may_lead_below(config: &Config, path: &[u8]) -> bool {
    let Some(first) = parts(path).next() else { return false };
    let named = |mount: &Mount| parts(&mount.prefix).any(|part| part == first);
    first == b".." || config.mounts.iter().any(named)
}

/// As [`normal`], for an absolute path; `None` where there is not enough room.
fn normal_in<'a>(room: &'a mut [u8], path: &[u8]) -> Option<&'a [u8]> {
    let mut len = 0;
    for part in parts(path) {
        if part == b".." {
            len = room[..len].iter().rposition(|&byte| byte == b'/').unwrap_or(0);
            continue;
        }
        let end = len + 1 + part.len();
        let place = room.get_mut(len..end)?;
        place[0] = b'/';
        place[1..].copy_from_slice(part);
        len = end;
    }
    Some(&room[..len])
}

/// The place of a program's path, if it is served: relative to the directory `dir`, or to the
/// working directory for `AT_FDCWD`.
pub(crate) fn find(dir: c_int, path: &[u8]) -> Result<Option<Location>> {
    let Some(config) = config::get() else { return Ok(None) };
    if path.is_empty() {
        return Ok(None);
    }
    let found = if path.first() == Some(&b'/') {
        absolute(config, path)
    } else {
        match base(config, dir, path)? {
            Some(Base::Served(directory)) => from_directory(config, &directory, path),
            Some(Base::Other(directory)) => absolute(config, &joined(&directory, path)),
            None => None,
        }
    };
    match found {
        Some(_) if path.len() >= PATH_BYTES_MAX => Err(Errno(libc::ENAMETOOLONG)),
        found => Ok(found),
    }
}

fn joined(directory: &[u8], path: &[u8]) -> Vec<u8> {
    [directory, path].join(&b'/')
}

/// The place of a relative path from a served directory.
fn from_directory(config: &'static Config, from: &Record, path: &[u8]) -> Option<Location> {
    let mut found = absolute(config, &joined(&from.shown, path))?;
    let mount = config.mounts.get(from.mount)?;
    let depth = parts(below(&from.shown, &mount.prefix)?).count() as isize;
    if std::ptr::eq(found.mount, mount) && depth + lowest(path) >= 0 {
        found.start = Some((from.handle, from.shown.clone()));
        found.path = path.to_vec();
    }
    Some(found)
}

/// The start of a relative path.
enum Base {
    Served(Arc<Record>),
    /// A directory of this machine.
    Other(Vec<u8>),
}

/// The directory that a relative path starts at, if the path could lead below a prefix.
fn base(config: &Config, dir: c_int, path: &[u8]) -> Result<Option<Base>> {
    if dir == libc::AT_FDCWD {
        if let Some(directory) = table::working_directory() {
            return Ok(Some(Base::Served(directory)));
        }
    } else if let Some(description) = table::get(dir) {
        return match description.record.kind {
            Kind::Directory => Ok(Some(Base::Served(Arc::new(description.record.clone())))),
            Kind::File | Kind::Place => Err(Errno(libc::ENOTDIR)),
        };
    }
    if !may_lead_below(config, path) {
        return Ok(None);
    }
    let link = match dir {
        libc::AT_FDCWD => "/proc/self/cwd".to_owned(),
        dir => format!("/proc/self/fd/{dir}"),
    };
    let target = crate::next::internal(|| std::fs::read_link(link)).ok();
    Ok(target.map(|target| Base::Other(target.into_os_string().into_encoded_bytes())))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use dafs_client::DafsUrl;

    fn config() -> &'static Config {
        let mount = |prefix: &[u8], base: &[u8]| Mount {
            prefix: prefix.to_vec(),
            url: DafsUrl::parse("dafs://h/").unwrap(),
            base: base.to_vec(),
        };
        Box::leak(Box::new(Config {
            mounts: vec![mount(b"/data", b"/tree"), mount(b"/data/in/side", b"")],
            bypass: vec![b"/data/not".to_vec()],
            ..Config::default()
        }))
    }

    #[test]
    fn paths_become_normal() {
        for (path, expected) in [
            (&b"//a/./b//c/"[..], &b"/a/b/c"[..]),
            (b"/a/../..", b"/"),
            (b"a/../../b", b"../b"),
            (b"/", b"/"),
            (b"./", b""),
        ] {
            assert_eq!(normal(path), expected);
        }
    }

    #[test]
    fn served_paths() {
        for (path, expected) in [
            (&b"/data"[..], &b"/tree/"[..]),
            (b"/data/", b"/tree/"),
            (b"//data//a/../b/", b"/tree//a/../b/"),
            (b"/other/../data/a", b"/tree/a"),
            (b"/data/in/side/x", b"/x"),
            (b"/data/in/sideways", b"/tree/in/sideways"),
            (b"/data/..", b"/tree/"),
            (b"/data/a/../../data/x", b"/tree/x"),
            (b"/data/../data/x/", b"/tree/x"),
            (b"/data/in/side/../../in/side/f", b"/f"),
            (b"/data/in/side/../x", b"/tree/in/side/../x"),
            (b"/./data/./a", b"/tree/./a"),
        ] {
            let found = absolute(config(), path).unwrap();
            assert_eq!(found.path, expected, "{}", String::from_utf8_lossy(path));
        }
    }

    #[test]
    fn relative_paths_start_at_the_directory_itself() {
        let handle = FileHandle { fs: [1; 16], file: [2; 48] };
        let kind = Kind::Directory;
        let from = Record { mount: 0, kind, handle, flags: 0, shown: b"/data/a".to_vec() };
        for (path, on_server, is_from_there) in [
            (&b"x"[..], &b"x"[..], true),
            (b"../x/..", b"../x/..", true),
            (b"b/../../../data/x", b"/tree/x", false),
            (b"../in/side/x", b"/x", false),
        ] {
            let found = from_directory(config(), &from, path).unwrap();
            assert_eq!(found.path, on_server, "{}", String::from_utf8_lossy(path));
            assert_eq!(found.start.is_some(), is_from_there);
        }
        assert!(from_directory(config(), &from, b"../../x").is_none());
    }

    #[test]
    fn the_directory_of_a_name() {
        for (path, parent) in [
            (&b"/data/a/f"[..], &b"/tree/a/"[..]),
            (b"/data/a/f//", b"/tree/a/"),
            (b"/data/f", b"/tree/"),
            (b"/data/in/side/f", b"/"),
        ] {
            assert_eq!(absolute(config(), path).unwrap().parent().path, parent);
        }
        let relative = |path: &[u8]| Location {
            path: path.to_vec(),
            start: Some((FileHandle::ZERO, b"/data".to_vec())),
            ..absolute(config(), b"/data").unwrap()
        };
        assert_eq!(relative(b"f/").parent().path, b"./");
        assert_eq!(relative(b"a/f").parent().path, b"a/");
        assert!(
            relative(b"./.").start_itself().is_some() && relative(b"..").start_itself().is_none()
        );
    }

    #[test]
    fn the_end_of_a_path_names_a_directory() {
        for (path, last, is_for_directory) in [
            (&b"/data/f"[..], Last::Name, false),
            (b"/data/f/", Last::Name, true),
            (b"/data/f//", Last::Name, true),
            (b"/data/f/.", Last::Dot, true),
            (b"/data/f/./", Last::Dot, true),
            (b"/data/f/..", Last::Up, true),
            (b"/data/f/.x", Last::Name, false),
            (b"/data/in/side", Last::Root, true),
        ] {
            let found = absolute(config(), path).unwrap();
            let shown = String::from_utf8_lossy(path);
            assert_eq!(
                (found.last(), found.wants_directory()),
                (last, is_for_directory),
                "{shown}"
            );
        }
    }

    #[test]
    fn a_served_path_is_found_without_memory() {
        let long = [b"/a".repeat(3000), b"/../".repeat(3000), b"data".to_vec()].concat();
        for path in [
            &b"/data"[..],
            b"//data//a/../b/",
            b"/other/../data/a",
            b"/data/a/../../data/x",
            b"/data/..",
            &long,
            b"./data/x",
            b"in",
            b"../x",
        ] {
            let path_shown = String::from_utf8_lossy(path);
            assert!(may_be_served(config(), libc::AT_FDCWD, path), "{path_shown}");
        }
        for path in
            [&b"/"[..], b"", b"/database", b"/data/../x", b"/proc/self/maps", b"relative", b"./"]
        {
            assert!(!may_be_served(config(), libc::AT_FDCWD, path));
        }
        for path in [&b"//a/./b//c/"[..], b"/a/../..", b"/", b"/..", b"/a/b/../../c"] {
            let mut room = [0; 64];
            let expected = normal(path);
            let found = normal_in(&mut room, path).unwrap();
            assert_eq!(if found.is_empty() { b"/" } else { found }, expected);
        }
        assert!(normal_in(&mut [0; 4], b"/abcd").is_none());
    }

    #[test]
    fn paths_that_are_not_served() {
        for path in [&b"/"[..], b"/database", b"/data/../x", b"/data/not", b"/data/not/a"] {
            assert!(absolute(config(), path).is_none(), "{}", String::from_utf8_lossy(path));
        }
    }
}

//! Decides whether a program loads the library of `dafs run`. The command checks the program that
//! it starts, and the library (`dafs-preload`) the programs started later.

use crate::limits::INTERPRETERS_MAX;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The reason why a program is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unserved {
    /// It does not load a C library that could be interposed.
    Static,
    /// It runs with other rights than its user's, so the loader takes no library from that user.
    Rights,
    /// It is for another machine or word length than this command.
    Foreign,
    /// A script of a script, and so on.
    Nested,
}

/// A user, and a function that the standard library lacks.
#[derive(Clone, Copy)]
pub struct User {
    /// The number of the user.
    pub uid: u32,
    /// The number of its group.
    pub gid: u32,
    /// Checks whether a file has capabilities.
    pub has_capabilities: fn(&Path) -> bool,
}

/// Why a program is not served when this user starts it, and the file to blame: the program's own,
/// or its interpreter's. `None` if it is served, or if only the kernel can decide.
///
/// # Errors
/// A file that cannot be examined, and the reason.
pub fn unserved(
    program: &Path,
    user: User,
) -> Result<Option<(PathBuf, Unserved)>, (PathBuf, io::Error)> {
    let mut path = program.to_owned();
    for _ in 0..INTERPRETERS_MAX {
        let kind = match look(&path, user) {
            Ok(kind) => kind,
            Err(error) => return Err((path, error)),
        };
        let why = match kind {
            Kind::Dynamic | Kind::Unknown => return Ok(None),
            Kind::Script(interpreter) => {
                path = interpreter;
                continue;
            }
            Kind::Rights => Unserved::Rights,
            Kind::Static => Unserved::Static,
            Kind::Foreign => Unserved::Foreign,
        };
        return Ok(Some((path, why)));
    }
    Ok(Some((program.to_owned(), Unserved::Nested)))
}

fn look(path: &Path, user: User) -> io::Result<Kind> {
    let found = path.metadata()?;
    if !found.is_file() {
        return Ok(Kind::Unknown);
    }
    let other_rights = (user.has_capabilities)(path)
        || found.mode() & 0o4000 != 0 && found.uid() != user.uid
        || found.mode() & 0o2000 != 0 && found.gid() != user.gid;
    if other_rights {
        return Ok(Kind::Rights);
    }
    let mut start = [0; 4096];
    let count = File::open(path)?.read_at(&mut start, 0)?;
    Ok(kind(&start[..count]))
}

/// The kind of a file, by its first bytes and its permissions.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Dynamic,
    Static,
    Foreign,
    Rights,
    Script(PathBuf),
    Unknown,
}

fn kind(start: &[u8]) -> Kind {
    if let Some(rest) = start.strip_prefix(b"#!") {
        let line = rest.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let mut words =
            line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
        return match words.next() {
            Some(word) => Kind::Script(OsStr::from_bytes(word).into()),
            None => Kind::Unknown,
        };
    }
    if !start.starts_with(b"\x7fELF") {
        return Kind::Unknown;
    }
    let short = |at: usize| Some(u16::from_ne_bytes(start.get(at..at + 2)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_ne_bytes(start.get(at..at + 8)?.try_into().ok()?));
    let machine = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    // Class 2 is 64 bits.
    if start.get(4) != Some(&2) || short(18) != Some(machine) {
        return Kind::Foreign;
    }
    let (Some(table), Some(size), Some(count)) = (long(32), short(54), short(56)) else {
        return Kind::Unknown;
    };
    let table = usize::try_from(table).unwrap_or(usize::MAX);
    for at in 0..usize::from(count) {
        let at = table.saturating_add(at * usize::from(size));
        match at.checked_add(4).and_then(|end| start.get(at..end)) {
            // PT_INTERP
            Some(&[3, 0, 0, 0]) => return Kind::Dynamic,
            Some(_) => {}
            // Further away than any linker places it.
            None => return Kind::Unknown,
        }
    }
    Kind::Static
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_programs() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(kind(&own[..4096]), Kind::Dynamic);
        let mut other = own[..4096].to_vec();
        other[18] ^= 1;
        assert_eq!(kind(&other), Kind::Foreign);
        // Every PT_INTERP entry of the table changed to another type.
        let mut without = own[..4096].to_vec();
        let count = usize::from(without[56]);
        (0..count).for_each(|at| without[64 + 56 * at] = 1);
        assert_eq!(kind(&without), Kind::Static);
        assert_eq!(kind(b"#! /bin/sh -e\n"), Kind::Script("/bin/sh".into()));
        assert_eq!(kind(b"#!\n"), Kind::Unknown);
        assert_eq!(kind(b"\x7fELF"), Kind::Foreign);
        for cut in 0..128 {
            kind(&own[..cut]);
        }
    }

    #[test]
    fn the_interpreter_of_a_script_counts_and_so_do_rights() {
        const OWN: User = User { uid: 1, gid: 1, has_capabilities: |_| false };
        let find = |path: &Path, user| unserved(path, user).map_err(|(path, _)| path);
        let own = std::env::current_exe().unwrap();
        assert_eq!(find(&own, OWN), Ok(None));
        let capable = User { has_capabilities: |_| true, ..OWN };
        assert_eq!(find(&own, capable), Ok(Some((own.clone(), Unserved::Rights))));
        assert_eq!(find(Path::new("/dev/null"), OWN), Ok(None));
        let script = std::env::temp_dir().join(format!("dafs-program-{}", std::process::id()));
        let interpreted = |by: &Path| {
            std::fs::write(&script, [b"#!", by.as_os_str().as_bytes(), b" -e\n"].concat()).unwrap();
            find(&script, OWN)
        };
        assert_eq!(interpreted(&own), Ok(None));
        let nowhere = Path::new("/nowhere/at/all");
        assert_eq!(interpreted(nowhere), Err(nowhere.to_owned()));
        let itself = script.clone();
        assert_eq!(interpreted(&itself), Ok(Some((itself.clone(), Unserved::Nested))));
        std::fs::remove_file(script).unwrap();
    }
}

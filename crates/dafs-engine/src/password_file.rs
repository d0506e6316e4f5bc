//! The password file: who may log in, and as which user of the system.
//!
//! Invariants
//! * The file is replaced atomically, and never readable by others.
//! * No line has a password: there are hashes alone.
//! * No name or hash adds a line or a field of its own.

use crate::limits::PASSWORD_LINE_BYTES_MAX;
use crate::passwords::HashedPassword;
use argon2::Argon2;
use argon2::password_hash::PasswordHasher;
use dafs_store::Cred;
use dafs_store::own::{self, OwnError};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// A line of the password file, with the hash as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PasswordLine {
    /// The name that clients give.
    pub name: String,
    /// The ids that the files are used with.
    pub cred: Cred,
    /// The hash of the password, in PHC form.
    pub hash: String,
}

impl PasswordLine {
    /// Checks the parts of a line.
    ///
    /// # Errors
    /// The text to write instead.
    pub fn new(name: &str, cred: Cred, hash: &str) -> Result<Self, &'static str> {
        check_user_name(name)?;
        HashedPassword::parse(hash)?;
        let line = Self { name: name.to_owned(), cred, hash: hash.to_owned() };
        match line.text().len() <= PASSWORD_LINE_BYTES_MAX {
            true => Ok(line),
            false => Err(TOO_LONG),
        }
    }

    /// Returns the line without its end.
    pub fn text(&self) -> String {
        let Cred { uid, gid, groups } = &self.cred;
        let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
        format!("{}:{uid}:{gid}:{}:{}", self.name, groups.join(","), self.hash)
    }

    fn parse(line: &str) -> Result<Self, &'static str> {
        const FORM: &str = "write name:uid:gid:group,group:hash; `dafs passwd` makes such lines";
        if line.len() > PASSWORD_LINE_BYTES_MAX {
            return Err(TOO_LONG);
        }
        let mut fields = line.splitn(5, ':');
        let mut next = || fields.next().ok_or(FORM);
        let (name, uid, gid, groups, hash) = (next()?, next()?, next()?, next()?, next()?);
        let number = |text: &str| text.parse::<u32>().map_err(|_| FORM);
        let groups = groups.split(',').filter(|group| !group.is_empty()).map(number);
        let groups = groups.collect::<Result<Vec<_>, _>>()?;
        if name.is_empty() {
            return Err(FORM);
        }
        let cred = Cred { uid: number(uid)?, gid: number(gid)?, groups: groups.into() };
        Ok(Self { name: name.to_owned(), cred, hash: hash.to_owned() })
    }
}

/// The message for a line beyond [`PASSWORD_LINE_BYTES_MAX`].
const TOO_LONG: &str = "the line is longer than 1024 bytes";

/// Checks the name of a user.
///
/// # Errors
/// The reason why no line can have it.
pub fn check_user_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.contains(':') || name.starts_with('#') {
        return Err("a name is not empty, has no ':' and does not begin with '#'");
    }
    if name.chars().any(char::is_control) {
        return Err("a name has no control characters");
    }
    Ok(())
}

/// A user who may log in.
#[derive(Debug, Clone)]
pub(crate) struct User {
    pub(crate) cred: Cred,
    pub(crate) hash: HashedPassword,
    /// The hash as it stands in the file.
    phc: String,
}

/// The difference between the users of a password file and those that were read before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserChanges {
    /// Users were added, changed or removed.
    pub has_changed: bool,
    /// The users that are gone or act with other ids: their sessions are to end.
    pub ended: BTreeSet<Vec<u8>>,
}

/// The users of a password file.
#[derive(Debug, Default)]
pub(crate) struct Users {
    pub(crate) by_name: BTreeMap<Vec<u8>, User>,
    /// The hash that unknown users are compared with, unless there are no users.
    pub(crate) decoy: Option<HashedPassword>,
}

/// The users of a password file that was read again. `None` without such a file.
#[derive(Debug)]
pub struct NewUsers(pub(crate) Option<Users>);

impl Users {
    /// Reads a password file. The decoy is that of the last users, if they have one.
    ///
    /// # Errors
    /// The line of the password file that cannot be used.
    pub(crate) fn read(path: &Path, last: Option<&Self>) -> Result<Self, PasswordFileError> {
        let mut by_name = BTreeMap::new();
        for (number, line) in numbered_lines(path)? {
            let wrong =
                |remedy| PasswordFileError::Line { path: path.to_owned(), line: number, remedy };
            let hash = HashedPassword::parse(&line.hash).map_err(wrong)?;
            let user = User { cred: line.cred, hash, phc: line.hash };
            by_name.insert(line.name.into_bytes(), user);
        }
        // INVARIANT: hashes of our own making can be parsed.
        let new = || HashedPassword::parse(&hash_password(b"decoy")).expect("our own hash");
        let known = last.and_then(|last| last.decoy.clone());
        let decoy = (!by_name.is_empty()).then(|| known.unwrap_or_else(new));
        Ok(Self { by_name, decoy })
    }

    /// True if a user of that name acts with these ids.
    pub(crate) fn have(&self, name: &[u8], cred: &Cred) -> bool {
        self.by_name.get(name).is_some_and(|user| user.cred == *cred)
    }

    /// Returns the changes since `last`.
    pub(crate) fn changes_since(&self, last: &Self) -> UserChanges {
        let is_kept = |(name, user): &(&Vec<u8>, &User)| {
            last.by_name.get(*name).is_some_and(|old| old.cred == user.cred && old.phc == user.phc)
        };
        let kept = self.by_name.iter().filter(is_kept).count();
        let ended = last.by_name.iter().filter(|(name, user)| !self.have(name, &user.cred));
        UserChanges {
            has_changed: kept != self.by_name.len() || kept != last.by_name.len(),
            ended: ended.map(|(name, _)| name.clone()).collect(),
        }
    }
}

/// The reason why the password file cannot be used.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum PasswordFileError {
    #[error("cannot read {path}: {error}{remedy}", path = .path.display(), remedy = remedy(.error))]
    Read { path: PathBuf, error: std::io::Error },
    #[error("{path} line {line}: {remedy}", path = .path.display())]
    Line { path: PathBuf, line: usize, remedy: &'static str },
    #[error(
        "{path} can be read or written by others; run: chmod 600 {path}",
        path = .path.display()
    )]
    Permissions { path: PathBuf },
    #[error("cannot write {path}: {error}", path = .path.display())]
    Write { path: PathBuf, error: std::io::Error },
    #[error(transparent)]
    Owner(#[from] OwnError),
}

fn remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::NotFound => "; make it with: dafs passwd FILE USER --uid N --gid N",
        _ => "",
    }
}

/// Returns the line of the password file for a user: name, uid, gid, further groups, hash.
pub fn password_line(name: &str, uid: u32, gid: u32, groups: &[u32], password: &[u8]) -> String {
    let cred = Cred { uid, gid, groups: groups.into() };
    PasswordLine { name: name.to_owned(), cred, hash: hash_password(password) }.text()
}

/// Returns the hash of a password, as a line of the password file has it. Takes tens of milliseconds.
pub fn hash_password(password: &[u8]) -> String {
    // INVARIANT: hashing fails only for parameters out of range or without randomness from the
    // system. The parameters are the library's defaults.
    Argon2::default().hash_password(password).expect("default parameters are valid").to_string()
}

/// Reads the text of a password file that no other user can read or change.
///
/// # Errors
/// Other users can access it. The system's error.
fn password_text(path: &Path) -> Result<String, PasswordFileError> {
    let read = |error| PasswordFileError::Read { path: path.to_owned(), error };
    let mut file = own::open_named(path).map_err(|error| match error {
        OwnError::Io(_, error) => read(error),
        error => error.into(),
    })?;
    let found = file.metadata().map_err(read)?;
    if found.mode() & 0o077 != 0 {
        return Err(PasswordFileError::Permissions { path: path.to_owned() });
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(read)?;
    Ok(text)
}

/// Reads the lines of a password file that have users. The hashes are not looked at.
///
/// # Errors
/// The line that cannot be used; another user can read or change the file.
pub fn password_lines(path: &Path) -> Result<Vec<PasswordLine>, PasswordFileError> {
    Ok(numbered_lines(path)?.into_iter().map(|(_, line)| line).collect())
}

fn numbered_lines(path: &Path) -> Result<Vec<(usize, PasswordLine)>, PasswordFileError> {
    let text = password_text(path)?;
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let parse = |(index, line): (usize, &str)| match PasswordLine::parse(line) {
        Ok(parsed) => Ok((index + 1, parsed)),
        Err(remedy) => {
            Err(PasswordFileError::Line { path: path.to_owned(), line: index + 1, remedy })
        }
    };
    lines.map(parse).collect()
}

/// Replaces the line of a user in a password file, adds it, or removes it with `None`. Comments and
/// the other lines stay. A missing file is made.
///
/// # Errors
/// Another user can read or change the file; the system's.
pub fn replace_password_line(
    path: &Path,
    name: &str,
    line: Option<&str>,
) -> Result<(), PasswordFileError> {
    // A file that others can write must not become trusted.
    let old = match password_text(path) {
        Err(PasswordFileError::Read { error, .. })
            if error.kind() == std::io::ErrorKind::NotFound =>
        {
            String::new()
        }
        other => other?,
    };
    // A symlink stays, and its target is replaced: that was read.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut aside = target.as_os_str().to_owned();
    aside.push(format!(".{}.new", std::process::id()));
    let text = with_line(&old, name, line);
    let put = || {
        own::replace(&target, Path::new(&aside), text.as_bytes())?;
        // A removed user does not come back after a power failure.
        fs::File::open(folder_of(&target))?.sync_all()
    };
    put().map_err(|error| PasswordFileError::Write { path: path.to_owned(), error })
}

/// Returns the folder of a file.
fn folder_of(file: &Path) -> &Path {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Returns the file's text with the user's line replaced, added or removed.
fn with_line(old: &str, name: &str, line: Option<&str>) -> String {
    let mut left = line;
    let mut text = String::new();
    let mut push = |line: &str| {
        text.push_str(line);
        text.push('\n');
    };
    for known in old.lines() {
        match known.split_once(':').is_some_and(|(user, _)| user == name) {
            true => left.take().into_iter().for_each(&mut push),
            false => push(known),
        }
    }
    left.into_iter().for_each(&mut push);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn users(path: &Path) -> Result<usize, PasswordFileError> {
        Ok(Users::read(path, None)?.by_name.len())
    }

    #[test]
    fn a_password_file_is_not_named_by_a_symlink_of_another_user() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("users"), dir.path().join("link"));
        fs::write(&path, password_line("anna", 1, 1, &[], b"secret")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(users(&link).unwrap(), 1, "secrets of containers are so");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::lchown(&link, Some(1), None).unwrap();
            let error = users(&link).unwrap_err().to_string();
            assert!(error.contains("chown -h root"), "{error}");
        }
        rustix::fs::mknodat(
            rustix::fs::CWD,
            dir.path().join("fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        assert!(users(&dir.path().join("fifo")).is_err());
    }

    #[test]
    fn a_file_of_another_user_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(users(file.path()).is_ok());
        std::os::unix::fs::chown(file.path(), Some(1), None).unwrap();
        let error = users(file.path()).unwrap_err().to_string();
        assert!(error.contains("chown root"), "{error}");
    }

    #[test]
    fn a_line_replaces_the_one_of_its_user_only() {
        let old = "# users\nanna:1:1::x\nannabel:2:2::y\nanna:3:3::x\n";
        let expected = "# users\nanna:9:9::z\nannabel:2:2::y\n";
        assert_eq!(with_line(old, "anna", Some("anna:9:9::z")), expected);
        assert_eq!(with_line(old, "anna", None), "# users\nannabel:2:2::y\n");
        assert_eq!(with_line("", "bert", Some("bert:1:1::x")), "bert:1:1::x\n");
        assert_eq!(with_line("", "bert", None), "");
    }

    #[test]
    fn a_new_file_without_a_folder_in_its_name_is_in_the_working_directory() {
        assert_eq!(folder_of(Path::new("users")), Path::new("."));
        assert_eq!(folder_of(Path::new("/etc/dafs/users")), Path::new("/etc/dafs"));
    }

    #[test]
    fn the_file_is_private_and_keeps_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users");
        let line = password_line("anna", 1, 2, &[3, 4], b"secret");
        for _ in 0..2 {
            replace_password_line(&path, "anna", Some(&line)).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("{line}\n"));
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        }
        let known = password_lines(&path).unwrap();
        assert_eq!((known.len(), known[0].text()), (1, line));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).unwrap();
        replace_password_line(&path, "anna", None).unwrap_err();
    }

    #[test]
    fn sessions_of_users_without_their_ids_are_to_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users");
        let hash = hash_password(b"secret");
        let read = |lines: &[(&str, u32, &str)], last: Option<&Users>| {
            let line = |&(name, uid, hash): &(&str, u32, &str)| format!("{name}:{uid}:1::{hash}\n");
            fs::write(&path, lines.iter().map(line).collect::<String>()).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            Users::read(&path, last).unwrap()
        };
        let first = read(&[("anna", 1, &*hash), ("bert", 2, &*hash), ("carl", 3, &*hash)], None);
        let same =
            read(&[("carl", 3, &*hash), ("bert", 2, &*hash), ("anna", 1, &*hash)], Some(&first));
        assert_eq!(same.changes_since(&first), UserChanges::default());
        let other_hash = hash_password(b"other");
        let other = [("anna", 1, &*other_hash), ("bert", 9, &*hash), ("dora", 4, &*hash)];
        let changes = read(&other, Some(&first)).changes_since(&first);
        let ended = [b"bert".to_vec(), b"carl".to_vec()].into();
        assert_eq!(changes, UserChanges { has_changed: true, ended });
        let none = read(&[], Some(&first)).changes_since(&first);
        assert_eq!((none.has_changed, none.ended.len()), (true, 3));
    }

    #[test]
    fn no_part_of_a_line_makes_another_line_or_field() {
        let (cred, hash) = (Cred::new(1, 1), hash_password(b"secret"));
        PasswordLine::new("anna", cred.clone(), &hash).unwrap();
        for name in ["", "a:b", "#a", "a\nroot", "a\0"] {
            PasswordLine::new(name, cred.clone(), &hash).unwrap_err();
        }
        for hash in [format!("{hash}\nroot:0:0::{hash}"), String::new(), "secret".to_owned()] {
            PasswordLine::new("anna", cred.clone(), &hash).unwrap_err();
        }
        PasswordLine::new(&"a".repeat(2000), cred, &hash).unwrap_err();
    }
}

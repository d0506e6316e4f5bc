//! The server's own files: in its state directory, and the markers in the directories of nodes.
//!
//! They are safe from other users of the host, because these can write neither to them nor to the
//! directories that hold them. Lists and marks also carry a MAC, which shows damage.
//!
//! Invariants
//! * Only the server's user gets access to new files and directories, with any umask.
//! * No symlink is followed to a file.
//! * The server refuses files of users other than its own and root, and directories to which other
//!   users may write.

use rustix::fs::{Mode, OFlags};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::hash::Hasher;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The mode of files.
const FILE_MODE: u32 = 0o600;

const DIRECTORY_MODE: u32 = 0o700;

/// The write permissions of the group and of others.
const WRITABLE: u32 = 0o022;

/// The write permission of the group.
const GROUP_WRITABLE: u32 = 0o020;

/// The bit that lets only owners remove names from a directory.
const STICKY: u32 = 0o1000;

/// Directories that all programs of a host share. The server must not close them to others.
const SHARED: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// The reason why the server refuses a file or directory.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum OwnError {
    #[error(
        "{path} can be written to by other users, who could replace what the server keeps there; run: \
         chmod go-w {path}",
        path = .0.display()
    )]
    Writable(PathBuf),
    #[error(
        "{path} can be written to by other users, who could change what the server does; run: chmod go-w {path}",
        path = .0.display()
    )]
    Config(PathBuf),
    #[error(
        "{path} belongs to user {owner}, who could change what the server trusts; run: chown {to} {path}",
        path = .path.display()
    )]
    Owner { path: PathBuf, owner: u32, to: String },
    #[error(
        "{path} is a symlink of user {owner}, who could put another file in the place of what the server \
         trusts; run: chown -h {to} {path}",
        path = .path.display()
    )]
    Link { path: PathBuf, owner: u32, to: String },
    #[error(
        "{0} is a symlink or no regular file, and the server does not follow it; put a file in its place, \
         or remove it"
    )]
    NoFile(PathBuf),
    #[error(
        "{0} is no regular file; name one, or a pipe of the server's user or root by its descriptor, as \
         /dev/stdin and the <(...) of a shell are"
    )]
    NoNamedFile(PathBuf),
    #[error(
        "{0} is a symlink or no directory, and the server does not follow it; put a directory in its place, \
         which may be a mount point, or remove it"
    )]
    NoDirectory(PathBuf),
    #[error(
        "{0} is for all programs of this host, so it cannot be the server's own; make a directory in it, \
         and name that"
    )]
    Shared(PathBuf),
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
}

impl From<OwnError> for io::Error {
    fn from(error: OwnError) -> Self {
        match error {
            OwnError::Io(_, error) => error,
            error => Self::new(ErrorKind::PermissionDenied, error),
        }
    }
}

/// Checks that the owner is trusted: the server's user or root.
///
/// # Errors
/// [`OwnError::Owner`].
pub fn check_owner(path: &Path, owner: u32) -> Result<(), OwnError> {
    let own = rustix::process::geteuid();
    if owner == 0 || owner == own.as_raw() {
        return Ok(());
    }
    let to = if own.is_root() { "root".to_owned() } else { own.as_raw().to_string() };
    Err(OwnError::Owner { path: path.to_owned(), owner, to })
}

/// True if an object belongs to the ordinary user that runs the server, and to that user's group.
/// With the usual umask of 002 the group can write to all new files of the user.
fn is_own_group(found: &fs::Metadata) -> bool {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    !user.is_root() && found.uid() == user.as_raw() && found.gid() == group.as_raw()
}

/// Checks that a directory of the configuration may hold data that the server trusts. Removes the
/// write permission of the group, if it is that of the ordinary user that runs the server.
///
/// # Errors
/// When others may write to it, or it belongs to another user; the system's.
pub fn check_directory(path: &Path) -> Result<(), OwnError> {
    let failed = |error| OwnError::Io(path.to_owned(), error);
    let found = fs::metadata(path).map_err(failed)?;
    check_owner(path, found.uid())?;
    let mode = found.mode();
    if mode & WRITABLE == GROUP_WRITABLE && is_own_group(&found) {
        fs::set_permissions(path, Permissions::from_mode(mode & 0o7777 & !WRITABLE))
            .map_err(failed)?;
        tracing::info!("{}: the group can no longer write to it", path.display());
    } else if mode & WRITABLE != 0 {
        return Err(OwnError::Writable(path.to_owned()));
    }
    // The administrator has chosen the place, so a warning must suffice.
    let full = fs::canonicalize(path).map_err(failed)?;
    for above in full.ancestors().skip(1) {
        let mode = fs::metadata(above).map_or(0, |found| found.mode());
        if mode & 0o002 != 0 && mode & STICKY == 0 {
            tracing::warn!(
                "other users can replace {}, because everybody may write to {above}; run: chmod o-w {above}",
                path.display(),
                above = above.display()
            );
        }
    }
    Ok(())
}

/// Does the same for a directory that only the server uses, as its content shows. In the root of a
/// new file system (mode 1777, as for one in memory) others may add names but not replace any. That
/// directory is closed to them. Programs may share any other directory of that mode.
///
/// # Errors
/// As `check_directory`; when the system shares it, such as /tmp.
pub fn close_directory(path: &Path) -> Result<(), OwnError> {
    match check_directory(path) {
        Err(OwnError::Writable(_)) => {}
        checked => return checked,
    }
    let failed = |error| OwnError::Io(path.to_owned(), error);
    let full = fs::canonicalize(path).map_err(failed)?;
    if is_shared(&full) {
        return Err(OwnError::Shared(path.to_owned()));
    }
    let found = fs::metadata(path).map_err(failed)?;
    let mode = found.mode();
    let is_new = mode & STICKY != 0 && is_root_of_file_system(&full, &found);
    let closed = Permissions::from_mode(mode & 0o7777 & !WRITABLE);
    if !is_new || fs::set_permissions(path, closed).is_err() {
        return Err(OwnError::Writable(path.to_owned()));
    }
    tracing::warn!("{}: other users can no longer write to it", path.display());
    Ok(())
}

/// True if a directory, given by its canonical path, is on another file system than its parent.
fn is_root_of_file_system(full: &Path, found: &fs::Metadata) -> bool {
    let above = full.parent().and_then(|above| fs::metadata(above).ok());
    above.is_some_and(|above| above.dev() != found.dev())
}

/// True if all programs of the host share a directory, given by its canonical path.
fn is_shared(full: &Path) -> bool {
    SHARED.iter().any(|shared| full == Path::new(shared))
}

/// Checks a file of the server's own, if it exists.
///
/// # Errors
/// When it belongs to another user, or is not a regular file; the system's.
pub fn check_file(path: &Path) -> Result<(), OwnError> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => check_owner(path, found.uid()),
        Ok(_) => Err(OwnError::NoFile(path.to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(OwnError::Io(path.to_owned(), error)),
    }
}

/// Checks that a directory inside a checked one is the server's own, and no symlink.
///
/// # Errors
/// When it is not; the system's.
pub fn check_inner_directory(path: &Path) -> Result<(), OwnError> {
    let found = fs::symlink_metadata(path).map_err(|error| OwnError::Io(path.to_owned(), error))?;
    if !found.is_dir() {
        return Err(OwnError::NoDirectory(path.to_owned()));
    }
    check_owner(path, found.uid())?;
    match found.mode() & WRITABLE {
        0 => Ok(()),
        _ => Err(OwnError::Writable(path.to_owned())),
    }
}

/// Makes a directory inside the state directory, or takes an existing one. If others may write to
/// it, it is closed to them: earlier versions have left such directories behind.
///
/// # Errors
/// When it belongs to another user or is a symlink; the system's.
pub fn make_directory(path: &Path) -> Result<(), OwnError> {
    let failed = |error| OwnError::Io(path.to_owned(), error);
    let made = DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path);
    made.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => OwnError::NoDirectory(path.to_owned()),
        _ => failed(error),
    })?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
        rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP => {
            OwnError::NoDirectory(path.to_owned())
        }
        errno => failed(errno.into()),
    })?;
    let directory = File::from(directory);
    let found = directory.metadata().map_err(failed)?;
    check_owner(path, found.uid())?;
    if found.mode() & WRITABLE != 0 {
        tracing::warn!(
            "other users could write to {path}, as an earlier version allowed; now they cannot. If any \
             of them is not trusted, look at what is there",
            path = path.display()
        );
        directory.set_permissions(Permissions::from_mode(DIRECTORY_MODE)).map_err(failed)?;
    }
    Ok(())
}

/// Returns the options for opening every file.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    // The open does not block on an object that has replaced a file.
    options.mode(FILE_MODE).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC);
    options
}

/// Returns the file, if it is a regular one and belongs to the server's user or root.
fn opened(path: &Path, file: io::Result<File>) -> Result<File, OwnError> {
    let failed = |error| OwnError::Io(path.to_owned(), error);
    let no_file = || OwnError::NoFile(path.to_owned());
    let file = file.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP | libc::ENXIO | libc::EISDIR) => no_file(),
        _ => failed(error),
    })?;
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(no_file());
    }
    check_owner(path, found.uid())?;
    Ok(file)
}

/// Opens a file for reading.
///
/// # Errors
/// When it is not a file of the server's own; the system's.
pub fn open_to_read(path: &Path) -> io::Result<File> {
    Ok(opened(path, options().read(true).open(path))?)
}

/// Opens a file of the configuration for reading. The name may be that of a symlink, as for secrets
/// of containers, if it and the file belong to the server's user or root. A pipe of theirs may be
/// named by its descriptor.
///
/// # Errors
/// When either belongs to another user, or the file is neither a regular one nor such a pipe; the
/// system's.
pub fn open_named(path: &Path) -> Result<File, OwnError> {
    let named = fs::symlink_metadata(path).map_err(|error| OwnError::Io(path.to_owned(), error))?;
    check_owner(path, named.uid()).map_err(|error| match error {
        OwnError::Owner { path, owner, to } if named.is_symlink() => {
            OwnError::Link { path, owner, to }
        }
        error => error,
    })?;
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = match file {
        Ok(pipe) if is_own_pipe(path, &pipe) => {
            // The open may have come before the first writer.
            rustix::fs::fcntl_setfl(&pipe, OFlags::empty())
                .map_err(|errno| OwnError::Io(path.to_owned(), errno.into()))?;
            return Ok(pipe);
        }
        file => file,
    };
    opened(path, file).map_err(|error| match error {
        OwnError::NoFile(path) => OwnError::NoNamedFile(path),
        error => error,
    })
}

/// True if a file is a pipe of the server's user or root, and is named by a descriptor of this
/// process. The parent of the process passed that descriptor. In a directory another user could
/// have put a pipe in the place of a file.
fn is_own_pipe(path: &Path, file: &File) -> bool {
    let is_own = file
        .metadata()
        .is_ok_and(|found| found.file_type().is_fifo() && check_owner(path, found.uid()).is_ok());
    let place = |path: &Path| fs::canonicalize(path.parent()?).ok();
    let descriptors = fs::canonicalize("/proc/self/fd").ok();
    // /dev/stdin is a symlink to a descriptor, which is a symlink to the pipe.
    let linked = fs::read_link(path).ok();
    let mut names = std::iter::once(path).chain(linked.as_deref());
    is_own && descriptors.is_some() && names.any(|name| place(name) == descriptors)
}

/// Reads a configuration file. The group of the ordinary user that runs the server may write to it.
///
/// # Errors
/// As `open_named`; when others may write to it.
pub fn read_config(path: &Path) -> Result<Vec<u8>, OwnError> {
    let failed = |error| OwnError::Io(path.to_owned(), error);
    let mut file = open_named(path)?;
    let found = file.metadata().map_err(failed)?;
    match found.mode() & WRITABLE {
        0 => {}
        GROUP_WRITABLE if is_own_group(&found) => {}
        _ => return Err(OwnError::Config(path.to_owned())),
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Makes a file for reading and writing, after removing an old one of that name.
///
/// # Errors
/// The system's.
pub fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => options().read(true).write(true).create_new(true).open(path),
    }
}

/// Opens a file for reading and writing. With `make`, a missing file is made. The call removes all
/// permissions of the group and of others.
///
/// # Errors
/// When it is not a file of the server's own; the system's.
pub fn open(path: &Path, make: bool) -> io::Result<File> {
    let file = opened(path, options().read(true).write(true).create(make).open(path))?;
    // Earlier versions made some files writable for all users.
    if file.metadata()?.mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    }
    Ok(file)
}

/// Reads a file of at most `bytes_max` bytes.
///
/// # Errors
/// When it is longer, or not a file of the server's own; the system's.
pub fn read(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    let file = open_to_read(path)?;
    let mut bytes = Vec::new();
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    match bytes.len() <= bytes_max {
        true => Ok(bytes),
        false => Err(io::Error::new(ErrorKind::InvalidData, "the file is too long")),
    }
}

/// Replaces a file atomically: writes a new one at `aside`, and renames it. The content is stable
/// then, the name is not.
///
/// # Errors
/// The system's.
pub fn replace(path: &Path, aside: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = create(aside)?;
    let mut put = || -> io::Result<()> {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(aside, path)
    };
    put().inspect_err(|_| {
        // Repeated failures on a full file system must not leave files behind.
        let _ = fs::remove_file(aside);
    })
}

/// Returns the MAC of some parts. With a secret key it proves the author of the parts, with any
/// other key it only shows damage.
pub fn mac(key: &[u8; 16], parts: &[&[u8]]) -> [u8; 16] {
    let mut hasher = SipHasher24::new_with_key(key);
    for part in parts {
        hasher.write(&(part.len() as u64).to_be_bytes());
        hasher.write(part);
    }
    let hash = hasher.finish128();
    (u128::from(hash.h1) << 64 | u128::from(hash.h2)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).expect("it is there").mode() & 0o7777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode");
    }

    #[test]
    fn no_file_is_reached_by_a_symlink_nor_read_from_another_kind() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        fs::write(path("victim"), "precious").expect("written");
        symlink(path("victim"), path("link")).expect("a symlink");
        symlink(path("victim"), path("aside")).expect("a symlink");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path("fifo"),
            rustix::fs::FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .expect("a pipe");
        for name in ["link", "fifo", "."] {
            assert!(matches!(check_file(&path(name)), Err(OwnError::NoFile(_))), "{name}");
            assert!(read(&path(name), 100).is_err(), "{name}");
            assert!(open(&path(name), true).is_err(), "{name}");
            assert!(open_to_read(&path(name)).is_err(), "{name}");
        }
        // An administrator may name a symlink.
        open_named(&path("link")).expect("a file");
        let error = open_named(&path("fifo")).expect_err("a pipe");
        assert!(error.to_string().contains("is no regular file"), "{error}");
        symlink(path("victim"), path("made")).expect("a symlink");
        create(&path("made")).expect("made").write_all(b"other").expect("written");
        replace(&path("link"), &path("aside"), b"new").expect("replaced");
        assert_eq!(fs::read(path("victim")).expect("content"), b"precious");
        assert_eq!(read(&path("link"), 3).expect("content"), b"new");
        assert_eq!(mode(&path("link")), 0o600);
        assert!(read(&path("link"), 2).is_err(), "too long");
        fs::create_dir(path("directory")).expect("a directory");
        replace(&path("directory"), &path("aside"), b"new").expect_err("no file takes its place");
        assert!(!path("aside").exists(), "what failed is removed");
        assert_eq!(open(&path("absent"), false).expect_err("absent").kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_pipe_is_read_by_its_descriptor_alone() {
        use std::os::fd::AsRawFd as _;
        let (from, mut to) = io::pipe().expect("a pipe");
        let dir = tempfile::tempdir().expect("a directory");
        let (number, link) = (from.as_raw_fd(), dir.path().join("link"));
        symlink(format!("/proc/self/fd/{number}"), &link).expect("a symlink");
        for path in
            [format!("/dev/fd/{number}").into(), format!("/proc/self/fd/{number}").into(), link]
        {
            let file = open_named(&path).expect("an own pipe");
            let reader = std::thread::spawn(move || {
                let mut text = [0; 4];
                (&file).read_exact(&mut text).map(|()| text)
            });
            // The read waits for the writer.
            to.write_all(b"text").expect("written");
            assert_eq!(&reader.join().expect("joined").expect("read"), b"text");
        }
        if rustix::process::geteuid().is_root() {
            rustix::fs::fchown(&from, Some(rustix::fs::Uid::from_raw(1)), None)
                .expect("given away");
            open_named(Path::new(&format!("/dev/fd/{number}"))).expect_err("another user's");
        }
    }

    #[test]
    fn a_directory_that_earlier_versions_left_open_is_closed() {
        let dir = tempfile::tempdir().expect("a directory");
        let (inner, file) = (dir.path().join("a/b"), dir.path().join("a/b/file"));
        make_directory(&inner).expect("made");
        assert_eq!(mode(&inner), 0o700);
        set_mode(&inner, 0o777);
        make_directory(&inner).expect("taken");
        assert_eq!(mode(&inner), 0o700);
        fs::write(&file, "").expect("written");
        set_mode(&file, 0o666);
        open(&file, false).expect("opened");
        assert_eq!(mode(&file), 0o600);
        assert!(make_directory(&file).is_err());
        let link = dir.path().join("link");
        symlink(&file, &link).expect("a symlink");
        assert!(matches!(make_directory(&link), Err(OwnError::NoDirectory(_))));
        fs::remove_file(&link).expect("removed");
        symlink(&inner, &link).expect("a symlink");
        assert!(matches!(make_directory(&link), Err(OwnError::NoDirectory(_))));
        assert!(matches!(check_inner_directory(&link), Err(OwnError::NoDirectory(_))));
        check_directory(&link).expect("an administrator may name it so");
    }

    #[test]
    fn a_directory_of_all_programs_is_known() {
        assert!(is_shared(Path::new("/dev/shm")));
        assert!(!is_shared(Path::new("/dev/shm/node")) && !is_shared(Path::new("/srv")));
        let error = OwnError::Shared(PathBuf::from("/tmp"));
        assert!(error.to_string().contains("make a directory in it"), "{error}");
    }

    #[test]
    fn a_directory_that_programs_share_is_not_closed() {
        let dir = tempfile::tempdir().expect("a directory");
        set_mode(dir.path(), 0o1777);
        let error = close_directory(dir.path()).expect_err("it is shared");
        assert!(matches!(error, OwnError::Writable(_)), "{error}");
        assert_eq!(mode(dir.path()), 0o1777, "as it was");
        for (path, is_root) in [(dir.path(), false), (Path::new("/proc"), true)] {
            let found = fs::metadata(path).expect("a directory");
            assert_eq!(is_root_of_file_system(path, &found), is_root, "{}", path.display());
        }
    }

    #[test]
    fn a_configuration_that_others_can_change_is_refused_with_the_remedy() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, link) = (dir.path().join("dafs.toml"), dir.path().join("link"));
        fs::write(&path, "text").expect("written");
        symlink(&path, &link).expect("a symlink");
        let is_root = rustix::process::geteuid().is_root();
        for (open, refused) in [(0o644, false), (0o664, is_root), (0o646, true), (0o600, false)] {
            set_mode(&path, open);
            match read_config(&link) {
                Ok(text) => assert!(!refused && text == b"text", "{open:o}"),
                Err(error) => {
                    assert!(refused && error.to_string().contains("chmod go-w"), "{error}")
                }
            }
        }
        if is_root {
            std::os::unix::fs::chown(&path, Some(1), None).expect("somebody else's");
            let error = read_config(&path).expect_err("another user's").to_string();
            assert!(error.contains("chown root"), "{error}");
        }
    }

    #[test]
    fn directories_that_others_can_change_are_refused_with_the_remedy() {
        let dir = tempfile::tempdir().expect("a directory");
        let is_root = rustix::process::geteuid().is_root();
        for (open, refused) in [(0o700, false), (0o755, false), (0o775, is_root), (0o757, true)] {
            set_mode(dir.path(), open);
            let checked = check_directory(dir.path());
            assert_eq!(checked.is_err(), refused, "{open:o}");
            if let Err(error) = checked {
                let remedy = format!("chmod go-w {}", dir.path().display());
                assert!(error.to_string().contains(&remedy), "{error}");
            } else {
                assert_eq!(mode(dir.path()) & WRITABLE, 0);
            }
        }
        set_mode(dir.path(), 0o755);
        if !is_root {
            return;
        }
        let file = dir.path().join("file");
        fs::write(&file, "").expect("written");
        for path in [&file, dir.path()] {
            std::os::unix::fs::chown(path, Some(1), None).expect("somebody else's");
        }
        for error in [
            check_directory(dir.path()).expect_err("another user's").to_string(),
            check_inner_directory(dir.path()).expect_err("another user's").to_string(),
            check_file(&file).expect_err("another user's").to_string(),
            read(&file, 1).expect_err("another user's").to_string(),
            open(&file, true).expect_err("another user's").to_string(),
            open_named(&file).expect_err("another user's").to_string(),
        ] {
            assert!(error.contains("chown root"), "{error}");
        }
        let (link, own) = (dir.path().join("link"), dir.path().join("own"));
        fs::write(&own, "").expect("written");
        symlink(&own, &link).expect("a symlink");
        std::os::unix::fs::lchown(&link, Some(1), None).expect("somebody else's");
        open_named(&link).expect_err("another user's symlink");
    }
}

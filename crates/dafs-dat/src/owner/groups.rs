//! The primary group of each user of this host.
//!
//! It reads the file `/etc/passwd` only: other sources of names, such as LDAP, may take seconds.
//! The caller accepts connections and must not wait.
//!
//! Invariants
//! * The file is read only when it has changed, and checked for changes only every [`LIFETIME`]: a
//!   flood of connections causes no reads.

use super::is_shortage;
use dafs_mem::Mutex;
use rustc_hash::FxHashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// The group of a user without an entry.
const NO_GROUP: u32 = 65_534;

/// The longest time until a change of the file is noticed.
const LIFETIME: Duration = Duration::from_secs(2);

static PASSWD: LazyLock<Mutex<Groups>> =
    LazyLock::new(|| Mutex::new(Groups::of(Path::new("/etc/passwd"))));

/// The primary group of a user.
///
/// # Errors
/// When there is no file descriptor. A default group would be wrong: files would be created with
/// it.
pub(super) fn primary(uid: u32) -> io::Result<u32> {
    let mut groups = PASSWD.lock();
    groups.primary(uid, Instant::now())
}

struct Groups {
    path: PathBuf,
    known: FxHashMap<u32, u32>,
    looked_at: Option<Instant>,
    /// The inode, size and ctime, which identify a version of the file.
    version: Option<[u64; 4]>,
    reads: u64,
}

impl Groups {
    fn of(path: &Path) -> Self {
        let (path, known) = (path.to_owned(), FxHashMap::default());
        Self { path, known, looked_at: None, version: None, reads: 0 }
    }

    fn primary(&mut self, uid: u32, now: Instant) -> io::Result<u32> {
        let is_fresh = |at: Instant| now.saturating_duration_since(at) < LIFETIME;
        if !self.looked_at.is_some_and(is_fresh) {
            let version = std::fs::metadata(&self.path).ok().map(|file| {
                let changed = [file.ctime(), file.ctime_nsec()].map(i64::cast_unsigned);
                [file.ino(), file.size(), changed[0], changed[1]]
            });
            if version != self.version || version.is_none() {
                let text = without_shortage(std::fs::read(&self.path))?;
                // A name that is not UTF-8 must not hide other users.
                self.known = parse(&String::from_utf8_lossy(&text));
                self.version = version;
                self.reads += 1;
            }
            self.looked_at = Some(now);
        }
        Ok(self.known.get(&uid).copied().unwrap_or(NO_GROUP))
    }
}

/// The text of a file, which may be missing; a shortage is an error.
fn without_shortage(read: io::Result<Vec<u8>>) -> io::Result<Vec<u8>> {
    match read {
        Err(error) if is_shortage(&error) => Err(error),
        read => Ok(read.unwrap_or_default()),
    }
}

/// The first entry of a user counts.
fn parse(passwd: &str) -> FxHashMap<u32, u32> {
    let mut known = FxHashMap::default();
    for line in passwd.lines() {
        let mut fields = line.split(':').skip(2);
        let mut number = || fields.next()?.parse().ok();
        if let (Some(uid), Some(gid)) = (number(), number()) {
            known.entry(uid).or_insert(gid);
        }
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_come_from_the_password_file() {
        let known = parse("root:x:0:0:root:/:/bin/sh\nanna:x:1000:100:Anna:/:/bin/sh\nx:y\n");
        assert_eq!((known.get(&1000), known.get(&7), known.len()), (Some(&100), None, 2));
    }

    #[test]
    fn the_password_file_is_read_when_it_has_changed_and_not_for_each_connection() {
        let path = std::env::temp_dir().join(format!("dafs-passwd-{}", std::process::id()));
        std::fs::write(&path, "anna:x:1000:100::/:\n").unwrap();
        let mut groups = Groups::of(&path);
        let begin = Instant::now();
        for second in 0..10 {
            for _ in 0..100 {
                assert_eq!(groups.primary(1000, begin + Duration::from_secs(second)).unwrap(), 100);
            }
        }
        assert_eq!(groups.reads, 1);
        std::fs::write(&path, b"j\xf6rg:x:999:7:J\xf6rg:/:\nanna:x:1000:1007::/:\n").unwrap();
        assert_eq!(groups.primary(1000, begin + Duration::from_secs(12)).unwrap(), 1007);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(groups.primary(1000, begin + Duration::from_secs(15)).unwrap(), NO_GROUP);
        assert_eq!(groups.reads, 3);
    }

    #[test]
    fn a_shortage_of_descriptors_is_no_group() {
        for code in [libc::EMFILE, libc::ENFILE, libc::ENOMEM] {
            let read = Err(io::Error::from_raw_os_error(code));
            assert_eq!(without_shortage(read).unwrap_err().raw_os_error(), Some(code));
        }
        assert_eq!(without_shortage(Err(io::ErrorKind::NotFound.into())).unwrap(), b"");
    }
}

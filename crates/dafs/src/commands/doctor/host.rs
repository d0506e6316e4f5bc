//! The files of a host, below its root.

use std::fs;
use std::io::Read;
use std::path::PathBuf;

/// Most bytes read of one file; lists of sockets and modules are the longest.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// A host as its files show it. Paths are given without the leading slash.
#[derive(Debug)]
pub(super) struct Host {
    root: PathBuf,
}

impl Host {
    /// The host of this process.
    pub(super) fn here() -> Self {
        Self { root: PathBuf::from("/") }
    }

    /// The text of a file without white space at its ends; `None` if it cannot be read.
    pub(super) fn read(&self, path: &str) -> Option<String> {
        let mut bytes = Vec::new();
        let file = fs::File::open(self.root.join(path)).ok()?;
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// The names in a directory, sorted; none if it cannot be listed.
    pub(super) fn list(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.root.join(path)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into()).collect();
        names.sort_unstable();
        names
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// True if this process may read and write the file.
    pub(super) fn may_use(&self, path: &str) -> bool {
        use rustix::fs::{Access, access};
        access(self.root.join(path), Access::READ_OK | Access::WRITE_OK).is_ok()
    }

    /// The target of a symbolic link.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.root.join(path)).ok()?;
        Some(target.to_string_lossy().into_owned())
    }
}

#[cfg(test)]
pub(super) mod fake {
    //! Hosts for tests.

    use super::Host;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// A root directory that is removed on drop.
    pub(in super::super) struct Fake(tempfile::TempDir);

    impl Fake {
        pub(in super::super) fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        pub(in super::super) fn host(&self) -> Host {
            Host { root: self.0.path().to_owned() }
        }

        pub(in super::super) fn file(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        pub(in super::super) fn link(&self, path: &str, target: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(target, path).unwrap();
        }
    }
}

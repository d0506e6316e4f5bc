//! A real descriptor behind every served file: a memfd that holds the file's record.
//!
//! Its offset and its status flags are those of the file, so that the kernel shares both over
//! `dup`, `fork` and `exec`.
//!
//! Invariants
//! * It is open for writing only and sealed against writes. A caller that bypasses this library can
//!   therefore do no harm: reads fail with `EBADF`, writes with `EPERM`.
//! * The content of a descriptor that this process did not make is validated before use.

use crate::config::Config;
use crate::failure::{Errno, Result};
use crate::limits::{DESCRIPTORS_MAX, RECORD_BYTES_MAX};
use dafs_client::FileHandle;
use libc::{c_int, c_long};
use std::fmt::Write;

/// The beginning of the name that the kernel shows for such a descriptor.
pub(crate) const NAME: &[u8] = b"dafs:";

/// The kind of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    /// Opened with `O_PATH`: a reference to an object, without access.
    Place,
}

/// The open file that a descriptor represents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    /// The prefix, by its index in the configuration.
    pub(crate) mount: usize,
    pub(crate) kind: Kind,
    pub(crate) handle: FileHandle,
    /// The access mode and the flags of `open` that cannot be changed later.
    pub(crate) flags: c_int,
    /// The path as the program knows it.
    pub(crate) shown: Vec<u8>,
}

impl Record {
    pub(crate) fn reads(&self) -> bool {
        self.kind == Kind::File && self.flags & libc::O_ACCMODE != libc::O_WRONLY
    }

    pub(crate) fn writes(&self) -> bool {
        self.kind == Kind::File && self.flags & libc::O_ACCMODE != libc::O_RDONLY
    }

    /// True if it only refers to an object, which can be neither read nor locked through it.
    pub(crate) fn is_name(&self) -> bool {
        self.kind == Kind::Place || self.flags & libc::O_PATH != 0
    }

    /// The record as bytes, of which none is zero.
    pub(crate) fn write(&self, config: &Config) -> Option<Vec<u8>> {
        let mount = config.mounts.get(self.mount)?;
        let kind = match self.kind {
            Kind::File => "file",
            Kind::Directory => "directory",
            Kind::Place => "place",
        };
        let mut text = format!("dafs 1\n{}\n{kind}\n{}\n", mount.url, self.flags);
        for byte in self.handle.fs.iter().chain(&self.handle.file) {
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\n');
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(&mount.prefix);
        // A prefix contains no newline.
        bytes.push(b'\n');
        bytes.extend_from_slice(&self.shown);
        (bytes.len() <= RECORD_BYTES_MAX).then_some(bytes)
    }

    /// Parses a record. `None` for invalid bytes or an unknown prefix.
    pub(crate) fn read(config: &Config, bytes: &[u8]) -> Option<Self> {
        let mut lines = bytes.splitn(6, |&byte| byte == b'\n');
        let mut text = || std::str::from_utf8(lines.next()?).ok();
        if text()? != "dafs 1" {
            return None;
        }
        let url = text()?.to_owned();
        let kind = match text()? {
            "file" => Kind::File,
            "directory" => Kind::Directory,
            "place" => Kind::Place,
            _ => return None,
        };
        let flags = text()?.parse().ok()?;
        let hex = text()?;
        if hex.len() != 2 * FileHandle::BYTES || !hex.is_ascii() {
            return None;
        }
        let mut handle = FileHandle::ZERO;
        let bytes = handle.fs.iter_mut().chain(&mut handle.file);
        for (at, byte) in bytes.enumerate() {
            *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
        }
        let rest = lines.next()?;
        let end = rest.iter().position(|&byte| byte == b'\n')?;
        let (prefix, shown) = (&rest[..end], &rest[end + 1..]);
        let fits =
            |mount: &crate::config::Mount| mount.prefix == prefix && mount.url.to_string() == url;
        let mount = config.mounts.iter().position(fits)?;
        Some(Self { mount, kind, handle, flags, shown: shown.to_vec() })
    }
}

/// System calls straight to the kernel, past all interposed functions.
pub(crate) mod kernel {
    use super::*;

    fn result(value: c_long) -> Result<c_long> {
        if value < 0 { Err(Errno::last()) } else { Ok(value) }
    }

    fn descriptor(value: c_long) -> Result<c_int> {
        c_int::try_from(result(value)?).map_err(|_| Errno(libc::EBADF))
    }

    pub(crate) fn close(fd: c_int) {
        // SAFETY: the caller owns the descriptor.
        unsafe { libc::syscall(libc::SYS_close, fd) };
    }

    fn stat(fd: c_int) -> Result<libc::stat> {
        // SAFETY: all zero is a valid value of this plain structure.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel fills the structure.
        result(unsafe { libc::syscall(libc::SYS_fstat, fd, &raw mut stat) })?;
        Ok(stat)
    }

    /// The device and inode of a descriptor's object, unique among objects of one kind.
    pub(crate) fn inode(fd: c_int) -> Result<(u64, u64)> {
        stat(fd).map(|stat| (stat.st_dev, stat.st_ino))
    }

    /// The type of a descriptor's object (`S_IFREG` and so on).
    pub(crate) fn kind(fd: c_int) -> Result<libc::mode_t> {
        stat(fd).map(|stat| stat.st_mode & libc::S_IFMT)
    }

    pub(crate) fn seek(fd: c_int, offset: i64, whence: c_int) -> Result<i64> {
        // SAFETY: takes no memory.
        result(unsafe { libc::syscall(libc::SYS_lseek, fd, offset, whence) })
    }

    pub(crate) fn control(fd: c_int, command: c_int, value: c_long) -> Result<c_int> {
        // SAFETY: only commands whose argument is a number are given.
        descriptor(unsafe { libc::syscall(libc::SYS_fcntl, fd, command, value) })
    }

    pub(crate) fn close_range(first: c_int, last: c_int, flags: c_int) -> Result<()> {
        // SAFETY: the caller owns these descriptors.
        result(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) }).map(drop)
    }

    pub(super) fn memory() -> Result<c_int> {
        let flags = libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC;
        // SAFETY: a name that ends with a zero byte.
        descriptor(unsafe { libc::syscall(libc::SYS_memfd_create, c"dafs:file".as_ptr(), flags) })
    }

    pub(super) fn write(fd: c_int, bytes: &[u8]) -> Result<()> {
        // SAFETY: reads the slice.
        let written =
            unsafe { libc::syscall(libc::SYS_pwrite64, fd, bytes.as_ptr(), bytes.len(), 0) };
        if result(written)? == bytes.len() as c_long { Ok(()) } else { Err(Errno(libc::EIO)) }
    }

    pub(super) fn read(fd: c_int, bytes: &mut [u8]) -> Result<usize> {
        // SAFETY: fills the slice.
        let read =
            unsafe { libc::syscall(libc::SYS_pread64, fd, bytes.as_mut_ptr(), bytes.len(), 0) };
        Ok(usize::try_from(result(read)?).unwrap_or(0))
    }

    /// Opens the same object again.
    pub(crate) fn again(fd: c_int, flags: c_int) -> Result<c_int> {
        let path = format!("/proc/self/fd/{fd}\0");
        let flags = flags | libc::O_CLOEXEC;
        // SAFETY: a path that ends with a zero byte.
        let opened =
            unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) };
        descriptor(opened)
    }

    pub(super) fn duplicate(from: c_int, to: c_int, flags: c_int) -> Result<()> {
        // SAFETY: takes no memory; the caller owns `to`.
        result(unsafe { libc::syscall(libc::SYS_dup3, from, to, flags) }).map(drop)
    }
}

/// Makes a descriptor, the lowest that is free; `flags` as given to `open`.
pub(crate) fn make(config: &Config, record: &Record, flags: c_int) -> Result<c_int> {
    let bytes = record.write(config).ok_or(Errno(libc::ENAMETOOLONG))?;
    let memory = kernel::memory()?;
    match fill(memory, &bytes, flags) {
        Ok(()) if usize::try_from(memory).is_ok_and(|fd| fd < DESCRIPTORS_MAX) => Ok(memory),
        Ok(()) => {
            kernel::close(memory);
            Err(Errno(libc::EMFILE))
        }
        Err(error) => {
            kernel::close(memory);
            Err(error)
        }
    }
}

fn fill(memory: c_int, bytes: &[u8], flags: c_int) -> Result<()> {
    kernel::write(memory, bytes)?;
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
    kernel::control(memory, libc::F_ADD_SEALS, seals.into())?;
    let sealed = kernel::again(memory, libc::O_WRONLY)?;
    let status = flags & (libc::O_APPEND | libc::O_NONBLOCK);
    let done = kernel::control(sealed, libc::F_SETFL, status.into())
        .and_then(|_| kernel::duplicate(sealed, memory, flags & libc::O_CLOEXEC));
    kernel::close(sealed);
    done
}

/// The record of an inherited descriptor.
pub(crate) fn recognise(config: &Config, fd: c_int) -> Option<Record> {
    let readable = kernel::again(fd, libc::O_RDONLY).ok()?;
    let mut bytes = vec![0; RECORD_BYTES_MAX];
    let read = kernel::read(readable, &mut bytes);
    kernel::close(readable);
    Record::read(config, &bytes[..read.ok()?])
}

/// The inherited descriptors whose name is that of served files.
pub(crate) fn inherited() -> Vec<c_int> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let ours = |target: std::path::PathBuf| {
        let target = target.into_os_string().into_encoded_bytes();
        target.strip_prefix(b"/memfd:").is_some_and(|name| name.starts_with(NAME))
    };
    entries
        .flatten()
        .filter(|entry| std::fs::read_link(entry.path()).is_ok_and(ours))
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use crate::config::Mount;
    use dafs_client::DafsUrl;

    fn config() -> Config {
        Config {
            mounts: vec![Mount {
                prefix: b"/data".to_vec(),
                url: DafsUrl::parse("dafs://h/tree").unwrap(),
                base: b"/tree".to_vec(),
            }],
            ..Config::default()
        }
    }

    fn record() -> Record {
        let handle = FileHandle { fs: [7; 16], file: [0xab; 48] };
        let shown = b"/data/a\nb".to_vec();
        Record { mount: 0, kind: Kind::File, handle, flags: libc::O_RDWR, shown }
    }

    #[test]
    fn a_descriptor_tells_what_it_is_and_cannot_be_used() {
        let fd = make(&config(), &record(), libc::O_APPEND | libc::O_CLOEXEC).unwrap();
        assert_eq!(recognise(&config(), fd), Some(record()));
        assert_eq!(kernel::read(fd, &mut [0; 1]), Err(Errno(libc::EBADF)));
        assert_eq!(kernel::write(fd, b"x"), Err(Errno(libc::EPERM)));
        let flags = kernel::control(fd, libc::F_GETFL, 0).unwrap();
        assert_ne!(flags & libc::O_APPEND, 0);
        assert_eq!(kernel::seek(fd, 1 << 40, libc::SEEK_SET), Ok(1 << 40));
        kernel::close(fd);
    }

    #[test]
    fn a_malformed_record_is_none() {
        let whole = record().write(&config()).unwrap();
        for cut in 0..whole.len() - record().shown.len() {
            assert_eq!(Record::read(&config(), &whole[..cut]), None, "{cut}");
        }
        let mut other = config();
        other.mounts[0].url = DafsUrl::parse("dafs://other/tree").unwrap();
        assert_eq!(Record::read(&other, &whole), None);
    }
}

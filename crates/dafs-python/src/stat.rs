//! Attributes, under the names of `os.stat_result`.

use dafs_client::{Attributes, FileHandle, Time, posix};
use pyo3::prelude::*;

/// Attributes of an object, named as those of `os.stat_result`.
#[pyclass(frozen, get_all, module = "dafs")]
pub(crate) struct Stat {
    st_mode: u32,
    st_ino: u64,
    /// Differs between file systems.
    st_dev: u64,
    st_nlink: u32,
    /// -1 if the server's name of the owner is no number.
    st_uid: i64,
    /// As `st_uid`.
    st_gid: i64,
    st_size: u64,
    /// Units of 512 bytes.
    st_blocks: u64,
    st_atime_ns: i128,
    st_mtime_ns: i128,
    st_ctime_ns: i128,
    /// Differs after every change of content or attributes.
    change: u64,
}

/// A device number for a file system.
fn device(handle: &FileHandle) -> u64 {
    let (low, high) = handle.fs.split_at(size_of::<u64>());
    let number = |half: &[u8]| half.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    number(low) ^ number(high)
}

fn nanoseconds(time: Time) -> i128 {
    i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nseconds)
}

/// Rounded as in Python.
fn as_seconds(nanoseconds: i128) -> f64 {
    let (seconds, rest) =
        (nanoseconds.div_euclid(1_000_000_000), nanoseconds.rem_euclid(1_000_000_000));
    seconds as f64 + 1e-9 * rest as f64
}

impl Stat {
    pub(crate) fn new(attributes: &Attributes) -> Self {
        let times = posix::Times::of(attributes);
        let id = |owner: &dafs_client::Owner| owner.id().map_or(-1, i64::from);
        Self {
            st_mode: posix::mode(attributes),
            st_ino: attributes.file_id,
            st_dev: device(&attributes.handle),
            st_nlink: attributes.links,
            st_uid: id(&attributes.owner),
            st_gid: id(&attributes.group),
            st_size: attributes.size,
            st_blocks: posix::blocks(attributes),
            st_atime_ns: nanoseconds(times.accessed),
            st_mtime_ns: nanoseconds(times.modified),
            st_ctime_ns: nanoseconds(times.changed),
            change: attributes.change,
        }
    }
}

impl Stat {
    /// The kind of object, as `S_IFDIR`.
    pub(crate) fn kind(&self) -> u32 {
        self.st_mode & libc::S_IFMT
    }
}

#[pymethods]
impl Stat {
    #[getter]
    fn st_atime(&self) -> f64 {
        as_seconds(self.st_atime_ns)
    }

    #[getter]
    fn st_mtime(&self) -> f64 {
        as_seconds(self.st_mtime_ns)
    }

    #[getter]
    fn st_ctime(&self) -> f64 {
        as_seconds(self.st_ctime_ns)
    }

    fn __repr__(&self) -> String {
        format!(
            "dafs.Stat(st_mode={:#o}, st_ino={}, st_size={})",
            self.st_mode, self.st_ino, self.st_size
        )
    }
}

//! Attributes, under the names of `os.stat_result`.

use dafs_client::{Attributes, FileHandle, ObjectType, Time};
use pyo3::prelude::*;

/// Attributes of an object, named as those of `os.stat_result`.
#[pyclass(frozen, get_all, module = "dafs")]
pub(crate) struct Stat {
    st_mode: u32,
    st_ino: u64,
    /// Differs between file systems.
    st_dev: u64,
    st_nlink: u32,
    /// -1 when the server named the owner in another way than by number.
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

/// The type in `st_mode`, as Linux has it.
fn type_bits(kind: ObjectType) -> u32 {
    match kind {
        ObjectType::Directory | ObjectType::AttrDirectory => 0o040_000,
        ObjectType::BlockDevice => 0o060_000,
        ObjectType::CharDevice => 0o020_000,
        ObjectType::Symlink => 0o120_000,
        ObjectType::Socket => 0o140_000,
        ObjectType::Fifo => 0o010_000,
        ObjectType::Regular | ObjectType::NamedAttr => 0o100_000,
        ObjectType::Invalid => 0,
    }
}

/// A number for a file system.
fn device(handle: &FileHandle) -> u64 {
    let (low, high) = handle.fs.split_at(size_of::<u64>());
    let number = |half: &[u8]| half.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    number(low) ^ number(high)
}

fn nanoseconds(time: Option<Time>) -> i128 {
    time.map_or(0, |time| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nseconds))
}

/// Rounded as Python rounds them.
fn as_seconds(nanoseconds: i128) -> f64 {
    let (seconds, rest) =
        (nanoseconds.div_euclid(1_000_000_000), nanoseconds.rem_euclid(1_000_000_000));
    seconds as f64 + 1e-9 * rest as f64
}

impl Stat {
    pub(crate) fn new(attributes: &Attributes) -> Self {
        let id = |owner: &dafs_client::Owner| owner.id().map_or(-1, i64::from);
        Self {
            st_mode: type_bits(attributes.kind) | attributes.mode,
            st_ino: attributes.file_id,
            st_dev: device(&attributes.handle),
            st_nlink: attributes.links,
            st_uid: id(&attributes.owner),
            st_gid: id(&attributes.group),
            st_size: attributes.size,
            st_blocks: attributes.space_used.div_ceil(512),
            st_atime_ns: nanoseconds(attributes.accessed),
            st_mtime_ns: nanoseconds(attributes.modified),
            st_ctime_ns: nanoseconds(attributes.changed),
            change: attributes.change,
        }
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

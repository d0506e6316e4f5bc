//! What passes between this program and libgfapi, as its headers have it.

/// A volume, opaque.
#[repr(C)]
pub(super) struct Fs {
    _opaque: [u8; 0],
}

/// An object, opaque.
#[repr(C)]
pub(super) struct RawObject {
    _opaque: [u8; 0],
}

/// An open file or directory, opaque.
#[repr(C)]
pub(super) struct RawFd {
    _opaque: [u8; 0],
}

/// What is told of an entry of a directory, opaque.
#[repr(C)]
pub(super) struct XStat {
    _opaque: [u8; 0],
}

/// Attributes are those of stat(2), with sizes of 64 bits.
pub(crate) type Stat = libc::stat;

const _: () = assert!(size_of::<libc::off_t>() == 8, "sizes of files have 64 bits");

/// The name of an object for good, the same on all bricks (`GFAPI_HANDLE_LENGTH`).
pub(crate) type Gfid = [u8; 16];

/// What a change of attributes sets (`GFAPI_SET_ATTR_*`).
pub(crate) mod set {
    pub(crate) const MODE: i32 = 0x1;
    pub(crate) const UID: i32 = 0x2;
    pub(crate) const GID: i32 = 0x4;
    pub(crate) const ATIME: i32 = 0x10;
    pub(crate) const MTIME: i32 = 0x20;
}

/// Attributes are asked for with an entry (`GFAPI_XREADDIRP_STAT`).
pub(super) const WITH_STAT: u32 = 1;

/// And the object (`GFAPI_XREADDIRP_HANDLE`).
pub(super) const WITH_OBJECT: u32 = 2;

/// Attributes of which nothing is set.
pub(crate) fn no_stat() -> Stat {
    // SAFETY: it is made of numbers, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

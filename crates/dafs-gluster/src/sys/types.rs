//! Types of libgfapi's interface, as in its headers.

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

/// The data of a directory entry, opaque.
#[repr(C)]
pub(super) struct XStat {
    _opaque: [u8; 0],
}

/// Attributes are those of stat(2), with sizes of 64 bits.
pub(crate) type Stat = libc::stat;

const _: () = assert!(size_of::<libc::off_t>() == 8, "sizes of files have 64 bits");

/// The permanent id of an object, the same on all bricks (`GFAPI_HANDLE_LENGTH`).
pub(crate) type Gfid = [u8; 16];

/// The attributes that a change sets (`GFAPI_SET_ATTR_*`).
pub(crate) mod set {
    pub(crate) const MODE: i32 = 0x1;
    pub(crate) const UID: i32 = 0x2;
    pub(crate) const GID: i32 = 0x4;
    pub(crate) const ATIME: i32 = 0x10;
    pub(crate) const MTIME: i32 = 0x20;
}

/// Asks for an entry's attributes (`GFAPI_XREADDIRP_STAT`).
pub(super) const WITH_STAT: u32 = 1;

/// Asks for an entry's object (`GFAPI_XREADDIRP_HANDLE`).
pub(super) const WITH_OBJECT: u32 = 2;

/// Returns attributes without a set field.
pub(crate) fn no_stat() -> Stat {
    // SAFETY: it is made of numbers, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

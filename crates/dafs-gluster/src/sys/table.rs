//! The table of libgfapi's functions. One of them (`glfs_h_creat_open`) has existed since version
//! 6.6, so the others have their forms of that version.

use super::library::library;
use super::types::{Fs, RawFd, RawObject, Stat, XStat};
use libc::{c_char, c_int, c_long, c_void, dirent, gid_t, iovec, mode_t, off_t, statvfs, uid_t};

library! {
    Functions, c"libgfapi.so.0";
    fn glfs_new(*const c_char) -> *mut Fs;
    fn glfs_set_volfile_server(*mut Fs, *const c_char, *const c_char, c_int) -> c_int;
    fn glfs_set_logging(*mut Fs, *const c_char, c_int) -> c_int;
    fn glfs_set_xlator_option(*mut Fs, *const c_char, *const c_char, *const c_char) -> c_int;
    fn glfs_init(*mut Fs) -> c_int;
    fn glfs_get_volfile(*mut Fs, *mut c_void, usize) -> isize;
    fn glfs_get_volumeid(*mut Fs, *mut c_char, usize) -> c_int;
    fn glfs_setfsuid(uid_t) -> c_int;
    fn glfs_setfsgid(gid_t) -> c_int;
    fn glfs_setfsgroups(usize, *const gid_t) -> c_int;
    fn glfs_h_lookupat(*mut Fs, *mut RawObject, *const c_char, *mut Stat, c_int) -> *mut RawObject;
    fn glfs_h_create_from_handle(*mut Fs, *mut u8, c_int, *mut Stat) -> *mut RawObject;
    fn glfs_h_extract_handle(*mut RawObject, *mut u8, c_int) -> isize;
    fn glfs_h_close(*mut RawObject) -> c_int;
    fn glfs_h_stat(*mut Fs, *mut RawObject, *mut Stat) -> c_int;
    fn glfs_h_statfs(*mut Fs, *mut RawObject, *mut statvfs) -> c_int;
    fn glfs_h_setattrs(*mut Fs, *mut RawObject, *mut Stat, c_int) -> c_int;
    fn glfs_h_truncate(*mut Fs, *mut RawObject, off_t) -> c_int;
    fn glfs_h_access(*mut Fs, *mut RawObject, c_int) -> c_int;
    fn glfs_h_creat_open(
        *mut Fs,
        *mut RawObject,
        *const c_char,
        c_int,
        mode_t,
        *mut Stat,
        *mut *mut RawFd,
    ) -> *mut RawObject;
    fn glfs_h_mkdir(*mut Fs, *mut RawObject, *const c_char, mode_t, *mut Stat) -> *mut RawObject;
    fn glfs_h_mknod(
        *mut Fs,
        *mut RawObject,
        *const c_char,
        mode_t,
        libc::dev_t,
        *mut Stat,
    ) -> *mut RawObject;
    fn glfs_h_symlink(
        *mut Fs,
        *mut RawObject,
        *const c_char,
        *const c_char,
        *mut Stat,
    ) -> *mut RawObject;
    fn glfs_h_link(*mut Fs, *mut RawObject, *mut RawObject, *const c_char) -> c_int;
    fn glfs_h_unlink(*mut Fs, *mut RawObject, *const c_char) -> c_int;
    fn glfs_h_rename(
        *mut Fs,
        *mut RawObject,
        *const c_char,
        *mut RawObject,
        *const c_char,
    ) -> c_int;
    fn glfs_h_readlink(*mut Fs, *mut RawObject, *mut c_char, usize) -> c_int;
    fn glfs_h_getxattrs(*mut Fs, *mut RawObject, *const c_char, *mut c_void, usize) -> c_int;
    fn glfs_h_setxattrs(
        *mut Fs,
        *mut RawObject,
        *const c_char,
        *const c_void,
        usize,
        c_int,
    ) -> c_int;
    fn glfs_h_removexattrs(*mut Fs, *mut RawObject, *const c_char) -> c_int;
    fn glfs_h_open(*mut Fs, *mut RawObject, c_int) -> *mut RawFd;
    fn glfs_close(*mut RawFd) -> c_int;
    fn glfs_preadv(*mut RawFd, *const iovec, c_int, off_t, c_int) -> isize;
    fn glfs_pwritev(*mut RawFd, *const iovec, c_int, off_t, c_int) -> isize;
    fn glfs_fsync(*mut RawFd, *mut c_void, *mut c_void) -> c_int;
    fn glfs_ftruncate(*mut RawFd, off_t, *mut c_void, *mut c_void) -> c_int;
    fn glfs_fstat(*mut RawFd, *mut Stat) -> c_int;
    fn glfs_fallocate(*mut RawFd, c_int, off_t, usize) -> c_int;
    fn glfs_discard(*mut RawFd, off_t, usize) -> c_int;
    fn glfs_lseek(*mut RawFd, off_t, c_int) -> off_t;
    fn glfs_h_opendir(*mut Fs, *mut RawObject) -> *mut RawFd;
    fn glfs_closedir(*mut RawFd) -> c_int;
    fn glfs_seekdir(*mut RawFd, c_long);
    fn glfs_xreaddirplus_r(
        *mut RawFd,
        u32,
        *mut *mut XStat,
        *mut dirent,
        *mut *mut dirent,
    ) -> c_int;
    fn glfs_xreaddirplus_get_object(*mut XStat) -> *mut RawObject;
    fn glfs_xreaddirplus_get_stat(*mut XStat) -> *mut Stat;
    fn glfs_free(*mut c_void);
}

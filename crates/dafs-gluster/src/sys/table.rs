//! The table of libgfapi's functions. One of them (`glfs_h_creat_open`) has existed since version
//! 6.6, so the others have their forms of that version.

use super::types::{Fs, RawFd, RawObject, Stat, XStat};
use dafs_mem::{Library, library};
use libc::{c_char, c_int, c_long, c_void, dirent, gid_t, iovec, mode_t, off_t, statvfs, uid_t};

/// The library's pointers: to a volume, an object, an open file or directory, and a text that ends
/// with a zero.
type Volume = *mut Fs;
type Object = *mut RawObject;
type File = *mut RawFd;
type Text = *const c_char;

// SAFETY: the initialisers of libgfapi have no requirements; the types are those of its header.
library! {
    unsafe Functions, Library {
        file_system: "GlusterFS",
        name: "libgfapi",
        package: "libgfapi0",
        file: c"libgfapi.so.0",
        version: "10.3",
    };
    fn glfs_new(Text) -> Volume;
    fn glfs_set_volfile_server(Volume, Text, Text, c_int) -> c_int;
    fn glfs_set_logging(Volume, Text, c_int) -> c_int;
    fn glfs_set_xlator_option(Volume, Text, Text, Text) -> c_int;
    fn glfs_init(Volume) -> c_int;
    fn glfs_get_volfile(Volume, *mut c_void, usize) -> isize;
    fn glfs_get_volumeid(Volume, *mut c_char, usize) -> c_int;
    fn glfs_setfsuid(uid_t) -> c_int;
    fn glfs_setfsgid(gid_t) -> c_int;
    fn glfs_setfsgroups(usize, *const gid_t) -> c_int;
    fn glfs_h_lookupat(Volume, Object, Text, *mut Stat, c_int) -> Object;
    fn glfs_h_create_from_handle(Volume, *mut u8, c_int, *mut Stat) -> Object;
    fn glfs_h_extract_handle(Object, *mut u8, c_int) -> isize;
    fn glfs_h_close(Object) -> c_int;
    fn glfs_h_stat(Volume, Object, *mut Stat) -> c_int;
    fn glfs_h_statfs(Volume, Object, *mut statvfs) -> c_int;
    fn glfs_h_setattrs(Volume, Object, *mut Stat, c_int) -> c_int;
    fn glfs_h_truncate(Volume, Object, off_t) -> c_int;
    fn glfs_h_access(Volume, Object, c_int) -> c_int;
    fn glfs_h_creat_open(Volume, Object, Text, c_int, mode_t, *mut Stat, *mut File) -> Object;
    fn glfs_h_mkdir(Volume, Object, Text, mode_t, *mut Stat) -> Object;
    fn glfs_h_mknod(Volume, Object, Text, mode_t, libc::dev_t, *mut Stat) -> Object;
    fn glfs_h_symlink(Volume, Object, Text, Text, *mut Stat) -> Object;
    fn glfs_h_link(Volume, Object, Object, Text) -> c_int;
    fn glfs_h_unlink(Volume, Object, Text) -> c_int;
    fn glfs_h_rename(Volume, Object, Text, Object, Text) -> c_int;
    fn glfs_h_readlink(Volume, Object, *mut c_char, usize) -> c_int;
    fn glfs_h_getxattrs(Volume, Object, Text, *mut c_void, usize) -> c_int;
    fn glfs_h_setxattrs(Volume, Object, Text, *const c_void, usize, c_int) -> c_int;
    fn glfs_h_removexattrs(Volume, Object, Text) -> c_int;
    fn glfs_h_open(Volume, Object, c_int) -> File;
    fn glfs_close(File) -> c_int;
    fn glfs_preadv(File, *const iovec, c_int, off_t, c_int) -> isize;
    fn glfs_pwritev(File, *const iovec, c_int, off_t, c_int) -> isize;
    fn glfs_fsync(File, *mut c_void, *mut c_void) -> c_int;
    fn glfs_ftruncate(File, off_t, *mut c_void, *mut c_void) -> c_int;
    fn glfs_fstat(File, *mut Stat) -> c_int;
    fn glfs_fallocate(File, c_int, off_t, usize) -> c_int;
    fn glfs_discard(File, off_t, usize) -> c_int;
    fn glfs_lseek(File, off_t, c_int) -> off_t;
    fn glfs_h_opendir(Volume, Object) -> File;
    fn glfs_closedir(File) -> c_int;
    fn glfs_seekdir(File, c_long);
    fn glfs_xreaddirplus_r(File, u32, *mut *mut XStat, *mut dirent, *mut *mut dirent) -> c_int;
    fn glfs_xreaddirplus_get_object(*mut XStat) -> Object;
    fn glfs_xreaddirplus_get_stat(*mut XStat) -> *mut Stat;
    fn glfs_free(*mut c_void);
}

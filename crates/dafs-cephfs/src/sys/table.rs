//! The table of libcephfs's functions.

use super::library::library;
use super::types::{
    DirResult, Fh, InodeNumber, MountInfo, RawInode, StatX, UserPerm, VersionedInode,
};
use libc::{c_char, c_int, c_uint, c_void, dirent, gid_t, iovec, mode_t, statvfs, uid_t};

library! {
    Functions, "libcephfs", "libcephfs2", c"libcephfs.so.2";
    fn ceph_create(*mut *mut MountInfo, *const c_char) -> c_int;
    fn ceph_conf_read_file(*mut MountInfo, *const c_char) -> c_int;
    fn ceph_conf_set(*mut MountInfo, *const c_char, *const c_char) -> c_int;
    fn ceph_init(*mut MountInfo) -> c_int;
    fn ceph_select_filesystem(*mut MountInfo, *const c_char) -> c_int;
    fn ceph_set_uuid(*mut MountInfo, *const c_char);
    fn ceph_start_reclaim(*mut MountInfo, *const c_char, c_uint) -> c_int;
    fn ceph_finish_reclaim(*mut MountInfo);
    fn ceph_mount(*mut MountInfo, *const c_char) -> c_int;
    fn ceph_sync_fs(*mut MountInfo) -> c_int;
    fn ceph_unmount(*mut MountInfo) -> c_int;
    fn ceph_release(*mut MountInfo) -> c_int;
    fn ceph_userperm_new(uid_t, gid_t, c_int, *mut gid_t) -> *mut UserPerm;
    fn ceph_userperm_destroy(*mut UserPerm);
    fn ceph_readdirplus_r(
        *mut MountInfo,
        *mut DirResult,
        *mut dirent,
        *mut StatX,
        c_uint,
        c_uint,
        *mut *mut RawInode,
    ) -> c_int;
    fn ceph_seekdir(*mut MountInfo, *mut DirResult, i64);
    fn ceph_ll_lookup_root(*mut MountInfo, *mut *mut RawInode) -> c_int;
    fn ceph_ll_lookup_inode(*mut MountInfo, InodeNumber, *mut *mut RawInode) -> c_int;
    fn ceph_ll_lookup_vino(*mut MountInfo, VersionedInode, *mut *mut RawInode) -> c_int;
    fn ceph_ll_lookup(
        *mut MountInfo,
        *mut RawInode,
        *const c_char,
        *mut *mut RawInode,
        *mut StatX,
        c_uint,
        c_uint,
        *const UserPerm,
    ) -> c_int;
    fn ceph_ll_put(*mut MountInfo, *mut RawInode) -> c_int;
    fn ceph_ll_getattr(
        *mut MountInfo,
        *mut RawInode,
        *mut StatX,
        c_uint,
        c_uint,
        *const UserPerm,
    ) -> c_int;
    fn ceph_ll_setattr(*mut MountInfo, *mut RawInode, *mut StatX, c_int, *const UserPerm) -> c_int;
    fn ceph_ll_open(*mut MountInfo, *mut RawInode, c_int, *mut *mut Fh, *const UserPerm) -> c_int;
    fn ceph_ll_readv(*mut MountInfo, *mut Fh, *const iovec, c_int, i64) -> i64;
    fn ceph_ll_writev(*mut MountInfo, *mut Fh, *const iovec, c_int, i64) -> i64;
    fn ceph_ll_fsync(*mut MountInfo, *mut Fh, c_int) -> c_int;
    fn ceph_ll_sync_inode(*mut MountInfo, *mut RawInode, c_int) -> c_int;
    fn ceph_ll_close(*mut MountInfo, *mut Fh) -> c_int;
    fn ceph_ll_getxattr(
        *mut MountInfo,
        *mut RawInode,
        *const c_char,
        *mut c_void,
        usize,
        *const UserPerm,
    ) -> c_int;
    fn ceph_ll_setxattr(
        *mut MountInfo,
        *mut RawInode,
        *const c_char,
        *const c_void,
        usize,
        c_int,
        *const UserPerm,
    ) -> c_int;
    fn ceph_ll_listxattr(
        *mut MountInfo,
        *mut RawInode,
        *mut c_char,
        usize,
        *mut usize,
        *const UserPerm,
    ) -> c_int;
    fn ceph_ll_removexattr(*mut MountInfo, *mut RawInode, *const c_char, *const UserPerm) -> c_int;
    fn ceph_ll_create(
        *mut MountInfo,
        *mut RawInode,
        *const c_char,
        mode_t,
        c_int,
        *mut *mut RawInode,
        *mut *mut Fh,
        *mut StatX,
        c_uint,
        c_uint,
        *const UserPerm,
    ) -> c_int;
    fn ceph_ll_mknod(
        *mut MountInfo,
        *mut RawInode,
        *const c_char,
        mode_t,
        libc::dev_t,
        *mut *mut RawInode,
        *mut StatX,
        c_uint,
        c_uint,
        *const UserPerm,
    ) -> c_int;
    fn ceph_ll_mkdir(
        *mut MountInfo,
        *mut RawInode,
        *const c_char,
        mode_t,
        *mut *mut RawInode,
        *mut StatX,
        c_uint,
        c_uint,
        *const UserPerm,
    ) -> c_int;
    fn ceph_ll_symlink(
        *mut MountInfo,
        *mut RawInode,
        *const c_char,
        *const c_char,
        *mut *mut RawInode,
        *mut StatX,
        c_uint,
        c_uint,
        *const UserPerm,
    ) -> c_int;
    fn ceph_ll_link(
        *mut MountInfo,
        *mut RawInode,
        *mut RawInode,
        *const c_char,
        *const UserPerm,
    ) -> c_int;
    fn ceph_ll_unlink(*mut MountInfo, *mut RawInode, *const c_char, *const UserPerm) -> c_int;
    fn ceph_ll_rmdir(*mut MountInfo, *mut RawInode, *const c_char, *const UserPerm) -> c_int;
    fn ceph_ll_rename(
        *mut MountInfo,
        *mut RawInode,
        *const c_char,
        *mut RawInode,
        *const c_char,
        *const UserPerm,
    ) -> c_int;
    fn ceph_ll_readlink(
        *mut MountInfo,
        *mut RawInode,
        *mut c_char,
        usize,
        *const UserPerm,
    ) -> c_int;
    fn ceph_ll_opendir(
        *mut MountInfo,
        *mut RawInode,
        *mut *mut DirResult,
        *const UserPerm,
    ) -> c_int;
    fn ceph_ll_releasedir(*mut MountInfo, *mut DirResult) -> c_int;
    fn ceph_ll_statfs(*mut MountInfo, *mut RawInode, *mut statvfs) -> c_int;
}

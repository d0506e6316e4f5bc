//! The table of libcephfs's functions.

use super::ceph_library;
use super::types::{
    DirResult, Fh, InodeNumber, MountInfo, RawInode, StatX, UserPerm, VersionedInode,
};
use dafs_mem::library;
use libc::{c_char, c_int, c_uint, c_void, dirent, gid_t, iovec, mode_t, statvfs, uid_t};

/// The library's pointers: to a mount, an inode, an open file, an open directory, a caller, and a
/// text that ends with a zero.
type Mount = *mut MountInfo;
type Node = *mut RawInode;
type File = *mut Fh;
type Dir = *mut DirResult;
type Perm = *const UserPerm;
type Text = *const c_char;

// SAFETY: the initialisers of libcephfs have no requirements; the types are those of its header.
library! {
    unsafe Functions, ceph_library("libcephfs", "libcephfs2", c"libcephfs.so.2");
    fn ceph_create(*mut Mount, Text) -> c_int;
    fn ceph_conf_read_file(Mount, Text) -> c_int;
    fn ceph_conf_set(Mount, Text, Text) -> c_int;
    fn ceph_init(Mount) -> c_int;
    fn ceph_select_filesystem(Mount, Text) -> c_int;
    fn ceph_set_uuid(Mount, Text);
    fn ceph_start_reclaim(Mount, Text, c_uint) -> c_int;
    fn ceph_finish_reclaim(Mount);
    fn ceph_mount(Mount, Text) -> c_int;
    fn ceph_sync_fs(Mount) -> c_int;
    fn ceph_unmount(Mount) -> c_int;
    fn ceph_release(Mount) -> c_int;
    fn ceph_userperm_new(uid_t, gid_t, c_int, *mut gid_t) -> *mut UserPerm;
    fn ceph_userperm_destroy(*mut UserPerm);
    fn ceph_readdirplus_r(Mount, Dir, *mut dirent, *mut StatX, c_uint, c_uint, *mut Node) -> c_int;
    fn ceph_seekdir(Mount, Dir, i64);
    fn ceph_ll_lookup_root(Mount, *mut Node) -> c_int;
    fn ceph_ll_lookup_inode(Mount, InodeNumber, *mut Node) -> c_int;
    fn ceph_ll_lookup_vino(Mount, VersionedInode, *mut Node) -> c_int;
    fn ceph_ll_lookup(Mount, Node, Text, *mut Node, *mut StatX, c_uint, c_uint, Perm) -> c_int;
    fn ceph_ll_put(Mount, Node) -> c_int;
    fn ceph_ll_getattr(Mount, Node, *mut StatX, c_uint, c_uint, Perm) -> c_int;
    fn ceph_ll_setattr(Mount, Node, *mut StatX, c_int, Perm) -> c_int;
    fn ceph_ll_open(Mount, Node, c_int, *mut File, Perm) -> c_int;
    fn ceph_ll_readv(Mount, File, *const iovec, c_int, i64) -> i64;
    fn ceph_ll_writev(Mount, File, *const iovec, c_int, i64) -> i64;
    fn ceph_ll_fsync(Mount, File, c_int) -> c_int;
    fn ceph_ll_sync_inode(Mount, Node, c_int) -> c_int;
    fn ceph_ll_close(Mount, File) -> c_int;
    fn ceph_ll_getxattr(Mount, Node, Text, *mut c_void, usize, Perm) -> c_int;
    fn ceph_ll_setxattr(Mount, Node, Text, *const c_void, usize, c_int, Perm) -> c_int;
    fn ceph_ll_listxattr(Mount, Node, *mut c_char, usize, *mut usize, Perm) -> c_int;
    fn ceph_ll_removexattr(Mount, Node, Text, Perm) -> c_int;
    fn ceph_ll_create(
        Mount, Node, Text, mode_t, c_int, *mut Node, *mut File, *mut StatX, c_uint, c_uint, Perm,
    ) -> c_int;
    fn ceph_ll_mknod(
        Mount, Node, Text, mode_t, libc::dev_t, *mut Node, *mut StatX, c_uint, c_uint, Perm,
    ) -> c_int;
    fn ceph_ll_mkdir(
        Mount, Node, Text, mode_t, *mut Node, *mut StatX, c_uint, c_uint, Perm,
    ) -> c_int;
    fn ceph_ll_symlink(
        Mount, Node, Text, Text, *mut Node, *mut StatX, c_uint, c_uint, Perm,
    ) -> c_int;
    fn ceph_ll_link(Mount, Node, Node, Text, Perm) -> c_int;
    fn ceph_ll_unlink(Mount, Node, Text, Perm) -> c_int;
    fn ceph_ll_rmdir(Mount, Node, Text, Perm) -> c_int;
    fn ceph_ll_rename(Mount, Node, Text, Node, Text, Perm) -> c_int;
    fn ceph_ll_readlink(Mount, Node, *mut c_char, usize, Perm) -> c_int;
    fn ceph_ll_opendir(Mount, Node, *mut Dir, Perm) -> c_int;
    fn ceph_ll_releasedir(Mount, Dir) -> c_int;
    fn ceph_ll_statfs(Mount, Node, *mut statvfs) -> c_int;
}

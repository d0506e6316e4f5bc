//! The system calls of a server, by seccomp.
//!
//! The list has the calls that the server makes, and others of the same purpose, which other versions
//! of the C library and libraries of storage engines make. The kernel logs a denied call
//! (`type=1326`). Runs of the end-to-end tests in a sandbox show by that log that none is missing.
//!
//! Invariants
//! * A call outside of the list fails with EPERM, and the kernel logs it. Calls that are newer than
//!   the list fail with ENOSYS, as on an older kernel, because a C library then makes older ones.
//! * The server makes no process, executes no file, traces no process, mounts nothing.
//! * No mapping is writable and executable at once, and none becomes executable later. Libraries are
//!   mapped from their files. This is a hurdle alone: a process may write a file, or a memory file,
//!   and then map it as code.
//! * No socket leads past the rules of Landlock, which know TCP alone.
//! * Operations of io_uring pass no filter of system calls. So the process makes no ring. Those that it
//!   has may be enabled, with the restrictions that they have, and used.

use crate::limits::PROBED_CALLS;
use crate::policy::{Part, Policy};
use crate::report::Lack;
use crate::sys;
use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};
use std::collections::BTreeMap;

/// Calls that every machine has. Their numbers differ.
const ALLOWED: &[c_long] = &[
    // Descriptors and content.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_vmsplice,
    libc::SYS_copy_file_range,
    libc::SYS_pipe2,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_syncfs,
    libc::SYS_fadvise64,
    libc::SYS_readahead,
    // Names and attributes.
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_newfstatat,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getdents64,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_readlinkat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_chdir,
    libc::SYS_fchdir,
    libc::SYS_getcwd,
    libc::SYS_umask,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_flistxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_rm_watch,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_msync,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_mlockall,
    libc::SYS_munlock,
    libc::SYS_munlockall,
    libc::SYS_mincore,
    libc::SYS_memfd_create,
    libc::SYS_membarrier,
    libc::SYS_mbind,
    libc::SYS_get_mempolicy,
    libc::SYS_set_mempolicy,
    // The process and its threads.
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    libc::SYS_getgroups,
    libc::SYS_getpgid,
    libc::SYS_getsid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_prctl,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getattr,
    libc::SYS_sched_setattr,
    libc::SYS_sched_getparam,
    libc::SYS_sched_setparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min,
    libc::SYS_getpriority,
    libc::SYS_setpriority,
    libc::SYS_ioprio_get,
    libc::SYS_ioprio_set,
    libc::SYS_getcpu,
    libc::SYS_getrusage,
    libc::SYS_times,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrandom,
    // Signals.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_signalfd4,
    libc::SYS_restart_syscall,
    // Time.
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getitimer,
    libc::SYS_setitimer,
    libc::SYS_timer_create,
    libc::SYS_timer_delete,
    libc::SYS_timer_getoverrun,
    libc::SYS_timer_gettime,
    libc::SYS_timer_settime,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
    // Readiness.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_eventfd2,
    // Sockets.
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
];

/// Calls whose numbers are the same on all machines: `cachestat`, `fchmodat2`, `futex_wake`,
/// `futex_wait`, `futex_requeue`, `setxattrat`, `getxattrat`, `listxattrat`, `removexattrat`.
const ALLOWED_NEW: &[c_long] = &[451, 452, 454, 455, 456, 463, 464, 465, 466];

/// Older forms, which only this kind of machine has.
#[cfg(target_arch = "x86_64")]
const ALLOWED_OLD: &[c_long] = &[
    libc::SYS_open,
    libc::SYS_creat,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_getdents,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_mknod,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_readlink,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_signalfd,
    libc::SYS_inotify_init,
    libc::SYS_getpgrp,
    libc::SYS_getrlimit,
    libc::SYS_setrlimit,
    libc::SYS_alarm,
    libc::SYS_pause,
    libc::SYS_time,
    libc::SYS_arch_prctl,
    libc::SYS_sync_file_range,
];

#[cfg(target_arch = "aarch64")]
const ALLOWED_OLD: &[c_long] = &[
    // `renameat`, `sync_file_range`, `getrlimit`, `setrlimit`.
    38, 84, 163, 164,
];

#[cfg(target_arch = "riscv64")]
const ALLOWED_OLD: &[c_long] = &[
    libc::SYS_getrlimit,
    libc::SYS_setrlimit,
    libc::SYS_sync_file_range,
    // `riscv_hwprobe` and `riscv_flush_icache`.
    258,
    259,
];

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
const ALLOWED_OLD: &[c_long] = &[];

/// Namespaces that `clone(2)` may make.
const NAMESPACES: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// The types of sockets, without flags.
const SOCKET_TYPES: u64 = 0xf;

/// Protocols of netlink sockets: interfaces and routes, sockets, RDMA devices.
const NETLINK: [libc::c_int; 3] =
    [libc::NETLINK_ROUTE, libc::NETLINK_SOCK_DIAG, libc::NETLINK_RDMA];

/// Operations of `io_uring_register` that give a ring to a thread: IORING_REGISTER_EVENTFD and
/// IORING_REGISTER_ENABLE_RINGS. The second one puts the restrictions of the ring in force.
const GIVE_RING: [u64; 2] = [4, 12];

/// Commands of `quotactl_fd` that read the quota of a user or a project: Q_GETQUOTA.
const READ_QUOTA: [libc::c_int; 2] =
    [libc::QCMD(libc::Q_GETQUOTA, 0), libc::QCMD(libc::Q_GETQUOTA, 2)];

/// Requests that put input into a terminal: TIOCSTI and TIOCLINUX.
const TERMINAL_INPUT: [u64; 2] = [0x5412, 0x541C];

/// Denies all other calls to this process.
pub(crate) fn confine(policy: &Policy) -> Result<(), Lack> {
    let machine = TargetArch::try_from(std::env::consts::ARCH).map_err(|_| Lack::Architecture)?;
    let process = u64::from(std::process::id());
    let failed = |error: BackendError| Lack::Seccomp(error.to_string());
    let (unknown, known) = programs(policy, process, machine).map_err(failed)?;
    let refused = |error: std::io::Error| Lack::Seccomp(error.to_string());
    sys::install_filter(&unknown, false).map_err(refused)?;
    sys::install_filter(&known, true).map_err(refused)
}

/// Makes the filter that says ENOSYS, and the list. Of two filters the stricter one counts. So the
/// list contains the calls of the first filter, too.
fn programs(
    policy: &Policy,
    process: u64,
    machine: TargetArch,
) -> Result<(BpfProgram, BpfProgram), BackendError> {
    let mut allowed = allowed(policy, process)?;
    let mut unknown: BTreeMap<i64, Vec<SeccompRule>> = PROBED_CALLS
        .filter(|number| !allowed.contains_key(number))
        .map(|number| (number, Vec::new()))
        .collect();
    // Its flags are in memory, where no filter sees them. The C library then uses `clone`.
    unknown.insert(libc::SYS_clone3, Vec::new());
    allowed.extend(unknown.keys().map(|&number| (number, Vec::new())));
    let no_call = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let denied = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let unknown = SeccompFilter::new(unknown, SeccompAction::Allow, no_call, machine)?;
    let known = SeccompFilter::new(allowed, denied, SeccompAction::Allow, machine)?;
    Ok((unknown.try_into()?, known.try_into()?))
}

fn allowed(policy: &Policy, process: u64) -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    let always = ALLOWED.iter().chain(ALLOWED_NEW).chain(ALLOWED_OLD);
    let mut allowed: BTreeMap<i64, Vec<SeccompRule>> =
        always.map(|&number| (number, Vec::new())).collect();
    allowed.extend(memory()?);
    allowed.extend(own_process(process)?);
    allowed.insert(libc::SYS_socket, sockets(policy)?);
    let sends = [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)];
    for (number, flags) in sends {
        // With this flag a message makes a connection, which Landlock does not see.
        let fast_open = u64::from(libc::MSG_FASTOPEN.unsigned_abs());
        let rules = match &policy.network {
            Part::Confined(_) => vec![rule([masked(flags, fast_open, 0)?])?],
            Part::Open(_) => Vec::new(),
        };
        allowed.insert(number, rules);
    }
    let [first, second] = TERMINAL_INPUT;
    let no_input = rule([is_not(1, first)?, is_not(1, second)?])?;
    allowed.insert(libc::SYS_ioctl, vec![no_input]);
    let [user, project] = READ_QUOTA.map(|command| u64::from(command.cast_unsigned()));
    let reads_quota = vec![rule([is(1, user)?])?, rule([is(1, project)?])?];
    allowed.insert(libc::SYS_quotactl_fd, reads_quota);
    if policy.network_namespaces {
        let network = u64::from(libc::CLONE_NEWNET.unsigned_abs());
        allowed.insert(libc::SYS_setns, vec![rule([is(1, network)?])?]);
    }
    if policy.read_rings {
        let [event, enable] = GIVE_RING;
        let give = vec![rule([is(1, event)?])?, rule([is(1, enable)?])?];
        allowed.insert(libc::SYS_io_uring_register, give);
        allowed.insert(libc::SYS_io_uring_enter, Vec::new());
    }
    Ok(allowed)
}

/// Mappings that are not writable and executable at once, or later.
fn memory() -> Result<[(i64, Vec<SeccompRule>); 2], BackendError> {
    let (write, execute) =
        (u64::from(libc::PROT_WRITE.unsigned_abs()), u64::from(libc::PROT_EXEC.unsigned_abs()));
    let never_both = vec![rule([masked(2, write, 0)?])?, rule([masked(2, execute, 0)?])?];
    let never_later = vec![rule([masked(2, execute, 0)?])?];
    Ok([(libc::SYS_mmap, never_both), (libc::SYS_mprotect, never_later)])
}

/// Calls that reach no other process, and make none.
fn own_process(process: u64) -> Result<[(i64, Vec<SeccompRule>); 6], BackendError> {
    let thread = libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND;
    let mask = u64::from((thread | NAMESPACES).unsigned_abs());
    let thread = vec![rule([masked(0, mask, u64::from(thread.unsigned_abs()))?])?];
    let own = || Ok::<_, BackendError>(vec![rule([is(0, process)?])?]);
    let own_limits = vec![rule([is(0, 0)?])?, rule([is(0, process)?])?];
    // Threads that make files for callers have a umask of their own.
    let own_umask = vec![rule([is(0, u64::from(libc::CLONE_FS.unsigned_abs()))?])?];
    Ok([
        (libc::SYS_clone, thread),
        (libc::SYS_unshare, own_umask),
        (libc::SYS_kill, own()?),
        (libc::SYS_tgkill, own()?),
        (libc::SYS_rt_tgsigqueueinfo, own()?),
        (libc::SYS_prlimit64, own_limits),
    ])
}

/// The kinds of sockets that a server makes.
fn sockets(policy: &Policy) -> Result<Vec<SeccompRule>, BackendError> {
    let number = |value: libc::c_int| u64::from(value.unsigned_abs());
    let mut rules = vec![rule([is(0, number(libc::AF_UNIX))?])?];
    for protocol in NETLINK {
        rules.push(rule([is(0, number(libc::AF_NETLINK))?, is(2, number(protocol))?])?);
    }
    let datagrams = match &policy.network {
        Part::Confined(ports) => ports.datagrams,
        Part::Open(_) => true,
    };
    // Another protocol of streams, such as MPTCP, is none of Landlock's.
    let mut kinds = vec![(libc::SOCK_STREAM, [0, libc::IPPROTO_TCP])];
    if datagrams {
        kinds.push((libc::SOCK_DGRAM, [0, libc::IPPROTO_UDP]));
    }
    for (kind, protocols) in kinds {
        for family in [libc::AF_INET, libc::AF_INET6] {
            for protocol in protocols {
                let kind = masked(1, SOCKET_TYPES, number(kind))?;
                rules.push(rule([is(0, number(family))?, kind, is(2, number(protocol))?])?);
            }
        }
    }
    Ok(rules)
}

fn rule<const N: usize>(conditions: [SeccompCondition; N]) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(conditions.into())
}

fn is(argument: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

fn is_not(argument: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value)
}

fn masked(argument: u8, mask: u64, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask), value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Ports, Reason};

    fn policy(network: Part<Ports>) -> Policy {
        Policy {
            files: Part::Open(Reason::Reload),
            network,
            by_handle: false,
            is_root: false,
            network_namespaces: false,
            devices: false,
            read_rings: false,
        }
    }

    #[test]
    fn calls_that_a_server_never_needs_are_not_in_the_list() {
        let list = allowed(&policy(Part::Open(Reason::Reload)), 7).unwrap();
        for never in [
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_mount,
            libc::SYS_umount2,
            libc::SYS_pivot_root,
            libc::SYS_chroot,
            libc::SYS_setns,
            libc::SYS_bpf,
            libc::SYS_keyctl,
            libc::SYS_add_key,
            libc::SYS_request_key,
            libc::SYS_userfaultfd,
            libc::SYS_kexec_load,
            libc::SYS_perf_event_open,
            libc::SYS_init_module,
            libc::SYS_finit_module,
            libc::SYS_io_uring_setup,
            libc::SYS_io_uring_register,
            libc::SYS_io_uring_enter,
            libc::SYS_pidfd_getfd,
            libc::SYS_open_tree,
            libc::SYS_move_mount,
            libc::SYS_fsopen,
            libc::SYS_mount_setattr,
            libc::SYS_seccomp,
            libc::SYS_clone3,
            // By the path of a device it changes quotas.
            libc::SYS_quotactl,
            // By path it changes files that Landlock denies to open, up to its ABI 2.
            libc::SYS_truncate,
        ] {
            assert!(!list.contains_key(&never), "{never}");
            // An attack is denied and logged, and is not taken for a probe.
            assert!(!PROBED_CALLS.contains(&never), "{never}");
        }
        // In some network namespaces a server has data servers.
        let enters = Policy { network_namespaces: true, ..policy(Part::Open(Reason::Reload)) };
        assert!(allowed(&enters, 7).unwrap().contains_key(&libc::SYS_setns));
        // Rings are used, and none is made.
        let reads = Policy { read_rings: true, ..policy(Part::Open(Reason::Reload)) };
        let list = allowed(&reads, 7).unwrap();
        assert!(!list.contains_key(&libc::SYS_io_uring_setup));
        assert!(list.contains_key(&libc::SYS_io_uring_enter));
        assert_eq!(list[&libc::SYS_io_uring_register].len(), GIVE_RING.len());
        // Quotas are read, and none is changed.
        assert_eq!(list[&libc::SYS_quotactl_fd].len(), READ_QUOTA.len());
    }

    #[test]
    fn both_programs_fit_into_the_kernel() {
        for machine in [TargetArch::x86_64, TargetArch::aarch64, TargetArch::riscv64] {
            let confined = policy(Part::Confined(Ports { datagrams: true, ..Ports::default() }));
            let (unknown, known) = programs(&confined, 7, machine).unwrap();
            assert!(unknown.len() < 4096 && known.len() < 4096, "{}", known.len());
        }
    }
}

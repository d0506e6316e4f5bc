//! Attacks by code inside of a confined process: a child process confines itself, tries them, and
//! reports the outcome of each.

use crate::policy::{Access, FileRule, Level, Part, Policy, Ports, Reason};
use crate::report::{Kernel, Means, Report, State};
use crate::sys::testing::{call, in_child};
use crate::{confine, in_force};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::fs;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An ordinary user.
const USER: u32 = 1234;

/// An export with a neighbour, and a listener outside of the sandbox.
struct World {
    dir: tempfile::TempDir,
    outside: TcpListener,
    allowed: TcpListener,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["export", "export/below", "neighbour"] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(0o777)).unwrap();
        }
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(dir.path().join("neighbour/secret"), "secret").unwrap();
        let listener = || TcpListener::bind("127.0.0.1:0").unwrap();
        Self { dir, outside: listener(), allowed: listener() }
    }

    fn path(&self, name: &str) -> PathBuf {
        fs::canonicalize(self.dir.path()).unwrap().join(name)
    }

    fn policy(&self, by_handle: bool) -> Policy {
        let export =
            FileRule { path: self.path("export"), access: Access::Change, optional: false };
        let port = self.allowed.local_addr().unwrap().port();
        let ports =
            Ports { bind: [0].into(), connect: [port].into(), clients: false, datagrams: false };
        Policy {
            files: Part::Confined(vec![export]),
            network: Part::Confined(ports),
            by_handle,
            is_root: rustix::process::geteuid().is_root(),
            network_namespaces: false,
            devices: false,
            read_rings: false,
        }
    }

    /// The work of a server, which has to go on.
    fn everyday(&self) -> Vec<(&'static str, io::Result<()>)> {
        let export = self.path("export");
        let work = || {
            fs::write(export.join("new"), "content")?;
            fs::rename(export.join("new"), export.join("below/moved"))?;
            fs::hard_link(export.join("below/moved"), export.join("link"))?;
            fs::File::options().write(true).open(export.join("link"))?.set_len(3)?;
            std::os::unix::fs::symlink("link", export.join("symlink"))?;
            fs::remove_file(export.join("symlink"))?;
            fs::read_dir(&export)?.for_each(drop);
            UnixListener::bind(export.join("socket")).map(drop)
        };
        let connect =
            |listener: &TcpListener| TcpStream::connect(listener.local_addr().unwrap()).map(drop);
        let library = || fs::read_dir("/usr/lib")?.next().transpose().map(drop);
        let thread =
            || std::thread::Builder::new().spawn(|| ()).map(|thread| thread.join().unwrap());
        vec![
            ("files of the export", work()),
            ("the working directory", std::env::current_dir().map(drop)),
            ("libraries", library()),
            ("users", fs::read("/etc/passwd").map(drop)),
            ("its own descriptors", fs::read_dir("/proc/self/fd").map(drop)),
            ("devices without content", fs::write("/dev/null", "x")),
            ("threads", thread()),
            ("a umask of a thread", call(libc::SYS_unshare, [0x200, 0, 0, 0]).map(drop)),
            ("a port of its own", TcpListener::bind("127.0.0.1:0").map(drop)),
            ("a port of the policy", connect(&self.allowed)),
        ]
    }

    /// Attack 25: each must fail.
    fn attacks(&self) -> Vec<(&'static str, io::Result<()>)> {
        let neighbour = self.path("neighbour/secret");
        let in_place = |path: &Path| fs::File::options().write(true).open(path).map(drop);
        let around = self.path("export").join("../neighbour/secret");
        let plain = |number, arguments| call(number, arguments).map(drop);
        let flags = (libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD) as usize;
        vec![
            ("/etc/shadow", fs::read("/etc/shadow").map(drop)),
            ("a neighbour", fs::read(&neighbour).map(drop)),
            ("a neighbour by ..", fs::read(around).map(drop)),
            ("a change of a neighbour", in_place(&neighbour)),
            ("a file beside an export", fs::write(self.path("beside"), "x")),
            ("a file in a system directory", fs::write("/usr/lib/dafs-test", "x")),
            ("the files of another process", fs::read("/proc/1/environ").map(drop)),
            ("a connection outwards", {
                TcpStream::connect(self.outside.local_addr().unwrap()).map(drop)
            }),
            ("a port of another server", TcpListener::bind("127.0.0.1:21749").map(drop)),
            ("a datagram", UdpSocket::bind("127.0.0.1:0").map(drop)),
            ("a raw socket", plain(libc::SYS_socket, [2, 3, 1, 0])),
            ("a socket of another family", plain(libc::SYS_socket, [38, 5, 0, 0])),
            ("multipath TCP", plain(libc::SYS_socket, [2, 1, 262, 0])),
            ("execve", Err(Command::new("/bin/true").exec())),
            ("a process", plain(libc::SYS_clone, [flags, 0, 0, 0])),
            ("ptrace", plain(libc::SYS_ptrace, [0; 4])),
            ("the memory of another process", plain(libc::SYS_process_vm_readv, [1, 0, 0, 0])),
            ("a signal to another process", plain(libc::SYS_kill, [1, 0, 0, 0])),
            ("a mount", plain(libc::SYS_mount, [0; 4])),
            ("a namespace", plain(libc::SYS_unshare, [libc::CLONE_NEWUSER as usize, 0, 0, 0])),
            ("another root", plain(libc::SYS_chroot, [0; 4])),
            ("bpf", plain(libc::SYS_bpf, [0; 4])),
            ("keys of the kernel", plain(libc::SYS_keyctl, [0; 4])),
            ("userfaultfd", plain(libc::SYS_userfaultfd, [1, 0, 0, 0])),
            ("io_uring", plain(libc::SYS_io_uring_setup, [1, 0, 0, 0])),
            ("kexec", plain(libc::SYS_kexec_load, [0; 4])),
            ("memory that is code", plain(libc::SYS_mmap, [0, 4096, 7, 0x22])),
            ("a core dump", {
                let limit = rustix::process::getrlimit(rustix::process::Resource::Core);
                match (limit.current, limit.maximum) {
                    (Some(0), Some(0)) => Err(io::ErrorKind::PermissionDenied.into()),
                    _ => Ok(()),
                }
            }),
        ]
    }
}

fn become_user() {
    set_thread_groups(&[]).unwrap();
    let (user, group) = (Uid::from_raw(USER), Gid::from_raw(USER));
    set_thread_res_gid(group, group, group).unwrap();
    set_thread_res_uid(user, user, user).unwrap();
}

/// One line for each outcome: `+` for success.
fn lines(outcomes: Vec<(&'static str, io::Result<()>)>) -> String {
    let line = |(name, outcome): (&str, io::Result<()>)| match outcome {
        Ok(()) => format!("+ {name}\n"),
        Err(error) => format!("- {name}: {error}\n"),
    };
    outcomes.into_iter().map(line).collect()
}

/// Runs everyday work and attacks in a confined child, as an ordinary user or as this one.
fn run(world: &World, by_handle: bool, as_user: bool) -> String {
    let outcomes = in_child(|| {
        if as_user {
            become_user();
        }
        let mut policy = world.policy(by_handle);
        policy.is_root &= !as_user;
        let report = match confine(&policy, Level::Required) {
            Ok(report) => report,
            Err(refused) => return format!("+ no sandbox: {refused}"),
        };
        assert_eq!(in_force(), Some(report));
        let everyday = lines(world.everyday());
        format!("{everyday}=\n{}", lines(world.attacks()))
    });
    let (everyday, attacks) = outcomes.split_once("=\n").unwrap_or_else(|| panic!("{outcomes}"));
    assert!(!everyday.contains("- "), "everyday work fails:\n{everyday}");
    assert!(!attacks.contains("+ "), "attacks succeed:\n{attacks}");
    attacks.to_owned()
}

/// True if this host can confine files by Landlock, and TCP.
fn has_landlock() -> bool {
    Kernel::of_this_host().landlock_abi >= crate::limits::NETWORK_ABI_MIN
}

#[test]
fn code_inside_of_a_server_without_privileges_reaches_nothing_else() {
    if !has_landlock() {
        println!("SKIPPED: this kernel has no Landlock for TCP");
        return;
    }
    let world = World::new();
    let attacks = run(&world, false, rustix::process::geteuid().is_root());
    // Each part has denied its own.
    assert!(attacks.contains("- a neighbour: Permission denied"), "{attacks}");
    assert!(attacks.contains("- a connection outwards: Permission denied"), "{attacks}");
    assert!(attacks.contains("- execve: Operation not permitted"), "{attacks}");
}

#[test]
fn code_inside_of_a_server_of_root_that_opens_by_path_reaches_nothing_else() {
    if !has_landlock() || !rustix::process::geteuid().is_root() {
        println!("SKIPPED: it needs root, and Landlock for TCP");
        return;
    }
    let attacks = run(&World::new(), false, false);
    assert!(attacks.contains("- /etc/shadow: Permission denied"), "{attacks}");
}

#[test]
fn code_inside_of_a_server_that_opens_by_handle_reaches_nothing_else() {
    let capabilities = rustix::thread::capabilities(None).unwrap();
    let namespaces = capabilities.effective.contains(rustix::thread::CapabilitySet::SYS_ADMIN);
    if !has_landlock() || !rustix::process::geteuid().is_root() || !namespaces {
        println!("SKIPPED: it needs root with CAP_SYS_ADMIN, and Landlock for TCP");
        return;
    }
    let world = World::new();
    let attacks = run(&world, true, false);
    assert!(attacks.contains("- /etc/shadow: No such file"), "{attacks}");
    assert!(attacks.contains("- a neighbour: No such file"), "{attacks}");
    assert!(attacks.contains("- the files of another process: No such file"), "{attacks}");
    // The host's mounts are as before.
    assert!(world.path("neighbour/secret").exists() && Path::new("/etc/hosts").exists());
}

#[test]
fn a_second_thread_prevents_the_sandbox() {
    let outcome = in_child(|| {
        let (_end, ended) = std::sync::mpsc::channel::<()>();
        let _other = std::thread::spawn(move || ended.recv());
        let policy = Policy {
            files: Part::Open(Reason::Reload),
            network: Part::Open(Reason::Reload),
            by_handle: false,
            is_root: false,
            network_namespaces: false,
            devices: false,
            read_rings: false,
        };
        let refused = confine(&policy, Level::Required).unwrap_err().to_string();
        let report = confine(&policy, Level::IfPossible).unwrap();
        // Nothing was given up in part.
        let still = Command::new("/bin/true").status().is_ok();
        format!("{refused}\n{still}\n{}", report.calls)
    });
    assert!(outcome.contains("2 threads run already") && outcome.contains("\ntrue\n"), "{outcome}");
    assert!(outcome.contains("\"if possible\""), "{outcome}");
}

#[test]
fn a_part_that_is_open_on_purpose_is_refused_when_it_is_required() {
    let report = Report {
        kernel: Kernel { landlock_abi: 7, seccomp: true },
        files: State::Open(Reason::Engine("CephFS")),
        network: State::InForce(Means::Landlock),
        calls: State::InForce(Means::Seccomp),
        privileges: State::InForce(Means::Given),
    };
    let refused = report.check().unwrap_err().to_string();
    assert!(refused.contains("files") && refused.contains("CephFS"), "{refused}");
}

#[test]
fn a_kernel_without_landlock_is_refused_with_the_remedy() {
    let world = World::new();
    let kernel = Kernel { landlock_abi: 0, seccomp: true };
    let files = State::InForce(Means::Landlock);
    let (files, network) = crate::landlocked::confine(&world.policy(false), &kernel, files);
    let given = || State::InForce(Means::Given);
    let report = Report { kernel, files, network, calls: given(), privileges: given() };
    let refused = report.check().unwrap_err().to_string();
    for part in ["files", "no Landlock", "lsm=", "sandbox = \"if possible\""] {
        assert!(refused.contains(part), "{refused}");
    }
}

#[test]
fn denied_calls_are_told_from_unknown_ones() {
    let outcome = in_child(|| {
        let policy = Policy {
            files: Part::Open(Reason::Reload),
            network: Part::Open(Reason::Reload),
            by_handle: false,
            is_root: false,
            network_namespaces: false,
            devices: false,
            read_rings: false,
        };
        confine(&policy, Level::IfPossible).unwrap();
        let code = |number| call(number, [0; 4]).unwrap_err().raw_os_error();
        let codes = [code(libc::SYS_clone3), code(600), code(libc::SYS_ptrace)];
        let datagram = UdpSocket::bind("127.0.0.1:0").map(drop);
        let mut text = Vec::new();
        write!(text, "{codes:?} {datagram:?}").unwrap();
        String::from_utf8(text).unwrap()
    });
    let codes = [libc::ENOSYS, libc::ENOSYS, libc::EPERM].map(Some);
    assert_eq!(outcome, format!("{codes:?} Ok(())"));
}

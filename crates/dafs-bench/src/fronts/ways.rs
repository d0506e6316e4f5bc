//! The ways to a server's files for unmodified programs, and the local way to the same files.
//!
//! Invariants
//! * A mount has a holder, a child process. The holder unmounts it when its parent is gone, also if
//!   that is killed.

use crate::child::{Process, announce, leave_interrupts_to_parent, wait_for_parent};
use crate::folder::Folder;
use crate::{cpu, peer};
use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time for a mount to appear, and for its process to end.
const MOUNT_SECONDS: u64 = 10;

/// Time limit of one program. Berkeley DB with a table that exceeds its cache takes minutes on a link.
const RUN_SECONDS_MAX: u64 = 900;

/// The prefix under which `dafs run` shows the server's files.
const PREFIX: &str = "/dafs-bench";

/// The root of the repository, where scripts are.
pub(crate) const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The way by which a program accesses the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// As local files of this machine.
    Local,
    /// `dafs mount`.
    Mount,
    /// `dafs run`.
    Run,
    /// The Python package, which needs no preparation.
    Fsspec,
    /// libfuse's example of a file system that only passes on.
    Passthrough,
}

impl Way {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Mount => "mount",
            Self::Run => "run",
            Self::Fsspec => "fsspec",
            Self::Passthrough => "passthrough",
        }
    }
}

/// The command `dafs`, which cargo puts beside this program.
pub(crate) fn dafs() -> Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("dafs"))
}

/// The missing requirement, in words, if any.
pub(crate) fn missing() -> Option<String> {
    let here = |name: &str| std::env::current_exe().map(|own| own.with_file_name(name));
    let built = |name: &str| here(name).is_ok_and(|file| file.exists());
    if !built("dafs") || !built("libdafs_preload.so") {
        let build = "cargo build --release -p dafs -p dafs-preload";
        return Some(format!("there is no dafs command beside this one; run: {build}"));
    }
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        return Some("mounting needs root and /dev/fuse".to_owned());
    }
    None
}

/// Runs `inside` in a mount namespace of its own. The mounts end with its thread and the processes
/// started from it.
pub(crate) fn in_own_mounts(inside: impl FnOnce() -> Result<()> + Send) -> Result<()> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: a new mount namespace changes nothing about this process's memory or descriptors.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS)? };
            peer::run("mount", ["--make-rprivate", "/"])?;
            inside()
        });
        thread.join().unwrap_or_else(|_| bail!("the benchmark of mounts failed"))
    })
}

/// A server, the folder that it exports, and a place to mount it.
pub(crate) struct Site {
    pub(crate) export: PathBuf,
    pub(crate) folder: Folder,
    pub(crate) server: Process,
}

impl Site {
    /// A server on any CPU, with its files below `place`.
    pub(crate) fn start(place: &Path) -> Result<Self> {
        Self::start_by(place, |export| Process::serve_sharing(export, "off", 0, None))
    }

    /// The same with a server that `serve` starts for a folder.
    pub(crate) fn start_by(
        place: &Path,
        serve: impl FnOnce(&Path) -> Result<Process>,
    ) -> Result<Self> {
        let folder = Folder::make(place)?;
        // Applications run as other users, which need access.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open)?;
        let export = folder.path().join("export");
        std::fs::create_dir(&export)?;
        let server = serve(&export)?;
        Ok(Self { export, folder, server })
    }

    pub(crate) fn url(&self) -> Result<String> {
        Ok(self.server.url()?.to_string())
    }

    /// Prepares a way.
    pub(crate) fn front(&self, way: Way) -> Result<Front> {
        self.front_with(way, "")
    }

    /// Prepares a way, with options behind the URL.
    pub(crate) fn front_with(&self, way: Way, options: &str) -> Result<Front> {
        let url = format!("{}{options}", self.url()?);
        match way {
            Way::Local | Way::Fsspec => Ok(Front::plain(self.export.clone())),
            Way::Run => Front::run(&url, &[]),
            Way::Mount => Front::mount(&url, self.point("mount")?, &[]),
            Way::Passthrough => {
                let program = self.passthrough()?;
                let source = format!("source={}", self.export.display());
                let options = format!("{source},clone_fd,max_threads=10");
                let command = [text(&program)?, "-f", "-o", &options];
                Front::mounted(self.point("passthrough")?, &command, &[])
            }
        }
    }

    /// Processor time of the programs of a way and of the server.
    pub(crate) fn times(&self, front: &Front) -> Result<(Duration, Duration)> {
        Ok((front.client_time()?, cpu::process_time(Some(self.server.id()))?))
    }

    fn point(&self, name: &str) -> Result<PathBuf> {
        let point = self.folder.path().join(name);
        std::fs::create_dir_all(&point)?;
        Ok(point)
    }

    /// Builds libfuse's example from Debian's source package.
    fn passthrough(&self) -> Result<PathBuf> {
        let program = self.folder.path().join("passthrough_ll");
        if !program.exists() {
            let source =
                output(Command::new(format!("{ROOT}/scripts/source.sh")).arg("libfuse3-dev"))?;
            let flags = output(Command::new("pkg-config").args(["--cflags", "--libs", "fuse3"]))?;
            let mut compiler = Command::new("cc");
            compiler.args(["-O2", "-w", "-o"]).arg(&program);
            compiler.arg(format!("{source}/example/passthrough_ll.c"));
            let status = compiler.args(flags.split_whitespace()).status()?;
            ensure!(status.success(), "libfuse's example does not compile: {status}");
        }
        Ok(program)
    }
}

/// The output of a program that must succeed.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{command:?} failed: {}", output.status);
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}

/// A way that is ready.
pub(crate) struct Front {
    /// The path of the exported folder for programs that use this way.
    pub(crate) root: PathBuf,
    wrapper: Vec<String>,
    helper: Option<Mounted>,
}

impl Front {
    /// Programs on files that need no preparation.
    pub(crate) fn plain(root: PathBuf) -> Self {
        Self { root, wrapper: Vec::new(), helper: None }
    }

    /// Programs under `dafs run`. `before` stands before each of their command lines.
    pub(crate) fn run(url: &str, before: &[String]) -> Result<Self> {
        let mut wrapper = before.to_vec();
        wrapper.push(text(&dafs()?)?.to_owned());
        wrapper.extend(["run".to_owned(), format!("--at={PREFIX}={url}")]);
        Ok(Self { root: PREFIX.into(), wrapper, helper: None })
    }

    /// Programs on a mount at an empty folder. `before` stands before each of their command lines.
    pub(crate) fn mount(url: &str, point: PathBuf, before: &[String]) -> Result<Self> {
        let dafs = dafs()?;
        Self::mounted(point, &[text(&dafs)?, "mount", "--foreground", url], before)
    }

    fn mounted(point: PathBuf, command: &[&str], before: &[String]) -> Result<Self> {
        let helper = Some(Mounted::start(&point, command)?);
        Ok(Self { root: point, wrapper: before.to_vec(), helper })
    }

    /// A command for a program that uses this way. It is killed if it does not end in time.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", &RUN_SECONDS_MAX.to_string()]);
        command.args(&self.wrapper).arg(program).stdin(Stdio::null());
        command
    }

    /// Processor time of programs that have ended, and of the mount's process, if there is one.
    pub(crate) fn client_time(&self) -> Result<Duration> {
        let helper = self.helper.as_ref().map(Mounted::time).transpose()?;
        Ok(cpu::children_time() + helper.unwrap_or_default())
    }

    /// Processor time of the mount's process.
    pub(crate) fn helper_time(&self) -> Result<Duration> {
        Ok(self.helper.as_ref().map(Mounted::time).transpose()?.unwrap_or_default())
    }
}

/// A file system in user space, unmounted when dropped.
struct Mounted {
    /// The process id of its server.
    pid: u32,
    _holder: Process,
}

impl Mounted {
    /// Mounts by a command line, to which the mount point is added.
    fn start(point: &Path, command: &[&str]) -> Result<Self> {
        let mut arguments = vec!["hold-mount", text(point)?];
        arguments.extend(command);
        let holder = Process::start(&arguments)?;
        let pid = holder.address.parse().ok();
        let pid = pid.with_context(|| format!("nothing was mounted: {command:?}"))?;
        Ok(Self { pid, _holder: holder })
    }

    fn time(&self) -> Result<Duration> {
        cpu::process_time(Some(self.pid))
    }
}

/// Holds a mount in a child until its parent is gone. `command` serves it in the foreground.
pub(crate) fn hold_mount(point: &Path, command: &[String]) -> Result<()> {
    leave_interrupts_to_parent()?;
    let (program, arguments) = command.split_first().context("no program to mount with")?;
    let before = std::fs::metadata(point)?.dev();
    let mut command = Command::new(program);
    command.args(arguments).arg(point).stdin(Stdio::null()).stdout(Stdio::null());
    let mut mounting = Mounting { point, child: command.spawn()? };
    let end = Instant::now() + Duration::from_secs(MOUNT_SECONDS);
    while std::fs::metadata(point).map_or(before, |found| found.dev()) == before {
        let is_over = mounting.child.try_wait()?.is_some() || Instant::now() > end;
        ensure!(!is_over, "nothing was mounted: {command:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    announce(&mounting.child.id().to_string())?;
    wait_for_parent();
    drop(mounting);
    Ok(())
}

/// The server of a mount, which ends when this is dropped.
struct Mounting<'a> {
    point: &'a Path,
    child: Child,
}

impl Drop for Mounting<'_> {
    fn drop(&mut self) {
        let _ = peer::run("umount", [OsStr::new("-l"), self.point.as_ref()]);
        let mut end = Instant::now() + Duration::from_secs(MOUNT_SECONDS);
        let mut is_killed = false;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > end {
                // A process that survives SIGKILL is blocked in the kernel.
                if is_killed {
                    eprintln!("what served {} does not end", self.point.display());
                    return;
                }
                let _ = self.child.kill();
                is_killed = true;
                end = Instant::now() + Duration::from_secs(MOUNT_SECONDS);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A path as a word of a command line.
fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path is not UTF-8")
}

/// The option behind a URL by which a client reads from memory that the server shows.
pub(crate) const OPTIMISTIC: &str = "?optimistic=yes";

/// A directory in memory, for files that must not lie on a disk.
pub(crate) const MEMORY: &str = "/dev/shm";

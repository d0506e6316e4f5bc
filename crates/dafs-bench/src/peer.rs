//! Third-party programs: the load generator on libnfs, and NFS-Ganesha as the peer.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time for a server to start.
const START_SECONDS: u64 = 20;

const LOAD_SOURCE: &str = include_str!("../peer/nfs3_load.c");

/// The reason why rows against chimera are not measured.
pub(crate) const NO_CHIMERA: &str = "there is no chimera: Debian has no package of it";

pub(crate) const SEAL_SOURCE: &str = include_str!("../peer/gss_seal.c");

/// The need of a program that is built here: a header, and the package that has it.
type Header = (&'static str, &'static str);

const LIBNFS: Header = ("nfsc/libnfs-raw.h", "libnfs-dev");
pub(crate) const GSSAPI: Header = ("gssapi/gssapi.h", "libkrb5-dev");

/// The missing requirement of the comparison, in words, if any. `more` is needed besides.
pub(crate) fn missing(more: Option<Header>) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("NFS-Ganesha opens files by handle, for which it must be root".to_owned());
    }
    let programs = ["ganesha.nfsd", "rpcbind", "cc", "ip"];
    let absent = programs.into_iter().find(|program| find(program).is_none());
    let is_missing = |header: &str| !Path::new("/usr/include").join(header).exists();
    let mut headers = [LIBNFS].into_iter().chain(more);
    let package = headers.find(|(header, _)| is_missing(header));
    let missing = absent.or(package.map(|(_, package)| package))?;
    Some(format!("there is no {missing}; run: scripts/setup.sh bench"))
}

pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(program)).find(|file| file.exists())
}

/// Builds the load generator for NFSv3 in `folder`.
pub(crate) fn build_load(folder: &Path) -> Result<PathBuf> {
    build(folder, "nfs3_load", LOAD_SOURCE, "-lnfs")
}

/// Builds a program in C, which needs one library, in `folder`.
pub(crate) fn build(folder: &Path, name: &str, text: &str, library: &str) -> Result<PathBuf> {
    let (source, program) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&source, text)?;
    run(
        "cc",
        [OsStr::new("-O2"), "-o".as_ref(), program.as_ref(), source.as_ref(), library.as_ref()],
    )?;
    Ok(program)
}

/// Runs a program to its end.
pub(crate) fn run<A: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = A>,
) -> Result<()> {
    let program = find(program).with_context(|| format!("there is no {program}"))?;
    let status = Command::new(&program).args(arguments).status()?;
    if !status.success() {
        bail!("{} failed: {status}", program.display());
    }
    Ok(())
}

/// Runs `inside` in a network namespace of its own, which its thread and the processes started from
/// it share.
pub(crate) fn in_own_network(inside: impl FnOnce() -> Result<()> + Send) -> Result<()> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: a new network namespace changes nothing about this process's memory or files.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET)? };
            run("ip", ["link", "set", "lo", "up"])?;
            inside()
        });
        thread.join().unwrap_or_else(|_| bail!("the benchmark against NFS-Ganesha failed"))
    })
}

/// The further settings of a server of NFS-Ganesha.
pub(crate) struct Options<'a> {
    /// The flavours of its export.
    pub(crate) flavours: &'a str,
    /// Blocks of its configuration.
    pub(crate) more: &'a str,
    /// Variables of its environment.
    pub(crate) variables: &'a [(&'a str, String)],
}

/// NFS-Ganesha with its own rpcbind, killed on drop. The calling thread must be in a network
/// namespace of its own.
pub(crate) struct Ganesha {
    rpcbind: Child,
    server: Child,
}

impl Ganesha {
    pub(crate) const PORT: u16 = 12_049;
    pub(crate) const MOUNT_PORT: u16 = 12_048;

    /// Starts one that takes claims alone.
    pub(crate) fn start(export: &Path, folder: &Path, cpu: usize) -> Result<Self> {
        let options = Options { flavours: "sys", more: "", variables: &[] };
        Self::start_with(export, folder, cpu, &options)
    }

    pub(crate) fn start_with(
        export: &Path,
        folder: &Path,
        cpu: usize,
        options: &Options<'_>,
    ) -> Result<Self> {
        std::fs::create_dir_all("/run/ganesha")?;
        let config = folder.join("ganesha.conf");
        let (port, mount_port) = (Self::PORT, Self::MOUNT_PORT);
        let text = format!(
            "NFS_CORE_PARAM {{ Protocols = 3,4; NFS_Port = {port}; MNT_Port = {mount_port};\n\
             Enable_NLM = false; Enable_RQUOTA = false; }}\n\
             NFSv4 {{ Graceless = true; }}\n\
             EXPORT {{ Export_Id = 1; Path = {path}; Pseudo = /export; Access_Type = RW;\n\
             Squash = No_Root_Squash; SecType = {flavours}; Protocols = 3,4; Transports = TCP;\n\
             FSAL {{ Name = VFS; }} }}\n\
             LOG {{ Default_Log_Level = WARN; }}\n{more}",
            path = export.display(),
            flavours = options.flavours,
            more = options.more,
        );
        std::fs::write(&config, text)?;
        let rpcbind = find("rpcbind").context("there is no rpcbind")?;
        let mut rpcbind = Command::new(rpcbind).args(["-w", "-f"]).stderr(Stdio::null()).spawn()?;
        std::thread::sleep(Duration::from_millis(300));
        let ganesha = find("ganesha.nfsd").context("there is no ganesha.nfsd")?;
        crate::cpu::pin(cpu)?;
        let variables = options.variables.iter().map(|(name, value)| (name, value));
        let server = Command::new(ganesha)
            .envs(variables)
            .arg("-F")
            .args([OsStr::new("-f"), config.as_ref()])
            .args([OsStr::new("-L"), folder.join("ganesha.log").as_ref()])
            .args([OsStr::new("-p"), folder.join("ganesha.pid").as_ref()])
            .spawn();
        let server = match server {
            Ok(server) => server,
            Err(error) => {
                let _ = rpcbind.kill();
                return Err(error.into());
            }
        };
        let started = Self { rpcbind, server };
        await_port(port)?;
        await_port(mount_port)?;
        // It listens some time before it serves.
        std::thread::sleep(Duration::from_secs(2));
        Ok(started)
    }

    pub(crate) fn id(&self) -> u32 {
        self.server.id()
    }
}

impl Drop for Ganesha {
    fn drop(&mut self) {
        for child in [&mut self.server, &mut self.rpcbind] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs NFS-Ganesha until the parent is gone, also if that is killed; a child of the benchmark, in the
/// network of the server. It announces the server's process id.
pub(crate) fn serve(export: &Path, folder: &Path, cpu: usize) -> Result<()> {
    // SAFETY: a new mount namespace changes nothing about this process's memory or open files.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS)? };
    // Below /run are locks and sockets that one rpcbind and one server of a host can have.
    run("mount", ["--make-rprivate", "/"])?;
    run("mount", ["-t", "tmpfs", "none", "/run"])?;
    crate::child::leave_interrupts_to_parent()?;
    let server = Ganesha::start(export, folder, cpu)?;
    crate::child::announce(&server.id().to_string())?;
    crate::child::wait_for_parent();
    drop(server);
    Ok(())
}

fn await_port(port: u16) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(START_SECONDS);
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        if Instant::now() > end {
            bail!("nothing answers at port {port}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

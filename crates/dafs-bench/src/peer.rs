//! Third-party programs: the load generator on libnfs, and NFS-Ganesha as the peer.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time for a server to start.
const START_SECONDS: u64 = 20;

const LOAD_SOURCE: &str = include_str!("../peer/nfs3_load.c");

/// The missing requirement of the comparison, in words, if any.
pub(crate) fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("NFS-Ganesha opens files by handle, for which it must be root".to_owned());
    }
    let programs = ["ganesha.nfsd", "rpcbind", "cc", "ip"];
    let absent = programs.into_iter().find(|program| find(program).is_none());
    let header = Path::new("/usr/include/nfsc/libnfs-raw.h");
    match absent {
        Some(program) => Some(format!("there is no {program}; run: scripts/setup.sh bench")),
        None if !header.exists() => {
            Some("there is no libnfs-dev; run: scripts/setup.sh bench".to_owned())
        }
        None => None,
    }
}

pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(program)).find(|file| file.exists())
}

/// Builds the load generator in `folder`.
pub(crate) fn build_load(folder: &Path) -> Result<PathBuf> {
    let (source, program) = (folder.join("nfs3_load.c"), folder.join("nfs3_load"));
    std::fs::write(&source, LOAD_SOURCE)?;
    run(
        "cc",
        [OsStr::new("-O2"), "-o".as_ref(), program.as_ref(), source.as_ref(), "-lnfs".as_ref()],
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

/// NFS-Ganesha with its own rpcbind, killed on drop. The calling thread must be in a network
/// namespace of its own.
pub(crate) struct Ganesha {
    rpcbind: Child,
    server: Child,
}

impl Ganesha {
    pub(crate) const PORT: u16 = 12_049;
    pub(crate) const MOUNT_PORT: u16 = 12_048;

    pub(crate) fn start(export: &Path, folder: &Path, cpu: usize) -> Result<Self> {
        std::fs::create_dir_all("/run/ganesha")?;
        let config = folder.join("ganesha.conf");
        let (port, mount_port) = (Self::PORT, Self::MOUNT_PORT);
        let text = format!(
            "NFS_CORE_PARAM {{ Protocols = 3,4; NFS_Port = {port}; MNT_Port = {mount_port};\n\
             Enable_NLM = false; Enable_RQUOTA = false; }}\n\
             NFSv4 {{ Graceless = true; }}\n\
             EXPORT {{ Export_Id = 1; Path = {path}; Pseudo = /export; Access_Type = RW;\n\
             Squash = No_Root_Squash; SecType = sys; Protocols = 3,4; Transports = TCP;\n\
             FSAL {{ Name = VFS; }} }}\n\
             LOG {{ Default_Log_Level = WARN; }}\n",
            path = export.display()
        );
        std::fs::write(&config, text)?;
        let rpcbind = find("rpcbind").context("there is no rpcbind")?;
        let mut rpcbind = Command::new(rpcbind).args(["-w", "-f"]).stderr(Stdio::null()).spawn()?;
        std::thread::sleep(Duration::from_millis(300));
        let ganesha = find("ganesha.nfsd").context("there is no ganesha.nfsd")?;
        crate::cpu::pin(cpu)?;
        let server = Command::new(ganesha)
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

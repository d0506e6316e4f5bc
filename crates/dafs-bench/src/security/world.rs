//! The files and the servers of a measurement.

use super::FILE_BYTES;
use super::load::Running;
use crate::child::{Process, announce, wait_for_parent};
use crate::peer::{self, Ganesha};
use crate::report::Sample;
use crate::{Plan, cpu};
use anyhow::{Context, Result};
use dafs_client::DafsUrl;
use dafs_server::{Config, Server};
use dafs_testkit::realm::Realm;
use dafs_tls::pki::Folder;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A folder with an export, a realm and certificates.
pub(super) struct World<'a> {
    realm: &'a Realm,
    folder: &'a Path,
    cache: String,
    /// The load generator on MIT's library.
    seal: PathBuf,
}

/// A server.
pub(super) enum At {
    Dafs { process: Process, ports: [u16; 3] },
    Ganesha(Ganesha),
}

impl At {
    pub(super) fn id(&self) -> u32 {
        match self {
            At::Dafs { process, .. } => process.id(),
            At::Ganesha(server) => server.id(),
        }
    }

    /// Host, port and path for a scheme.
    fn base(&self, scheme: &str) -> String {
        let (port, path) = match (self, scheme) {
            (At::Ganesha(_), _) => (Ganesha::PORT, "/export/data?vers=4.1&"),
            (At::Dafs { ports, .. }, "nfs") => (ports[0], "/data/data?vers=4.1&"),
            (At::Dafs { ports, .. }, "nfs+rdma") => (ports[1], "/data/data?vers=4.1&"),
            (At::Dafs { ports, .. }, _) => (ports[2], "/data/data?"),
        };
        format!("{scheme}://localhost:{port}{path}")
    }
}

impl<'a> World<'a> {
    pub(super) fn new(realm: &'a Realm, folder: &'a Path) -> Result<Self> {
        let cache = realm.cache("anna.cache");
        realm.kinit("anna", &cache, &[]);
        let export = folder.join("export");
        std::fs::create_dir(&export)?;
        let content: Vec<u8> = (0..FILE_BYTES / 8).flat_map(u64::to_le_bytes).collect();
        let file = export.join("data");
        std::fs::write(&file, &content)?;
        // NFS-Ganesha knows no rules for principals, so anna is nobody there.
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o666))?;
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755))?;
        let now_seconds = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let pki = Folder::create(&folder.join("pki"), "dafs-bench", now_seconds)?;
        pki.add_server(&["localhost".to_owned()], now_seconds)?;
        let seal = peer::build(folder, "gss_seal", peer::SEAL_SOURCE, "-lgssapi_krb5")?;
        Ok(Self { realm, folder, cache, seal })
    }

    /// Starts a dafs server with one thread for each of its CPUs: the given one, or all.
    pub(super) fn serve(&self, cpu: Option<usize>) -> Result<At> {
        // A server waits in its first seconds for clients of its last run.
        let _ = std::fs::remove_dir_all(self.folder.join("state"));
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let text = format!(
            "listen = [\"127.0.0.1:0\"]\nthreads = {threads}\nstate_directory = \"state\"\n\
             [nfs]\nlisten = [\"127.0.0.1:0\"]\nrdma_listen = [\"127.0.0.1:0\"]\n\
             [kerberos]\nkeytab = \"{keytab}\"\nhost = \"localhost\"\n\
             [[identity]]\nmatch = \"anna@TEST.DAFS\"\nuser = {uid}\ngid = {gid}\n\
             [tls]\ncertificate = \"pki/server.pem\"\nkey = \"pki/server-key.pem\"\n\
             [[export]]\nname = \"data\"\npath = \"export\"\nsquash = \"none\"\n\
             unprivileged_ports = true\nsec = [\"sys\", \"krb5\", \"krb5i\", \"krb5p\"]\n",
            threads = cpu.map_or(cpu::cpu_count(), |_| 1),
            keytab = self.realm.path("server.keytab").display(),
            uid = uid.as_raw(),
            gid = gid.as_raw(),
        );
        let config = self.folder.join("dafs.toml");
        std::fs::write(&config, text)?;
        let config = config.to_str().context("the directory's name is not UTF-8")?;
        let cpu = cpu.map(|cpu| cpu.to_string());
        let mut arguments = vec!["serve-secure", config];
        arguments.extend(cpu.as_deref());
        let process = Process::start_in(&arguments, &self.environment())?;
        let ports: Result<Vec<u16>, _> = process.address.split(' ').map(str::parse).collect();
        let ports = ports?.try_into().ok().context("a port is missing")?;
        Ok(At::Dafs { process, ports })
    }

    /// Starts NFS-Ganesha on the same directory. The calling thread must be in a network namespace
    /// of its own.
    pub(super) fn serve_ganesha(&self, cpu: usize) -> Result<At> {
        let keytab = self.realm.path("server.keytab");
        let kerberos = format!(
            "NFS_KRB5 {{ PrincipalName = \"nfs@localhost\"; KeytabPath = \"{keytab}\";\n\
             CCacheDir = \"{folder}/ganesha-caches\"; Active_krb5 = true; }}\n",
            keytab = keytab.display(),
            folder = self.folder.display()
        );
        let export = self.folder.join("export");
        let flavours = "sys, krb5, krb5i, krb5p";
        let options = peer::Options { flavours, more: &kerberos, variables: &self.environment() };
        Ok(At::Ganesha(Ganesha::start_with(&export, self.folder, cpu, &options)?))
    }

    fn environment(&self) -> [(&'static str, String); 3] {
        let file = |name| self.realm.path(name).display().to_string();
        [
            ("KRB5_CONFIG", file("kdc-krb5.conf")),
            ("KRB5CCNAME", self.cache.clone()),
            ("KRB5_KTNAME", file("server.keytab")),
        ]
    }

    /// Starts a client.
    pub(super) fn start(
        &self,
        plan: &Plan,
        at: &At,
        (scheme, options): (&str, &str),
        (action, block, depth): (super::Action, usize, usize),
    ) -> Result<Running> {
        let mut url = at.base(scheme) + options;
        if scheme == "dafss" || options.contains("xprtsec") {
            url += &format!("&ca={}/pki/ca.pem", self.folder.display());
        }
        let action = format!("{action:?}").to_lowercase();
        Running::start(
            Command::new(std::env::current_exe()?)
                .args(["secure-load", &url, &action, &block.to_string(), &depth.to_string()])
                .args([plan.milliseconds.to_string(), at.id().to_string()])
                .envs(self.environment()),
        )
    }

    /// Seals messages by MIT's library. Its time counts as a server's.
    pub(super) fn seal(&self, plan: &Plan, bytes: usize) -> Result<Sample> {
        let running = Running::start(
            Command::new(&self.seal)
                .args(["nfs@localhost", &bytes.to_string(), &plan.milliseconds.to_string()])
                .envs(self.environment()),
        )?;
        let [operations, bytes, elapsed, processor] = running.numbers()?;
        let (elapsed, server_cpu) =
            (Duration::from_nanos(elapsed), Duration::from_nanos(processor));
        Ok(Sample { operations, bytes, elapsed, client_cpu: Duration::ZERO, server_cpu })
    }
}

/// Serves a configuration. Announces the ports for NFS over TCP, NFS over iWARP, and DAFS.
pub(crate) fn serve(config: &Path, cpu: Option<usize>) -> Result<()> {
    cpu.map_or(Ok(()), cpu::pin)?;
    let server = Server::start(&Config::load(config)?)?;
    let tcp = server.nfs_addresses().first().context("no address for NFS")?.port();
    let rdma = server.nfs_rdma_addresses();
    let rdma = rdma.first().context("no address for NFS over RDMA")?.port();
    let dafs = DafsUrl::parse(&server.url())?.port();
    announce(&format!("{tcp} {rdma} {dafs}"))?;
    wait_for_parent();
    server.stop();
    Ok(())
}

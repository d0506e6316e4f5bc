//! The sandbox of a server: the policy that follows from its configuration.
//!
//! Invariants
//! * A policy is a function of the configuration, of [`Surroundings`], of the targets of symlinks, and
//!   of whether the kernel has given this process rings for reads; nothing else is asked.
//! * The default sandbox forbids nothing that a server without one does. So it leaves files and network
//!   open where a reload may change the exports, and there is none for root and for storage engines
//!   with libraries of their own.
//! * A file that is often replaced (a configuration, passwords, keys) is granted with its folder, unless
//!   the folder has more than such files. So is the target of a symlink. The server may change the folder
//!   of the passwords if no other file of its configuration is there.

use crate::config::{
    Config, DataRdma, DataServerPlace, ExportConfig, ExportSource, NodeConfig, NodePlace,
};
use crate::metrics::{Sample, Source, gauge, samples};
use crate::rings;
use crate::server::{DataServerConfig, StartError, open_state_directory};
use dafs_sandbox::{
    Access, FileRule, Level, Part, Policy, Ports, Reason, Report, Sandbox, State, confine, in_force,
};
use dafs_tls::Files as _;
use rustix::thread::{CapabilitySet, capabilities};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};

/// The port of rpcbind.
const RPCBIND_PORT: u16 = 111;

/// The port of name servers, which answer over TCP when an answer is long.
const DOMAIN_PORT: u16 = 53;

/// Folders that have more than the files of a server.
const COMMON_FOLDERS: [&str; 9] =
    ["/", "/etc", "/home", "/root", "/run", "/srv", "/tmp", "/var", "/var/tmp"];

/// Variables with files or folders that libraries read.
const VARIABLES: [&str; 3] = ["GSS_MECH_CONFIG", "KRB5_CONFIG", "LD_LIBRARY_PATH"];

/// The process that is to be confined.
#[derive(Debug, Clone, Default)]
struct Surroundings {
    is_root: bool,
    /// It may open files by handle.
    by_handle: bool,
    working_directory: PathBuf,
    home: Option<PathBuf>,
    /// Files and folders of [`VARIABLES`].
    named: Vec<PathBuf>,
}

impl Surroundings {
    fn of_this_process() -> Self {
        let path = |name| std::env::var_os(name).map(PathBuf::from);
        let lists = VARIABLES.iter().filter_map(std::env::var_os);
        let named = lists.flat_map(|list| std::env::split_paths(&list).collect::<Vec<_>>());
        let handles = CapabilitySet::DAC_READ_SEARCH | CapabilitySet::SYS_ADMIN;
        Self {
            is_root: rustix::process::geteuid().is_root(),
            by_handle: capabilities(None).is_ok_and(|sets| sets.effective.intersects(handles)),
            working_directory: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
            home: path("HOME"),
            named: named.filter(|path| path.is_absolute()).collect(),
        }
    }

    fn absolute(&self, path: &Path) -> PathBuf {
        // Joined by components, so that "./x" and "x" are one path.
        self.working_directory.join(path).components().collect()
    }
}

/// Returns the path of a directory without symlinks and "..". Of an absent one, "x/.." is left out.
fn real(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| {
        let mut real = PathBuf::new();
        for component in path.components() {
            match component {
                Component::ParentDir => drop(real.pop()),
                component => real.push(component),
            }
        }
        real
    })
}

/// Confines this process to the needs of a server. Must come before [`Server::start`], and before the
/// second thread of the process. Makes the rings by which the server reads from disks.
///
/// [`Server::start`]: crate::Server::start
///
/// # Errors
/// The state directory cannot be used, or a part of a required sandbox is missing.
pub fn confine_server(config: &Config) -> Result<(), StartError> {
    let surroundings = Surroundings::of_this_process();
    let Some((strength, level)) = choice(config.sandbox, engine_of(config), &surroundings) else {
        return Ok(());
    };
    config.check_exposure()?;
    let state = open_state_directory(config)?;
    let policy = policy_of_server(config, strength, &state, &surroundings);
    let policy = Policy { read_rings: rings::prepare(config), ..policy };
    apply(&policy, level, config.sandbox, &surroundings)
}

/// Does the same for a data server in a process of its own.
///
/// # Errors
/// A part of a required sandbox is missing.
pub fn confine_data_server(config: &DataServerConfig) -> Result<(), StartError> {
    let surroundings = Surroundings::of_this_process();
    let engine = config.engine.as_ref().map(|engine| engine.name());
    // Its directory and addresses are those of its start, so the default has all parts.
    let Some((_, level)) = choice(config.general.sandbox, engine, &surroundings) else {
        return Ok(());
    };
    let policy = policy_of_data_server(config, &surroundings);
    apply(&policy, level, config.general.sandbox, &surroundings)
}

/// The strength of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strength {
    /// Nothing that works without it fails.
    Default,
    /// All parts.
    Full,
}

/// Returns the sandbox for the administrator's choice. `None` for no sandbox.
fn choice(
    chosen: Option<Sandbox>,
    engine: Option<&'static str>,
    surroundings: &Surroundings,
) -> Option<(Strength, Level)> {
    match chosen {
        Some(Sandbox::Required) => Some((Strength::Full, Level::Required)),
        Some(Sandbox::IfPossible) => Some((Strength::Full, Level::IfPossible)),
        Some(Sandbox::Off) => None,
        None if surroundings.is_root || surroundings.by_handle || engine.is_some() => None,
        None => Some((Strength::Default, Level::IfPossible)),
    }
}

fn apply(
    policy: &Policy,
    level: Level,
    chosen: Option<Sandbox>,
    surroundings: &Surroundings,
) -> Result<(), StartError> {
    let report = confine(policy, level)?;
    tell(report, chosen);
    if report.files.is_in_force() {
        for file in without_folder(policy, surroundings) {
            tracing::warn!(
                file = %file.display(),
                "the sandbox leaves this file to the server without its folder: a file that replaces \
                 it is not seen before a restart; keep it in a folder of its own, such as /etc/dafs"
            );
        }
    }
    Ok(())
}

/// Returns the files of the configuration that are granted without their folders.
fn without_folder<'a>(policy: &'a Policy, surroundings: &Surroundings) -> Vec<&'a Path> {
    let Part::Confined(rules) = &policy.files else { return Vec::new() };
    let is_covered = |path: &Path| {
        let above = rules.iter().filter(|rule| rule.path != path);
        // Landlock grants a server without root all of `/etc`.
        let etc = !policy.is_root && !policy.by_handle && path.starts_with("/etc");
        etc || above.map(|rule| &rule.path).any(|other| path.starts_with(other))
    };
    let own = rules.iter().filter(|rule| rule.access == Access::Read);
    own.map(|rule| rule.path.as_path())
        .filter(|path| !surroundings.named.iter().any(|named| named == path))
        .filter(|path| path.is_file() && !is_covered(path))
        .collect()
}

/// Logs the sandbox. A part that the administrator has asked for and does not get is a warning.
fn tell(report: &Report, chosen: Option<Sandbox>) {
    let Report { kernel, files, network, calls, privileges } = report;
    tracing::info!(
        landlock_abi = kernel.landlock_abi, %files, %network, system_calls = %calls, %privileges,
        "sandbox"
    );
    let open = |state: &State| match state {
        State::InForce(_) => false,
        State::Open(_) => chosen.is_some(),
        State::Missing(_) => true,
    };
    for (part, state) in report.parts().into_iter().filter(|(_, state)| open(state)) {
        tracing::warn!("the sandbox does not confine the {part} of this server: {state}");
    }
}

/// The sandbox that is in force, if there is one.
type Now = Option<&'static Report>;

pub(crate) const METRICS: &[Source<Now>] = &[
    gauge("dafs_sandbox_files", "1 if the sandbox confines files", |now: &Now| {
        confines(now, |report| &report.files)
    }),
    gauge("dafs_sandbox_network", "1 if the sandbox confines the network", |now: &Now| {
        confines(now, |report| &report.network)
    }),
    gauge("dafs_sandbox_system_calls", "1 if the sandbox confines system calls", |now: &Now| {
        confines(now, |report| &report.calls)
    }),
    gauge("dafs_sandbox_privileges", "1 if privileges were given up", |now: &Now| {
        confines(now, |report| &report.privileges)
    }),
    gauge(
        "dafs_sandbox_landlock_abi",
        "ABI of the kernel's Landlock, 0 without a sandbox",
        |now: &Now| now.map_or(0, |report| u64::from(report.kernel.landlock_abi)),
    ),
];

/// Returns 1 if a part is in force.
fn confines(now: &Now, part: fn(&Report) -> &State) -> u64 {
    u64::from(now.is_some_and(|report| part(report).is_in_force()))
}

/// Returns the parts of the sandbox that are in force, as metrics.
pub(crate) fn in_numbers() -> Vec<Sample> {
    samples(METRICS, &in_force())
}

/// Adds the sandbox to an error of a reload, if it may be the cause.
pub(crate) fn explain(error: String) -> String {
    match in_force() {
        Some(report) if confines_places(report) => format!(
            "{error} (the sandbox leaves this server the files and ports of its start alone: for \
             other directories and servers, and files that were replaced since, restart it)"
        ),
        _ => error,
    }
}

/// Adds the sandbox of this process to an error of a start, if it may be the cause.
pub fn explain_start(error: String) -> String {
    explain_start_in(in_force(), error)
}

fn explain_start_in(sandbox: Option<&Report>, error: String) -> String {
    match sandbox {
        Some(report) if confines_places(report) => format!(
            "{error} (the sandbox leaves this server the files and ports of its configuration alone: \
             if it works with --sandbox off, the sandbox is the cause)"
        ),
        _ => error,
    }
}

fn confines_places(report: &Report) -> bool {
    report.files.is_in_force() || report.network.is_in_force()
}

/// Returns the storage engine of an export that has a library of its own.
fn engine_of(config: &Config) -> Option<&'static str> {
    config.exports.iter().find_map(|export| match &export.source {
        ExportSource::CephFs(_) => Some("CephFS"),
        ExportSource::Gluster(_) => Some("GlusterFS"),
        _ => None,
    })
}

fn policy_of_server(
    config: &Config,
    strength: Strength,
    state: &Path,
    surroundings: &Surroundings,
) -> Policy {
    let reason = engine_of(config).map(Reason::Engine).or_else(|| {
        (strength == Strength::Default && config.exports_of_file).then_some(Reason::Reload)
    });
    let devices = !config.nfs.rdma_verbs_listen.is_empty()
        || !config.verbs_listen.is_empty()
        || uses_devices_at_data_servers(config);
    let (files, network) = match reason {
        Some(reason) => (Part::Open(reason), Part::Open(reason)),
        None => {
            let files = files_of_server(config, state, surroundings, devices);
            (Part::Confined(files), Part::Confined(ports_of_server(config)))
        }
    };
    let network_namespaces = config.exports.iter().any(|export| match &export.source {
        ExportSource::CephFs(ceph) => {
            ceph.data_servers.iter().any(|server| server.network_namespace.is_some())
        }
        _ => false,
    });
    let Surroundings { is_root, by_handle, .. } = *surroundings;
    let read_rings = false;
    Policy { files, network, by_handle, is_root, network_namespaces, devices, read_rings }
}

/// True if a data server in this process uses an RDMA device.
fn uses_devices_at_data_servers(config: &Config) -> bool {
    let by_dafs =
        |node: &NodeConfig| matches!(node.place, NodePlace::Directory { dafs_verbs: true, .. });
    let is_striped = |export: &ExportConfig| match &export.source {
        ExportSource::Striped { nodes, .. } => nodes.iter().any(by_dafs),
        _ => false,
    };
    local_data_servers(config).iter().any(|(_, rdma)| rdma.verbs.is_some())
        || config.exports.iter().any(is_striped)
}

/// Returns the addresses of data servers in this process, for clients of NFS and DAFS.
fn local_data_servers(config: &Config) -> Vec<(Vec<SocketAddr>, DataRdma)> {
    let of_place = |place: &DataServerPlace| match place {
        DataServerPlace::Local(address, rdma) => Some((vec![*address], *rdma)),
        DataServerPlace::Remote { .. } => None,
    };
    let of_export = |source: &ExportSource| -> Vec<_> {
        match source {
            ExportSource::Striped { nodes, .. } => {
                let nodes = nodes.iter().filter_map(|node| match &node.place {
                    NodePlace::Directory { listen, rdma, dafs_listen, .. } => {
                        Some((listen.iter().chain(dafs_listen).copied().collect(), *rdma))
                    }
                    NodePlace::Remote(_) => None,
                });
                nodes.collect()
            }
            ExportSource::CephFs(ceph) => {
                ceph.data_servers.iter().filter_map(|server| of_place(&server.place)).collect()
            }
            ExportSource::Gluster(gluster) => {
                gluster.data_servers.iter().filter_map(|server| of_place(&server.place)).collect()
            }
            ExportSource::Directory(_) | ExportSource::Memory { .. } => Vec::new(),
        }
    };
    config.exports.iter().flat_map(|export| of_export(&export.source)).collect()
}

fn ports_of_server(config: &Config) -> Ports {
    let own = config.listen.iter().chain(&config.nfs.listen).chain(&config.metrics_listen);
    let own = own.chain(&config.admin_listen).copied();
    let mut bind: BTreeSet<u16> = own.chain(config.nfs.rdma()).map(|own| own.port()).collect();
    for (addresses, rdma) in local_data_servers(config) {
        bind.extend(addresses.iter().chain(&rdma.soft).map(SocketAddr::port));
    }
    let remote = config.exports.iter().flat_map(|export| match &export.source {
        ExportSource::Striped { nodes, .. } => nodes.as_slice(),
        _ => &[],
    });
    let control = remote.filter_map(|node| match &node.place {
        NodePlace::Remote(control) => Some(control.rsplit_once(':')?.1.parse().ok()?),
        NodePlace::Directory { .. } => None,
    });
    let mut connect: BTreeSet<u16> = control.collect();
    // Names of other servers are resolved again with each connection. The Kerberos library asks for
    // the full name of this host.
    let datagrams = !connect.is_empty() || config.kerberos.is_some();
    connect.extend(datagrams.then_some(DOMAIN_PORT));
    connect.extend(config.nfs.rpcbind.then_some(RPCBIND_PORT));
    // Locks of NFSv3 clients: their hosts choose the ports of their lock managers, and send datagrams.
    let clients = config.nfs.rpcbind;
    Ports { bind, connect, clients, datagrams: datagrams || clients }
}

fn files_of_server(
    config: &Config,
    state: &Path,
    surroundings: &Surroundings,
    devices: bool,
) -> Vec<FileRule> {
    let mut files = Files::new(surroundings);
    files.change(state);
    for export in &config.exports {
        match &export.source {
            ExportSource::Directory(path) => files.change(path),
            ExportSource::Striped { path, nodes, cluster_secret, .. } => {
                files.change(path);
                for node in nodes {
                    if let NodePlace::Directory { path, .. } = &node.place {
                        files.change(path);
                    }
                }
                files.secret(cluster_secret.as_deref());
            }
            // The library of an engine is not confined.
            ExportSource::CephFs(_) | ExportSource::Gluster(_) | ExportSource::Memory { .. } => {}
        }
    }
    if let Some(folder) = config.access_log.as_ref().and_then(|log| log.file.parent()) {
        files.change(folder);
    }
    files.secret(config.file.as_deref());
    files.users(config.auth.password_file.as_deref());
    files.secret(config.kerberos.as_ref().map(|kerberos| kerberos.keytab.as_path()));
    for file in config.tls.iter().flat_map(|tls| tls.paths()) {
        files.secret(Some(file));
    }
    files.finish(devices)
}

fn policy_of_data_server(config: &DataServerConfig, surroundings: &Surroundings) -> Policy {
    let devices = config.rdma.verbs.is_some() || config.dafs_verbs;
    let (files, network) = match config.engine.as_ref().map(|engine| engine.name()) {
        Some(engine) => (Part::Open(Reason::Engine(engine)), Part::Open(Reason::Engine(engine))),
        None => {
            let mut files = Files::new(surroundings);
            files.change(&config.directory);
            files.secret(Some(&config.cluster_secret));
            let kerberos = config.general.kerberos.as_ref();
            files.secret(kerberos.map(|kerberos| kerberos.keytab.as_path()));
            for file in config.general.tls.iter().flat_map(|tls| tls.paths()) {
                files.secret(Some(file));
            }
            let others = config.rdma.soft.iter().chain(&config.dafs);
            let others = others.chain(&config.general.metrics_listen).copied();
            let own = [config.control, config.nfs].into_iter().chain(others);
            let bind = own.map(|own| own.port()).collect();
            // The Kerberos library asks for the full name of this host.
            let datagrams = kerberos.is_some();
            let connect = datagrams.then_some(DOMAIN_PORT).into_iter().collect();
            let ports = Ports { bind, connect, clients: false, datagrams };
            (Part::Confined(files.finish(devices)), Part::Confined(ports))
        }
    };
    let Surroundings { is_root, by_handle, .. } = *surroundings;
    let (network_namespaces, read_rings) = (false, false);
    Policy { files, network, by_handle, is_root, network_namespaces, devices, read_rings }
}

/// Collects the rules for files.
struct Files<'a> {
    surroundings: &'a Surroundings,
    /// Directories that clients or the server change.
    changed: Vec<PathBuf>,
    secrets: Vec<PathBuf>,
    /// The password file, which the server replaces.
    users: Option<PathBuf>,
}

impl<'a> Files<'a> {
    fn new(surroundings: &'a Surroundings) -> Self {
        Self { surroundings, changed: Vec::new(), secrets: Vec::new(), users: None }
    }

    fn change(&mut self, path: &Path) {
        self.changed.push(self.surroundings.absolute(path));
    }

    fn secret(&mut self, path: Option<&Path>) {
        self.secrets.extend(path.map(|path| self.surroundings.absolute(path)));
    }

    fn users(&mut self, path: Option<&Path>) {
        self.users = path.map(|path| self.surroundings.absolute(path));
    }

    /// Returns the rule for the password file. The server may change it only in a folder without its other
    /// files, which it may not change.
    fn rule_of_users(&self, users: &Path) -> FileRule {
        let path = self.folder_or_file(users);
        let folder = real(&path);
        let is_there =
            |other: &PathBuf| other.starts_with(&path) || real(other).starts_with(&folder);
        let is_alone = path != users && !self.secrets.iter().any(is_there);
        let access = if is_alone { Access::Change } else { Access::Read };
        FileRule { path, access, optional: true }
    }

    /// Returns the folder of a file, where it can be granted, else the file.
    fn folder_or_file(&self, file: &Path) -> PathBuf {
        let is_common = |folder: &Path| {
            let folder = real(folder);
            COMMON_FOLDERS.iter().any(|common| folder == Path::new(common))
                || self.surroundings.home.as_deref().map(real).as_ref() == Some(&folder)
                || self.changed.iter().any(|changed| real(changed).starts_with(&folder))
        };
        match file.parent() {
            Some(folder) if !is_common(folder) => folder.to_owned(),
            _ => file.to_owned(),
        }
    }

    fn finish(self, devices: bool) -> Vec<FileRule> {
        let rule = |path: PathBuf, access, optional| FileRule { path, access, optional };
        let changed = self.changed.iter().cloned();
        let mut rules: Vec<_> = changed.map(|path| rule(path, Access::Change, false)).collect();
        for secret in &self.secrets {
            // A missing one is reported by the code that reads it.
            rules.push(rule(self.folder_or_file(secret), Access::Read, true));
            // The kernel checks the target of a symlink alone.
            if let Ok(target) = std::fs::canonicalize(secret) {
                rules.push(rule(self.folder_or_file(&target), Access::Read, true));
            }
        }
        if let Some(users) = &self.users {
            rules.push(self.rule_of_users(users));
            // As above.
            rules.extend(std::fs::canonicalize(users).map(|target| self.rule_of_users(&target)));
        }
        for named in &self.surroundings.named {
            rules.push(rule(named.clone(), Access::Read, true));
        }
        if devices {
            rules.push(rule(PathBuf::from("/dev/infiniband"), Access::Device, true));
        }
        rules.sort();
        rules.dedup();
        rules
    }
}

#[cfg(test)]
mod tests;

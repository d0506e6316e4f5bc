//! Administration of a running server: list clients, expire one. Other files have the rest: `reload.rs`,
//! `users.rs`, `status.rs`.

use super::data::{DataCounters, DataServers};
use super::node_probes::ask_at_once;
use super::stores::open_store;
use super::tls::{Tls, Users};
use super::{Server, StartError};
use crate::admin::{
    AdminHandler, AdminReply, AdminRequest, AdminSocket, ClientReport, LatencyReport, NodeReport,
};
use crate::config::{Config, ExportConfig, ExportSource};
use crate::hand_over::Giving;
use crate::http::AdminPort;
use crate::limits::HOLDINGS_SHOWN_MAX;
use dafs_dat::connections::Connections;
use dafs_engine::{Authenticator, Clock, Registry};
use dafs_mem::Mutex;
use dafs_nfs::NfsShared;
use dafs_service::{
    ClientInfo, ClientKey, ClientKind, Export, Handle, Holding, Service, ServiceError,
};
use dafs_store::{ExportSecret, Store};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Reloads the configuration. The text of an error says how to correct it.
pub type ReadConfig = Box<dyn Fn() -> Result<Config, String> + Send + Sync>;

/// The parts of a server that administration needs.
pub(super) struct Parts {
    pub(super) service: Arc<Service>,
    pub(super) registry: Arc<Registry>,
    pub(super) authenticator: Arc<Authenticator>,
    pub(super) secret: ExportSecret,
    /// The state directory.
    pub(super) state: PathBuf,
    /// The open stores.
    pub(super) stores: Arc<Mutex<Vec<Known>>>,
    /// The data servers of this process.
    pub(super) data: Vec<DataCounters>,
    /// The users of certificates, if the server has TLS.
    pub(super) certificates: Option<Users>,
    /// The NFS front end, if there is one.
    pub(super) nfs: Option<Arc<NfsShared>>,
    /// The connections of all front ends.
    pub(super) connections: Arc<Connections>,
    /// The addresses for DAFS.
    pub(super) addresses: Vec<SocketAddr>,
    /// The server has memory in which exports show files.
    pub(super) shows_files: bool,
    /// Set to let the access log be opened anew, if there is one.
    pub(super) reopen_log: Option<Arc<AtomicBool>>,
    /// The keys of the configuration file in force.
    pub(super) in_force: Mutex<toml::Table>,
}

/// Administration of a running server.
pub(super) struct Administration {
    pub(super) parts: Parts,
    pub(super) started: dafs_dat::Instant,
    /// True while layouts from before a change of the users of certificates may be honoured. Periodic work
    /// revokes them: data servers of their own know no rules, and would go by a layout that a claim got before
    /// there were any.
    pub(super) owes_layouts: Arc<AtomicBool>,
    /// Held during a reload, and while the password file changes.
    pub(super) users_change: Mutex<()>,
    pub(super) read_config: OnceLock<ReadConfig>,
    /// The thread for periodic work of stores with data servers.
    _turns: Clock,
}

impl std::ops::Deref for Administration {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}

impl Administration {
    pub(super) fn start(parts: Parts) -> Result<Arc<Self>, StartError> {
        let all = parts.stores.clone();
        let owes_layouts = Arc::<AtomicBool>::default();
        let (owes, mut is_told) = (owes_layouts.clone(), false);
        let turns = Clock::repeat("dafs-drain", parts.service.clone(), move |service| {
            take_layouts(service, &owes, &mut is_told);
            data_servers(&all).iter().for_each(|(_, store)| store.turn(service));
        })?;
        Ok(Arc::new(Self {
            parts,
            started: dafs_dat::Instant::now(),
            owes_layouts,
            users_change: Mutex::new(()),
            read_config: OnceLock::new(),
            _turns: turns,
        }))
    }

    /// True if the system's cache has all unstable data, which then outlives this process.
    pub(super) fn is_cached_by_system(&self) -> bool {
        let is_cached = |known: &Known| matches!(known.source, ExportSource::Directory(_));
        self.stores.lock().iter().all(is_cached)
    }

    /// Returns the reports on the nodes of all exports.
    fn nodes(&self) -> Vec<NodeReport> {
        let reports = ask_at_once(&data_servers(&self.stores), |(name, store)| store.nodes(name));
        reports.into_iter().flatten().collect()
    }

    /// Drains a node, or undoes that. Returns a text for the administrator.
    fn drain(&self, export: Option<&str>, node: u32, undo: bool) -> Result<String, String> {
        let (name, store) = self.with_data_servers(export)?;
        store.set_leaving(node, !undo)?;
        Ok(match undo {
            false => format!("files are moved off node {node} of export {name:?}"),
            true => format!("node {node} of export {name:?} takes files again"),
        })
    }

    /// Replaces the lost directory of a node by an empty one. Returns a text for the administrator.
    fn replace(&self, export: Option<&str>, node: u32) -> Result<String, String> {
        let (name, store) = self.with_data_servers(export)?;
        store.replace(node)?;
        Ok(format!(
            "copies on node {node} of export {name:?} are given up, and made anew when it is back"
        ))
    }

    /// Returns the export with data servers of that name, or the only one.
    pub(super) fn with_data_servers(
        &self,
        export: Option<&str>,
    ) -> Result<(String, Arc<dyn DataServers>), String> {
        let mut wanted = data_servers(&self.stores);
        wanted.retain(|(name, _)| export.is_none_or(|wanted| wanted == name));
        match (wanted.pop(), wanted.pop()) {
            (Some(found), None) => Ok(found),
            (Some(_), Some(_)) => Err("several exports have nodes: name one".to_owned()),
            (None, _) => Err("there is no such export with nodes".to_owned()),
        }
    }

    fn clients(&self) -> Vec<ClientReport> {
        let now_ns = dafs_dat::Instant::now().0;
        let clients = self.service.clients.info(now_ns);
        let sessions = self.survey();
        let transport = |info: &ClientInfo| {
            let mut own = sessions.iter().filter(|facts| facts.client.key() == info.client.key());
            own.next().map_or("", |facts| facts.transport)
        };
        clients.iter().map(|client| self.report(client, transport(client))).collect()
    }

    fn report(&self, info: &ClientInfo, transport: &str) -> ClientReport {
        let (client, usage) = (&info.client, info.client.usage().now());
        let holds = self.service.clients.holdings(client.key(), HOLDINGS_SHOWN_MAX);
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        ClientReport {
            client: client.key().0,
            front_end: match info.kind() {
                ClientKind::Nfs => "nfs4".to_owned(),
                ClientKind::Nlm => "nlm".to_owned(),
                _ => "dafs".to_owned(),
            },
            name: text(client.name()),
            transport: transport.to_owned(),
            principal: info.identity().shown(),
            address: client.peer(),
            silent_seconds: info.idle_ns / 1_000_000_000,
            courtesy: info.courtesy,
            sessions: client.sessions().into(),
            opens: info.opens as u64,
            locks: info.locks as u64,
            delegations: info.delegations as u64,
            operations: usage.operations(),
            read_bytes: usage.read_bytes,
            written_bytes: usage.written_bytes,
            latency: LatencyReport::by_class(&usage),
            holds: holds.unwrap_or_default().iter().map(|held| self.describe(held)).collect(),
        }
    }

    fn describe(&self, held: &Holding) -> String {
        match held {
            Holding::Open { handle, owner, share } => {
                let words = [
                    (share.read, "read"),
                    (share.write, "write"),
                    (share.deny_read, "deny-read"),
                    (share.deny_write, "deny-write"),
                ];
                let words = words.iter().filter_map(|&(is, word)| is.then_some(word));
                let words = words.collect::<Vec<_>>().join("+");
                format!("open {words} {} by {}", self.place(handle), owner.escape_ascii())
            }
            Holding::Lock { handle, owner, ranges } => {
                let range = |&(first, bytes, writes): &(u64, u64, bool)| {
                    let kind = if writes { "write" } else { "read" };
                    format!("{kind} {first}+{bytes}")
                };
                let ranges = ranges.iter().map(range).collect::<Vec<_>>().join(", ");
                format!("lock {ranges} of {} by {}", self.place(handle), owner.escape_ascii())
            }
            Holding::Delegation { handle, kind, recalled } => {
                let recalled = if *recalled { ", recalled" } else { "" };
                format!("{kind:?} delegation of {}{recalled}", self.place(handle))
            }
            Holding::Layout { handle, write, recalled } => {
                let kind = if *write { "write" } else { "read" };
                let recalled = if *recalled { ", recalled" } else { "" };
                format!("{kind} layout of {}{recalled}", self.place(handle))
            }
        }
    }

    /// Names a file by its export and inode number, because a file may have no name or several.
    pub(super) fn place(&self, handle: &Handle) -> String {
        let namespace = self.service.namespace();
        let export = namespace.export(handle).map(|export| export.name().to_owned());
        match (export, self.service.getattr(handle)) {
            (Ok(export), Ok(attr)) => format!("/{export} inode {}", attr.file_id),
            (Ok(export), Err(_)) => format!("/{export} {:?}", handle.file),
            (Err(_), _) => "an export that is gone".to_owned(),
        }
    }
}

/// Revokes all layouts if that is owed. A failure is told once, and it is tried again.
fn take_layouts(service: &Service, owed: &AtomicBool, is_told: &mut bool) {
    if !owed.swap(false, Ordering::Relaxed) {
        return;
    }
    let taken = service.layouts.take_all();
    match &taken {
        Ok(()) => tracing::info!("the layouts of the old rules for users are revoked"),
        Err(error) if !*is_told => tracing::warn!(
            %error,
            "a data server that cannot be reached may still honour layouts of the old rules for \
             users; it is asked again"
        ),
        Err(_) => {}
    }
    *is_told = taken.is_err();
    if *is_told {
        owed.store(true, Ordering::Relaxed);
    }
}

/// Returns the exports with data servers. The list is not locked while a caller waits for their
/// nodes.
fn data_servers(stores: &Mutex<Vec<Known>>) -> Vec<(String, Arc<dyn DataServers>)> {
    let stores = stores.lock();
    stores.iter().filter_map(|known| Some((known.name.clone(), known.data_servers()?))).collect()
}

/// Makes the handler of administrators' requests.
fn handler(administration: Arc<Administration>) -> AdminHandler {
    Box::new(move |request| administration.answer(request).unwrap_or_else(AdminReply::Failed))
}

impl Administration {
    /// Answers a request. The text of an error says how to correct it.
    fn answer(&self, request: AdminRequest) -> Result<AdminReply, String> {
        Ok(match request {
            AdminRequest::Clients => AdminReply::Clients(self.clients()),
            AdminRequest::Expire { client } => match self.service.clients.revoke(ClientKey(client))
            {
                Ok(()) => AdminReply::Done(format!("client {client:016x} was ended")),
                Err(ServiceError::StaleClientId) => {
                    return Err(format!("there is no client {client:016x}"));
                }
                Err(error) => return Err(error.to_string()),
            },
            AdminRequest::Sessions => AdminReply::Sessions(self.sessions()),
            AdminRequest::Exposed => AdminReply::Exposed(self.service.exposure_counts().into()),
            AdminRequest::Locks => AdminReply::Locks(self.locks()),
            AdminRequest::Layout { path } => AdminReply::Layout(self.layout(&path)?),
            AdminRequest::Drain { export, node, undo } => {
                AdminReply::Done(self.drain(export.as_deref(), node, undo)?)
            }
            AdminRequest::Replace { export, node } => {
                AdminReply::Done(self.replace(export.as_deref(), node)?)
            }
            AdminRequest::Scrub { export, order } => {
                let (_, store) = self.with_data_servers(export.as_deref())?;
                AdminReply::Scrub(store.scrub(&order)?)
            }
            AdminRequest::Repair { path, node } => AdminReply::Done(self.repair(&path, node)?),
            AdminRequest::Nodes => AdminReply::Nodes(self.nodes()),
            AdminRequest::Fences { exports } => AdminReply::Fences(self.fences(&exports)?),
            AdminRequest::Fence { exports, change, names } => {
                AdminReply::Fences(self.fence(&exports, change, &names)?)
            }
            AdminRequest::Reload => {
                let told =
                    |text: &String| tracing::error!("the configuration was not taken: {text}");
                AdminReply::Reloaded(self.reload().inspect_err(told)?)
            }
            AdminRequest::Status => AdminReply::Status(self.status()),
            AdminRequest::Users => AdminReply::Users(self.users()?),
            AdminRequest::SetUser(order) => AdminReply::Done(self.set_user(&order)?),
            AdminRequest::RemoveUser { name } => AdminReply::Done(self.remove_user(&name)?),
        })
    }
}

impl Server {
    /// Admits administrators by the socket, and by a port if the configuration has one.
    pub(super) fn admit_administrators(
        &mut self,
        config: &Config,
        directory: &Path,
        administration: Arc<Administration>,
    ) -> Result<(), StartError> {
        let new_handler = || handler(administration.clone());
        // It may be taken, and then no administrator is served.
        if let Some(address) = config.admin_listen {
            let tls = self.tls.as_ref().map(Tls::shared);
            self.admin_port = Some(AdminPort::start(address, directory, tls, new_handler())?);
        }
        let giving = Arc::new(Giving::of(self.sockets.clone()));
        let own = giving.clone();
        let hand_over = Box::new(move |stream| own.offer(stream));
        match AdminSocket::start(directory, new_handler(), hand_over) {
            Ok(socket) => (self.admin, self.giving) = (Some(socket), Some(giving)),
            Err(error) => tracing::warn!(
                directory = %directory.display(), %error,
                "no socket for administrators: does another server use this state directory?"
            ),
        }
        self.administration = Some(administration);
        Ok(())
    }
}

/// An open store, with the name of its export and the place of its files.
pub(super) struct Known {
    pub(super) name: String,
    pub(super) source: ExportSource,
    read_only: bool,
    subtree_check: bool,
    store: Arc<dyn Store>,
    data_servers: Option<Arc<dyn DataServers>>,
}

impl Known {
    /// Returns the state for its data servers, if it has any.
    pub(super) fn data_servers(&self) -> Option<Arc<dyn DataServers>> {
        self.data_servers.clone()
    }

    pub(super) fn is_for(&self, config: &ExportConfig) -> bool {
        (self.name.as_str(), &self.source) == (config.name.as_str(), &config.source)
    }

    /// True when a newly opened store is the same one. The path may lead elsewhere by now.
    fn is_same(&self, config: &ExportConfig, opened: &dyn Store) -> bool {
        self.read_only == config.options.read_only
            && self.subtree_check == config.subtree_check
            && (self.store.fs_id(), self.store.root()) == (opened.fs_id(), opened.root())
    }
}

/// Opens the stores of exports. Stores in `known` that are named again are kept. One in memory has
/// the only copy of its files. The nodes of one with data servers are in use. One of a directory
/// watches for changes, and remembers the change attributes that clients have seen.
pub(super) fn open_exports(
    configs: &[ExportConfig],
    secret: ExportSecret,
    state: &Path,
    known: &[Known],
) -> Result<(Vec<Export>, Vec<Known>), StartError> {
    let mut exports = Vec::new();
    let mut stores = Vec::new();
    for config in configs {
        let (store, data_servers) = match known.iter().find(|known| known.is_for(config)) {
            // A store in use can be opened only once.
            Some(known) if !matches!(config.source, ExportSource::Directory(_)) => {
                (known.store.clone(), known.data_servers.clone())
            }
            Some(known) => {
                let (opened, data_servers) = open_store(config, secret, state)?;
                let kept = known.is_same(config, &*opened);
                (if kept { known.store.clone() } else { opened }, data_servers)
            }
            None => open_store(config, secret, state)?,
        };
        let (name, source) = (config.name.clone(), config.source.clone());
        let (read_only, subtree_check) = (config.options.read_only, config.subtree_check);
        exports.push(Export::new(&name, store.clone(), config.options.clone()));
        stores.push(Known { name, source, read_only, subtree_check, store, data_servers });
    }
    Ok((exports, stores))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_service::ExportOptions;
    use std::time::Duration;

    #[test]
    fn stores_that_are_named_again_are_kept_unless_the_path_leads_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("files");
        std::fs::create_dir(&path).unwrap();
        let secret = ExportSecret::from_bytes([7; 16]);
        let sources =
            [ExportSource::Directory(path.clone()), ExportSource::Memory { bytes_max: 1 << 20 }];
        let config = |(number, source): (usize, &ExportSource)| {
            let (name, options) = (number.to_string(), ExportOptions::default());
            let (source, mend_idle) = (source.clone(), Duration::ZERO);
            ExportConfig { name, source, options, subtree_check: false, mend_idle }
        };
        let mut configs: Vec<_> = sources.iter().enumerate().map(config).collect();
        let open = |configs: &[ExportConfig], known: &[Known]| {
            open_exports(configs, secret, dir.path(), known)
                .map_err(|error| error.to_string())
                .unwrap()
                .1
        };
        let kept = |before: &[Known], after: &[Known]| -> Vec<bool> {
            let pairs = before.iter().zip(after);
            pairs.map(|(one, two)| Arc::ptr_eq(&one.store, &two.store)).collect()
        };
        let first = open(&configs, &[]);
        let second = open(&configs, &first);
        assert_eq!(kept(&first, &second), [true, true]);
        // A read-only store is another one.
        configs[0].options.read_only = true;
        let third = open(&configs, &second);
        assert_eq!(kept(&second, &third), [false, true]);
        std::fs::rename(&path, dir.path().join("old")).unwrap();
        std::fs::create_dir(&path).unwrap();
        let fourth = open(&configs, &third);
        assert_eq!(kept(&third, &fourth), [false, true]);
    }
}

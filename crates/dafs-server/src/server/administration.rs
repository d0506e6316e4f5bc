//! Administration of a running server: list clients, expire one, change the exports.

use super::data::{DataCounters, DataServers};
use super::stores::open_store;
use super::tls::Users;
use super::{StartError, journal};
use crate::admin::{AdminHandler, AdminReply, AdminRequest, ClientReport, NodeReport};
use crate::config::{Config, ExportConfig, ExportSource};
use crate::limits::HOLDINGS_SHOWN_MAX;
use crate::sandbox;
use dafs_engine::{Clock, Registry};
use dafs_mem::Mutex;
use dafs_nfs::NfsShared;
use dafs_service::{
    ClientInfo, ClientKey, ClientKind, Export, Handle, Holding, Namespace, Service, ServiceError,
};
use dafs_store::{ExportSecret, Store};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Reloads the configuration. The text of an error says how to correct it.
pub type ReadConfig = Box<dyn Fn() -> Result<Config, String> + Send + Sync>;

/// The state that a change of exports needs.
pub(super) struct Administration {
    pub(super) service: Arc<Service>,
    pub(super) registry: Arc<Registry>,
    secret: ExportSecret,
    state: PathBuf,
    /// The open stores.
    stores: Arc<Mutex<Vec<Known>>>,
    /// The data servers of this process.
    data: Vec<DataCounters>,
    /// The users of certificates, if the server has TLS.
    users: Option<Users>,
    /// True while layouts from before a change of these users may be honoured. Periodic work revokes
    /// them: data servers of their own know no rules, and would go by a layout that a claim got before
    /// there were any.
    owes_layouts: Arc<AtomicBool>,
    /// The NFS front end, if there is one.
    pub(super) nfs: Option<Arc<NfsShared>>,
    pub(super) read_config: OnceLock<ReadConfig>,
    /// Set to let the access log be opened anew.
    pub(super) reopen_log: OnceLock<Arc<AtomicBool>>,
    /// The thread for periodic work of stores with data servers.
    _turns: Clock,
}

impl Administration {
    pub(super) fn start(
        service: Arc<Service>,
        registry: Arc<Registry>,
        secret: ExportSecret,
        state: &Path,
        (stores, data, users): (Vec<Known>, Vec<DataCounters>, Option<Users>),
        nfs: Option<Arc<NfsShared>>,
    ) -> Result<Arc<Self>, StartError> {
        let (stores, read_config) = (Arc::new(Mutex::new(stores)), OnceLock::new());
        let all = stores.clone();
        let owes_layouts = Arc::<AtomicBool>::default();
        let (owes, mut is_told) = (owes_layouts.clone(), false);
        let turns = Clock::repeat("dafs-drain", service.clone(), move |service| {
            take_layouts(service, &owes, &mut is_told);
            data_servers(&all).iter().for_each(|(_, store)| store.turn(service));
        })?;
        let state = state.to_owned();
        Ok(Arc::new(Self {
            service,
            registry,
            secret,
            state,
            stores,
            data,
            users,
            owes_layouts,
            nfs,
            read_config,
            reopen_log: OnceLock::new(),
            _turns: turns,
        }))
    }

    /// Serves the exports of the present configuration file.
    pub(super) fn reload(&self) -> Result<String, String> {
        // The programs that rotate logs tell servers to reload.
        if let Some(reopen) = self.reopen_log.get() {
            reopen.store(true, Ordering::Relaxed);
        }
        self.reload_now().map_err(sandbox::explain)
    }

    fn reload_now(&self) -> Result<String, String> {
        let read = self.read_config.get();
        let read = read.ok_or("this server has no configuration file to read again")?;
        let config = read()?;
        if journal::is_wanted(&config.exports)
            && self.service.durable.journal_statistics().is_none()
        {
            return Err(
                "durable_replies are kept from the next start of the server on: restart it, \
                        or set them to off"
                    .to_owned(),
            );
        }
        let takes_users = self.users.as_ref().is_some_and(Users::can_be_known);
        if !takes_users && !config.certificate_users.is_empty() {
            let text = "the server has no TLS, or its TLS no authorities, until its next start: restart it for \
                        [[identity]] certificate";
            return Err(text.to_owned());
        }
        let mut stores = self.stores.lock();
        config.exports.iter().try_for_each(|export| adapt(&mut stores, export))?;
        let (exports, opened) = open_exports(&config.exports, self.secret, &self.state, &stores)
            .map_err(|error| error.to_string())?;
        let namespace = Namespace::new(exports).map_err(|error| error.to_string())?;
        let count = config.exports.len();
        // Calls that come from now on find the new rules before the new exports.
        let has_changed = |users: &Users| users.follow(&config.certificate_users);
        if self.users.as_ref().is_some_and(has_changed) {
            self.owes_layouts.store(true, Ordering::Relaxed);
        }
        self.service.importance.replace_rules(config.importance);
        self.service.replace_namespace(namespace);
        self.data.iter().for_each(|data| data.follow(&config.exports));
        *stores = opened;
        tracing::info!(exports = count, "the configuration was read again");
        Ok(format!("{count} exports are served"))
    }

    fn nodes(&self) -> Vec<NodeReport> {
        data_servers(&self.stores).iter().flat_map(|(name, store)| store.nodes(name)).collect()
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
    fn with_data_servers(
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
        let identity = info.identity();
        let holds = self.service.clients.holdings(client.key(), HOLDINGS_SHOWN_MAX);
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        ClientReport {
            client: client.key().0,
            door: match info.kind() {
                ClientKind::Nfs => "nfs4".to_owned(),
                ClientKind::Nlm => "nlm".to_owned(),
                _ => "dafs".to_owned(),
            },
            name: text(client.name()),
            transport: transport.to_owned(),
            principal: format!("{} {}", identity.mechanism, text(&identity.principal)),
            address: client.peer(),
            silent_seconds: info.idle_ns / 1_000_000_000,
            courtesy: info.courtesy,
            opens: info.opens as u64,
            locks: info.locks as u64,
            delegations: info.delegations as u64,
            operations: usage.operations(),
            read_bytes: usage.read_bytes,
            written_bytes: usage.written_bytes,
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

/// Adapts an open store with data servers to the present configuration.
fn adapt(stores: &mut [Known], config: &ExportConfig) -> Result<(), String> {
    let has_data_servers = match &config.source {
        ExportSource::Striped { .. } => true,
        ExportSource::CephFs(ceph) => !ceph.data_servers.is_empty(),
        ExportSource::Gluster(gluster) => !gluster.data_servers.is_empty(),
        _ => false,
    };
    if !has_data_servers || stores.iter().any(|known| known.is_for(config)) {
        return Ok(());
    }
    let failed = |text: String| format!("export {:?}: {text}", config.name);
    let known = stores.iter_mut().find(|known| known.name == config.name);
    let known = known.and_then(|known| Some((known.data_servers()?, known)));
    let Some((data_servers, known)) = known else {
        let text = "nodes and data servers are opened when the server starts: restart it";
        return Err(failed(text.to_owned()));
    };
    data_servers.adapt(&known.source, &config.source).map_err(failed)?;
    known.source = config.source.clone();
    Ok(())
}

/// Makes the handler of administrators' requests.
pub(super) fn handler(administration: Arc<Administration>) -> AdminHandler {
    Box::new(move |request| match request {
        AdminRequest::Clients => AdminReply::Clients(administration.clients()),
        AdminRequest::Expire { client } => {
            match administration.service.clients.revoke(ClientKey(client)) {
                Ok(()) => AdminReply::Done(format!("client {client:016x} was ended")),
                Err(ServiceError::StaleClientId) => {
                    AdminReply::Failed(format!("there is no client {client:016x}"))
                }
                Err(error) => AdminReply::Failed(error.to_string()),
            }
        }
        AdminRequest::Sessions => AdminReply::Sessions(administration.sessions()),
        AdminRequest::Exposed => {
            AdminReply::Exposed(administration.service.exposure_counts().into())
        }
        AdminRequest::Locks => AdminReply::Locks(administration.locks()),
        AdminRequest::Layout { path } => match administration.layout(&path) {
            Ok(layout) => AdminReply::Layout(layout),
            Err(text) => AdminReply::Failed(text),
        },
        AdminRequest::Drain { export, node, undo } => {
            match administration.drain(export.as_deref(), node, undo) {
                Ok(text) => AdminReply::Done(text),
                Err(text) => AdminReply::Failed(text),
            }
        }
        AdminRequest::Replace { export, node } => {
            match administration.replace(export.as_deref(), node) {
                Ok(text) => AdminReply::Done(text),
                Err(text) => AdminReply::Failed(text),
            }
        }
        AdminRequest::Nodes => AdminReply::Nodes(administration.nodes()),
        AdminRequest::Fences { exports } => match administration.fences(&exports) {
            Ok(fences) => AdminReply::Fences(fences),
            Err(text) => AdminReply::Failed(text),
        },
        AdminRequest::Fence { exports, change, names } => {
            match administration.fence(&exports, change, &names) {
                Ok(fences) => AdminReply::Fences(fences),
                Err(text) => AdminReply::Failed(text),
            }
        }
        AdminRequest::Reload => match administration.reload() {
            Ok(text) => AdminReply::Done(text),
            Err(text) => AdminReply::Failed(text),
        },
    })
}

/// An open store, with the name of its export and the place of its files.
pub(super) struct Known {
    name: String,
    source: ExportSource,
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

    fn is_for(&self, config: &ExportConfig) -> bool {
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
            ExportConfig { name, source: source.clone(), options, subtree_check: false }
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

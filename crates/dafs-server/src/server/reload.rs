//! The configuration file is read again.
//!
//! Invariants
//! * A file that cannot be used changes nothing. All that can fail comes before the first change, with one
//!   exception: where the nodes of several exports have changed, those of the first ones may be in use already
//!   when a node of a later one cannot be reached.
//! * Each changed key is in the answer: applied, or refused until the next start.

use super::administration::{Administration, Known, open_exports};
use super::journal;
use super::tls::Users;
use crate::admin::{RefusedKey, ReloadReport};
use crate::config::{Config, ExportConfig, ExportSource, changes, export_key};
use crate::sandbox;
use dafs_cluster::ClusterSecret;
use dafs_service::Namespace;
use std::sync::atomic::Ordering;

impl Administration {
    /// Serves the exports of the present configuration file, and follows its other keys where that needs no
    /// restart.
    pub(super) fn reload(&self) -> Result<ReloadReport, String> {
        // The programs that rotate logs tell servers to reload.
        if let Some(reopen) = &self.reopen_log {
            reopen.store(true, Ordering::Relaxed);
        }
        let report = self.reload_now().map_err(sandbox::explain)?;
        for RefusedKey { key, reason } in &report.refused {
            tracing::warn!(key, reason, "a changed key needs a restart");
        }
        let (exports, applied) = (report.exports, &report.applied);
        tracing::info!(exports, ?applied, "the configuration was read again");
        Ok(report)
    }

    fn reload_now(&self) -> Result<ReloadReport, String> {
        let read = self.read_config.get();
        let read = read.ok_or("this server has no configuration file to read again")?;
        // Of two reloads at a time the later one reads the file after the first one has followed it.
        let _changing = self.users_change.lock();
        let config = read()?;
        self.check_keys(&config)?;
        let new_users = self.authenticator.read_users().map_err(|error| error.to_string())?;
        let secret = config.exports.iter().find_map(|export| export.source.cluster_secret());
        let secret = secret.map(ClusterSecret::load).transpose();
        let secret = secret.map_err(|error| error.to_string())?;
        let mut stores = self.stores.lock();
        let (changed, others): (Vec<_>, Vec<_>) =
            config.exports.iter().cloned().partition(|export| has_changed_nodes(&stores, export));
        let open = |configs: &[ExportConfig], known: &[Known]| {
            open_exports(configs, self.secret, &self.state, known)
                .map_err(|error| error.to_string())
        };
        let (mut exports, mut opened) = open(&others, &stores)?;
        changed.iter().try_for_each(|export| adapt(&mut stores, export))?;
        let (more_exports, more_opened) = open(&changed, &stores)?;
        exports.extend(more_exports);
        opened.extend(more_opened);
        let namespace = Namespace::new(exports).map_err(|error| error.to_string())?;
        // Calls that come from now on find the new rules before the new exports.
        let has_changed = |users: &Users| users.follow(&config.certificate_users);
        if self.certificates.as_ref().is_some_and(has_changed) {
            self.owes_layouts.store(true, Ordering::Relaxed);
        }
        self.service.importance.replace_rules(config.importance.clone());
        self.service.replace_namespace(namespace);
        self.data.iter().for_each(|data| data.follow(&config.exports));
        *stores = opened;
        let data_servers: Vec<_> = stores.iter().filter_map(Known::data_servers).collect();
        drop(stores);
        let follow = |read: &ClusterSecret| {
            let followed = data_servers.iter().map(|all| all.follow_secret(read, &self.service));
            followed.fold(false, |any, changed| any | changed)
        };
        let files = [
            ("the users of password_file", self.follow_users(new_users)),
            ("the file of cluster.secret", secret.as_ref().is_some_and(follow)),
        ];
        Ok(self.compare(&config, files))
    }

    /// Refuses a file with keys that would be in force in part.
    fn check_keys(&self, config: &Config) -> Result<(), String> {
        if journal::is_wanted(&config.exports)
            && self.service.durable.journal_statistics().is_none()
        {
            let text = "durable_replies are kept from the next start of the server on: restart it, or set them to \
                        off";
            return Err(text.to_owned());
        }
        let takes_users = self.certificates.as_ref().is_some_and(Users::can_be_known);
        if !takes_users && !config.certificate_users.is_empty() {
            let text = "the server has no TLS, or its TLS no authorities, until its next start: restart it for \
                        [[identity]] certificate";
            return Err(text.to_owned());
        }
        Ok(())
    }

    /// Compares the file with the keys in force, which are those of the file from now on where they are
    /// applied. `files` are named by keys, with whether each has changed.
    fn compare(&self, config: &Config, files: [(&str, bool); 2]) -> ReloadReport {
        let mut in_force = self.in_force.lock();
        let changes = changes(&in_force, &config.document);
        *in_force = changes.in_force;
        let (mut applied, mut refused) = (changes.applied, changes.refused);
        let shown = config.exports.iter().filter(|export| export.options.optimistic.is_on());
        for export in shown.filter(|_| !self.shows_files) {
            let key = export_key(&export.name, "optimistic");
            applied.retain(|applied| *applied != key);
            let reason = "memory to show files in is made at the start".to_owned();
            refused.push(RefusedKey { key, reason });
        }
        let changed = files.into_iter().filter(|(_, has_changed)| *has_changed);
        applied.extend(changed.map(|(name, _)| name.to_owned()));
        ReloadReport { exports: config.exports.len() as u64, applied, refused }
    }
}

/// True if an export has data servers, and its open store is not for these.
fn has_changed_nodes(stores: &[Known], config: &ExportConfig) -> bool {
    let has_data_servers = match &config.source {
        ExportSource::Striped { .. } => true,
        ExportSource::CephFs(ceph) => !ceph.data_servers.is_empty(),
        ExportSource::Gluster(gluster) => !gluster.data_servers.is_empty(),
        _ => false,
    };
    has_data_servers && !stores.iter().any(|known| known.is_for(config))
}

/// Adapts an open store with data servers to the present configuration.
fn adapt(stores: &mut [Known], config: &ExportConfig) -> Result<(), String> {
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

//! Exports of CephFS: what is written of them, and what is made of it.

use super::file::own_address;
use super::{CephDataServer, CephFsConfig, ExportSource, Wrong};
use dafs_cephfs::Told;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The names of ceph's own programs.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct CephFile {
    conf: Option<PathBuf>,
    id: Option<String>,
    keyring: Option<PathBuf>,
    fs: Option<String>,
    root: Option<String>,
    layouts: Option<String>,
    #[serde(default)]
    data_server: Vec<DataServerFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DataServerFile {
    listen: String,
    osds: Vec<u32>,
    network_namespace: Option<PathBuf>,
}

impl CephFile {
    pub(super) fn check(
        &self,
        base: &Path,
        wrong: &dyn Fn(&str, String) -> Wrong,
    ) -> Result<ExportSource, Wrong> {
        let there = |path: &PathBuf| {
            let path = base.join(path);
            match path.is_file() {
                true => Ok(path),
                false => Err(wrong("ceph", format!("{} is not there", path.display()))),
            }
        };
        if self.id.as_ref().is_some_and(|id| id.starts_with("client.")) {
            return Err(wrong("ceph", "write id without \"client.\"".to_owned()));
        }
        let root = self.root.clone().unwrap_or_else(|| "/".to_owned());
        if !root.starts_with('/') {
            let remedy = "root is a path from the top of the file system, with \"/\" first";
            return Err(wrong("ceph", remedy.to_owned()));
        }
        let mut data_servers: Vec<CephDataServer> = Vec::new();
        for server in &self.data_server {
            let listen = own_address(&server.listen).map_err(|remedy| wrong("ceph", remedy))?;
            if server.osds.is_empty() {
                let remedy = "name the OSDs of each data_server: osds = [0, 1]".to_owned();
                return Err(wrong("ceph", remedy));
            }
            let of_others = data_servers.iter().flat_map(|other| &other.osds);
            if let Some(osd) = of_others.into_iter().find(|osd| server.osds.contains(osd)) {
                let remedy = format!("OSD {osd} is named by two data_servers; it has one host");
                return Err(wrong("ceph", remedy));
            }
            let network_namespace = server.network_namespace.as_ref().map(|path| base.join(path));
            let osds = server.osds.clone();
            data_servers.push(CephDataServer { listen, osds, network_namespace });
        }
        let told = match self.layouts.as_deref() {
            None | Some("placement") => Told::Placement,
            Some("turns") => Told::Turns,
            Some(_) => {
                let remedy = "layouts is \"placement\", or \"turns\" for comparison".to_owned();
                return Err(wrong("ceph", remedy));
            }
        };
        Ok(ExportSource::CephFs(CephFsConfig {
            conf: self.conf.as_ref().map(there).transpose()?,
            id: self.id.clone(),
            keyring: self.keyring.as_ref().map(there).transpose()?,
            fs: self.fs.clone(),
            root,
            data_servers,
            told,
        }))
    }
}

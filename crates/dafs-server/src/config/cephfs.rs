//! Exports of CephFS: their form in the file, and their configuration.

use super::gluster::{check_far, place};
use super::{CephDataServer, CephFsConfig, DataServerPlace, ExportSource, OsdConfig, Wrong};
use dafs_cephfs::Told;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Keys with the names of ceph's own programs.
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
    listen: Option<String>,
    rdma_listen: Option<String>,
    rdma_verbs_listen: Option<String>,
    number: Option<u32>,
    control: Option<String>,
    osds: Vec<u32>,
    network_namespace: Option<PathBuf>,
}

/// Checks that a file exists.
fn there(base: &Path, path: Option<&PathBuf>) -> Result<Option<PathBuf>, String> {
    let path = path.map(|path| base.join(path));
    match path {
        Some(path) if !path.is_file() => Err(format!("{} is not there", path.display())),
        path => Ok(path),
    }
}

fn check_id(id: Option<&str>) -> Result<(), String> {
    match id {
        Some(id) if id.starts_with("client.") => Err("write id without \"client.\"".to_owned()),
        _ => Ok(()),
    }
}

fn check_root(root: Option<&str>) -> Result<String, String> {
    match root.unwrap_or("/") {
        root if root.starts_with('/') => Ok(root.to_owned()),
        _ => Err("root is a path from the top of the file system, with \"/\" first".to_owned()),
    }
}

fn check_osds(osds: &[u32]) -> Result<(), String> {
    match osds {
        [] => Err("name the OSDs of each data_server: osds = [0, 1]".to_owned()),
        _ => Ok(()),
    }
}

/// The storage daemons of a data server in a process of its own.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OsdFile {
    conf: Option<PathBuf>,
    id: Option<String>,
    keyring: Option<PathBuf>,
    fs: Option<String>,
    root: Option<String>,
    osds: Vec<u32>,
}

impl OsdFile {
    pub(super) fn check(self, base: &Path) -> Result<OsdConfig, String> {
        check_id(self.id.as_deref())?;
        check_osds(&self.osds)?;
        Ok(OsdConfig {
            conf: there(base, self.conf.as_ref())?,
            keyring: there(base, self.keyring.as_ref())?,
            root: check_root(self.root.as_deref())?,
            id: self.id,
            fs: self.fs,
            osds: self.osds,
        })
    }
}

impl CephFile {
    pub(super) fn check(
        &self,
        base: &Path,
        cluster_secret: Option<&Path>,
        wrong: &dyn Fn(&str, String) -> Wrong,
    ) -> Result<ExportSource, Wrong> {
        let wrong = |remedy: String| wrong("ceph", remedy);
        check_id(self.id.as_deref()).map_err(wrong)?;
        let root = check_root(self.root.as_deref()).map_err(wrong)?;
        let mut data_servers: Vec<CephDataServer> = Vec::new();
        for server in &self.data_server {
            let (listen, control) = (server.listen.as_deref(), server.control.as_deref());
            let rdma = (server.rdma_listen.as_deref(), server.rdma_verbs_listen.as_deref());
            let place = place(listen, rdma, server.number, control).map_err(wrong)?;
            check_osds(&server.osds).map_err(wrong)?;
            let of_others = data_servers.iter().flat_map(|other| &other.osds);
            if let Some(osd) = of_others.into_iter().find(|osd| server.osds.contains(osd)) {
                let remedy = format!("OSD {osd} is named by two data_servers; it has one host");
                return Err(wrong(remedy));
            }
            let network_namespace = server.network_namespace.as_ref().map(|path| base.join(path));
            let remedy = match &place {
                _ if network_namespace.is_none() => None,
                DataServerPlace::Remote { .. } => Some("it is for data servers of this process"),
                DataServerPlace::Local(_, rdma) => {
                    rdma.verbs.map(|_| "devices are used in the network of this process")
                }
            };
            if let Some(reason) = remedy {
                return Err(wrong(format!("leave network_namespace out: {reason}")));
            }
            let osds = server.osds.clone();
            data_servers.push(CephDataServer { place, osds, network_namespace });
        }
        let places = data_servers.iter().map(|server| &server.place);
        let cluster_secret = check_far(places, cluster_secret).map_err(wrong)?;
        let told = match self.layouts.as_deref() {
            None | Some("placement") => Told::Placement,
            Some("turns") => Told::Turns,
            Some(_) => {
                let remedy = "layouts is \"placement\", or \"turns\" for comparison".to_owned();
                return Err(wrong(remedy));
            }
        };
        Ok(ExportSource::CephFs(CephFsConfig {
            conf: there(base, self.conf.as_ref()).map_err(wrong)?,
            id: self.id.clone(),
            keyring: there(base, self.keyring.as_ref()).map_err(wrong)?,
            fs: self.fs.clone(),
            root,
            data_servers,
            told,
            cluster_secret,
        }))
    }
}

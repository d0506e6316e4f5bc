//! Exports of CephFS: their form in the file, and their configuration.

use super::gluster::{check_far, place};
use super::keys::table;
use super::{CephDataServer, CephFsConfig, DataServerPlace, ExportSource, OsdConfig, Wrong};
use dafs_cephfs::Told;
use std::path::{Path, PathBuf};

table! {
    /// Keys with the names of ceph's own programs.
    #[derive(Default)]
    pub(super) struct CephFile {
        /// The configuration of the Ceph cluster. Default: where ceph looks for it.
        conf: Option<PathBuf>,
        /// The user of the Ceph cluster, without `client.`. Default: `admin`.
        id: Option<String>,
        /// The file with the key of that user. Default: as `conf` says.
        keyring: Option<PathBuf>,
        /// The file system. Default: the default one of the cluster.
        fs: Option<String>,
        /// The directory to export, from the top of the file system. Default: `/`.
        root: Option<String>,
        /// The form of layouts for pNFS clients: `placement`, or `turns` for comparison. Default:
        /// `placement`.
        layouts: Option<String>,
        /// A data server for pNFS clients. Without any, clients get no layouts.
        #[serde(default)]
        data_server: Vec<DataServerFile>,
    }
}

table! {
    struct DataServerFile {
        /// The one address where pNFS clients reach a data server of this process.
        listen: Option<String>,
        /// Its address for RDMA in software (iWARP). Default: none.
        rdma_listen: Option<String>,
        /// Its address for RDMA by a device of this host. Default: none.
        rdma_verbs_listen: Option<String>,
        /// The number of a data server in a process of its own.
        number: Option<u32>,
        /// The control connection of a data server in a process of its own: `HOST:PORT`.
        control: Option<String>,
        /// The numbers of the storage daemons (OSDs) beside which the data server runs.
        osds: Vec<u32>,
        /// The network namespace of a data server of this process, such as `/run/netns/NAME`. Default:
        /// that of the server.
        network_namespace: Option<PathBuf>,
    }
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

table! {
    /// The storage daemons of a data server in a process of its own.
    pub(super) struct OsdFile {
        /// The configuration of the Ceph cluster. Default: where ceph looks for it.
        conf: Option<PathBuf>,
        /// The user of the Ceph cluster, without `client.`. Default: `admin`.
        id: Option<String>,
        /// The file with the key of that user. Default: as `conf` says.
        keyring: Option<PathBuf>,
        /// The file system. Default: the default one of the cluster.
        fs: Option<String>,
        /// A directory that has all exported files in it, from the top of the file system. Default: `/`.
        root: Option<String>,
        /// The numbers of the storage daemons (OSDs) beside which the data server runs.
        osds: Vec<u32>,
    }
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

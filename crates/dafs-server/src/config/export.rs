//! The tables `[[export]]` and `[[export.node]]`, and the checks that make an [`ExportConfig`] of one.

use super::cephfs::CephFile;
use super::gluster::GlusterFile;
use super::keys::table;
use super::rules::{self, OptimisticFile};
use super::units::Bytes;
use super::{
    DataRdma, ExportConfig, ExportSource, NodeConfig, NodePlace, Wrong, parse_listen_nfs,
    parse_listen_nfs_rdma,
};
use crate::limits::MEND_IDLE;
use dafs_service::durable::Durability;
use dafs_service::{Admits, ExportOptions, Squash};
use dafs_store::{COPIES_MAX, Cred, NAME_BYTES_MAX};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::str::FromStr;

table! {
    pub(super) struct ExportFile {
        /// The name below the root: clients see `dafs://HOST/NAME`. It is `""` for the only export of a
        /// server, which then is the root itself.
        name: String,
        /// The directory with the files, or with their names where the export has nodes.
        path: Option<PathBuf>,
        /// Bytes for files in memory instead of in a directory. They are gone when the server ends.
        memory_bytes: Option<Bytes>,
        /// The server refuses every change. Default: false.
        #[serde(default)]
        read_only: bool,
        /// The callers that become the anonymous user: `root`, `none` or `all`. Default: `root`.
        squash: Option<String>,
        /// The anonymous user. It also stands for callers whom neither call nor certificate names. Default:
        /// 65534.
        anonymous_uid: Option<u32>,
        /// The group of the anonymous user. Default: 65534.
        anonymous_gid: Option<u32>,
        /// The addresses whose NFS clients may mount, as ranges such as `192.0.2.0/24`. The server trusts
        /// their claims about users under `sys`. Default: this host alone.
        networks: Option<Vec<String>>,
        /// The security flavours that clients may use, the preferred ones first: `krb5p`, `krb5i`, `krb5`,
        /// `sys`, `none`. Default: `sys`.
        #[serde(alias = "security")]
        sec: Option<Vec<String>>,
        /// The least protection of a connection: `none`, `tls`, or `mtls` for clients with a certificate.
        /// Default: `none`.
        transport_security: Option<String>,
        /// NFS clients may use ports from 1024 on, which do not prove that root of their host asks.
        /// Default: false.
        #[serde(default)]
        unprivileged_ports: bool,
        /// The failures that replies to changes survive: `off` for none, `crash` for the end of the
        /// server's process, `power` for a power failure. An export of one directory alone has it. Default:
        /// `off`.
        durable_replies: Option<String>,
        /// The callers that a share key excludes: `advisory` for opens under another key, `strict` also for
        /// clients without a key. Default: `advisory`.
        shared_keys: Option<String>,
        /// Clients that ask for it read files in memory of the server, without requests: `true` for
        /// clients of this host, `"remote"` for clients of other hosts, too, by RDMA. Default: false.
        optimistic: Option<OptimisticFile>,
        /// The server looks for files that a local user has moved out of the directory, and then refuses
        /// them. Default: false.
        #[serde(default)]
        subtree_check: bool,
        /// Bytes of a stripe of new files, where the export has nodes: 4096 to 1073741824, a multiple of
        /// 64. Default: 1048576.
        stripe_bytes: Option<Bytes>,
        /// Whole copies of each new file on so many nodes: 1 to 8, where 1 means stripes. Default: 1.
        copies: Option<usize>,
        /// A node that keeps stripes or copies of files.
        #[serde(default)]
        node: Vec<NodeFile>,
        /// The file system that keeps the files, instead of a directory: `cephfs` or `glusterfs`.
        store: Option<String>,
        /// The directory of a CephFS, for `store = "cephfs"`.
        ceph: Option<CephFile>,
        /// The directory of a volume of GlusterFS, for `store = "glusterfs"`.
        gluster: Option<GlusterFile>,
    }
}

table! {
    struct NodeFile {
        /// The number of the node in the records of files. Never change it, and never use it again.
        number: u32,
        /// The directory of a node of this machine, which is empty at the first start.
        path: Option<PathBuf>,
        /// The one address where pNFS clients reach the node. Default: none, and no layouts.
        listen: Option<String>,
        /// Its address for NFS over RDMA in software (iWARP). Default: none.
        rdma_listen: Option<String>,
        /// Its address for NFS over RDMA by a device of this host. Default: none.
        rdma_verbs_listen: Option<String>,
        /// The one address where DAFS clients with layouts reach the node. Default: none.
        dafs_listen: Option<String>,
        /// The node serves DAFS by the RDMA device of that address, too. Default: false.
        #[serde(default)]
        dafs_verbs: bool,
        /// The control connection of a node in another process, instead of `path`: `HOST:PORT`.
        control: Option<String>,
    }
}

/// Bytes of a stripe by default.
const STRIPE_BYTES_DEFAULT: u32 = 1 << 20;

/// Parses the address of a data server that clients get.
pub(super) fn own_address(text: &str) -> Result<SocketAddr, String> {
    match parse_listen_nfs(text) {
        Ok(address) if address.ip().is_unspecified() => {
            Err("listen on the one address that clients use".to_owned())
        }
        parsed => parsed,
    }
}

/// Parses the RDMA addresses of a data server: `rdma_listen` and `rdma_verbs_listen` of its table.
pub(super) fn data_rdma(soft: Option<&str>, verbs: Option<&str>) -> Result<DataRdma, String> {
    let parse = |text| match parse_listen_nfs_rdma(text) {
        Ok(address) if address.ip().is_unspecified() => {
            Err("listen for RDMA on the one address that clients use".to_owned())
        }
        parsed => parsed,
    };
    let rdma =
        DataRdma { soft: soft.map(parse).transpose()?, verbs: verbs.map(parse).transpose()? };
    rdma.check()?;
    Ok(rdma)
}

impl DataRdma {
    /// Checks that clients can use both addresses, and that they can coexist.
    ///
    /// # Errors
    /// The text to write instead.
    pub fn check(&self) -> Result<(), String> {
        match (self.soft, self.verbs) {
            (_, Some(verbs)) if verbs.port() == 0 => {
                Err(format!("{verbs}: name the port, which devices do not choose"))
            }
            (Some(soft), Some(verbs)) if soft == verbs => {
                Err(format!("{verbs} is for RDMA in software too; give one of them another port"))
            }
            _ => Ok(()),
        }
    }
}

/// Parses the address where a data server of another process waits for its metadata server.
pub(super) fn control_address(text: &str) -> Result<String, String> {
    let (host, port) = text.rsplit_once(':').unwrap_or_default();
    match port.parse::<u16>() {
        Ok(_) if !host.is_empty() => Ok(text.to_owned()),
        _ => Err(format!("{text:?} is no address; write control = \"HOST:PORT\"")),
    }
}

impl NodeFile {
    fn check(
        &self,
        base: &Path,
        wrong: &dyn Fn(&str, String) -> Wrong,
    ) -> Result<NodeConfig, Wrong> {
        let number = self.number;
        let path = match (&self.path, &self.control) {
            (None, Some(control)) if !self.is_open() => {
                let control = control_address(control).map_err(|remedy| wrong("node", remedy))?;
                return Ok(NodeConfig { number, place: NodePlace::Remote(control) });
            }
            (None, Some(_)) => {
                let remedy = "leave listen out: the data server says where clients reach it";
                return Err(wrong("node", remedy.to_owned()));
            }
            (Some(path), None) => base.join(path),
            _ => {
                let remedy = "write path = \"DIRECTORY\", or control = \"HOST:PORT\" for a data \
                              server of another machine";
                return Err(wrong("node", remedy.to_owned()));
            }
        };
        if !path.is_dir() {
            let remedy = format!("{} is no directory; make it first", path.display());
            return Err(wrong("node", remedy));
        }
        let parse = |text: &String| own_address(text).map_err(|remedy| wrong("node", remedy));
        let listen = self.listen.as_ref().map(parse).transpose()?;
        let dafs_listen = self.dafs_listen.as_ref().map(parse).transpose()?;
        let (soft, verbs) = (self.rdma_listen.as_deref(), self.rdma_verbs_listen.as_deref());
        let rdma = data_rdma(soft, verbs).map_err(|remedy| wrong("node", remedy))?;
        if listen.is_none() && self.is_open() {
            let remedy = "name listen too: layouts are given where NFS clients can use them, all of \
                          which can use TCP";
            return Err(wrong("node", remedy.to_owned()));
        }
        let dafs_verbs = self.dafs_verbs;
        if dafs_verbs && dafs_listen.is_none() {
            let remedy = "name dafs_listen too: DAFS clients try the RDMA device of that address";
            return Err(wrong("node", remedy.to_owned()));
        }
        let place = NodePlace::Directory { path, listen, rdma, dafs_listen, dafs_verbs };
        Ok(NodeConfig { number, place })
    }

    /// True if there is any address for clients.
    fn is_open(&self) -> bool {
        let all = [&self.listen, &self.rdma_listen, &self.rdma_verbs_listen, &self.dafs_listen];
        self.dafs_verbs || all.iter().any(|listen| listen.is_some())
    }
}

/// Checks that clients can tell the exports apart.
pub(super) fn check_names(exports: &[ExportConfig]) -> Result<(), Wrong> {
    for (index, export) in exports.iter().enumerate() {
        let name = &*export.name;
        let is_usable = name.len() <= NAME_BYTES_MAX && !name.contains(['/', '\0']);
        let remedy = match name {
            "" if exports.len() == 1 => continue,
            "" => {
                "an export without a name is the root itself, and has no others beside it; give each \
                 its own name"
            }
            "." | ".." => "it stands for a directory; use another name",
            _ if !is_usable => {
                "it cannot be the name of an export; use 1 to 255 characters without '/'"
            }
            _ if exports[..index].iter().any(|other| other.name == export.name) => {
                "another export before it has this name, too; give each its own name"
            }
            _ => continue,
        };
        return Err(Wrong {
            key: format!("export {name:?}: name"),
            steps: ["export", &index.to_string(), "name"].map(str::to_owned).to_vec(),
            remedy: remedy.to_owned(),
        });
    }
    Ok(())
}

/// Parses a word of an export. Without one it is the default.
fn word<T: Default + FromStr<Err = String>>(text: Option<&str>) -> Result<T, String> {
    match text {
        None => Ok(T::default()),
        Some(text) => {
            text.parse().map_err(|remedy: String| format!("{text:?} is unknown; {remedy}"))
        }
    }
}

impl ExportFile {
    pub(super) fn check(
        &self,
        index: usize,
        base: &Path,
        cluster_secret: Option<&Path>,
    ) -> Result<ExportConfig, Wrong> {
        let wrong = |field: &str, remedy: String| Wrong {
            key: format!("export {:?}: {field}", self.name),
            steps: ["export", &index.to_string(), field].map(str::to_owned).to_vec(),
            remedy,
        };
        let squash = match self.squash.as_deref() {
            None | Some("root") => Squash::Root,
            Some("none") => Squash::None,
            Some("all") => Squash::All,
            Some(other) => {
                let remedy = format!("{other:?} is unknown; use root, none or all");
                return Err(wrong("squash", remedy));
            }
        };
        let source = self.source(base, cluster_secret, &wrong)?;
        let nobody = ExportOptions::default().anonymous;
        let anonymous = Cred::new(
            self.anonymous_uid.unwrap_or(nobody.uid),
            self.anonymous_gid.unwrap_or(nobody.gid),
        );
        let least = self.transport_security.as_deref();
        let admits = Admits {
            unprivileged_ports: self.unprivileged_ports,
            ..rules::admits(self.networks.as_deref(), self.sec.as_deref(), least, &wrong)?
        };
        let durable_replies = self.durable_replies(&source, &wrong)?;
        let shared_keys = word(self.shared_keys.as_deref());
        let shared_keys = shared_keys.map_err(|remedy| wrong("shared_keys", remedy))?;
        let optimistic = rules::optimistic(self.optimistic.as_ref(), &source, &wrong)?;
        let options = ExportOptions {
            read_only: self.read_only,
            squash,
            anonymous,
            admits,
            durable_replies,
            shared_keys,
            optimistic,
        };
        let subtree_check = self.subtree_check;
        if subtree_check && !matches!(source, ExportSource::Directory(_)) {
            let remedy = "only an export with `path` alone has it; leave it out";
            return Err(wrong("subtree_check", remedy.to_owned()));
        }
        let (name, mend_idle) = (self.name.clone(), MEND_IDLE);
        Ok(ExportConfig { name, source, options, subtree_check, mend_idle })
    }

    /// Returns the source of the files.
    fn source(
        &self,
        base: &Path,
        cluster_secret: Option<&Path>,
        wrong: &dyn Fn(&str, String) -> Wrong,
    ) -> Result<ExportSource, Wrong> {
        match (&self.path, self.memory_bytes) {
            _ if self.store.is_some() || self.ceph.is_some() || self.gluster.is_some() => {
                self.engine(base, cluster_secret, wrong)
            }
            (Some(path), None) => {
                let path = base.join(path);
                if !path.is_dir() {
                    let remedy = format!("{} is no directory; make it first", path.display());
                    return Err(wrong("path", remedy));
                }
                self.spread(path, base, cluster_secret, wrong)
            }
            (None, Some(Bytes(bytes_max))) => Ok(ExportSource::Memory { bytes_max }),
            (Some(_), Some(_)) => Err(wrong("memory_bytes", "leave it out, or path".to_owned())),
            (None, None) => {
                let remedy = "write path = \"DIRECTORY\", or memory_bytes = N for files in memory";
                Err(wrong("name", remedy.to_owned()))
            }
        }
    }

    /// Returns the failures that replies survive, which must be possible with the source.
    fn durable_replies(
        &self,
        source: &ExportSource,
        wrong: &dyn Fn(&str, String) -> Wrong,
    ) -> Result<Durability, Wrong> {
        let wrong = |remedy: &str| wrong("durable_replies", remedy.to_owned());
        let durability: Durability =
            word(self.durable_replies.as_deref()).map_err(|remedy| wrong(&remedy))?;
        let remedy = match source {
            _ if durability == Durability::Off => None,
            ExportSource::Directory(_) => None,
            ExportSource::Striped { .. } => {
                Some("replies for files that are spread over nodes are not kept; use off")
            }
            ExportSource::CephFs(_) => Some("replies for files of CephFS are not kept; use off"),
            ExportSource::Gluster(_) => {
                Some("replies for files of GlusterFS are not kept; use off")
            }
            ExportSource::Memory { .. } => {
                Some("files in memory do not outlive the server; use off, or path")
            }
        };
        remedy.map_or(Ok(durability), |remedy| Err(wrong(remedy)))
    }

    /// Returns the source of files that another file system keeps.
    fn engine(
        &self,
        base: &Path,
        cluster_secret: Option<&Path>,
        wrong: &dyn Fn(&str, String) -> Wrong,
    ) -> Result<ExportSource, Wrong> {
        let (engine, table) = match (self.store.as_deref(), &self.ceph, &self.gluster) {
            (Some("cephfs"), _, None) => ("CephFS", "[export.ceph]"),
            (Some("glusterfs"), None, _) => ("GlusterFS", "[export.gluster]"),
            _ => {
                let remedy = "write \"cephfs\" and perhaps [export.ceph], or \"glusterfs\" and \
                              [export.gluster], or leave it and these out";
                return Err(wrong("store", remedy.to_owned()));
            }
        };
        let other = [
            ("path", self.path.is_some()),
            ("memory_bytes", self.memory_bytes.is_some()),
            ("stripe_bytes", self.stripe_bytes.is_some()),
            ("copies", self.copies.is_some()),
            ("node", !self.node.is_empty()),
        ];
        if let Some((field, _)) = other.iter().find(|(_, is_set)| *is_set) {
            let remedy = format!("leave it out: {engine} keeps the files, and {table} says which");
            return Err(wrong(field, remedy));
        }
        match (engine, &self.gluster) {
            ("GlusterFS", Some(gluster)) => gluster.check(cluster_secret, wrong),
            ("GlusterFS", None) => {
                let remedy = "say which volume: [export.gluster] with volume and servers";
                Err(wrong("store", remedy.to_owned()))
            }
            _ => {
                let ceph = self.ceph.as_ref();
                ceph.unwrap_or(&CephFile::default()).check(base, cluster_secret, wrong)
            }
        }
    }

    /// Returns the source of a directory with all of the files, or with their names.
    fn spread(
        &self,
        path: PathBuf,
        base: &Path,
        cluster_secret: Option<&Path>,
        wrong: &dyn Fn(&str, String) -> Wrong,
    ) -> Result<ExportSource, Wrong> {
        if self.node.is_empty() {
            let fields =
                [("stripe_bytes", self.stripe_bytes.is_some()), ("copies", self.copies.is_some())];
            return match fields.iter().find(|(_, is_set)| *is_set) {
                None => Ok(ExportSource::Directory(path)),
                Some((field, _)) => {
                    let remedy =
                        "leave it out, or name nodes: [[export.node]] with number and path";
                    Err(wrong(field, remedy.to_owned()))
                }
            };
        }
        let bytes = self.stripe_bytes.map_or(STRIPE_BYTES_DEFAULT.into(), |Bytes(bytes)| bytes);
        let unit_bytes = u32::try_from(bytes)
            .ok()
            .filter(|bytes| (4096..=1 << 30).contains(bytes) && bytes.is_multiple_of(64))
            .and_then(NonZeroU32::new)
            .ok_or_else(|| {
                wrong("stripe_bytes", "use 4096 to 1073741824, a multiple of 64".to_owned())
            })?;
        let nodes = self.node.iter().map(|node| node.check(base, wrong));
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        for (at, node) in nodes.iter().enumerate() {
            if nodes[..at].iter().any(|other| other.number == node.number) {
                return Err(wrong("node", "give each node its own number".to_owned()));
            }
            let remote = matches!(node.place, NodePlace::Remote(_));
            if remote && nodes[..at].iter().any(|other| other.place == node.place) {
                let remedy = "give each node its own data server: two have the same control";
                return Err(wrong("node", remedy.to_owned()));
            }
        }
        let remote = nodes.iter().any(|node| matches!(node.place, NodePlace::Remote(_)));
        let cluster_secret = cluster_secret.filter(|_| remote).map(Path::to_owned);
        if remote && cluster_secret.is_none() {
            let remedy = "name the secret of the cluster too: [cluster] with secret = \"FILE\"";
            return Err(wrong("node", remedy.to_owned()));
        }
        let copies = self.copies.unwrap_or(1);
        if !(1..=COPIES_MAX.min(nodes.len())).contains(&copies) {
            let remedy = format!("use 1 to {COPIES_MAX}, and no more than there are nodes");
            return Err(wrong("copies", remedy));
        }
        Ok(ExportSource::Striped { path, unit_bytes, copies, nodes, cluster_secret })
    }
}

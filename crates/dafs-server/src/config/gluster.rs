//! Exports of GlusterFS: their form in the file, and their configuration.

use super::export::{control_address, data_rdma, own_address};
use super::keys::table;
use super::{
    BrickConfig, DataRdma, DataServerPlace, ExportSource, GlusterConfig, GlusterDataServer, Wrong,
};
use std::path::{Path, PathBuf};

table! {
    /// Keys with the names of GlusterFS's own programs.
    pub(super) struct GlusterFile {
        /// The volume, as `gluster volume list` shows it.
        volume: String,
        /// Hosts with glusterd, each as `HOST` or `HOST:PORT`. The first that answers is asked.
        servers: Vec<String>,
        /// The directory to export, from the top of the volume. Default: `/`.
        root: Option<String>,
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
        /// The brick beside which the data server runs: `HOST:PATH`, as `gluster volume info` shows it.
        brick: String,
    }
}

/// Returns the place of a data server: in this server, or at a control connection.
pub(super) fn place(
    listen: Option<&str>,
    (soft, verbs): (Option<&str>, Option<&str>),
    number: Option<u32>,
    control: Option<&str>,
) -> Result<DataServerPlace, String> {
    let rdma = data_rdma(soft, verbs)?;
    match (listen, number, control) {
        (Some(listen), None, None) => Ok(DataServerPlace::Local(own_address(listen)?, rdma)),
        (None, Some(number), Some(control)) if rdma == DataRdma::default() => {
            Ok(DataServerPlace::Remote { number, control: control_address(control)? })
        }
        _ => {
            Err("write listen, and rdma_listen if you like, for a data server of this process, or \
                  number and control for one of its own"
                .to_owned())
        }
    }
}

/// Returns the secret of the cluster, if there are data servers in other processes.
pub(super) fn check_far<'a>(
    places: impl Iterator<Item = &'a DataServerPlace>,
    cluster_secret: Option<&Path>,
) -> Result<Option<PathBuf>, String> {
    let far = places.filter_map(|place| match place {
        DataServerPlace::Remote { number, control } => Some((number, control)),
        DataServerPlace::Local(..) => None,
    });
    let far: Vec<_> = far.collect();
    for (at, (number, control)) in far.iter().enumerate() {
        if far[..at].iter().any(|(other, same)| other == number || same == control) {
            return Err("give each data server its own number and its own control".to_owned());
        }
    }
    match cluster_secret {
        _ if far.is_empty() => Ok(None),
        Some(secret) => Ok(Some(secret.to_owned())),
        None => {
            Err("name the secret of the cluster too: [cluster] with secret = \"FILE\"".to_owned())
        }
    }
}

/// Checks the form HOST:PATH.
fn check_brick(brick: &str) -> Result<(), String> {
    match brick.contains(":/") {
        true => Ok(()),
        false => Err("brick is HOST:PATH, as gluster volume info shows it".to_owned()),
    }
}

/// Parses HOST, or HOST:PORT. An IPv6 address with a port has brackets.
fn server(text: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            match port {
                "" => (host, None),
                _ => (host, Some(port.strip_prefix(':')?)),
            }
        }
        None => match text.split_once(':') {
            Some((host, port)) if !port.contains(':') => (host, Some(port)),
            _ => (text, None),
        },
    };
    if host.is_empty() || host.contains(['/', ' ']) {
        return None;
    }
    let port = match port {
        None => None,
        Some(port) => Some(port.parse().ok().filter(|&port| port != 0)?),
    };
    Some((host.to_owned(), port))
}

/// Returns the hosts that know a volume of that name.
fn volume(name: &str, hosts: &[String]) -> Result<Vec<(String, Option<u16>)>, String> {
    if name.is_empty() || name.contains(['/', ' ']) {
        return Err("volume is a name that gluster volume list shows".to_owned());
    }
    let host =
        |text: &String| server(text).ok_or_else(|| format!("{text:?} is no HOST and no HOST:PORT"));
    match hosts.iter().map(host).collect::<Result<Vec<_>, _>>()? {
        hosts if hosts.is_empty() => {
            Err("name hosts of the volume: servers = [\"HOST\"]".to_owned())
        }
        hosts => Ok(hosts),
    }
}

table! {
    /// The brick of a data server in a process of its own.
    pub(super) struct BrickFile {
        /// The volume, as `gluster volume list` shows it.
        volume: String,
        /// Hosts with glusterd, each as `HOST` or `HOST:PORT`. The first that answers is asked.
        servers: Vec<String>,
        /// The brick of this machine: `HOST:PATH`, as `gluster volume info` shows it.
        brick: String,
    }
}

impl BrickFile {
    pub(super) fn check(self) -> Result<BrickConfig, String> {
        let Self { volume: name, servers, brick } = self;
        check_brick(&brick)?;
        Ok(BrickConfig { servers: volume(&name, &servers)?, volume: name, brick })
    }
}

impl GlusterFile {
    pub(super) fn check(
        &self,
        cluster_secret: Option<&Path>,
        wrong: &dyn Fn(&str, String) -> Wrong,
    ) -> Result<ExportSource, Wrong> {
        let wrong = |remedy: String| wrong("gluster", remedy);
        let servers = volume(&self.volume, &self.servers).map_err(wrong)?;
        let root = self.root.clone().unwrap_or_else(|| "/".to_owned());
        if !root.starts_with('/') {
            let remedy = "root is a path from the top of the volume, with \"/\" first";
            return Err(wrong(remedy.to_owned()));
        }
        let mut data_servers: Vec<GlusterDataServer> = Vec::new();
        for server in &self.data_server {
            let DataServerFile { listen, rdma_listen, rdma_verbs_listen, .. } = server;
            let DataServerFile { number, control, brick, .. } = server;
            let rdma = (rdma_listen.as_deref(), rdma_verbs_listen.as_deref());
            let place = place(listen.as_deref(), rdma, *number, control.as_deref());
            let place = place.map_err(wrong)?;
            check_brick(brick).map_err(wrong)?;
            if data_servers.iter().any(|other| other.brick == *brick) {
                return Err(wrong(format!("brick {brick} is named by two data_servers")));
            }
            data_servers.push(GlusterDataServer { place, brick: brick.clone() });
        }
        let places = data_servers.iter().map(|server| &server.place);
        let cluster_secret = check_far(places, cluster_secret).map_err(wrong)?;
        let volume = self.volume.clone();
        Ok(ExportSource::Gluster(GlusterConfig {
            volume,
            servers,
            root,
            data_servers,
            cluster_secret,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_hosts_with_ports_or_without() {
        let read = |text| server(text).map(|(host, port)| format!("{host} {port:?}"));
        for (text, wanted) in [
            ("gl1", Some("gl1 None")),
            ("gl1:24008", Some("gl1 Some(24008)")),
            ("192.0.2.1", Some("192.0.2.1 None")),
            ("2001:db8::1", Some("2001:db8::1 None")),
            ("[2001:db8::1]", Some("2001:db8::1 None")),
            ("[2001:db8::1]:7", Some("2001:db8::1 Some(7)")),
            ("", None),
            (":7", None),
            ("gl1:0", None),
            ("gl1:x", None),
            ("gl1:/brick", None),
            ("[2001:db8::1]x", None),
            ("[2001:db8::1", None),
        ] {
            assert_eq!(read(text).as_deref(), wanted, "{text}");
        }
    }
}

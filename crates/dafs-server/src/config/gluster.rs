//! Exports of GlusterFS: what is written of them, and what is made of it.

use super::file::own_address;
use super::{ExportSource, GlusterConfig, GlusterDataServer, Wrong};
use serde::Deserialize;

/// The names of GlusterFS's own programs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GlusterFile {
    volume: String,
    servers: Vec<String>,
    root: Option<String>,
    #[serde(default)]
    data_server: Vec<DataServerFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DataServerFile {
    listen: String,
    brick: String,
}

/// HOST, or HOST:PORT; an IPv6 address with a port has brackets.
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

impl GlusterFile {
    pub(super) fn check(
        &self,
        wrong: &dyn Fn(&str, String) -> Wrong,
    ) -> Result<ExportSource, Wrong> {
        if self.volume.is_empty() || self.volume.contains(['/', ' ']) {
            let remedy = "volume is a name that gluster volume list shows".to_owned();
            return Err(wrong("gluster", remedy));
        }
        let mut servers = Vec::new();
        for text in &self.servers {
            let remedy = || format!("{text:?} is no HOST and no HOST:PORT");
            servers.push(server(text).ok_or_else(|| wrong("gluster", remedy()))?);
        }
        if servers.is_empty() {
            let remedy = "name hosts of the volume: servers = [\"HOST\"]".to_owned();
            return Err(wrong("gluster", remedy));
        }
        let root = self.root.clone().unwrap_or_else(|| "/".to_owned());
        if !root.starts_with('/') {
            let remedy = "root is a path from the top of the volume, with \"/\" first";
            return Err(wrong("gluster", remedy.to_owned()));
        }
        let mut data_servers: Vec<GlusterDataServer> = Vec::new();
        for DataServerFile { listen, brick } in &self.data_server {
            let listen = own_address(listen).map_err(|remedy| wrong("gluster", remedy))?;
            if !brick.contains(":/") {
                let remedy = "brick is HOST:PATH, as gluster volume info shows it";
                return Err(wrong("gluster", remedy.to_owned()));
            }
            if data_servers.iter().any(|other| other.brick == *brick) {
                let remedy = format!("brick {brick} is named by two data_servers");
                return Err(wrong("gluster", remedy));
            }
            data_servers.push(GlusterDataServer { listen, brick: brick.clone() });
        }
        let volume = self.volume.clone();
        Ok(ExportSource::Gluster(GlusterConfig { volume, servers, root, data_servers }))
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

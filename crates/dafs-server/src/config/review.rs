//! Settings that are allowed, and probably not meant.

use super::{Config, ExportConfig, ExportSource, Wrong};
use dafs_service::AddressRange;
use dafs_tls::TransportSecurity;
use std::path::{Path, PathBuf};

/// Returns these settings, each with the text to write.
pub(super) fn warnings(config: &Config) -> Vec<Wrong> {
    let mut found = Vec::new();
    found.extend(open_metrics(config));
    found
        .extend(with_host_bits(&config.auth.trusted).map(|remedy| super::wrong("trusted", remedy)));
    for (index, export) in config.exports.iter().enumerate() {
        let wrong = |field: &str, remedy: String| Wrong {
            key: format!("export {:?}", export.name),
            steps: ["export", &index.to_string(), field].map(str::to_owned).to_vec(),
            remedy,
        };
        let closed = closed_to_nfs(config, export);
        found.extend(closed.map(|remedy| wrong("name", format!("networks: {remedy}"))));
        let sloppy = with_host_bits(&export.options.admits.networks);
        found.extend(sloppy.map(|remedy| wrong("networks", format!("networks: {remedy}"))));
        let shared = shares_files(export, &config.exports[..index]);
        found.extend(shared.map(|remedy| wrong("path", format!("path: {remedy}"))));
    }
    found
}

/// Counters name clients and exports.
fn open_metrics(config: &Config) -> Option<Wrong> {
    let address = config.metrics_listen.filter(|address| !address.ip().is_loopback())?;
    let is_open = config.metrics_transport_security == TransportSecurity::None;
    is_open.then(|| {
        super::wrong(
            "metrics_listen",
            format!(
                "everybody who reaches {address} can read the names of clients and exports; listen on \
                 127.0.0.1, or write metrics_transport_security = \"mtls\""
            ),
        )
    })
}

/// An address with a prefix stands for its whole network, which a reader may not see.
fn with_host_bits(ranges: &[AddressRange]) -> Option<String> {
    let range = ranges.iter().find(|range| range.network() != **range)?;
    let network = range.network();
    Some(format!("{range} admits all of {network}; write that, or the address without its prefix"))
}

/// The server tells clients of other hosts how to mount, and then refuses them.
fn closed_to_nfs(config: &Config, export: &ExportConfig) -> Option<String> {
    let mut listen = config.nfs.listen.iter().chain(&config.nfs.rdma_verbs_listen);
    let address = listen.find(|address| !address.ip().is_loopback())?;
    let loopback = AddressRange::loopback();
    let networks = &export.options.admits.networks;
    networks.iter().all(|range| loopback.contains(range)).then(|| {
        format!(
            "NFS clients of other hosts reach {address}, and this host alone may mount this export; \
             write networks = [\"192.0.2.0/24\"] with their addresses"
        )
    })
}

/// A client with a cache does not notice its own changes under another name of the same file.
fn shares_files(export: &ExportConfig, before: &[ExportConfig]) -> Option<String> {
    let own = directory(export)?;
    before.iter().find_map(|other| {
        let place = directory(other)?;
        let relation = match (own.starts_with(&place), place.starts_with(&own)) {
            (true, true) => "is the directory of",
            (true, false) => "lies in the directory of",
            (false, true) => "contains the directory of",
            (false, false) => return None,
        };
        Some(format!(
            "{} {relation} export {:?}; a client that caches files must not use both, so give each a \
             directory of its own",
            own.display(),
            other.name
        ))
    })
}

fn directory(export: &ExportConfig) -> Option<PathBuf> {
    let path: &Path = match &export.source {
        ExportSource::Directory(path) | ExportSource::Striped { path, .. } => path,
        ExportSource::CephFs(_) | ExportSource::Gluster(_) | ExportSource::Memory { .. } => {
            return None;
        }
    };
    path.canonicalize().ok()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{EXPORT, load};

    fn warnings(text: &str) -> Vec<String> {
        load(text).unwrap().warnings
    }

    #[test]
    fn an_ordinary_configuration_has_no_warning() {
        assert_eq!(warnings(EXPORT), [""; 0]);
        let open = "metrics_listen = \"127.0.0.1:0\"\n[nfs]\nlisten = [\"127.0.0.1:0\"]\n";
        assert_eq!(warnings(&format!("{open}{EXPORT}")), [""; 0]);
        let networks = "networks = [\"192.0.2.0/24\"]\n";
        let nfs = "[nfs]\nlisten = [\"0.0.0.0:0\"]\n";
        assert_eq!(warnings(&format!("{nfs}{EXPORT}{networks}")), [""; 0]);
    }

    #[test]
    fn a_warning_has_line_and_remedy() {
        let only = |text: &str| {
            let found = warnings(text);
            let [only] = &found[..] else { panic!("{found:?}") };
            only.clone()
        };
        let metrics = only(&format!("metrics_listen = \"0.0.0.0:9469\"\n{EXPORT}"));
        assert!(metrics.contains("line 1: metrics_listen: everybody who reaches"), "{metrics}");
        let nfs = only(&format!("[nfs]\nlisten = [\"0.0.0.0:0\"]\n{EXPORT}"));
        assert!(nfs.contains("line 4: export \"data\": networks: NFS clients"), "{nfs}");
        let trusted = only(&format!("trusted = [\"10.1.2.3/8\"]\n{EXPORT}"));
        assert!(
            trusted.contains("line 1: trusted: 10.1.2.3/8 admits all of 10.0.0.0/8"),
            "{trusted}"
        );
        let networks = only(&format!("{EXPORT}networks = [\"192.0.2.1/24\"]\n"));
        assert!(networks.contains("line 4: export \"data\": networks: 192.0.2.1/24"), "{networks}");
        let again = EXPORT.replacen("\"data\"", "\"again\"", 1);
        let twice = only(&format!("{EXPORT}{again}"));
        assert!(twice.contains("line 6: export \"again\": path: "), "{twice}");
        assert!(twice.contains("is the directory of export \"data\""), "{twice}");
        let above = again.replace("path = \"data\"", "path = \".\"");
        let above = only(&format!("{EXPORT}{above}"));
        assert!(above.contains("contains the directory of export \"data\""), "{above}");
    }
}

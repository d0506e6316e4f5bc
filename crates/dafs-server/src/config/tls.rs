//! The table `[tls]`: certificates of this server, and authorities of its clients.

use super::{ExportConfig, ExportSource, NodePlace, Wrong, wrong};
use dafs_service::TransportSecurity;
use dafs_tls::ServerFiles;
use serde::Deserialize;
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TlsFile {
    certificate: PathBuf,
    key: PathBuf,
    authorities: Option<PathBuf>,
    revocations: Option<PathBuf>,
}

/// Checks the table, with the exports that need it.
pub(super) fn check<'a>(
    tls: Option<TlsFile>,
    exports: impl Iterator<Item = &'a ExportConfig>,
    base: &Path,
) -> Result<Option<ServerFiles>, Wrong> {
    for (index, export) in exports.enumerate() {
        let least = export.options.admits.transport_security;
        let wrong_export = |remedy: String| Wrong {
            key: format!("export {:?}: transport_security", export.name),
            steps: ["export", &index.to_string(), "transport_security"].map(str::to_owned).to_vec(),
            remedy,
        };
        if least == TransportSecurity::None {
            continue;
        }
        let Some(tls) = &tls else {
            return Err(wrong_export(format!(
                "{least} needs a certificate: write [tls] with certificate = \"FILE\" and key = \
                 \"FILE\"; dafs pki makes them"
            )));
        };
        if least == TransportSecurity::Mtls && tls.authorities.is_none() {
            return Err(wrong_export(
                "mtls needs those who vouch for clients: write [tls] authorities = \"FILE\""
                    .to_owned(),
            ));
        }
        if has_data_servers_elsewhere(&export.source) {
            return Err(wrong_export(
                "data servers in other processes have no TLS yet; use none".to_owned(),
            ));
        }
    }
    let Some(TlsFile { certificate, key, authorities, revocations }) = tls else {
        return Ok(None);
    };
    if revocations.is_some() && authorities.is_none() {
        let remedy = "leave it out, or name those who vouch for clients: authorities = \"FILE\"";
        return Err(wrong("tls.revocations", remedy));
    }
    Ok(Some(ServerFiles {
        certificate: base.join(certificate),
        key: base.join(key),
        authorities: authorities.map(|path| base.join(path)),
        revocations: revocations.map(|path| base.join(path)),
        // The exports demand more. Clients without a certificate get in, and reach what is open to
        // them.
        policy: TransportSecurity::Tls,
    }))
}

fn has_data_servers_elsewhere(source: &ExportSource) -> bool {
    let is_remote =
        |place: &super::DataServerPlace| matches!(place, super::DataServerPlace::Remote { .. });
    match source {
        ExportSource::Directory(_) | ExportSource::Memory { .. } => false,
        ExportSource::Striped { nodes, .. } => {
            nodes.iter().any(|node| matches!(node.place, NodePlace::Remote(_)))
        }
        ExportSource::CephFs(ceph) => ceph.data_servers.iter().any(|data| is_remote(&data.place)),
        ExportSource::Gluster(gluster) => {
            gluster.data_servers.iter().any(|data| is_remote(&data.place))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{EXPORT, load};
    use super::*;

    const TLS: &str = "[tls]\ncertificate = \"server.pem\"\nkey = \"server-key.pem\"\n";

    #[test]
    fn files_lie_beside_the_configuration() {
        let text =
            format!("{EXPORT}transport_security = \"mtls\"\n{TLS}authorities = \"ca.pem\"\n");
        let config = load(&text).unwrap();
        let files = config.tls.unwrap();
        assert!(files.certificate.ends_with("server.pem") && files.certificate.is_absolute());
        assert!(files.authorities.unwrap().ends_with("ca.pem"));
        let export = &config.exports[0].options.admits;
        assert_eq!(export.transport_security, TransportSecurity::Mtls);
        let plain = load(EXPORT).unwrap();
        assert!(plain.tls.is_none());
        assert_eq!(plain.exports[0].options.admits.transport_security, TransportSecurity::None);
    }

    #[test]
    fn errors_name_the_text_to_write() {
        let check = |text: &str, expected: &str| {
            let error = load(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error:?} does not contain {expected:?}");
        };
        let strict = |level: &str| format!("{EXPORT}transport_security = \"{level}\"\n");
        check(&strict("tls"), "write [tls] with certificate");
        check(&format!("{}{TLS}", strict("mtls")), "[tls] authorities = \"FILE\"");
        check(&strict("TLS"), "write none, tls or mtls");
        check(&format!("{EXPORT}{TLS}revocations = \"crl.pem\""), "authorities = \"FILE\"");
    }
}

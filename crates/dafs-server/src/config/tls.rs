//! The table `[tls]`: certificates of this server, and authorities of its clients.

use super::keys::table;
use super::{ExportConfig, Wrong, wrong};
use dafs_service::TransportSecurity;
use dafs_tls::ServerFiles;
use std::path::{Path, PathBuf};

table! {
    pub(super) struct TlsFile {
        /// The file with the certificate of this server in PEM, then those of its issuers. `dafs pki`
        /// makes it.
        certificate: PathBuf,
        /// The file with the key of the certificate, which its owner alone may read.
        key: PathBuf,
        /// The file with the authorities that vouch for clients. `mtls` needs it.
        authorities: Option<PathBuf>,
        /// The file with the revocation lists of these authorities. Default: none.
        revocations: Option<PathBuf>,
    }
}

/// Says what is missing in the table for this protection.
fn missing(tls: Option<&TlsFile>, least: TransportSecurity) -> Option<String> {
    match (least, tls) {
        (TransportSecurity::None, _) => None,
        (_, None) => Some(format!(
            "{least} needs a certificate: write [tls] with certificate = \"FILE\" and key = \
             \"FILE\"; dafs pki makes them"
        )),
        (TransportSecurity::Mtls, Some(TlsFile { authorities: None, .. })) => Some(
            "mtls needs those who vouch for clients: write [tls] authorities = \"FILE\"".to_owned(),
        ),
        (TransportSecurity::Tls | TransportSecurity::Mtls, Some(_)) => None,
    }
}

/// Checks the table, with the exports and the metrics that need it.
pub(super) fn check<'a>(
    tls: Option<TlsFile>,
    (exports, metrics): (impl Iterator<Item = &'a ExportConfig>, TransportSecurity),
    base: &Path,
) -> Result<Option<ServerFiles>, Wrong> {
    if let Some(remedy) = missing(tls.as_ref(), metrics) {
        return Err(wrong("metrics_transport_security", remedy));
    }
    for (index, export) in exports.enumerate() {
        let least = export.options.admits.transport_security;
        let wrong_export = |remedy: String| Wrong {
            key: format!("export {:?}: transport_security", export.name),
            steps: ["export", &index.to_string(), "transport_security"].map(str::to_owned).to_vec(),
            remedy,
        };
        if let Some(remedy) = missing(tls.as_ref(), least) {
            return Err(wrong_export(remedy));
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
        let metrics = |level: &str| format!("metrics_transport_security = \"{level}\"\n{EXPORT}");
        check(&metrics("tls"), "write [tls] with certificate");
        check(&format!("{}{TLS}", metrics("mtls")), "[tls] authorities = \"FILE\"");
        check(&metrics("on"), "write none, tls or mtls");
        let config = load(&format!("{}{TLS}", metrics("tls"))).unwrap();
        assert_eq!(config.metrics_transport_security, TransportSecurity::Tls);
        check(&format!("{EXPORT}{TLS}revocations = \"crl.pem\""), "authorities = \"FILE\"");
    }
}

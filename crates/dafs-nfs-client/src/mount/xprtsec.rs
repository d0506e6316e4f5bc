//! TLS of a mount (RFC 9289): the options `xprtsec`, `ca`, `cert` and `key` of a URL.
//!
//! Invariants
//! * A mount whose URL demands TLS uses no connection without, neither to the server nor to its data
//!   servers, and not after a loss. A port mapper alone is asked in the clear: it tells a port, where
//!   the server must prove its name.
//! * A file that the URL names is used only with the demand that needs it.

use super::error::{MountError, Result};
use super::url::{NfsUrl, NfsUrlError, NfsVersion, unescape};
use dafs_rpc::client::ClientTls;
use dafs_rpc::tls::TransportSecurity;
use dafs_tls::{ClientFiles, ReloadingClient};
use dafs_wire::{nfs3, nfs4};
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The authorities that the system trusts, as Debian installs them.
const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The characters that must be escaped in the value of an option.
const VALUE: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'&')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'`');

/// The demand of TLS in a URL.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UrlTls {
    /// `xprtsec`: `Tls` or `Mtls`.
    pub least: TransportSecurity,
    /// `ca`: the file with the authorities that vouch for the server; those of the system without
    /// it.
    pub authorities: Option<PathBuf>,
    /// `cert` and `key`: the certificate of this client, and its key.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// The options of a URL while it is parsed.
#[derive(Default)]
pub(super) struct TlsOptions {
    least: Option<TransportSecurity>,
    authorities: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl TlsOptions {
    /// Takes an option; false if it is another's.
    pub(super) fn take(
        &mut self,
        name: &str,
        value: &str,
    ) -> std::result::Result<bool, NfsUrlError> {
        let file = |option: &'static str| match value.is_empty() {
            true => Err(NfsUrlError::OptionValue {
                option,
                value: String::new(),
                expected: "the name of a file",
            }),
            false => Ok(Some(PathBuf::from(OsString::from_vec(unescape(value)?)))),
        };
        match name {
            "xprtsec" => {
                self.least = Some(value.parse().map_err(|_| NfsUrlError::OptionValue {
                    option: "xprtsec",
                    value: value.to_owned(),
                    expected: "none, tls or mtls",
                })?);
            }
            "ca" => self.authorities = file("ca")?,
            "cert" => self.certificate = file("cert")?,
            "key" => self.key = file("key")?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks that the options fit each other, and the transport.
    pub(super) fn finish(
        self,
        can_have_tls: bool,
    ) -> std::result::Result<Option<UrlTls>, NfsUrlError> {
        let Self { least, authorities, certificate, key } = self;
        let names_files = authorities.is_some() || certificate.is_some() || key.is_some();
        let least = least.unwrap_or(TransportSecurity::None);
        if least == TransportSecurity::None {
            return match names_files {
                true => Err(NfsUrlError::FilesWithoutTls),
                false => Ok(None),
            };
        }
        if !can_have_tls {
            return Err(NfsUrlError::TlsOverRdma);
        }
        let own = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(NfsUrlError::CertificateAlone),
        };
        if least == TransportSecurity::Mtls && own.is_none() {
            return Err(NfsUrlError::NoCertificate);
        }
        Ok(Some(UrlTls { least, authorities, own }))
    }
}

impl fmt::Display for UrlTls {
    /// As options of a query, without its question mark.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "xprtsec={}", self.least)?;
        let (certificate, key) = self.own.as_ref().map(|(own, key)| (own, key)).unzip();
        let files = [("ca", self.authorities.as_ref()), ("cert", certificate), ("key", key)];
        for (name, path) in files.into_iter().filter_map(|(name, path)| Some((name, path?))) {
            write!(f, "&{name}={}", percent_encode(path.as_os_str().as_bytes(), VALUE))?;
        }
        Ok(())
    }
}

/// Reads the files of a URL that demands TLS.
///
/// # Errors
/// `Connect`, with the file and the remedy.
pub(super) fn demand(url: &NfsUrl) -> Result<Option<ClientTls>> {
    let Some(tls) = url.tls() else { return Ok(None) };
    let (certificate, key) = tls.own.clone().unzip();
    let authorities = tls.authorities.clone().unwrap_or_else(|| SYSTEM_AUTHORITIES.into());
    let files = ClientFiles { authorities, revocations: None, certificate, key };
    let now_seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let files = ReloadingClient::open(files, now_seconds).map_err(|error| MountError::Connect {
        server: url.host().into(),
        reason: error.to_string().into(),
    })?;
    // A zone is of this host alone, and no certificate has one.
    let host = url.host();
    let name = host.split_once('%').filter(|_| host.contains(':')).map_or(host, |(name, _)| name);
    let program = match url.options().version {
        Some(NfsVersion::V3) => (nfs3::PROGRAM, nfs3::VERSION),
        _ => (nfs4::limits::PROGRAM, nfs4::limits::VERSION),
    };
    Ok(Some(ClientTls::new(Arc::new(files), name, tls.least, program)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demand_of_a_url_is_read_and_printed() {
        let text = "nfs://h/a?vers=4.2&xprtsec=mtls&ca=/x%20y/ca.pem&cert=c.pem&key=k%26.pem";
        let url = NfsUrl::parse(text).unwrap();
        let tls = url.tls().unwrap();
        assert_eq!(tls.least, TransportSecurity::Mtls);
        assert_eq!(tls.authorities, Some("/x y/ca.pem".into()));
        assert_eq!(tls.own, Some(("c.pem".into(), "k&.pem".into())));
        assert_eq!(url.to_string(), text);
        assert_eq!(NfsUrl::parse(&url.to_string()).unwrap(), url);
        let short = NfsUrl::parse("nfs://h/?xprtsec=tls").unwrap();
        assert_eq!(short.to_string(), "nfs://h/?xprtsec=tls");
        assert!(NfsUrl::parse("nfs+rdma://h/?xprtsec=tls").unwrap().tls().is_some());
        assert!(NfsUrl::parse("nfs://h/?xprtsec=none").unwrap().tls().is_none());
        // Another demand is another mount.
        assert!(!short.is_same_mount(&NfsUrl::parse("nfs://h/").unwrap()));
        assert!(short.is_same_mount(&short.join(b"x").unwrap()));
    }

    #[test]
    fn a_wrong_demand_names_the_remedy() {
        for (text, part) in [
            ("nfs://h/?xprtsec=TLS", "none, tls or mtls"),
            ("nfs://h/?xprtsec=mtls", "cert=FILE&key=FILE"),
            ("nfs://h/?xprtsec=tls&cert=a", "name both"),
            ("nfs://h/?ca=a", "xprtsec=tls"),
            ("nfs://h/?xprtsec=none&cert=a&key=b", "xprtsec=tls"),
            ("nfs://h/?xprtsec=tls&ca=", "the name of a file"),
            ("nfs://h/?xprtsec=tls&ca=a%2", "two hexadecimal digits"),
            ("nfs+rdma://h/?xprtsec=tls&transport=shm", "TCP and iWARP"),
            ("nfs+rdma://h/?xprtsec=tls&transport=verbs", "TCP and iWARP"),
        ] {
            let error = NfsUrl::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn files_that_are_missing_are_named() {
        let url = NfsUrl::parse("nfs://h/?xprtsec=tls&ca=/nowhere/ca.pem").unwrap();
        let error = demand(&url).unwrap_err().to_string();
        assert!(error.contains("/nowhere/ca.pem does not exist"), "{error}");
    }
}

//! A small authority with certificates for a server and its clients, as `dafs pki` makes
//! them.
//!
//! Invariants
//! * No existing file is overwritten, except by a renewal, which replaces the pair that it read.
//! * Keys are in files of mode 0600 from their first byte on.
//! * A certificate has one use: server or client. It names no wildcard.

mod folder;

pub use folder::{Folder, Made};

use crate::certificate::Certificate;
use crate::limits::{AUTHORITY_DAYS, CERTIFICATE_DAYS, CLOCK_SKEW_SECONDS, DAY_SECONDS};
use crate::user::is_user;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, OtherNameValue, PKCS_ECDSA_P256_SHA256, SanType,
    date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;
use zeroize::Zeroizing;

/// The latest time for new certificates, since 1970: the year 6325.
const NOW_SECONDS_MAX: u64 = 1 << 37;

/// The kind of a subject alternative name that names a user.
const USER: [u64; 10] = [1, 3, 6, 1, 4, 1, 2238, 1, 1, 1];

/// Why no certificate was made.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum PkiError {
    #[error(
        "{0} exists already, and nothing is overwritten; name a new folder, or renew a certificate in it"
    )]
    Exists(PathBuf),
    #[error(
        "the authority was not made by dafs (its name is more than a common name), so its own tools must make \
         further certificates"
    )]
    ForeignAuthority,
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
    #[error("\"{0}\" is neither a host name nor an address; wildcards are not allowed")]
    Name(String),
    #[error("a certificate needs at least one name")]
    NoName,
    #[error("{0} is no certificate in PEM that dafs can read")]
    Unreadable(PathBuf),
    #[error("the key of the authority does not belong to its certificate, or is damaged")]
    WrongKey,
    #[error(
        "{0} names several users, or one that is not of the form user@domain; issue another one"
    )]
    UnclearUser(PathBuf),
    #[error("\"{0}\" is no user; write anna@example.org")]
    User(String),
    #[error("the certificate could not be made: {0}")]
    Failed(String),
}

impl From<rcgen::Error> for PkiError {
    fn from(error: rcgen::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// A certificate and its key, as PEM text.
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// The key (PKCS #8).
    pub key: Zeroizing<String>,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pair")
    }
}

impl Pair {
    /// The certificate as DER.
    pub fn certificate_der(&self) -> CertificateDer<'static> {
        der(&self.certificate)
    }

    /// A new key, and a certificate with no name that only it vouches for.
    pub(crate) fn self_signed() -> Result<Self, PkiError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = CertificateParams::default().self_signed(&key)?.pem();
        Ok(Self { certificate, key: Zeroizing::new(key.serialize_pem()) })
    }
}

/// The DER of PEM text that this module has made or read.
fn der(pem: &str) -> CertificateDer<'static> {
    // INVARIANT: the text comes from the encoder, or was parsed before.
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM of one certificate")
}

/// The use of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A server shows it.
    Server,
    /// A client shows it.
    Client,
}

/// An authority that can issue certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    key: Zeroizing<String>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority")
    }
}

impl Authority {
    /// Makes an authority for ten years from `now_seconds` since 1970. It issues no other
    /// authorities.
    ///
    /// # Errors
    /// [`PkiError::Failed`], [`PkiError::NoName`].
    pub fn create(name: &str, now_seconds: u64) -> Result<Self, PkiError> {
        if name.is_empty() {
            return Err(PkiError::NoName);
        }
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = authority_params(name);
        set_validity(&mut params, now_seconds, AUTHORITY_DAYS);
        let certificate = params.self_signed(&key)?.pem();
        let text = Zeroizing::new(key.serialize_pem());
        Ok(Self { issuer: Issuer::new(params, key), certificate, key: text })
    }

    /// Takes an authority that [`Self::create`] has made.
    ///
    /// # Errors
    /// [`PkiError::ForeignAuthority`], [`PkiError::WrongKey`], [`PkiError::Failed`].
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, PkiError> {
        let own = CertificateDer::from_pem_slice(certificate.as_bytes())
            .map_err(|_| PkiError::ForeignAuthority)?;
        let read = Certificate::read(&own).map_err(|_| PkiError::ForeignAuthority)?;
        let name = read.common_name().ok_or(PkiError::ForeignAuthority)?;
        let pair = KeyPair::from_pem(key).map_err(|_| PkiError::WrongKey)?;
        // The issuer that rcgen would write must be the subject that peers know, and the key its
        // own.
        let again = authority_params(name).self_signed(&pair)?;
        let again = Certificate::read(again.der()).map_err(|_| PkiError::ForeignAuthority)?;
        if again.subject_der() != read.subject_der() || !read.is_authority() {
            return Err(PkiError::ForeignAuthority);
        }
        if !has_key(&own, &pair) {
            return Err(PkiError::WrongKey);
        }
        let text = Zeroizing::new(pair.serialize_pem());
        let issuer = Issuer::new(authority_params(name), pair);
        Ok(Self { issuer, certificate: certificate.to_owned(), key: text })
    }

    /// The authority's certificate as PEM. Servers and clients trust it.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// The authority's certificate as DER.
    pub fn certificate_der(&self) -> CertificateDer<'static> {
        der(&self.certificate)
    }

    /// The authority's key as PEM (PKCS #8). Keep it off the servers.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Issues a certificate for a server, with the host names and addresses that clients use.
    ///
    /// # Errors
    /// [`PkiError::Name`], [`PkiError::NoName`], [`PkiError::Failed`].
    pub fn server(&self, names: &[String], now_seconds: u64) -> Result<Pair, PkiError> {
        self.issue(names, None, Use::Server, now_seconds)
    }

    /// Issues a certificate for a client. The first name is its common name.
    ///
    /// # Errors
    /// As [`Self::server`].
    pub fn client(&self, names: &[String], now_seconds: u64) -> Result<Pair, PkiError> {
        self.issue(names, None, Use::Client, now_seconds)
    }

    pub(crate) fn issue(
        &self,
        names: &[String],
        user: Option<&str>,
        purpose: Use,
        now_seconds: u64,
    ) -> Result<Pair, PkiError> {
        let first = names.first().ok_or(PkiError::NoName)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(first);
        params.subject_alt_names =
            names.iter().map(|name| subject_name(name)).collect::<Result<Vec<_>, _>>()?;
        if let Some(user) = user {
            if !is_user(user) {
                return Err(PkiError::User(user.to_owned()));
            }
            let value = OtherNameValue::Utf8String(user.to_owned());
            params.subject_alt_names.push(SanType::OtherName((USER.to_vec(), value)));
        }
        set_validity(&mut params, now_seconds, CERTIFICATE_DAYS);
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match purpose {
            Use::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Use::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Pair { certificate, key: Zeroizing::new(key.serialize_pem()) })
    }
}

/// True if the certificate is of this key.
fn has_key(own: &CertificateDer<'_>, pair: &KeyPair) -> bool {
    use rcgen::PublicKeyData as _;
    let wanted = pair.subject_public_key_info();
    rustls::server::ParsedCertificate::try_from(own)
        .is_ok_and(|parsed| parsed.subject_public_key_info().as_ref() == wanted)
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn common_name(name: &str) -> DistinguishedName {
    let mut full = DistinguishedName::new();
    full.push(DnType::CommonName, name);
    full
}

fn set_validity(params: &mut CertificateParams, now_seconds: u64, days: u64) {
    // A certificate cannot say a year above 9999, and a clock that is wrong may.
    let now_seconds = now_seconds.min(NOW_SECONDS_MAX);
    let at = |seconds| date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
    params.not_before = at(now_seconds.saturating_sub(CLOCK_SKEW_SECONDS));
    params.not_after = at(now_seconds + days * DAY_SECONDS);
}

/// A subject alternative name from an address or a host name (RFC 1123 2.1).
fn subject_name(name: &str) -> Result<SanType, PkiError> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    let is_label = |label: &str| {
        let letters = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        (1..=63).contains(&label.len())
            && letters
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.len() > 253 || !name.split('.').all(is_label) {
        return Err(PkiError::Name(name.to_owned()));
    }
    let name = name.to_owned().try_into().map_err(|_| PkiError::Name(name.to_owned()))?;
    Ok(SanType::DnsName(name))
}

#[cfg(test)]
mod tests;

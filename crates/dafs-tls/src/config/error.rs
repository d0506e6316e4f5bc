//! Errors of the files of a configuration, in words for the administrator.

use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why a configuration cannot be used.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum ConfigError {
    #[error("{path}: certificate {number} is no authority's certificate that can be used")]
    Authority { path: PathBuf, number: usize },
    #[error(
        "{0} holds what is no X.509 certificate between its BEGIN and END lines; look at it with: \
         openssl x509 -in {0} -noout -text"
    )]
    Certificate(PathBuf),
    #[error("{0} is empty; an interrupted copy leaves such a file behind")]
    Empty(PathBuf),
    #[error(
        "the key in {0} is encrypted, and a server has nobody to ask for the passphrase; write a key without \
         one: openssl pkey -in {0} -out NEW"
    )]
    EncryptedKey(PathBuf),
    #[error(
        "the certificate in {path} ended {days} days ago; renew it, or check the clock of this host"
    )]
    Expired { path: PathBuf, days: u64 },
    #[error(
        "{0} is a folder; name one file with all certificates: cat {0}/*.pem > authorities.pem"
    )]
    Folder(PathBuf),
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
    #[error(
        "{0} can be read by other users, so its key is no secret; run: chmod 600 {0}, and make a new key if any \
         of them is not trusted"
    )]
    KeyOpen(PathBuf),
    #[error(
        "the key in {0} is damaged, or of a kind that TLS 1.3 does not use; take ECDSA P-256 or RSA 2048"
    )]
    KeyUnusable(PathBuf),
    #[error(
        "the key in {key} does not belong to the first certificate in {certificate}; the server's own \
         certificate comes first, then those of its issuers"
    )]
    Mismatch { certificate: PathBuf, key: PathBuf },
    #[error("{0} does not exist")]
    Missing(PathBuf),
    #[error("a certificate needs its key, and a key its certificate; name both files or none")]
    NamedAlone,
    #[error(
        "with mtls the server needs the certificates of the authorities that vouch for clients; name the file"
    )]
    NoAuthorities,
    #[error(
        "{0} has no certificate: a line -----BEGIN CERTIFICATE----- is missing. Make PEM of a DER file with: \
         openssl x509 -inform der -in {0} -out NEW"
    )]
    NoCertificate(PathBuf),
    #[error("{0} has no private key: a line -----BEGIN PRIVATE KEY----- is missing")]
    NoKey(PathBuf),
    #[error("{0} has no revocation list: a line -----BEGIN X509 CRL----- is missing")]
    NoRevocations(PathBuf),
    #[error(
        "revocation lists without authorities have no effect; name the file of the authorities, too"
    )]
    NoUseForRevocations,
    #[error(
        "the certificate in {path} begins to be valid in {seconds} seconds; check the clock of this host"
    )]
    NotYetValid { path: PathBuf, seconds: u64 },
    #[error("{0} is no regular file; name one")]
    NoFile(PathBuf),
    #[error(
        "{path} belongs to user {owner}, who could change whom this program trusts; run: chown {to} {path}"
    )]
    Owner { path: PathBuf, owner: u32, to: u32 },
    #[error("{path} is no whole PEM file: {reason}")]
    Pem { path: PathBuf, reason: String },
    #[error(
        "the certificate in {path} may not be used by a {side}: its extended key usage lacks {missing}"
    )]
    Purpose { path: PathBuf, side: &'static str, missing: &'static str },
    #[error("{path}: a revocation list cannot be used: {reason}")]
    Revocations { path: PathBuf, reason: String },
    #[error("{0} is longer than 1 MiB")]
    TooLong(PathBuf),
    #[error(
        "{0} can be written to by other users, who could change whom this program trusts; run: chmod go-w {0}"
    )]
    Writable(PathBuf),
}

//! A check of a configuration without a server.

use super::StartError;
use super::tls::now_seconds;
use crate::config::Config;
use dafs_cluster::ClusterSecret;
use dafs_engine::Authenticator;

/// Reads the files that a configuration names, as a start does: users, certificates, secrets of clusters. It
/// opens no port and no export, and changes no file.
///
/// # Errors
/// The first error, as the start would report it.
pub fn check(config: &Config) -> Result<(), StartError> {
    config.check_exposure()?;
    config.check_named_files()?;
    Authenticator::new(&config.auth)?;
    if let Some(files) = &config.tls {
        files.load(now_seconds())?;
    }
    for export in &config.exports {
        export.source.cluster_secret().map(ClusterSecret::load).transpose()?;
    }
    Ok(())
}

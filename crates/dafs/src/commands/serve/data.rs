//! `dafs serve --role data`: a data server.

use super::{Serve, start_failure, start_trimming};
use crate::cli::WakeName;
use crate::failure::Failure;
use crate::manager::Manager;
use crate::output::say;
use dafs_server::{
    Config, DataProcess, DataRdma, DataServerConfig, EngineConfig, KerberosConfig,
    confine_data_server,
};
use dafs_service::{Admits, Flavour, TransportSecurity};
use dafs_tls::ServerFiles;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Reads the secret of the cluster again.
fn read_secret(server: &DataProcess) {
    match server.read_secret() {
        Ok(changed) => tracing::info!(changed, "the secret of the cluster was read again"),
        Err(error) => tracing::error!("the secret of the cluster was not taken: {error}"),
    }
}

impl Serve {
    /// Runs a data server until a signal ends it.
    pub(super) fn run_data(&self, wake: Option<WakeName>) -> Result<(), Failure> {
        let config = self.data_configuration(wake)?;
        let cannot = |error: std::io::Error| Failure::local("cannot handle signals", &error);
        let again = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT] {
            flag::register_conditional_shutdown(signal, 128 + signal, again.clone())
                .map_err(cannot)?;
        }
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(cannot)?;
        let manager = Manager::of_process();
        confine_data_server(&config).map_err(|error| start_failure(&error))?;
        start_trimming()?;
        let server = DataProcess::start(config).map_err(|error| start_failure(&error))?;
        tracing::info!(address = %server.control_address(), "waiting for the metadata server");
        tracing::info!(address = %server.nfs_address(), "listening for NFS");
        for address in server.rdma_addresses() {
            tracing::info!(%address, "listening for NFS over RDMA");
        }
        if let Some(address) = server.dafs_address() {
            tracing::info!(%address, by_device = self.verbs.len() == 1, "listening for DAFS");
        }
        say!("ready {}", server.control_address())?;
        std::io::stdout().flush().map_err(|error| Failure::local("standard output", &error))?;
        manager.ready(&format!("a data server at {}", server.control_address()));
        // The secret is the only file to read again. The server follows certificates by itself.
        for signal in signals.forever() {
            if signal == SIGHUP {
                read_secret(&server);
                continue;
            }
            again.store(true, Ordering::Relaxed);
            manager.stopping();
            tracing::info!(signal, "ending; a second signal ends at once");
            break;
        }
        server.stop();
        Ok(())
    }

    /// The addresses for clients over RDMA.
    fn data_rdma(&self) -> Result<DataRdma, Failure> {
        let one = |option: &str, addresses: &[SocketAddr]| match *addresses {
            [] => Ok(None),
            [address] if !address.ip().is_unspecified() => Ok(Some(address)),
            _ => Err(Failure::Usage(format!(
                "name the one address that clients use over RDMA: {option} HOST:PORT"
            ))),
        };
        let soft = one("--nfs-rdma", &self.nfs_rdma)?;
        let rdma = DataRdma { soft, verbs: one("--nfs-verbs", &self.nfs_verbs)? };
        rdma.check().map_err(Failure::Usage)?;
        Ok(rdma)
    }

    fn data_configuration(&self, wake: Option<WakeName>) -> Result<DataServerConfig, Failure> {
        let usage = |text: &str| Failure::Usage(text.to_owned());
        let without = [
            (self.config.is_some(), "--config"),
            (self.grace.is_some(), "--grace"),
            (self.no_root_squash, "--no-root-squash"),
            (self.read_only, "--read-only"),
            (self.durable_replies.is_some(), "--durable-replies"),
            (self.shared_keys.is_some(), "--shared-keys"),
            (self.optimistic.is_some(), "--optimistic"),
            (self.state_directory.is_some(), "--state-directory"),
            (self.threads.is_some(), "--threads"),
            (self.take_over, "--take-over"),
        ];
        if let Some((_, option)) = without.iter().find(|(given, _)| *given) {
            let text = format!("{option} means nothing to a data server; leave it out");
            return Err(Failure::Usage(text));
        }
        let directory = self.directory.clone();
        let directory = directory.ok_or_else(|| usage("name the directory for stripes"))?;
        if !directory.is_dir() {
            let text = format!("{} is no directory; make it first", directory.display());
            return Err(Failure::Usage(text));
        }
        let control = self
            .control
            .ok_or_else(|| usage("say where the metadata server connects: --control HOST:PORT"))?;
        let cluster_secret = self.cluster_secret.clone().ok_or_else(|| {
            usage("name the secret of the cluster: --cluster-secret FILE (dafs cluster init)")
        })?;
        let nfs = match self.nfs[..] {
            [address] if !address.ip().is_unspecified() => address,
            _ => return Err(usage("name the one address that clients use: --nfs HOST:PORT")),
        };
        let rdma = self.data_rdma()?;
        let dafs = match self.listen[..] {
            [] => None,
            _ if self.engine.is_some() => {
                return Err(usage(
                    "--listen serves stripes only: DAFS clients get no layout of other files",
                ));
            }
            [address] if !address.ip().is_unspecified() => Some(address),
            _ => {
                return Err(usage(
                    "name the one address that DAFS clients use: --listen HOST:PORT",
                ));
            }
        };
        let dafs_verbs = match self.verbs[..] {
            [] => false,
            [address] if dafs == Some(address) => true,
            _ => {
                return Err(usage(
                    "clients know one address: give --verbs the address and port of --listen",
                ));
            }
        };
        let mut general = Config::for_directory(directory.clone());
        general.metrics_listen = self.metrics;
        general.metrics_transport_security = self.metrics_transport_security.unwrap_or_default();
        general.sandbox = self.sandbox;
        if let Some(wake) = wake {
            general.wake = wake.into();
        }
        if let Some(seconds) = self.lease {
            general.lease_time = Duration::from_secs(seconds);
        }
        let mut admits = Admits::default();
        admits.networks.extend(&self.nfs_network);
        admits.unprivileged_ports = self.nfs_unprivileged_ports;
        if let Some(keytab) = &self.keytab {
            let kerberos =
                KerberosConfig::for_data_server(keytab.clone(), self.keytab_host.clone());
            let wrong = |remedy| Failure::Usage(format!("--keytab-host: {remedy}"));
            general.kerberos = Some(kerberos.map_err(wrong)?);
            // The metadata server decides which of them a file takes.
            admits.flavours.extend([Flavour::Krb5, Flavour::Krb5i, Flavour::Krb5p]);
        }
        if let (Some(certificate), Some(key)) = (&self.certificate, &self.key) {
            general.tls = Some(ServerFiles {
                certificate: certificate.clone(),
                key: key.clone(),
                authorities: self.authorities.clone(),
                revocations: self.revocations.clone(),
                // The metadata server decides what a file demands.
                policy: TransportSecurity::Tls,
            });
        }
        let engine = self.engine.as_deref().map(EngineConfig::load).transpose();
        let engine = engine.map_err(|error| Failure::Usage(error.to_string()))?;
        Ok(DataServerConfig {
            directory,
            engine,
            cluster_secret,
            control,
            nfs,
            rdma,
            dafs,
            dafs_verbs,
            admits,
            general,
        })
    }
}

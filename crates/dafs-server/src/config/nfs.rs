//! The table `[nfs]`.

use super::keys::table;
use super::units::Seconds;
use super::{NfsConfig, Wrong, kerberos, parse_listen_nfs, parse_listen_nfs_rdma, wrong};
use std::time::Duration;

table! {
    #[derive(Default)]
    pub(super) struct NfsFile {
        /// The addresses where NFS clients connect over TCP, for NFSv3, 4.1 and 4.2. The usual port is
        /// 2049. Default: none.
        #[serde(default)]
        listen: Vec<String>,
        /// The addresses for NFS over RDMA in software (iWARP). Default: port 20049 of each address of
        /// `listen` with port 2049; `[]` for none.
        rdma_listen: Option<Vec<String>>,
        /// The addresses of RDMA devices of this host where NFS clients connect. Default: none.
        #[serde(default)]
        rdma_verbs_listen: Vec<String>,
        /// The seconds after a start in which NFS clients of the last run reclaim their opens and locks:
        /// 0 to 3600. Default: the lease time.
        grace_time_seconds: Option<Seconds>,
        /// The server grants delegations. Default: true.
        delegations: Option<bool>,
        /// The server registers NFS, MOUNT and the locks of NFSv3 (NLM, NSM) with the rpcbind of this host,
        /// so that NFSv3 clients need no options. Default: false.
        #[serde(default)]
        register_with_rpcbind: bool,
        /// The domain of owners' names, such as `example.org`, for callers that prove themselves by
        /// Kerberos. Default: owners are numbers.
        domain: Option<String>,
    }
}

impl NfsFile {
    pub(super) fn apply(&self, nfs: &mut NfsConfig) -> Result<(), Wrong> {
        let parse =
            |text: &String| parse_listen_nfs(text).map_err(|remedy| wrong("nfs.listen", remedy));
        nfs.listen = self.listen.iter().map(parse).collect::<Result<_, _>>()?;
        let rdma = |key: &str, texts: &[String]| {
            let parse =
                |text: &String| parse_listen_nfs_rdma(text).map_err(|remedy| wrong(key, remedy));
            texts.iter().map(parse).collect::<Result<Vec<_>, _>>()
        };
        if let Some(texts) = &self.rdma_listen {
            nfs.rdma_listen = Some(rdma("nfs.rdma_listen", texts)?);
        }
        nfs.rdma_verbs_listen = rdma("nfs.rdma_verbs_listen", &self.rdma_verbs_listen)?;
        let soft = nfs.rdma_listen.iter().flatten();
        if let Some(address) = soft
            .filter(|address| address.port() != 0)
            .find(|address| nfs.rdma_verbs_listen.contains(address))
        {
            return Err(wrong(
                "nfs.rdma_verbs_listen",
                format!("{address} is in rdma_listen too; give one of them another port"),
            ));
        }
        if let Some(Seconds(seconds)) = self.grace_time_seconds {
            if seconds > 3600 {
                return Err(wrong("nfs.grace_time_seconds", "use 0 to 3600"));
            }
            nfs.grace_time = Some(Duration::from_secs(seconds));
        }
        nfs.no_delegations = self.delegations == Some(false);
        nfs.rpcbind = self.register_with_rpcbind;
        nfs.domain = self.domain.as_deref().map(kerberos::owner_domain).transpose()?;
        Ok(())
    }
}

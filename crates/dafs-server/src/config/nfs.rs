//! The table `[nfs]`.

use super::{NfsConfig, Wrong, kerberos, parse_listen_nfs, parse_listen_nfs_rdma, wrong};
use serde::Deserialize;
use std::time::Duration;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct NfsFile {
    #[serde(default)]
    listen: Vec<String>,
    rdma_listen: Option<Vec<String>>,
    #[serde(default)]
    rdma_verbs_listen: Vec<String>,
    grace_time_seconds: Option<u64>,
    delegations: Option<bool>,
    #[serde(default)]
    register_with_rpcbind: bool,
    domain: Option<String>,
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
        if let Some(seconds) = self.grace_time_seconds {
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

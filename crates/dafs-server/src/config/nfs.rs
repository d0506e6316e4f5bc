//! The table `[nfs]`.

use serde::Deserialize;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct NfsFile {
    #[serde(default)]
    pub(super) listen: Vec<String>,
    pub(super) rdma_listen: Option<Vec<String>>,
    #[serde(default)]
    pub(super) rdma_verbs_listen: Vec<String>,
    pub(super) grace_time_seconds: Option<u64>,
    pub(super) delegations: Option<bool>,
    #[serde(default)]
    pub(super) register_with_rpcbind: bool,
    pub(super) domain: Option<String>,
}

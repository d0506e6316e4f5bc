//! A user-level NFS client: NFSv4.1 sessions and NFSv3 calls over `dafs-rpc`.

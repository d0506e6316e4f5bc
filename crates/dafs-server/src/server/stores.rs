//! The stores of exports: opens the kind of store for each source.

use super::data::DataServers;
use super::{StartError, cephfs, gluster, striped};
use crate::config::{ExportConfig, ExportSource};
use dafs_posix::{PosixOptions, PosixStore};
use dafs_store::{ExportSecret, MemoryOptions, MemoryStore, Store};
use std::path::Path;
use std::sync::Arc;

/// The store of an export, and the state of its data servers, if it has any.
pub(super) type OpenedStore = (Arc<dyn Store>, Option<Arc<dyn DataServers>>);

/// Opens the store of an export.
pub(super) fn open_store(
    export: &ExportConfig,
    secret: ExportSecret,
    state: &Path,
) -> Result<OpenedStore, StartError> {
    let read_only = export.options.read_only;
    match &export.source {
        ExportSource::Directory(path) => {
            let subtree_check = export.subtree_check;
            let options = PosixOptions { read_only, subtree_check, ..PosixOptions::new(secret) };
            let failed = |error| StartError::Export { path: path.clone(), error };
            Ok((Arc::new(PosixStore::open(path, options).map_err(failed)?), None))
        }
        ExportSource::Striped { path, unit_bytes, copies, nodes, cluster_secret } => {
            let layout = (path.as_path(), *unit_bytes, *copies, nodes.as_slice());
            let striped = striped::open(export, layout, cluster_secret.as_deref(), secret, state)?;
            Ok((striped.store(), Some(striped as Arc<dyn DataServers>)))
        }
        ExportSource::CephFs(ceph) => cephfs::open(export, ceph, secret, state),
        ExportSource::Gluster(gluster) => gluster::open(export, gluster, secret, state),
        // Every user may make files at the top, as in /tmp, because no administrator can prepare
        // it.
        ExportSource::Memory { bytes_max } => {
            let store = MemoryStore::new(MemoryOptions {
                bytes_max: *bytes_max,
                read_only,
                root_mode: 0o1777,
                ..MemoryOptions::default()
            });
            Ok((Arc::new(store), None))
        }
    }
}

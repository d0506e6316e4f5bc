//! Fences of file systems, for administrators and cluster managers on the server's host.

use super::administration::Administration;
use crate::admin::{FenceOrder, FenceReport};
use crate::limits::ADMIN_FENCE_TIME;
use dafs_service::{Export, FenceObject, FenceRight, FenceUpdate, ServiceError};
use dafs_store::StoreError;
use std::sync::{Arc, mpsc};

impl Administration {
    /// Returns the fences of the file systems of these exports, or of all.
    pub(super) fn fences(&self, exports: &[String]) -> Result<Vec<FenceReport>, String> {
        let report = |export: &Arc<Export>| {
            let object = FenceObject::FileSystem(export.fs());
            let names = self.service.fences.list(FenceRight::Administrator, &object);
            let names = names.map_err(|error| format!("export {:?}: {error}", export.name()))?;
            let fenced = names.is_some();
            let names = names.unwrap_or_default();
            let names = names.iter().map(|name| String::from_utf8_lossy(name).into_owned());
            Ok(FenceReport { export: export.name().to_owned(), fenced, names: names.collect() })
        };
        self.named_exports(exports)?.iter().map(report).collect()
    }

    /// Changes the fences of the file systems of these exports, or of all. Waits until the fenced
    /// clients have no request under way.
    pub(super) fn fence(
        &self,
        exports: &[String],
        change: FenceOrder,
        names: &[String],
    ) -> Result<Vec<FenceReport>, String> {
        let bytes: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
        let update = match change {
            FenceOrder::Set => FenceUpdate::Install(&bytes),
            FenceOrder::Add => FenceUpdate::Add(&bytes),
            FenceOrder::Remove => FenceUpdate::Remove(&bytes),
            FenceOrder::Clear => FenceUpdate::Lift,
        };
        // The channel closes when the last of the drains is over.
        let (drained, over) = mpsc::channel::<()>();
        for export in self.named_exports(exports)? {
            let object = FenceObject::FileSystem(export.fs());
            let drained = drained.clone();
            let tell = Box::new(move || drop(drained));
            let set = self.service.set_fence(FenceRight::Administrator, &object, update, tell);
            set.map_err(|error| format!("export {:?}: {}", export.name(), words(error)))?;
        }
        drop(drained);
        match over.recv_timeout(ADMIN_FENCE_TIME) {
            Err(mpsc::RecvTimeoutError::Timeout) => Err(
                "the fence is set, but earlier requests are still in progress: a disk does not \
                    answer. Retry until this succeeds"
                    .to_owned(),
            ),
            _ => self.fences(exports),
        }
    }

    fn named_exports(&self, names: &[String]) -> Result<Vec<Arc<Export>>, String> {
        let namespace = self.service.namespace();
        let mut all: Vec<_> = namespace.exports().cloned().collect();
        all.sort_by(|one, two| one.name().cmp(two.name()));
        if names.is_empty() {
            return Ok(all);
        }
        let find = |name: &String| {
            let found = all.iter().find(|export| export.name() == name).cloned();
            found.ok_or_else(|| {
                let known: Vec<_> = all.iter().map(|export| export.name()).collect();
                format!("there is no export {name:?}; there are {}", known.join(", "))
            })
        };
        names.iter().map(find).collect()
    }
}

fn words(error: ServiceError) -> String {
    match error {
        ServiceError::Store(StoreError::Invalid) => {
            "this cannot be done: a name makes no sense, or is still let in by a larger range of \
             addresses, or there is no list to take it off; set one first"
                .to_owned()
        }
        ServiceError::Resource => "there are too many names, or too many fences".to_owned(),
        ServiceError::Store(StoreError::Io) => {
            "the fence cannot be stored in the state directory, so it was not set; see the log"
                .to_owned()
        }
        error => error.to_string(),
    }
}

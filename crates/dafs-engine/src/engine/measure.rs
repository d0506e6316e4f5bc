//! The counters that requests of DAFS and transfers of batches count for: operations, clients, hosts,
//! users and exports.
//!
//! Invariants
//! * A request is counted once, when its reply is posted. A transfer of a batch is counted once, when
//!   its data has been moved.
//! * Counting a request takes no lock that all connections share.

use super::request::{Call, Context};
use crate::ops::fence::named;
use dafs_dat::Instant;
use dafs_service::{Answered, Client, Done, ExportUse, FrontEnd, NO_USER};
use dafs_store::FsId;
use dafs_wire::dafs::{CredHandle, FileHandle, Procedure, Request};
use std::sync::Arc;

/// The use that the request of a stream makes, until it is answered.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Measured {
    /// The index of its export.
    export: Option<usize>,
    read_bytes: u64,
    written_bytes: u64,
    pub(super) failed: bool,
}

/// The counters of the exports that a connection has used. There are no more of them than exports
/// that the server has had during the connection.
#[derive(Debug, Default)]
pub(super) struct UsedExports(Vec<UsedExport>);

#[derive(Debug)]
struct UsedExport {
    fs: FsId,
    /// The version of the exports at its last lookup.
    version: u64,
    usage: Option<Arc<ExportUse>>,
}

impl UsedExports {
    /// Returns the index of an export, which `look_up` finds if it is not known in this version.
    fn index(
        &mut self,
        fs: FsId,
        version: u64,
        look_up: impl FnOnce() -> Option<Arc<ExportUse>>,
    ) -> Option<usize> {
        match self.0.iter().position(|known| known.fs == fs) {
            Some(index) if self.0[index].version == version => Some(index),
            Some(index) => {
                self.0[index] = UsedExport { fs, version, usage: look_up() };
                Some(index)
            }
            None => {
                let usage = Some(look_up()?);
                self.0.push(UsedExport { fs, version, usage });
                Some(self.0.len() - 1)
            }
        }
    }

    fn get(&self, index: usize) -> Option<&Arc<ExportUse>> {
        self.0.get(index)?.usage.as_ref()
    }
}

/// The client, user and export that a transfer of a batch counts for.
pub(crate) struct Account {
    client: Arc<Client>,
    user: Option<u32>,
    export: Option<Arc<ExportUse>>,
    began: Instant,
}

impl Context<'_> {
    /// Notes the export that a request uses: that of the first handle.
    pub(super) fn note_export(&mut self, call: &Call, request: &Request<'_>) {
        let Some(stream) = call.stream() else { return };
        let first = match request {
            Request::BatchSubmit(args) => args.requests.first().map(|request| request.fh),
            _ => named(request).first().copied(),
        };
        let Some(fh) = first else { return };
        let export = self.used_export(&fh);
        if let Some(measured) = self.connection.streams.measured(stream) {
            measured.export = export;
        }
    }

    fn used_export(&mut self, fh: &FileHandle) -> Option<usize> {
        let service = &self.shared.service;
        let version = service.namespace_version();
        let exports = &mut self.connection.exports;
        if self.shared.data.is_some() {
            // A data server has one export, and its handles name components of any file system.
            let only = || Some(service.namespace().exports().next()?.usage().clone());
            return exports.index(FsId([0; 16]), version, only);
        }
        let handle = super::convert::handle(fh);
        exports.index(handle.fs, version, || {
            Some(service.namespace().export(&handle).ok()?.usage().clone())
        })
    }

    /// Counts file data that a request has moved.
    pub(crate) fn moved(&mut self, call: &Call, read_bytes: usize, written_bytes: usize) {
        if let Some(measured) = self.measured(call) {
            measured.read_bytes += read_bytes as u64;
            measured.written_bytes += written_bytes as u64;
        }
    }

    pub(super) fn measured(&mut self, call: &Call) -> Option<&mut Measured> {
        self.connection.streams.measured(call.stream()?)
    }

    /// Counts a request whose reply is on its way.
    pub(super) fn count(&mut self, call: &Call) {
        let Some(procedure) = call.procedure else { return };
        let measured = self.measured(call).map(std::mem::take).unwrap_or_default();
        let done = Done {
            duration_ns: self.nanoseconds_since(call.began),
            failed: measured.failed,
            read_bytes: measured.read_bytes,
            written_bytes: measured.written_bytes,
        };
        let metrics = self.shared.service.metrics();
        metrics.record(FrontEnd::Dafs, procedure as u32, done.duration_ns, done.failed);
        let Some(client) = self.connection.client() else { return };
        metrics.record_request(&Answered {
            front_end: FrontEnd::Dafs,
            operation: procedure.name(),
            host: client.host().host(),
            user: self.user(call),
            client: Some(client.usage()),
            export: measured.export.and_then(|index| self.connection.exports.get(index)),
            done,
            stages_ns: [0; 3],
        });
    }

    fn nanoseconds_since(&self, began: Instant) -> u64 {
        let duration = (self.shared.clock)().since(began);
        u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns the user of a request. The clients of a data server act for users that it does not
    /// know.
    fn user(&self, call: &Call) -> Option<u32> {
        let proven = self.connection.proven().filter(|_| self.shared.data.is_none())?;
        let user = match call.header.cred_handle {
            CredHandle::SESSION => proven.admission.cred.uid,
            CredHandle(number) => proven.client.cred(number)?.uid,
        };
        (user != NO_USER).then_some(user)
    }

    /// Returns the parties that a transfer of a batch counts for.
    pub(crate) fn account(&mut self, call: &Call, fh: &FileHandle) -> Option<Account> {
        let export = self.used_export(fh);
        let export = export.and_then(|index| self.connection.exports.get(index)).cloned();
        let client = self.connection.client()?.clone();
        Some(Account { client, user: self.user(call), export, began: call.began })
    }

    /// Counts a transfer of a batch that is over.
    pub(crate) fn count_transfer(
        &self,
        account: &Account,
        bytes: usize,
        write: bool,
        failed: bool,
    ) {
        let bytes = bytes as u64;
        let (read_bytes, written_bytes) = if write { (0, bytes) } else { (bytes, 0) };
        let procedure = if write { Procedure::WriteDirect } else { Procedure::ReadDirect };
        let duration_ns = self.nanoseconds_since(account.began);
        self.shared.service.metrics().record_request(&Answered {
            front_end: FrontEnd::Dafs,
            operation: procedure.name(),
            host: account.client.host().host(),
            user: account.user,
            client: Some(account.client.usage()),
            export: account.export.as_ref(),
            done: Done { duration_ns, failed, read_bytes, written_bytes },
            stages_ns: [0; 3],
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_file_system_is_not_kept() {
        let mut exports = UsedExports::default();
        for number in 0..100 {
            assert_eq!(exports.index(FsId([number; 16]), 1, || None), None);
        }
        assert!(exports.0.is_empty());
    }
}

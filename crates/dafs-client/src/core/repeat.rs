//! Idempotence: the requests that may be sent twice.
//!
//! Invariants
//! * The class follows from the request alone, so callers need not think of recovery.
//! * A request that is not known to be idempotent counts as not idempotent.

use super::call::Task;
use dafs_wire::dafs::{
    ByteOrder, Class, CreateMode, OpenClaim, Procedure, ReadWrite, Request, decode_request,
};

/// The effect of sending a request a second time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// None: it changes nothing, or the server keeps no record of it and accepts it twice.
    Free,
    /// Idempotent: the second leaves the state that the first has left. It matters only to others,
    /// who may have changed that state in between, so the server is asked first; if it does not
    /// know, the request is repeated.
    Same,
    /// Not idempotent: an entry made twice, data appended twice. Never repeated.
    Once,
}

/// The class of a request.
pub(crate) fn repeat(task: &Task, procedure: Procedure, order: ByteOrder) -> Repeat {
    match task {
        Task::Read(_) => Repeat::Free,
        Task::Write(_) => Repeat::Same,
        Task::Message { bytes, .. } => match procedure.class() {
            Class::BulkFetch | Class::Simple => Repeat::Free,
            // Not in the server's records, and all of them set something to a value.
            Class::Special => Repeat::Free,
            _ => match decode_request(bytes, order, 0) {
                Ok((_, request)) => of_modifying(&request),
                Err(_) => Repeat::Once,
            },
        },
    }
}

fn of_modifying(request: &Request<'_>) -> Repeat {
    match request {
        Request::LockT(_) => Repeat::Free,
        // The data may not have arrived, though the server knows that it was read.
        Request::BatchSubmit(args)
            if args.requests.iter().any(|part| part.rw_flag == ReadWrite::Read) =>
        {
            Repeat::Free
        }
        // The replay cache protects the batch only as a whole, and clients send it again (DAFS 12).
        Request::BatchSubmit(_)
        | Request::Close(_)
        | Request::Commit(_)
        | Request::DelegPurge
        | Request::DelegReturn(_)
        | Request::HurryUp(_)
        | Request::Lock(_)
        | Request::LockU(_)
        | Request::OpenDowngrade(_)
        | Request::WriteDirect(_)
        | Request::WriteInline(_) => Repeat::Same,
        Request::SetAttrInline(args) if args.attributes.object_size.is_none() => Repeat::Same,
        Request::Open(args) => match (args.claim, args.create) {
            // A second one makes a second file.
            (OpenClaim::CreateUnlinked { .. }, _) => Repeat::Once,
            // The verifier, or the lack of a create, makes the second one find the file of the
            // first.
            (_, None | Some(CreateMode::Exclusive { .. })) => Repeat::Same,
            (_, Some(CreateMode::Unchecked { attributes })) if attributes.object_size.is_none() => {
                Repeat::Same
            }
            // GUARDED would fail on the file that it made; a second truncation may cut data written
            // in between.
            (_, Some(_)) => Repeat::Once,
        },
        _ => Repeat::Once,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_wire::dafs::{BatchSubmit, Checksum, FileHandle, ReadWriteRequest, Seq, StateId};

    fn batch(directions: &[ReadWrite]) -> Repeat {
        let part = |rw_flag| ReadWriteRequest {
            fh: FileHandle::ZERO,
            request_id: 1,
            state_id: StateId::ZERO,
            rw_flag,
            chunks: Seq::empty(),
            buffers: Seq::empty(),
            direct_checksum: Checksum::ZERO,
        };
        let parts: Vec<_> = directions.iter().copied().map(part).collect();
        of_modifying(&Request::BatchSubmit(BatchSubmit {
            requests: Seq::new(&parts),
            usec_window: 0,
            num_completions: 0,
            synchronous: true,
        }))
    }

    /// The server keeps replies without their data.
    #[test]
    fn a_batch_that_reads_is_sent_again() {
        assert_eq!(batch(&[ReadWrite::Write, ReadWrite::Write]), Repeat::Same);
        assert_eq!(batch(&[ReadWrite::Write, ReadWrite::Read]), Repeat::Free);
    }
}

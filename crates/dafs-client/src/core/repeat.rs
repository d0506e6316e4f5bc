//! Which requests may be sent twice.
//!
//! Invariants
//! * The class follows from the request alone, so whoever submits one need not think of recovery.
//! * What is not known to be harmless counts as harmful.

use super::call::Task;
use dafs_wire::dafs::{
    ByteOrder, Class, CreateMode, OpenClaim, Procedure, ReadWrite, Request, decode_request,
};

/// What sending a request a second time would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Nothing at all: it changes nothing, or the server keeps no record of it and takes it twice.
    Free,
    /// The second leaves what the first has left. It matters only to others, who may have changed
    /// it in between, so the server is asked first; if it does not know, it is done again.
    Same,
    /// Something else than the first: an entry made twice, data appended twice. Never.
    Once,
}

/// How a request may be treated.
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
        // What was read may not have come, though the server knows that it was.
        Request::BatchSubmit(args)
            if args.requests.iter().any(|part| part.rw_flag == ReadWrite::Read) =>
        {
            Repeat::Free
        }
        // The batch is protected only as a whole, and clients send it again (DAFS 12).
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
            // The verifier, or nothing at all, makes the second one find what the first has made.
            (_, None | Some(CreateMode::Exclusive { .. })) => Repeat::Same,
            (_, Some(CreateMode::Unchecked { attributes })) if attributes.object_size.is_none() => {
                Repeat::Same
            }
            // GUARDED would meet its own file; cutting a file twice may cut what came in between.
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

    /// A reply that the server has kept comes without the data.
    #[test]
    fn a_batch_that_reads_is_sent_again() {
        assert_eq!(batch(&[ReadWrite::Write, ReadWrite::Write]), Repeat::Same);
        assert_eq!(batch(&[ReadWrite::Write, ReadWrite::Read]), Repeat::Free);
    }
}

//! Batches whose results go to a completion group, and the parsing of a batch's answer.

use super::flight::{calls_of, canceled};
use super::{Batch, Transfer, effect_of, message_len, with_request};
use crate::core::{Done, Piece, ReplyMessage, SessionCore};
use crate::error::{Error, Result};
use crate::group::{GroupState, OperationId};
use crate::operations::GroupedKind;
use crate::outcome::failure_of;
use dafs_wire::dafs::{CompletionNotification, Outcome, Procedure, Reply, Status};
use std::sync::Arc;

/// The transfers of one message, with the caller's `user_data` for each.
#[derive(Debug)]
pub(crate) struct Sent {
    transfers: Vec<Transfer>,
    user_data: Vec<u64>,
}

impl Sent {
    pub(crate) fn len(&self) -> usize {
        self.transfers.len()
    }

    /// The result of each transfer.
    pub(crate) fn results(
        self,
        done: Done,
        server: &Arc<str>,
        core: &SessionCore,
    ) -> impl Iterator<Item = (u64, Result<usize>)> {
        let results = match done {
            Done::Answered(reply) => results(&self.transfers, &reply, core).map_err(|reason| {
                Error::Protocol { server: server.clone(), reason: reason.to_string().into() }
            }),
            done => Err(failure_of(done, server)),
        };
        let mut results = results.map(Vec::into_iter);
        self.user_data.into_iter().map(move |user_data| {
            let result = match &mut results {
                // There is one for each.
                Ok(results) => results.next().unwrap_or(Ok(0)),
                Err(error) => Err(error.clone()),
            };
            (user_data, result)
        })
    }
}

impl Batch {
    /// As [`submit`](Self::submit), for a group.
    pub(crate) fn submit_in(
        self,
        group: &Arc<GroupState>,
        user_data: impl FnMut(usize) -> u64,
    ) -> Result<Vec<OperationId>> {
        let Self { client, transfers, hints } = self;
        let user_data: Vec<u64> = (0..transfers.len()).map(user_data).collect();
        // A batch is accepted or refused as a whole: once the first message is under way it is too
        // late to refuse.
        group.reserve(transfers.len())?;
        let used = client.before(|| effect_of(&transfers)).map(Arc::new);
        let shared = client.shared();
        if let Some(hints) = hints {
            let calls = calls_of(&transfers);
            let writes =
                transfers.into_iter().map(|transfer| transfer.writes.map(|(writes, _)| writes));
            let (room, writes) = (calls.len(), writes.collect());
            let sent = shared.submit_batch_in(group, user_data, calls, writes, hints, &used);
            if sent.is_err() {
                group.give_back(room);
            }
            return sent;
        }
        let mut operations = Vec::with_capacity(transfers.len());
        let mut rest = &transfers[..];
        while !rest.is_empty() {
            let (message, others) = rest.split_at(message_len(shared.info(), rest));
            let left = &user_data[operations.len()..];
            let sent =
                Sent { transfers: message.to_vec(), user_data: left[..message.len()].to_vec() };
            let submitted = with_request(shared, message, |request, memory| {
                shared.start_in(group, GroupedKind::Batch(sent), |driver, tag| {
                    driver.submit(tag, request, memory)?;
                    driver.keep(tag, used.clone());
                    Ok(())
                })
            });
            let operation = match submitted {
                Err(error) if operations.is_empty() => {
                    group.give_back(transfers.len());
                    return Err(error);
                }
                // Other messages are under way already, so these transfers get completions, too.
                Err(error) => {
                    shared.refuse_in(group, left, &error);
                    operations.extend(left.iter().map(|_| OperationId::NONE));
                    return Ok(operations);
                }
                Ok(operation) => operation,
            };
            operations.extend(message.iter().map(|_| operation));
            rest = others;
        }
        Ok(operations)
    }
}

/// The result of each transfer of a message, or the reason why its answer is invalid.
pub(super) fn results(
    transfers: &[Transfer],
    reply: &ReplyMessage,
    core: &SessionCore,
) -> Result<Vec<Result<usize>>, &'static str> {
    let procedure = Procedure::BatchSubmit;
    let completions = match reply.decode() {
        Ok(Outcome::Ok(Reply::BatchSubmit(reply))) => reply.completions,
        Ok(Outcome::Error { status, .. }) => {
            return Ok(transfers
                .iter()
                .map(|_| Err(Error::Status { procedure, status }))
                .collect());
        }
        Ok(Outcome::Ok(_)) => return Err("an answer of another procedure"),
        Err(_) => return Err("an answer to a batch that cannot be decoded"),
    };
    let mut results: Vec<Option<Result<usize>>> = transfers.iter().map(|_| None).collect();
    for completion in completions.iter() {
        let place = completion.request_id.wrapping_sub(super::SYNCHRONOUS_IDS);
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        match results.get_mut(place) {
            Some(result @ None) => {
                *result = Some(self::result(&transfers[place], &completion, core)?)
            }
            _ => return Err("a completion that nobody waits for"),
        }
    }
    results.into_iter().collect::<Option<_>>().ok_or("a batch was answered in part")
}

fn result(
    transfer: &Transfer,
    completion: &CompletionNotification,
    core: &SessionCore,
) -> Result<Result<usize>, &'static str> {
    let status = completion.status;
    if status == Status::XCanceled {
        return Ok(canceled());
    }
    if status != Status::Ok {
        return Ok(Err(Error::Status { procedure: Procedure::BatchSubmit, status }));
    }
    let bytes = completion.bytes_transferred;
    let wanted: u64 = transfer.pieces.iter().map(|piece| u64::from(piece.len())).sum();
    if u64::from(bytes) > wanted {
        return Err("more was transferred than was asked for");
    }
    if transfer.writes.is_none() && transfer.pieces.iter().any(Piece::is_lost) {
        return Ok(Err(Error::BadMemory));
    }
    match &transfer.writes {
        Some((writes, verifier)) => writes.written(*verifier),
        None if core.info().checksums => {
            let mut left = bytes;
            let views = transfer.pieces.iter().map(|piece| {
                let len = piece.len().min(left);
                left -= len;
                piece.first(len)
            });
            match core.link.checksum_of(views) {
                Err(gone) => return Ok(Err(gone.into())),
                Ok(sum) if sum == completion.direct_checksum => {}
                Ok(_) => return Err("the checksum of data read does not match"),
            }
        }
        None => {}
    }
    Ok(Ok(bytes as usize))
}

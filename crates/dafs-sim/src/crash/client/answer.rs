//! Compares answers with the models.

use super::job::{Job, Target};
use super::{Chained, Client};
use crate::crash::Shared;
use crate::crash::model::names::Change;
use crate::crash::model::slots::SLOT_BYTES;
use dafs_client::core::{Done, Failure, ReplyMessage};
use dafs_mem::Site;
use dafs_wire::dafs::{Reply, Stability, Status};

impl Client {
    /// Handles a completed operation.
    pub(super) fn completed(
        &mut self,
        shared: &mut Shared,
        job: Job,
        piece: Option<usize>,
        ends: u32,
        done: Done,
    ) -> Result<(), String> {
        if job == Job::ChainedClose {
            return self.chain_over(shared, ends, &done);
        }
        let status = match &done {
            Done::Answered(message) => Some(message.status()),
            Done::Refused { status, .. } => Some(*status),
            Done::Read { .. } | Done::Written { .. } => Some(Status::Ok),
            // The server allows fewer outstanding requests than before: no member of the chain ran.
            Done::Lost(Failure::Unsendable(_)) if let Job::Chained(change) = job => {
                self.again(shared.common.now, Job::Names(change));
                return Ok(());
            }
            Done::Lost(Failure::DelegationLost) if let Job::Board(ask) = job => {
                return self.board_done(shared, ask, piece, &done);
            }
            Done::Lost(Failure::Canceled) if let Job::Transfer(part) = job => {
                self.taken_out(shared, part);
                return Ok(());
            }
            Done::Lost(failure) => {
                shared.common.note(|| format!("c{} {job:?} is lost: {failure}", self.number));
                return Err(format!("the session was given up: {failure}"));
            }
            Done::InDoubt(_) => {
                shared.common.note(|| format!("c{} {job:?} is in doubt", self.number));
                // Only a restarted server without durable replies may not know the outcome.
                let unknown = shared.ends > 0 && !shared.durable;
                if !unknown {
                    return Err("the server does not know what became of it".to_owned());
                }
                shared.in_doubt += 1;
                None
            }
        };
        let Some(status) = status else {
            self.lost(shared, job);
            return Ok(());
        };
        shared.common.note(|| format!("c{} {job:?} is told {status}", self.number));
        shared.common.digest.word(status.code().into());
        if matches!(status, Status::Delay | Status::Grace | Status::Resource) {
            shared.common.counts.refused += 1;
            if let Job::Guarded { visit, number: Some(number), .. } = &job {
                shared.vaults[visit.vault].put_off(*number)?;
            }
            if let Job::Chained(_) = &job {
                self.chained = Some(Chained::Refused);
            }
            self.again(shared.common.now, job);
            return Ok(());
        }
        if let Job::Board(ask) = job {
            return self.board_done(shared, ask, piece, &done);
        }
        if let Job::Guarded { visit, ask, number } = job {
            return self.guarded(shared, (visit, ask, number), piece, &done);
        }
        match done {
            Done::Answered(message) if let Job::Batch(parts) = &job => {
                self.batch_done(shared, parts, piece, &message)
            }
            Done::Answered(message) => self.answered(shared, job, ends, &message),
            Done::Read { bytes, .. } => self.read(shared, &job, piece, bytes),
            Done::Written { bytes, committed, verifier } => {
                if let Job::Transfer(part) = job {
                    if verifier != part.verifier {
                        return Err("told of another write verifier".to_owned());
                    }
                    return self.part_done(shared, part, bytes as usize, Vec::new());
                }
                let Job::Write { slot, write, stability } = job else {
                    return Err("answered as a write".to_owned());
                };
                if bytes as usize != SLOT_BYTES || (committed as u32) < stability as u32 {
                    return Err(format!("{bytes} bytes were written, stable {committed:?}"));
                }
                shared.common.counts.succeeded += 1;
                shared.common.counts.bytes_written += u64::from(bytes);
                self.verifier = Some(verifier);
                self.slots.written(slot, write, committed, verifier);
                self.slots.end(slot);
                Ok(())
            }
            Done::Refused { .. } => Err(format!("refused with {status}")),
            Done::Lost(_) | Done::InDoubt(_) => Ok(()),
        }
    }

    fn read(
        &mut self,
        shared: &mut Shared,
        job: &Job,
        piece: Option<usize>,
        bytes: u32,
    ) -> Result<(), String> {
        let slot = match job {
            Job::Read { slot } => *slot,
            Job::Transfer(part) if part.write.is_none() => {
                let piece = piece.and_then(|piece| self.piece(piece, bytes as usize));
                let piece = piece.ok_or("more was read than there is memory for")?;
                let data = piece.view().to_vec(Site::Inspect);
                return self.part_done(shared, *part, bytes as usize, data);
            }
            _ => return Err("answered as a read".to_owned()),
        };
        let piece = piece.and_then(|piece| self.piece(piece, bytes as usize));
        let mut data =
            piece.ok_or("more was read than there is memory for")?.view().to_vec(Site::Inspect);
        // The file may end before the slot.
        data.resize(SLOT_BYTES, 0);
        shared.common.digest.bytes(&data);
        shared.common.counts.succeeded += 1;
        shared.common.counts.bytes_read += u64::from(bytes);
        self.slots.check(slot, &data, shared.cuts)?;
        self.slots.end(slot);
        Ok(())
    }

    fn answered(
        &mut self,
        shared: &mut Shared,
        job: Job,
        ends: u32,
        message: &ReplyMessage,
    ) -> Result<(), String> {
        if let Job::OpenVault { vault } = job {
            return self.opened_vault(shared, vault, message);
        }
        if let Job::OpenBoard { number, writes } = job {
            return self.opened_board(shared, (number, writes), message);
        }
        let outcome = message.decode().map_err(|error| error.to_string())?;
        let answer = outcome.into_result();
        if answer.is_ok() {
            shared.common.counts.succeeded += 1;
        } else {
            shared.common.counts.refused += 1;
        }
        let unexpected = |answer: &Result<Reply<'_>, Status>| match answer {
            Ok(reply) => Err(format!("answered with {reply:?}")),
            Err(status) => Err(format!("refused with {status}")),
        };
        match job {
            Job::Find(target) => {
                let Ok(Reply::Lookup(reply)) = &answer else { return unexpected(&answer) };
                match target {
                    Target::Dir(dir) => {
                        self.handles.dirs.insert(dir, reply.fh);
                    }
                    Target::Data => self.handles.data = Some(reply.fh),
                    Target::Log => self.handles.log = Some(reply.fh),
                    Target::Gate => self.handles.gate = Some(reply.fh),
                }
                Ok(())
            }
            Job::Names(change) | Job::Chained(change) => {
                let chained = matches!(job, Job::Chained(_));
                if chained {
                    self.chained = Some(match &answer {
                        Ok(Reply::Open(reply)) => Chained::Open(reply.fh, reply.state_id),
                        _ => Chained::Refused,
                    });
                }
                let status = answer.as_ref().map_or_else(|status| *status, |_| Status::Ok);
                let existed = match change {
                    Change::Create { at, .. } => self.names.get(at),
                    _ => None,
                };
                self.names.answered(&change, status)?;
                match (&change, &answer) {
                    (Change::Create { object, .. }, Ok(Reply::Open(reply))) => {
                        let object = existed.map_or(*object, |entry| entry.object);
                        self.know(object, reply.fh)?;
                        if chained {
                            return Ok(());
                        }
                        let (handle, state) = (reply.fh, reply.state_id);
                        let run = self.run;
                        self.submit(shared, Job::Close { handle, state, ends, run })
                    }
                    (Change::MakeDirectory { object, .. }, Ok(Reply::Create(reply))) => {
                        self.know(*object, reply.fh)
                    }
                    (Change::Create { .. } | Change::MakeDirectory { .. }, Ok(_)) => {
                        unexpected(&answer)
                    }
                    _ => Ok(()),
                }
            }
            Job::Close { ends: opened, run, .. } => {
                let stale = matches!(
                    answer,
                    Err(Status::StaleStateId
                        | Status::BadStateId
                        | Status::Expired
                        | Status::Stale)
                );
                // State that an earlier server or client opened is gone with it. A lease may have
                // expired during a partition.
                let lapsed = shared.leases.has_lapsed(self.number);
                let gone = opened != shared.ends || run != self.run || lapsed;
                if answer.is_ok() || (stale && gone) { Ok(()) } else { unexpected(&answer) }
            }
            Job::Return(_) => match answer {
                Ok(_)
                | Err(
                    Status::StaleStateId | Status::BadStateId | Status::Expired | Status::Stale,
                ) => Ok(()),
                _ => unexpected(&answer),
            },
            Job::Commit { covered } => {
                let Ok(Reply::Commit(reply)) = &answer else { return unexpected(&answer) };
                self.verifier = Some(reply.verifier);
                self.slots.committed(&covered, reply.verifier);
                Ok(())
            }
            Job::Fence { client, number, .. } => {
                let status = answer.as_ref().map_or_else(|status| *status, |_| Status::Ok);
                Self::fenced(shared, (client, number), status)
            }
            Job::Append { record, gate: Some(watch), .. }
                if matches!(answer, Err(Status::Fenced)) =>
            {
                shared.lock_counts.fenced += 1;
                shared.gate.log.refused(record);
                shared.gate.judge(self.number, watch, true)
            }
            Job::Append { record, len, gate, .. } => {
                let Ok(Reply::AppendInline(reply) | Reply::AppendDirect(reply)) = &answer else {
                    return unexpected(&answer);
                };
                if reply.committed == Stability::Unstable {
                    return Err("the append is not stable".to_owned());
                }
                shared.common.counts.bytes_written += len as u64;
                let Some(watch) = gate else {
                    shared.log.appended(record, reply.offset);
                    return Ok(());
                };
                shared.gate.log.appended(record, reply.offset);
                shared.gate.judge(self.number, watch, false)
            }
            Job::Write { .. }
            | Job::Read { .. }
            | Job::Batch(_)
            | Job::Transfers(..)
            | Job::Transfer(_)
            | Job::OpenBoard { .. }
            | Job::Board(_)
            | Job::OpenVault { .. }
            | Job::Guarded { .. }
            | Job::ChainedClose => Err("answered as a message".to_owned()),
        }
    }

    /// Handles the end of a chain's second member.
    fn chain_over(&mut self, shared: &mut Shared, ends: u32, done: &Done) -> Result<(), String> {
        let Done::Answered(message) = done else {
            // It ended with the first member, or the first would have failed.
            return Ok(());
        };
        let status = message.status();
        shared.common.note(|| format!("c{} chained CLOSE is told {status}", self.number));
        shared.lock_counts.chains += 1;
        match (self.chained.take(), status) {
            (None, _) | (Some(Chained::Refused), Status::ChainBroken) => Ok(()),
            (Some(Chained::Open(handle, state)), Status::Delay | Status::Grace) => {
                let run = self.run;
                self.submit(shared, Job::Close { handle, state, ends, run })
            }
            (Some(Chained::Open(..)), Status::Ok) => Ok(()),
            (Some(Chained::Open(..)), Status::ChainBroken) => {
                Err("the chain is broken behind a member that was done".to_owned())
            }
            (Some(Chained::Open(..)), _)
                if ends != shared.ends || shared.leases.has_lapsed(self.number) =>
            {
                Ok(())
            }
            (chained, status) => Err(format!("told {status} behind {chained:?}")),
        }
    }

    fn know(&mut self, object: u32, handle: dafs_wire::dafs::FileHandle) -> Result<(), String> {
        let known = *self.names.handles.entry(object).or_insert(handle);
        if known == handle {
            Ok(())
        } else {
            Err(format!("object {object} has the handle {known:?}, but {handle:?} was told"))
        }
    }

    /// Notes an operation whose outcome stays unknown.
    pub(super) fn lost(&mut self, shared: &mut Shared, job: Job) {
        shared.common.counts.lost += 1;
        match job {
            Job::Names(change) | Job::Chained(change) => self.names.lost(&change),
            // A lost write may still arrive: its slot stays taken.
            Job::Write { .. } | Job::Commit { .. } | Job::Append { .. } => {}
            Job::Read { slot } => self.slots.end(slot),
            Job::Batch(parts) | Job::Transfers(parts, _) => {
                parts.into_iter().for_each(|part| self.part_lost(part));
            }
            Job::Transfer(part) => self.part_lost(part),
            Job::Find(_) | Job::Close { .. } | Job::ChainedClose => {}
            // The model keeps the requests of a dead client.
            Job::OpenVault { .. } | Job::Guarded { .. } | Job::Fence { .. } => {}
            Job::OpenBoard { .. } | Job::Board(_) | Job::Return(_) => {}
        }
    }
}

//! READs and WRITEs under way.
//!
//! Invariants
//! * Only the thread that waits for a transfer interprets it and sends it again; others merely read
//!   its answer when they need its slot.
//! * A transfer to a data server is sent again only in its own slot, or by the thread that waits
//!   for it if it was not carried out because its session was over.
//! * The effect of a write at a data server is recorded when its answer is read, by any thread. So
//!   a thread that returns a layout knows all writes under it.

use super::client::Client;
use super::exchange::{Exchange, Message, Outcome};
use super::layouts::{FileLayout, Grant};
use super::session::Session;
use crate::compound::{Compound, Results};
use crate::files::{Handle, putfh};
use crate::mount::error::{MountError, Result};
use crate::mount::limits::SMALL_RESULT_BYTES;
use crate::mount::open::{Direction, Flight, Keeper, Moved, Transfer};
use crate::mount::retry_timer::RetryTimer;
use dafs_mem::Mutex;
use dafs_wire::nfs4::{Op, OpNum, ReadArgs, SequenceArgs, StableHow, Stateid, Status};
use dafs_wire::xdr::{Encode, Encoder};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A READ or WRITE under way.
#[derive(Debug)]
pub(crate) struct TransferFlight {
    client: Arc<Client>,
    transfer: Transfer,
    /// The component that it goes to, if not to the file itself.
    part: Option<NodePart>,
    stage: Mutex<Stage>,
    /// The data server did nothing, because it had ended the session: so it treats clients that
    /// were away or have written through the server, and all clients when it restarts.
    refused: AtomicBool,
}

/// A component of a file at a data server.
#[derive(Debug, Clone)]
pub(crate) struct NodePart {
    pub(crate) handle: Handle,
    pub(crate) stateid: Stateid,
    /// Its offset in the component.
    pub(crate) offset: u64,
    pub(crate) component: usize,
    pub(crate) file: Arc<FileLayout>,
    pub(crate) grant: Arc<Grant>,
}

#[derive(Debug)]
enum Stage {
    /// It has a slot, and uses this state-id.
    Sent(Exchange, Stateid),
    /// The answer was read.
    Answered(Outcome, Stateid),
    /// The answer of a data server was read, and its effect recorded.
    Settled(Result<Moved>),
    Over,
}

impl TransferFlight {
    /// Sends a transfer.
    pub(crate) fn begin(client: &Arc<Client>, transfer: Transfer) -> Result<Arc<Self>> {
        if let Direction::Write(stable) = transfer.direction {
            // No caller may wait for it.
            note_at_server(client, &transfer.open.handle, stable);
        }
        Self::begin_part(client, transfer, None)
    }

    /// Sends a transfer to the component that holds this part of the file, if there is one.
    pub(crate) fn begin_part(
        client: &Arc<Client>,
        transfer: Transfer,
        part: Option<NodePart>,
    ) -> Result<Arc<Self>> {
        let (client, stage) = (client.clone(), Mutex::new(Stage::Over));
        let refused = AtomicBool::new(false);
        let flight = Arc::new(Self { client, transfer, part, stage, refused });
        let mut retry_timer = flight.client.link.retry_timer();
        flight.send(&mut retry_timer)?;
        Ok(flight)
    }

    /// Takes a slot and sends the request.
    fn send(self: &Arc<Self>, retry_timer: &mut RetryTimer) -> Result<()> {
        loop {
            let session = self.client.session(retry_timer)?;
            let Ok(sequence) = session.take(false) else { continue };
            // A lost session may have changed the state-id while this waited for a slot.
            let stateid = match &self.part {
                Some(part) => Ok(part.stateid),
                None => self.client.stateid(&self.transfer.open),
            };
            let stateid = match stateid {
                Ok(stateid) => stateid,
                Err(error) => {
                    session.release(&sequence, None);
                    return Err(error);
                }
            };
            let message = self.message(&sequence, stateid);
            let mut stage = self.stage.lock();
            session.occupy(&sequence, self);
            let exchange = Exchange::begin(&self.client.link, session, sequence, message);
            *stage = Stage::Sent(exchange, stateid);
            return Ok(());
        }
    }

    /// Reads the answer for a thread that needs a slot; false if another thread does so.
    pub(crate) fn collect_for_slot(&self) -> bool {
        let Some(mut stage) = self.stage.try_lock() else { return false };
        self.collect(&mut stage);
        true
    }

    fn collect(&self, stage: &mut Stage) {
        match std::mem::replace(stage, Stage::Over) {
            Stage::Sent(exchange, stateid) => {
                let mut retry_timer = self.client.link.retry_timer();
                let session = exchange.session().clone();
                let outcome = exchange.finish(&self.client.link, &mut retry_timer);
                *stage = match &self.part {
                    Some(part) => Stage::Settled(self.settle(part, &session, outcome)),
                    None => Stage::Answered(outcome, stateid),
                };
            }
            other => *stage = other,
        }
    }

    /// Counts the bytes that a read found behind the size at the open: the count at its start did
    /// not include them.
    fn note_grown(&self, moved: &Moved) {
        let Transfer { open, offset, direction, .. } = &self.transfer;
        let grown = open.grown(*offset, moved.bytes as u64);
        if *direction == Direction::Read
            && grown > 0
            && let Some(file) =
                self.client.layouts().and_then(|layouts| layouts.known(&open.handle))
        {
            file.with(|state| state.count(grown));
        }
    }

    /// Records the effect of a data server's answer with the file. `session` is that of the
    /// request.
    fn settle(&self, part: &NodePart, session: &Session, outcome: Outcome) -> Result<Moved> {
        let mut moved = match outcome {
            Outcome::Done { mut results, status } => {
                self.client.note(status);
                match moved(&mut results, &self.transfer) {
                    // It was not carried out, since it may have been sent before a write of the
                    // server there.
                    Err(error) if error.status() == Some(Status::DeadSession) => {
                        // The current session may be another one: answers of the same kind may have
                        // been read before.
                        session.end();
                        self.refused.store(true, Ordering::Relaxed);
                        return Err(self.client.link.lost("its session is over"));
                    }
                    moved => moved?,
                }
            }
            Outcome::Repeat | Outcome::SessionOver { sent_again: true } => {
                return Err(self.client.link.lost("its session is over"));
            }
            Outcome::SessionOver { sent_again: false } => {
                self.refused.store(true, Ordering::Relaxed);
                return Err(self.client.link.lost("its session is over"));
            }
            Outcome::Failed(error) => return Err(error),
        };
        if let Direction::Write(_) = self.transfer.direction {
            let end = self.transfer.offset.saturating_add(moved.bytes as u64);
            moved.keeper = Keeper::DataServers;
            let unstable = (moved.stable == StableHow::Unstable).then_some(moved.verifier);
            let wrote = (end, moved.bytes);
            moved.verifier = part.file.wrote(&part.grant, part.component, wrote, unstable);
        }
        Ok(moved)
    }

    /// Waits for the answer of a data server.
    pub(crate) fn settled(&self) -> Result<Moved> {
        let mut stage = self.stage.lock();
        self.collect(&mut stage);
        match std::mem::replace(&mut *stage, Stage::Over) {
            Stage::Settled(result) => result,
            _ => Err(MountError::Argument("a transfer was waited for twice")),
        }
    }

    /// Sends it again under a new session, if the data server has done nothing.
    pub(crate) fn again(&self) -> Option<Result<Arc<Self>>> {
        let refused = self.refused.load(Ordering::Relaxed);
        let part = self.part.clone().filter(|_| refused)?;
        Some(Self::begin_part(&self.client, self.transfer.clone(), Some(part)))
    }

    /// True when waiting for it would not block.
    pub(crate) fn is_answered(&self) -> bool {
        self.stage.try_lock().is_some_and(|stage| match &*stage {
            Stage::Sent(exchange, _) => exchange.is_answered(),
            Stage::Answered(..) | Stage::Settled(_) | Stage::Over => true,
        })
    }

    /// Takes the answer, and waits for it if need be.
    fn answer(&self) -> Option<(Outcome, Stateid)> {
        let mut stage = self.stage.lock();
        self.collect(&mut stage);
        match std::mem::replace(&mut *stage, Stage::Over) {
            Stage::Answered(outcome, stateid) => Some((outcome, stateid)),
            _ => None,
        }
    }
}

/// A flight whose sender waits for it.
#[derive(Debug)]
pub(crate) struct Waiting(pub(crate) Arc<TransferFlight>);

impl Flight for Waiting {
    fn wait(&self) -> Result<Moved> {
        let flight = &self.0;
        let mut retry_timer = flight.client.link.retry_timer();
        loop {
            let Some((outcome, stateid)) = flight.answer() else {
                return Err(MountError::Argument("a transfer was waited for twice"));
            };
            match outcome {
                Outcome::Done { mut results, status } => {
                    flight.client.note(status);
                    match moved(&mut results, &flight.transfer) {
                        Err(error) if is_time_wanted(&error) && retry_timer.pause() => {}
                        Err(error) if error.status().is_some_and(is_state_lost) => {
                            let open = &flight.transfer.open;
                            flight.client.reopen(open, stateid, &error, &mut retry_timer)?;
                        }
                        Ok(moved) => {
                            flight.note_grown(&moved);
                            // A COMMIT of another thread may have removed the first mark.
                            let file = &flight.transfer.open.handle;
                            note_at_server(&flight.client, file, moved.stable);
                            return Ok(moved);
                        }
                        failed => return failed,
                    }
                }
                Outcome::Repeat | Outcome::SessionOver { .. } => {
                    if !retry_timer.pause() {
                        return Err(flight
                            .client
                            .link
                            .lost("the session was lost again and again"));
                    }
                }
                Outcome::Failed(error) => return Err(error),
            }
            flight.send(&mut retry_timer)?;
        }
    }

    fn is_answered(&self) -> bool {
        self.0.is_answered()
    }
}

/// Marks a file of which the server has data that is not stable, or may get some.
fn note_at_server(client: &Client, file: &Handle, stable: StableHow) {
    if stable != StableHow::FileSync
        && let Some(layouts) = client.layouts()
    {
        layouts.mark_at_server(file);
    }
}

/// True when the server answers DELAY or GRACE.
pub(crate) fn is_time_wanted(error: &MountError) -> bool {
    matches!(error.status(), Some(Status::Delay | Status::Grace))
}

/// True when the server no longer knows the open (RFC 8881 8.4.2, 8.5).
pub(crate) fn is_state_lost(status: Status) -> bool {
    matches!(
        status,
        Status::BadStateId
            | Status::StaleStateId
            | Status::OldStateId
            | Status::Expired
            | Status::AdminRevoked
            | Status::DelegRevoked
    )
}

impl TransferFlight {
    fn message(&self, sequence: &SequenceArgs, stateid: Stateid) -> Message {
        let Transfer { open, offset, memory, direction } = &self.transfer;
        let (handle, offset) = match &self.part {
            Some(part) => (&part.handle, part.offset),
            None => (&open.handle, *offset),
        };
        let mut compound = Compound::new(self.client.minor_version);
        compound.op(&Op::Sequence(*sequence)).op(&putfh(handle));
        let (data, sink) = match direction {
            Direction::Read => {
                // INVARIANT: transfers are no longer than the limits of the mount, which are 32
                // bits.
                let count = memory.len() as u32;
                compound.op(&Op::Read(ReadArgs { stateid, offset, count }));
                (None, Some(memory.clone()))
            }
            Direction::Write(stable) => {
                let mut args = Vec::with_capacity(32);
                let mut e = Encoder::new(&mut args);
                stateid.encode(&mut e);
                e.u64(offset);
                stable.encode(&mut e);
                e.count(memory.len());
                compound.raw(OpNum::Write as u32, &args);
                (Some(memory.clone()), None)
            }
        };
        Message { compound, data, sink, results_bytes_max: SMALL_RESULT_BYTES }
    }
}

/// The result of a transfer, from its answer.
fn moved(results: &mut Results, transfer: &Transfer) -> Result<Moved> {
    let len = transfer.memory.len();
    let (stable, keeper) = (StableHow::FileSync, Keeper::Server);
    let nothing = Moved { bytes: 0, eof: false, stable, keeper, verifier: [0; 8] };
    results.skip(&[OpNum::Putfh])?;
    match transfer.direction {
        Direction::Read => {
            let result = results.take_read()?;
            if result.data.len() > len {
                return Err(MountError::protocol("more data than was asked for"));
            }
            let bytes = transfer.memory.take(result.data);
            Ok(Moved { bytes, eof: result.eof, ..nothing })
        }
        Direction::Write(_) => {
            let result = results.take_write()?;
            let bytes = result.count as usize;
            if bytes > len {
                return Err(MountError::protocol("more was written than was sent"));
            }
            let (stable, verifier) = (result.committed, result.verifier.0);
            Ok(Moved { bytes, stable, verifier, ..nothing })
        }
    }
}

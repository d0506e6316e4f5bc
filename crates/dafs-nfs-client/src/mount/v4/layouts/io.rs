//! Reads and writes at data servers. The client cuts a transfer by the layout and sends all parts
//! at once. A part that fails is read from another copy or done through the server.

use super::file::At;
use super::give_back::is_passing;
use super::{FileLayout, Grant, Layouts};
use crate::mount::error::{MountError, Result};
use crate::mount::limits::HEAD_BYTES;
use crate::mount::open::{Direction, Flight, Keeper, Moved, Transfer};
use crate::mount::pending::{Part, Parts};
use crate::mount::protocol::Sizes;
use crate::mount::v4::client::Client;
use crate::mount::v4::flight::{NodePart, TransferFlight, Waiting};
use dafs_mem::Mutex;
use dafs_parallel::aggregation::OFFSET_MAX;
use dafs_parallel::{Act, Cut, Fault, Protocol};
use dafs_wire::nfs4::{StableHow, Stateid, Status};
use std::sync::Arc;

/// The context in which the parts of one transfer are sent.
#[derive(Debug, Clone)]
struct Sender {
    layouts: Arc<Layouts>,
    client: Arc<Client>,
    file: Arc<FileLayout>,
    grant: Arc<Grant>,
    /// The state-id of the open.
    stateid: Stateid,
}

/// A piece of a transfer within one unit of the layout. A write goes to all of its copies.
#[derive(Debug)]
struct DirectFlight {
    sender: Sender,
    transfer: Transfer,
    legs: Mutex<Vec<Leg>>,
}

/// The part of a piece that goes to one data server.
#[derive(Debug)]
struct Leg {
    component: usize,
    bytes: usize,
    sent: Result<Arc<TransferFlight>, Failure>,
}

/// The reason why a data server has not done its part.
pub(super) type Failure = Fault<MountError>;

/// The components with a failed part, and the reasons.
type Failed = dafs_parallel::Faults<MountError>;

/// The status that reports a failure to the server; `None` for a transient one.
pub(super) fn status_of(failure: &Failure) -> Option<Status> {
    match failure {
        Fault::Unavailable | Fault::Short => None,
        Fault::Unreachable => Some(Status::Nxio),
        Fault::Failed(error) => match error.status() {
            Some(status) => Some(status).filter(|status| !is_passing(*status)),
            None => Some(Status::Nxio),
        },
    }
}

impl Layouts {
    /// Sends a transfer to data servers; `None` if it has to go through the server.
    pub(crate) fn begin(
        self: &Arc<Self>,
        client: &Arc<Client>,
        transfer: &Transfer,
        sizes: Sizes,
    ) -> Result<Option<Parts>> {
        let write = matches!(transfer.direction, Direction::Write(_));
        let bytes = transfer.memory.len() as u64;
        let end = transfer.offset.saturating_add(bytes);
        if write && !transfer.open.write || end > OFFSET_MAX {
            return Ok(None);
        }
        let file = self.file(&transfer.open.handle);
        if !write && file.extends() {
            // A data server may know the file only by its size at the metadata server.
            self.tell_first(client, &file)?;
        }
        let counted = if write { bytes } else { transfer.open.readable(transfer.offset, bytes) };
        let open = &transfer.open;
        // One layout for all that the open allows.
        let ask = |held| self.ask(client, &file, (open, held), open.write);
        let grant = self.at(client, &file).grant_for((write, counted), |_| true, open.write, ask);
        let covers = |grant: &Arc<Grant>| {
            grant.terms.covers(transfer.offset, end)
                && grant.plan.suits(transfer.offset, transfer.memory.len())
        };
        let Some(grant) = grant.filter(|grant| covers(grant) && file.enter(grant)) else {
            return Ok(None);
        };
        let stateid = client.stateid(&transfer.open);
        let (layouts, client) = (self.clone(), client.clone());
        let sent = stateid.map(|stateid| {
            let sender = Sender { layouts, client, file: file.clone(), grant, stateid };
            sender.send(transfer, sizes)
        });
        let flights = sent.iter().flat_map(|(_, flights)| flights.iter().map(Arc::downgrade));
        file.entered(flights);
        Ok(Some(sent?.0))
    }
}

impl Sender {
    /// Sends all parts of a transfer. Also returns the requests under way.
    fn send(&self, transfer: &Transfer, sizes: Sizes) -> (Parts, Vec<Arc<TransferFlight>>) {
        let plan = &self.grant.plan;
        let (copy, bytes_max) = match transfer.direction {
            Direction::Read => (self.grant.next_copy(), plan.read_bytes_max.min(sizes.read)),
            Direction::Write(_) => (0, plan.write_bytes_max.min(sizes.write)),
        };
        let (mut parts, mut flights) = (Parts::new(), Vec::new());
        let (offset, len) = (transfer.offset, transfer.memory.len());
        for range in plan.pieces(copy, offset, len, bytes_max as usize) {
            let Some(piece) = transfer.part(range) else { continue };
            let legs = self.legs(&piece, copy);
            flights.extend(legs.iter().filter_map(|leg| leg.sent.as_ref().ok()).cloned());
            let (memory, offset) = (piece.memory.clone(), piece.offset);
            let (sender, legs) = (self.clone(), Mutex::new(legs));
            let flight = Arc::new(DirectFlight { sender, transfer: piece, legs });
            parts.push(Part { flight, memory, offset });
        }
        (parts, flights)
    }

    /// Sends a piece to one copy for a read, or to all copies for a write.
    fn legs(&self, piece: &Transfer, copy: usize) -> Vec<Leg> {
        match piece.direction {
            Direction::Read => {
                let legs = self.legs_of_copy(piece, copy);
                let is_away = |leg: &Leg| matches!(leg.sent, Err(Fault::Unavailable));
                if !legs.iter().all(is_away) {
                    return legs;
                }
                // Another copy may be reachable.
                let other = self.grant.plan.other_copies(copy).find_map(|other| {
                    let legs = self.legs_of_copy(piece, other);
                    legs.iter().any(|leg| leg.sent.is_ok()).then_some(legs)
                });
                other.unwrap_or(legs)
            }
            Direction::Write(_) => {
                let copies = 0..self.grant.plan.driver.copies();
                copies.flat_map(|copy| self.legs_of_copy(piece, copy)).collect()
            }
        }
    }

    fn legs_of_copy(&self, piece: &Transfer, copy: usize) -> Vec<Leg> {
        let mut legs = Vec::with_capacity(1);
        for cut in self.grant.plan.cuts(copy, piece.offset, piece.memory.len()) {
            let node = match self.grant.nodes[cut.component].client(&self.client) {
                Ok(node) => node,
                Err(away) => {
                    let (component, bytes) = (cut.component, cut.range.len());
                    legs.push(Leg { component, bytes, sent: Err(away) });
                    continue;
                }
            };
            let limits = node.limits();
            let message_bytes_max = match piece.direction {
                Direction::Read => limits.response_bytes_max,
                Direction::Write(_) => limits.request_bytes_max,
            };
            let bytes_max = message_bytes_max.saturating_sub(HEAD_BYTES).max(512) as usize;
            for cut in cut.requests(bytes_max) {
                let Some(piece) = piece.part(cut.range.clone()) else { continue };
                let (component, bytes) = (cut.component, cut.range.len());
                legs.push(Leg { component, bytes, sent: self.send_leg(&node, piece, cut) });
            }
        }
        legs
    }

    fn send_leg(
        &self,
        node: &Arc<Client>,
        piece: Transfer,
        Cut { component, component_offset: offset, .. }: Cut,
    ) -> Result<Arc<TransferFlight>, Failure> {
        let place = &self.grant.plan.places[component];
        let part = NodePart {
            handle: place.handle.clone(),
            stateid: place.stateid.unwrap_or(self.stateid),
            offset,
            component,
            file: self.file.clone(),
            grant: self.grant.clone(),
        };
        TransferFlight::begin_part(node, piece, Some(part)).map_err(Fault::Failed)
    }

    /// Sums up the parts of a piece. Returns the number of bytes done from its start, and the
    /// verifier of a time when their data certainly existed.
    fn take(&self, legs: Vec<Leg>, piece: &Transfer) -> Result<Moved, Failed> {
        let write = piece.direction != Direction::Read;
        let came = |Leg { component, bytes, sent }| {
            let settled = sent.and_then(|flight| self.settled(&flight).map_err(Fault::Failed));
            let moved = settled.map(|Moved { bytes, eof, stable, verifier, .. }| {
                dafs_parallel::Moved { bytes, eof, stable, verifier }
            });
            (component, bytes, moved)
        };
        let legs = legs.into_iter().map(came);
        let all = dafs_parallel::sum(legs, write, piece.memory.len(), StableHow::FileSync)?;
        let dafs_parallel::Moved { bytes, eof, stable, verifier } = all;
        Ok(Moved { bytes, eof, stable, keeper: Keeper::DataServers, verifier })
    }

    /// Waits for a part, and sends it again if its session was over.
    fn settled(&self, flight: &TransferFlight) -> Result<Moved> {
        let settled = flight.settled();
        if settled.is_ok() || !self.file.enter(&self.grant) {
            return settled;
        }
        let again = flight.again();
        let under_way = again.iter().flatten().map(Arc::downgrade);
        self.file.entered(under_way);
        match again {
            Some(again) => again?.settled(),
            None => settled,
        }
    }

    /// Avoids the data servers that did not answer.
    fn avoid(&self, failed: &Failed) {
        for (component, failure) in failed {
            if matches!(failure, Fault::Failed(error) if error.status().is_none()) {
                self.grant.nodes[*component].failed();
            }
        }
    }

    fn at(&self) -> At<'_> {
        self.layouts.at(&self.client, &self.file)
    }

    /// Does a transfer through the server.
    fn through_server(&self, transfer: Transfer) -> Result<Moved> {
        if transfer.direction == Direction::Read && self.file.extends() {
            self.layouts.tell_first(&self.client, &self.file)?;
        }
        Waiting(TransferFlight::begin(&self.client, transfer)?).wait()
    }

    /// Reads a piece from a copy now; `None` if that fails, too.
    fn read_from(&self, piece: &Transfer, copy: usize) -> Option<Moved> {
        if !self.file.enter(&self.grant) {
            return None;
        }
        let legs = self.legs_of_copy(piece, copy);
        let flights: Vec<_> = legs.iter().filter_map(|leg| leg.sent.as_ref().ok()).collect();
        self.file.entered(flights.into_iter().map(Arc::downgrade));
        self.take(legs, piece).ok()
    }
}

impl DirectFlight {
    fn read(&self, legs: Vec<Leg>) -> Result<Moved> {
        let (sender, piece) = (&self.sender, &self.transfer);
        let moved = match sender.take(legs, piece) {
            Ok(moved) => moved,
            Err(failed) => {
                sender.avoid(&failed);
                let copies = 0..sender.grant.plan.driver.copies();
                // If there is only one copy, it has just failed.
                let copies = copies.skip(usize::from(sender.grant.plan.driver.copies() == 1));
                let others = copies.filter_map(|copy| sender.read_from(piece, copy)).next();
                sender.at().give_back_after(&sender.grant, &failed, Act::Read);
                match others {
                    Some(moved) => moved,
                    None => return sender.through_server(piece.clone()),
                }
            }
        };
        // A data server may take the end of its component for that of the file (RFC 8881 13.10).
        match piece.part(moved.bytes..piece.memory.len()).filter(|rest| !rest.memory.is_empty()) {
            None => Ok(moved),
            Some(rest) => {
                let rest = sender.through_server(rest)?;
                Ok(Moved { bytes: moved.bytes + rest.bytes, ..rest })
            }
        }
    }

    fn write(&self, legs: Vec<Leg>, wanted: StableHow) -> Result<Moved> {
        let sender = &self.sender;
        let failed = match sender.take(legs, &self.transfer) {
            Ok(moved) if wanted == StableHow::Unstable => return Ok(moved),
            // If data was lost since, LAYOUTCOMMIT may not have covered this write.
            Ok(moved)
                if moved.stable != StableHow::Unstable
                    && moved.verifier == sender.file.verifier() =>
            {
                // The data is stable, but the server decides how much of it the file has.
                if moved.stable < wanted || sender.file.extends() {
                    sender.at().tell()?;
                }
                return Ok(Moved { stable: wanted.max(moved.stable), ..moved });
            }
            Ok(_) => Vec::new(),
            Err(failed) => failed,
        };
        sender.avoid(&failed);
        sender.at().give_back_after(&sender.grant, &failed, Act::Write);
        sender.through_server(self.transfer.clone())
    }
}

impl Flight for DirectFlight {
    fn wait(&self) -> Result<Moved> {
        let legs = std::mem::take(&mut *self.legs.lock());
        if legs.is_empty() {
            return Err(MountError::Argument("a transfer was waited for twice"));
        }
        match self.transfer.direction {
            Direction::Read => self.read(legs),
            Direction::Write(wanted) => self.write(legs, wanted),
        }
    }

    fn is_answered(&self) -> bool {
        let legs = self.legs.lock();
        legs.iter().all(|leg| leg.sent.as_ref().map_or(true, |flight| flight.is_answered()))
    }
}

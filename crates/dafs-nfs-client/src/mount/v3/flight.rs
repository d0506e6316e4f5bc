//! READs and WRITEs under way.

use super::call::{Exchange, Message, decoded, is_put_off};
use crate::mount::error::{MountError, Result};
use crate::mount::link::Link;
use crate::mount::open::{Direction, Flight, Keeper, Moved, Transfer};
use dafs_mem::Mutex;
use dafs_rpc::client::{Located, Results};
use dafs_wire::nfs3::{
    ChangeFailure, FileHandle, GetattrArgs, ObjectFailure, Procedure, ReadArgs, ReadOk, Stability,
    WriteOk,
};
use dafs_wire::nfs4::StableHow;
use dafs_wire::xdr::Encoder;
use std::sync::Arc;

/// A READ or WRITE under way.
#[derive(Debug)]
pub(super) struct TransferFlight {
    link: Arc<Link>,
    transfer: Transfer,
    exchange: Mutex<Option<Exchange>>,
}

impl TransferFlight {
    pub(super) fn begin(link: &Arc<Link>, transfer: Transfer) -> Self {
        let exchange = Exchange::begin(link, message(&transfer));
        Self { link: link.clone(), transfer, exchange: Mutex::new(Some(exchange)) }
    }
}

impl Flight for TransferFlight {
    fn wait(&self) -> Result<Moved> {
        let mut exchange = self.exchange.lock();
        let mut next = exchange.take();
        let mut retry_timer = self.link.retry_timer();
        loop {
            let Some(sent) = next.take() else {
                return Err(MountError::Argument("a transfer was waited for twice"));
            };
            let (results, message) = sent.finish(&self.link, &mut retry_timer)?;
            if !is_put_off(&results) || !retry_timer.pause() {
                return moved(&results, &self.transfer);
            }
            next = Some(Exchange::begin(&self.link, message));
        }
    }

    fn is_answered(&self) -> bool {
        let exchange = self.exchange.try_lock();
        exchange.is_some_and(|exchange| exchange.as_ref().is_none_or(Exchange::is_answered))
    }
}

fn message(transfer: &Transfer) -> Message {
    let Transfer { open, offset, memory, direction } = transfer;
    let file = FileHandle(&open.handle.0);
    // INVARIANT: transfers are no longer than the limits of the mount, which are 32 bits.
    let count = memory.len() as u32;
    match direction {
        Direction::Read => {
            let mut message =
                Message::new(Procedure::Read, &ReadArgs { file, offset: *offset, count });
            message.sink = Some((memory.clone(), locate_read));
            message
        }
        Direction::Write(stable) => {
            // As WriteArgs, up to the data, which is sent from its own memory.
            let mut message = Message::new(Procedure::Write, &GetattrArgs { object: file });
            let mut e = Encoder::new(&mut message.args);
            e.u64(*offset);
            e.u32(count);
            e.u32(*stable as u32);
            e.count(memory.len());
            message.data = Some(memory.clone());
            message
        }
    }
}

/// The place of the data in the results of READ (RFC 1813 3.3.6).
fn locate_read(results: &[u8]) -> Option<Located> {
    const ATTRIBUTES_BYTES: usize = dafs_wire::nfs3::ATTRIBUTES_BYTES;
    let word = |at: usize| {
        let bytes = results.get(at..at + 4)?;
        Some(u32::from_be_bytes(bytes.try_into().ok()?))
    };
    let at = match (word(0)?, word(4)?) {
        (0, 0) => 8,
        (0, 1) => 8 + ATTRIBUTES_BYTES,
        _ => return None,
    };
    // A count and the end-of-file flag come before the length.
    Some(Located { position: at + 12, len: word(at + 8)? as usize })
}

/// The result of a transfer, from its answer.
fn moved(results: &Results, transfer: &Transfer) -> Result<Moved> {
    let len = transfer.memory.len();
    match transfer.direction {
        Direction::Read => {
            let ok: ReadOk<'_> = decoded::<_, ObjectFailure>(Procedure::Read, results)?;
            if ok.data.len() > len {
                return Err(MountError::protocol("more data than was asked for"));
            }
            let bytes = transfer.memory.take(ok.data);
            Ok(Moved {
                bytes,
                eof: ok.eof,
                stable: StableHow::FileSync,
                keeper: Keeper::Server,
                verifier: [0; 8],
            })
        }
        Direction::Write(_) => {
            let ok: WriteOk = decoded::<_, ChangeFailure>(Procedure::Write, results)?;
            let bytes = ok.count as usize;
            if bytes > len {
                return Err(MountError::protocol("more was written than was sent"));
            }
            let stable = match ok.committed {
                Stability::Unstable => StableHow::Unstable,
                Stability::DataSync => StableHow::DataSync,
                Stability::FileSync => StableHow::FileSync,
            };
            Ok(Moved { bytes, eof: false, stable, keeper: Keeper::Server, verifier: ok.verifier })
        }
    }
}

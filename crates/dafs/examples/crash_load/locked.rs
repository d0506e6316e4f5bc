//! Counts under a persistent lock.
//!
//! Two numbers in a file are equal whenever the lock is free. A holder that dies between the two
//! writes leaves them different. A client that is told of a broken lock must therefore find them
//! different, and any other client must find them equal.

use crate::Result;
use crate::history::History;
use dafs_client::{Client, Create, File, LockError, LockRange, OpenOptions, Stability};
use std::time::Duration;

/// Time to wait for other holders.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time between the two writes, so that some holders die there.
const HOLD: Duration = Duration::from_millis(25);

#[derive(Debug)]
pub(crate) struct Counter {
    pub(crate) first: u64,
    pub(crate) second: u64,
}

impl Counter {
    /// Reads both numbers; a new file holds none.
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let number = |at: usize| {
            let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
            word.map_or(0, u64::from_le_bytes)
        };
        Self { first: number(0), second: number(8) }
    }
}

/// The file with the counter.
pub(crate) struct Locked(File);

impl Locked {
    pub(crate) fn open(client: &Client) -> Result<Self> {
        let how = OpenOptions::read_write().create(Create::IfMissing).mode(0o666);
        Ok(Self(client.open(b"/shared/counter", &how)?))
    }

    /// Counts one further. First repairs the numbers that a dead holder has left.
    pub(crate) fn step(&self, history: &mut History) -> Result<()> {
        let whole = LockRange::exclusive().persist(true);
        history.ask("lock")?;
        let repairing = match self.0.lock(&whole, Some(PATIENCE)) {
            Ok(()) => false,
            Err(LockError::Broken(_)) => {
                history.answered("broken")?;
                history.ask("repair")?;
                match self.0.lock_for_repair(0, u64::MAX) {
                    Ok(()) => true,
                    // Another client was faster, and may have finished already.
                    Err(LockError::Held(_) | LockError::Broken(_)) => {
                        return history.answered("late");
                    }
                    Err(LockError::Other(error))
                        if error.status() == Some(dafs_client::Status::Inval) =>
                    {
                        return history.answered("late");
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error.into()),
        };
        history.answered("locked")?;
        let mut bytes = [0; 16];
        let read = self.0.read_at(&mut bytes, 0)?;
        let Counter { first, second } = Counter::parse(&bytes[..read]);
        if first != second && !repairing {
            return Err(format!("{first} and {second} differ, and nobody said why").into());
        }
        let next = first.max(second) + 1;
        for at in [0, 8] {
            self.0.write_at(&next.to_le_bytes(), at, Stability::FileSync)?;
            std::thread::sleep(HOLD);
        }
        history.ask(format_args!("unlock {next}"))?;
        self.0.unlock(0, u64::MAX)?;
        history.answered("done")
    }
}

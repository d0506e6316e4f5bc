//! The directory of one open file's blocks, for tests with servers that play by no rules.
//!
//! Invariants
//! * Each step is one of those that a session takes (`reads.rs`).

use super::directory::{Directory, PAGE_BYTES, Plan};
use crate::core::blocks::ExposeAnswer;
use dafs_dat::{Instant, RemoteBuffer};
use dafs_wire::dafs::StateId;

const NAME: StateId = StateId(*b"the open");

/// The places of an open file's blocks in memory of a server, for reads by RDMA.
#[derive(Debug, Default)]
pub struct RemoteBlocks(Directory);

/// The reads by RDMA that one read of the file takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteRead(Plan);

impl RemoteBlocks {
    /// Asks where a window is, if that is due, and takes the answer. `None` is a failure of the server.
    pub fn ask(&mut self, window: u64, answer: Option<ExposeAnswer>, now: Instant) {
        self.0.missed(NAME);
        if let Some(question) = self.0.question(NAME, window, now) {
            self.0.answered(&question, answer, now);
        }
    }

    /// Fetches the page of a window, if that is due, whose content is `page`. Returns its place.
    pub fn fetch(
        &mut self,
        window: u64,
        page: &[u8; PAGE_BYTES],
        now: Instant,
    ) -> Option<RemoteBuffer> {
        let fetch = self.0.fetch(NAME, window, now)?;
        self.0.fetched(&fetch, page, now);
        Some(fetch.source)
    }

    /// The reads by RDMA for `len` bytes from `offset` on. `None` if the read must be a request.
    pub fn read(&mut self, (offset, len): (u64, u32), now: Instant) -> Option<RemoteRead> {
        self.0.plan(NAME, (offset, len), now).ok().map(RemoteRead)
    }

    /// True if the entries behind the data are those that the client knew: the read is a hit.
    pub fn is_hit(&mut self, read: &RemoteRead, entries: &[u8]) -> bool {
        self.0.verify(NAME, &read.0, entries)
    }
}

impl RemoteRead {
    /// The bytes that it brings.
    pub fn bytes(&self) -> u32 {
        self.0.bytes
    }

    /// The sources of the data, each with its place in the target.
    pub fn data(&self) -> Vec<(u32, RemoteBuffer)> {
        self.0.runs.iter().map(|run| (run.at, run.source)).collect()
    }

    /// The sources of the entries.
    pub fn checks(&self) -> Vec<RemoteBuffer> {
        self.0.checks.iter().map(|check| check.source).collect()
    }

    /// The entries that the client knows.
    pub fn entries(&self) -> Vec<u8> {
        let words = self.0.checks.iter().flat_map(|check| &check.words);
        words.flat_map(|word| word.to_ne_bytes()).collect()
    }
}

//! An NFS client under a load like IOR's: a part of a file in order, in blocks, written or read.
//!
//! Not obvious
//! * `dafs-nfs-client` caches no content. This load does the work of a kernel's page cache: it
//!   gathers blocks into pieces of a stripe unit, or takes them from such pieces, with several
//!   pieces outstanding.
//! * Every 8 KiB begin with their place in the file, so that misplaced data is detected.

use super::UNIT_BYTES;
use super::{opens, own, patterns};
use crate::child::{announce, wait_for_parent};
use anyhow::{Context, Result, ensure};
use dafs_mem::Site;
use dafs_nfs_client::mount::{
    Create, File, Memory, MemorySlice, Mount, MountOptions, NfsUrl, OpenOptions, PendingRead,
    PendingWrite, StableHow,
};
use std::collections::VecDeque;
use std::io::BufRead;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Most outstanding pieces.
pub(crate) const WINDOW: usize = 16;

pub(super) const STAMP_BYTES: usize = 8192;

/// The work of one client.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Load {
    /// The server, and options.
    pub(super) url: String,
    pub(super) path: String,
    /// "write", "read", "opens" or a pattern.
    pub(super) action: String,
    /// The start of its part. For patterns, its number among the clients, from 1 on, which is the
    /// random seed.
    pub(super) begin: u64,
    pub(super) bytes: u64,
    /// Bytes of a block of the application.
    block: usize,
    pub(super) clients: u64,
    /// The tree that a build compiles.
    pub(super) tree: PathBuf,
}

impl Load {
    /// Reports that it is ready, waits for a line, reports that it is done, and ends with its
    /// parent.
    pub(crate) fn run(&self) -> Result<()> {
        if self.url.starts_with("dafs:") {
            return own::run(self);
        }
        let write = self.action == "write";
        let url = NfsUrl::parse(&self.url)?;
        if !["write", "read"].contains(&self.action.as_str()) {
            let done = if self.action == "opens" {
                let server: SocketAddr = format!("{}:{}", url.host(), url.port()).parse()?;
                opens::as_done(opens::run(server, &self.path)?)?
            } else {
                let mount = Mount::connect(&url, &MountOptions::default())?;
                patterns::run(&self.action, &mount, &self.path, self)?
            };
            announce(&format!("done {} {}", done.bytes, done.transactions))?;
            wait_for_parent();
            return Ok(());
        }
        let mount = Mount::connect(&url, &MountOptions::default())?;
        let options = match write {
            true => OpenOptions::write().create(Create::IfMissing).mode(0o666),
            false => OpenOptions::read(),
        };
        let file = mount.open(self.path.as_bytes(), &options)?;
        let memory = mount.allocate(UNIT_BYTES * (WINDOW + 1))?;
        go()?;
        if write {
            self.write(&file, &memory)?;
        } else {
            self.read(&file, &memory)?;
        }
        announce("done")?;
        wait_for_parent();
        Ok(file.close()?)
    }

    pub(super) fn pieces(&self) -> impl Iterator<Item = (u64, usize)> {
        let end = self.begin + self.bytes;
        let piece = move |offset: u64| (offset, UNIT_BYTES.min((end - offset) as usize));
        (self.begin..end).step_by(UNIT_BYTES).map(piece)
    }

    fn write(&self, file: &File, memory: &Memory) -> Result<()> {
        let mut under_way: VecDeque<PendingWrite> = VecDeque::new();
        for (number, (offset, len)) in self.pieces().enumerate() {
            if under_way.len() >= WINDOW {
                finish(under_way.pop_front())?;
            }
            let piece = piece(memory, number, len)?;
            self.in_blocks(&piece, |block, at| {
                block.fill(0);
                for stamp in (0..block.len()).step_by(STAMP_BYTES) {
                    let place = (offset + (at + stamp) as u64).to_le_bytes();
                    let part = block.slice(stamp, place.len());
                    part.context("blocks end between stamps")?.copy_from(&place, Site::Inspect);
                }
                Ok(())
            })?;
            under_way.push_back(file.submit_write(piece, offset, StableHow::Unstable)?);
        }
        while !under_way.is_empty() {
            finish(under_way.pop_front())?;
        }
        file.commit()?;
        Ok(())
    }

    fn read(&self, file: &File, memory: &Memory) -> Result<()> {
        let mut under_way: VecDeque<(PendingRead, MemorySlice, u64)> = VecDeque::new();
        let mut pieces = self.pieces().enumerate();
        loop {
            while under_way.len() < WINDOW
                && let Some((number, (offset, len))) = pieces.next()
            {
                let piece = piece(memory, number, len)?;
                under_way.push_back((file.submit_read(piece.clone(), offset)?, piece, offset));
            }
            let Some((read, piece, offset)) = under_way.pop_front() else { return Ok(()) };
            let got = read.wait()?;
            ensure!(got == piece.len(), "{got} bytes of {} at {offset}", piece.len());
            self.in_blocks(&piece, |block, at| {
                for stamp in (0..block.len()).step_by(STAMP_BYTES) {
                    let (place, mut found) = (offset + (at + stamp) as u64, [0; 8]);
                    let part = block.slice(stamp, found.len());
                    part.context("blocks end between stamps")?.copy_to(&mut found, Site::Inspect);
                    ensure!(u64::from_le_bytes(found) == place, "wrong content at {place}");
                }
                Ok(())
            })?;
        }
    }

    /// Goes through a piece in the blocks of the application.
    fn in_blocks(
        &self,
        piece: &MemorySlice,
        mut look: impl FnMut(dafs_mem::VolatileSlice<'_>, usize) -> Result<()>,
    ) -> Result<()> {
        let step = self.block.min(piece.len());
        (0..piece.len()).step_by(step).try_for_each(|at| {
            let block = piece.view().slice(at, step.min(piece.len() - at));
            look(block.context("a block is too long")?, at)
        })
    }
}

/// Reports that this client is ready, and waits until all are.
pub(crate) fn go() -> Result<()> {
    announce("ready")?;
    std::io::stdin().lock().read_line(&mut String::new())?;
    Ok(())
}

pub(crate) fn finish(write: Option<PendingWrite>) -> Result<()> {
    write.map_or(Ok(()), |write| Ok(write.wait().map(drop)?))
}

/// The memory for a piece. No outstanding piece has the same memory.
pub(crate) fn piece(memory: &Memory, number: usize, len: usize) -> Result<MemorySlice> {
    let at = number % (WINDOW + 1) * UNIT_BYTES;
    memory.slice(at..at + len).context("a piece is too long")
}

//! Pages of 4 KiB that a client fetches from the server's memory itself, by RDMA reads or by a copy out
//! of shared memory, and the floor of that.

use super::{LARGE, PAGE, Side, connect, warmed};
use crate::report::Sample;
use crate::{Plan, cpu};
use anyhow::{Context, Result, bail, ensure};
use dafs_dat::{EndpointId, Event, RemoteBuffer, WorkStatus};
use dafs_mem::{Buffer, Site, preadv2};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

/// The reads of a client that fetches pages itself.
pub(super) const FETCH_DEPTH: usize = 32;
/// The bytes of an entry of a directory, which tells whether a page is still the right one.
const ENTRY: usize = 8;
/// RDMA reads of a peer at once: a page and an entry each.
pub(super) const READS_MAX: u16 = 128;

/// The memory that a peer may read, as private data of a connection.
pub(super) fn encode(remote: RemoteBuffer) -> [u8; 12] {
    let mut told = [0; 12];
    told[..4].copy_from_slice(&remote.key.to_be_bytes());
    told[4..].copy_from_slice(&remote.address.to_be_bytes());
    told
}

pub(super) fn decode(told: &[u8]) -> Option<RemoteBuffer> {
    let key = u32::from_be_bytes(told.get(..4)?.try_into().ok()?);
    let address = u64::from_be_bytes(told.get(4..12)?.try_into().ok()?);
    Some(RemoteBuffer { key, address, len: LARGE as u32 })
}

/// Fetches pages from the other side's memory, `depth` at a time, each with an entry behind it if
/// `is_checked`. The other side's program takes no part.
fn fetch_pages(
    side: &mut Side,
    endpoint: EndpointId,
    memory: RemoteBuffer,
    (depth, is_checked): (usize, bool),
    time: Duration,
) -> Result<u64> {
    let start = std::time::Instant::now();
    let (mut operations, mut in_flight, mut more) = (0u64, 0, true);
    let submit = |side: &mut Side, slot: usize| -> Result<()> {
        let at = |offset: usize, len: usize| RemoteBuffer {
            address: memory.address + offset as u64,
            len: len as u32,
            ..memory
        };
        let (page, entry) = (slot * PAGE, (FETCH_DEPTH + slot) * PAGE);
        let local = side.region.local(page, PAGE);
        side.adapter.rdma_read(endpoint, slot as u64, local, at(page, PAGE))?;
        if is_checked {
            let local = side.region.local(entry, ENTRY);
            side.adapter.rdma_read(endpoint, 0x100 | slot as u64, local, at(entry, ENTRY))?;
        }
        Ok(())
    };
    for slot in 0..depth {
        submit(side, slot)?;
        in_flight += 1;
    }
    side.adapter.flush();
    side.wait(|side, event| {
        if let Event::Completion(done) = event {
            if done.status == WorkStatus::Flushed {
                bail!("the connection broke");
            }
            if is_checked && done.work & 0x100 == 0 {
                return Ok(false);
            }
            operations += 1;
            in_flight -= 1;
            if more && operations & 15 == 0 {
                more = start.elapsed() < time;
            }
            if more {
                submit(side, (done.work & 0xff) as usize)?;
                side.adapter.flush();
                in_flight += 1;
            }
        }
        Ok(in_flight == 0)
    })?;
    Ok(operations)
}

pub(super) fn fetched(
    plan: &Plan,
    kind: &str,
    cpu: usize,
    poll: bool,
    shape: (usize, bool),
) -> Result<Sample> {
    let (process, mut side, endpoint, memory) = connect(kind, cpu, poll)?;
    warmed(plan, &process, PAGE, |time| fetch_pages(&mut side, endpoint, memory, shape, time))
}

/// Reads pages at changing places of a file that is in memory, by calls of the kernel.
pub(super) fn pread(plan: &Plan) -> Result<Sample> {
    let file = tempfile::tempfile_in("/dev/shm")?;
    file.set_len(LARGE as u64)?;
    file.write_all_at(&vec![7; LARGE], 0)?;
    let target = Buffer::zeroed(PAGE)?;
    repeat(plan, |number| {
        let read = preadv2(file.as_fd(), &[target.view()], place(number) as u64, 0)?;
        ensure!(read == PAGE, "a short read");
        Ok(())
    })
}

/// The same from memory that another process may change: an entry tells before and behind the copy
/// whether it was whole.
pub(super) fn copy_checked(plan: &Plan) -> Result<Sample> {
    let (source, target) = (Buffer::zeroed(LARGE)?, Buffer::zeroed(PAGE)?);
    let entries: Vec<AtomicU64> = (0..LARGE / PAGE).map(|at| AtomicU64::new(at as u64)).collect();
    repeat(plan, |number| {
        let at = place(number);
        let entry = &entries[at / PAGE];
        let before = entry.load(Ordering::Acquire);
        let page = source.slice(at, PAGE).context("outside")?;
        target.view().copy_from_volatile(page, Site::Inspect);
        fence(Ordering::Acquire);
        ensure!(entry.load(Ordering::Relaxed) == before, "the entry has changed");
        Ok(())
    })
}

/// The place of a page: another one each time.
fn place(number: u64) -> usize {
    (number as usize * 37 % (LARGE / PAGE)) * PAGE
}

/// Does the same with pages again and again.
fn repeat(plan: &Plan, mut once: impl FnMut(u64) -> Result<()>) -> Result<Sample> {
    let work = || {
        let start = std::time::Instant::now();
        let mut operations = 0;
        while operations & 255 != 0 || start.elapsed() < Duration::from_millis(plan.milliseconds) {
            once(operations)?;
            operations += 1;
        }
        Ok((operations, operations * PAGE as u64))
    };
    Sample::of(|| cpu::times(None), work)
}

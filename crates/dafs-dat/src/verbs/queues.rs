//! Completion queues, which the connections of an adapter share.
//!
//! Invariants
//! * A queue has room for the completions of all work that its connections can have in the device.
//!   So it never overflows, which would end them all.

use super::device::Chosen;
use super::limits::COMPLETION_COUNT;
use super::sys::{CompletionChannel, CompletionQueue, Device};
use std::io;

/// The queues, and their reserved room.
pub(super) struct Queues {
    queues: Vec<(CompletionQueue, u32)>,
    // Dropped after the queues that report to it.
    channel: CompletionChannel,
    device: Device,
    entries_max: u32,
    is_written: bool,
}

impl Queues {
    pub(super) fn new(chosen: &Chosen) -> io::Result<Self> {
        let device = chosen.device;
        Ok(Self {
            queues: Vec::new(),
            channel: device.completion_channel()?,
            device,
            entries_max: chosen.completion_count_max,
            is_written: chosen.is_software(),
        })
    }

    /// Makes the next completion of each queue wake a sleeper.
    pub(super) fn request_notices(&self) -> io::Result<()> {
        self.iter().try_for_each(|queue| queue.request_notice(self.is_written))
    }

    pub(super) fn channel(&self) -> &CompletionChannel {
        &self.channel
    }

    /// Reserves room for `entries` completions; returns the number of the queue.
    pub(super) fn take(&mut self, entries: u32) -> io::Result<usize> {
        let fits = |(queue, used): &(CompletionQueue, u32)| {
            used.checked_add(entries).is_some_and(|total| total <= queue.capacity())
        };
        let index = match self.queues.iter().position(fits) {
            Some(index) => index,
            None => {
                let wanted = COMPLETION_COUNT.max(entries).min(self.entries_max);
                let queue = self.device.completion_queue(&self.channel, wanted)?;
                // An armed queue reports its first completion to a sleeper.
                queue.request_notice(self.is_written)?;
                self.queues.push((queue, 0));
                self.queues.len() - 1
            }
        };
        self.queues[index].1 += entries;
        Ok(index)
    }

    pub(super) fn give_back(&mut self, index: usize, entries: u32) {
        let used = &mut self.queues[index].1;
        debug_assert!(*used >= entries);
        *used = used.saturating_sub(entries);
    }

    pub(super) fn get(&self, index: usize) -> &CompletionQueue {
        &self.queues[index].0
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &CompletionQueue> {
        self.queues.iter().map(|(queue, _)| queue)
    }
}

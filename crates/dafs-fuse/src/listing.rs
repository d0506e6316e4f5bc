//! Open directories.
//!
//! The kernel asks for entries by their position, and may ask again for those that found no room in
//! what the program had offered.
//!
//! Invariants
//! * Entries from the position that was asked for last are kept, those before it are not: one answer's
//!   worth, and one page of the server's.
//! * Going on never asks the server for what it has told before. Going back begins anew, since then the
//!   program wants to see the directory as it is now.

use crate::convert::errno;
use crate::handover::ListingState;
use crate::tree::Outcome;
use dafs_client::{Attributes, Client, DirEntry, FileHandle, ReadDir};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Positions of "." and "..", which the server does not tell.
const DOTS: u64 = 2;

#[derive(Debug)]
struct Stream {
    entries: ReadDir,
    kept: VecDeque<DirEntry>,
    /// Position of the first one that is kept.
    first: u64,
}

/// A directory that the kernel has open.
#[derive(Debug)]
pub(crate) struct OpenDirectory {
    client: Client,
    handle: FileHandle,
    stream: Mutex<Stream>,
}

/// One entry.
#[derive(Debug)]
pub(crate) enum Found<'a> {
    /// The directory itself, or the one above it.
    Dot(&'static [u8]),
    /// Something in it.
    Named(&'a [u8], Option<&'a Attributes>),
}

impl OpenDirectory {
    pub(crate) fn new(client: &Client, handle: FileHandle) -> Self {
        let entries = client.read_dir(&handle);
        let stream = Stream { entries, kept: VecDeque::new(), first: 0 };
        Self { client: client.clone(), handle, stream: Mutex::new(stream) }
    }

    /// The directory and how far its listing is, for another process to go on with.
    pub(crate) fn pause(&self) -> (FileHandle, ListingState) {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let (rest, place) = stream.entries.pause();
        let names = stream.kept.iter().chain(&rest).map(|entry| entry.name.clone()).collect();
        (self.handle, ListingState { first: stream.first, names, place })
    }

    /// Goes on with a listing of another process.
    pub(crate) fn resume(client: &Client, handle: FileHandle, listing: &ListingState) -> Self {
        let entry = |name: &Vec<u8>| {
            // What is gone meanwhile keeps its place as a name alone.
            let found = client.lookup_attributes(&handle, name);
            DirEntry { name: name.clone(), attributes: found.ok().map(|(_, found)| found) }
        };
        let kept = listing.names.iter().map(entry).collect();
        let entries = client.resume_dir(&handle, listing.place);
        let stream = Stream { entries, kept, first: listing.first };
        Self { client: client.clone(), handle, stream: Mutex::new(stream) }
    }

    /// Gives entries from a position to `take`, each with the position behind it, until that says that
    /// there is no more room.
    pub(crate) fn read(
        &self,
        position: u64,
        mut take: impl FnMut(u64, Found<'_>) -> bool,
    ) -> Outcome<()> {
        // What is above is the kernel's to know: it walks there without asking.
        for (dot, name) in [(0, &b"."[..]), (1, b"..")] {
            if position <= dot && take(dot + 1, Found::Dot(name)) {
                return Ok(());
            }
        }
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let mut index = position.saturating_sub(DOTS);
        if position == 0 || index < stream.first {
            *stream = Stream {
                entries: self.client.read_dir(&self.handle),
                kept: VecDeque::new(),
                first: 0,
            };
        }
        while stream.first < index {
            if stream.kept.pop_front().is_none() && stream.next()?.is_none() {
                return Ok(());
            }
            stream.first += 1;
        }
        loop {
            let place = (index - stream.first) as usize;
            if place == stream.kept.len() {
                let Some(entry) = stream.next()? else { return Ok(()) };
                stream.kept.push_back(entry);
            }
            let entry = &stream.kept[place];
            index += 1;
            if take(index + DOTS, Found::Named(&entry.name, entry.attributes.as_ref())) {
                return Ok(());
            }
        }
    }
}

impl Stream {
    fn next(&mut self) -> Outcome<Option<DirEntry>> {
        self.entries.next().transpose().map_err(|error| {
            // A listing that failed is at its end; who asks again is to have a new one.
            self.first = u64::MAX;
            errno(&error)
        })
    }
}

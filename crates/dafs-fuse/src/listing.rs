//! Open directories.
//!
//! The kernel asks for entries by the position before them, and may ask again for those that found
//! no room in the program's buffer. A position is the server's cookie, which stays valid whatever
//! happens to the entry and to others.
//!
//! Invariants
//! * Entries from the position that was asked for last are cached, those before it are not: one
//!   answer's worth, and one page of the server's.
//! * Reading on never fetches an entry twice. Seeking fetches again, since then the program wants
//!   to see the current directory.

use crate::changes::{Asked, Changes};
use crate::handover::ListingState;
use crate::tree::Outcome;
use dafs_client::{
    Attributes, Client, DirEntry, FileHandle, ListingPlace, ReadDir, User, acting_as,
};
use dafs_mem::Mutex;
use std::collections::VecDeque;

/// The position behind "." and "..", which the server does not list; its cookies are higher.
const DOTS: u64 = 2;

/// The highest position that a program can seek to.
const POSITION_MAX: u64 = i64::MAX as u64;

#[derive(Debug)]
struct Stream {
    entries: ReadDir,
    /// The time of the last request to the server.
    asked: Asked,
    kept: VecDeque<Listed>,
    /// Position before the first cached entry.
    before: u64,
}

/// An entry that was returned, or is to be.
#[derive(Debug)]
struct Listed {
    cookie: u64,
    entry: DirEntry,
    asked: Asked,
}

/// A directory that the kernel has open.
#[derive(Debug)]
pub(crate) struct OpenDirectory {
    client: Client,
    handle: FileHandle,
    /// The user that lists it; `None` for that of the session.
    pub(crate) user: Option<User>,
    stream: Mutex<Stream>,
}

/// One entry.
#[derive(Debug)]
pub(crate) enum Found<'a> {
    /// The directory itself, or the one above it.
    Dot(&'static [u8]),
    /// An entry in it, as it was at the time of the request.
    Named(&'a [u8], Option<&'a Attributes>, Asked),
}

impl OpenDirectory {
    pub(crate) fn new(
        client: &Client,
        handle: FileHandle,
        user: Option<User>,
        changes: &Changes,
    ) -> Self {
        let (entries, asked) = (client.read_dir(&handle), changes.asking());
        let stream = Stream { entries, asked, kept: VecDeque::new(), before: DOTS };
        Self { client: client.clone(), handle, user, stream: Mutex::new(stream) }
    }

    /// The directory and the position of its listing, for another process to go on with.
    pub(crate) fn pause(&self) -> (FileHandle, ListingState) {
        let stream = self.stream.lock();
        let (rest, place) = stream.entries.pause();
        let kept = stream.kept.iter().map(|kept| (kept.cookie, &kept.entry));
        let told = kept.chain(rest.iter().map(|(cookie, entry)| (*cookie, entry)));
        let names = told.map(|(cookie, entry)| (cookie, entry.name.clone())).collect();
        (self.handle, ListingState { before: stream.before, names, place })
    }

    /// Goes on with a listing of another process.
    pub(crate) fn resume(
        client: &Client,
        (handle, user): (FileHandle, Option<User>),
        listing: &ListingState,
        changes: &Changes,
    ) -> Self {
        let asked = changes.asking();
        let entry = |(cookie, name): &(u64, Vec<u8>)| {
            // An entry that was removed meanwhile keeps its place as a name alone.
            let found = acting_as(user.as_ref(), || client.lookup_attributes(&handle, name));
            let attributes = found.ok().map(|(_, found)| found);
            let entry = DirEntry { name: name.clone(), attributes };
            Listed { cookie: *cookie, entry, asked }
        };
        let kept = listing.names.iter().map(entry).collect();
        let entries = client.resume_dir(&handle, listing.place);
        let stream = Stream { entries, asked, kept, before: listing.before };
        Self { client: client.clone(), handle, user, stream: Mutex::new(stream) }
    }

    /// Passes entries from a position to `take`, each with the position behind it, until `take`
    /// reports that there is no more room.
    pub(crate) fn read(
        &self,
        position: u64,
        changes: &Changes,
        mut take: impl FnMut(u64, Found<'_>) -> bool,
    ) -> Outcome<()> {
        // The kernel knows the parent directory: it walks there without asking.
        for (dot, name) in [(0, &b"."[..]), (1, b"..")] {
            if position <= dot && take(dot + 1, Found::Dot(name)) {
                return Ok(());
            }
        }
        let mut stream = self.stream.lock();
        let wanted = position.max(DOTS);
        if position == 0 || !stream.go_on(wanted) {
            *stream = self.at(wanted, &stream, changes);
        }
        let mut place = 0;
        loop {
            if place == stream.kept.len() {
                let Some(entry) = stream.next(changes)? else { return Ok(()) };
                stream.kept.push_back(entry);
            }
            let Listed { cookie, entry, asked } = &stream.kept[place];
            place += 1;
            let behind = position_of(*cookie);
            if take(behind, Found::Named(&entry.name, entry.attributes.as_ref(), *asked)) {
                return Ok(());
            }
        }
    }

    /// A listing from a position on.
    fn at(&self, position: u64, now: &Stream, changes: &Changes) -> Stream {
        let (_, place) = now.entries.pause();
        let entries = match position {
            DOTS => self.client.read_dir(&self.handle),
            cookie => {
                // A program that seeks to this position was at the end.
                let end = cookie == POSITION_MAX;
                self.client.resume_dir(&self.handle, ListingPlace { cookie, end, ..place })
            }
        };
        let asked = changes.asking();
        Stream { entries, asked, kept: VecDeque::new(), before: position }
    }
}

/// The position behind an entry. The last one may have a cookie that is no position.
fn position_of(cookie: u64) -> u64 {
    cookie.clamp(DOTS + 1, POSITION_MAX)
}

impl Stream {
    /// Drops entries before a position; false when that is not among the cached ones.
    fn go_on(&mut self, position: u64) -> bool {
        if self.before == position {
            return true;
        }
        let is_there = |kept: &Listed| position_of(kept.cookie) == position;
        // The last one, where several have a cookie that is no position.
        let Some(place) = self.kept.iter().rposition(is_there) else { return false };
        self.kept.drain(..=place);
        self.before = position;
        true
    }

    fn next(&mut self, changes: &Changes) -> Outcome<Option<Listed>> {
        if self.entries.is_to_ask() {
            self.asked = changes.asking();
        }
        let asked = self.asked;
        let next = self.entries.next_with_cookie().transpose().inspect_err(|_| {
            // A listing that failed is at its end; another attempt starts a new one.
            self.before = u64::MAX;
            self.kept.clear();
        })?;
        Ok(next.map(|(cookie, entry)| Listed { cookie, entry, asked }))
    }
}

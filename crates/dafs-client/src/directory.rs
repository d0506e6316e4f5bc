//! Directory listings, page by page.

use crate::attributes::{Attributes, FileHandle};
use crate::cache::Effect;
use crate::client::Client;
use crate::convert;
use crate::error::{Error, Result};
use crate::limits::READDIR_PAGE_BYTES;
use crate::names::component;
use crate::successor::ListingPlace;
use crate::transfer;
use dafs_mem::Site;
use dafs_wire::dafs as wire;
use dafs_wire::dafs::{Outcome, READDIR_INLINE_REPLY_ENTRIES_AT, Reply, Request, Status, Verifier};
use std::collections::VecDeque;

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name: any bytes but a slash and zero.
    pub name: Vec<u8>,
    /// Attributes with the handle, or `None` where the server cannot read them.
    pub attributes: Option<Attributes>,
}

/// Iterator over a directory, without "." and "..", in the server's order. Fetches a page at a
/// time, with attributes and handles, so that a long listing needs no request per entry.
///
/// After an error it ends.
#[derive(Debug)]
pub struct ReadDir {
    client: Client,
    dir: FileHandle,
    cookie: u64,
    verifier: Verifier,
    /// Entries with their cookies.
    page: VecDeque<(u64, DirEntry)>,
    end: bool,
}

impl Client {
    /// Lists a directory.
    pub fn read_dir(&self, dir: &FileHandle) -> ReadDir {
        ReadDir {
            client: self.clone(),
            dir: *dir,
            cookie: 0,
            verifier: Verifier::ZERO,
            page: VecDeque::new(),
            end: false,
        }
    }
}

impl ReadDir {
    pub(crate) fn at(client: &Client, dir: &FileHandle, place: ListingPlace) -> Self {
        Self {
            cookie: place.cookie,
            verifier: Verifier(place.verifier),
            end: place.end,
            ..client.read_dir(dir)
        }
    }

    pub(crate) fn rest_and_place(&self) -> (Vec<(u64, DirEntry)>, ListingPlace) {
        let Self { cookie, verifier, end, .. } = *self;
        (self.page.iter().cloned().collect(), ListingPlace { cookie, verifier: verifier.0, end })
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_with_cookie().map(|next| next.map(|(_, entry)| entry))
    }
}

impl ReadDir {
    /// True when the next entry needs a request; otherwise a page already holds it.
    #[must_use]
    pub fn is_to_ask(&self) -> bool {
        self.page.is_empty() && !self.end
    }

    /// The next entry, with the server's cookie of it: a listing that is
    /// [resumed](Client::resume_dir) there goes on behind it, also when it was removed since.
    pub fn next_with_cookie(&mut self) -> Option<Result<(u64, DirEntry)>> {
        loop {
            if let Some(entry) = self.page.pop_front() {
                return Some(Ok(entry));
            }
            if self.end {
                return None;
            }
            if let Err(error) = self.fetch() {
                self.end = true;
                return Some(Err(error));
            }
        }
    }
}

impl ReadDir {
    /// Fetches the next page: directly into registered memory, or inline when checksums are on,
    /// because the reply to a direct listing does not say how many bytes its checksum covers.
    fn fetch(&mut self) -> Result<()> {
        if self.client.session().checksums { self.fetch_inline() } else { self.fetch_direct() }
    }

    fn fetch_direct(&mut self) -> Result<()> {
        let client = self.client.clone();
        let shared = client.shared();
        let staging = transfer::take_staging(shared)?;
        let page = shared.piece(&staging, 0..READDIR_PAGE_BYTES as usize, 0, usize::MAX)?;
        let buffers = [page.direct_buffer()];
        let request = Request::ReadDirDirect(wire::ReadDirDirect {
            fh: self.dir,
            cookie: self.cookie,
            cookieverf: self.verifier,
            dircount: READDIR_PAGE_BYTES / 4,
            maxcount: READDIR_PAGE_BYTES,
            attributes: convert::WANTED,
            buffers: wire::Seq::new(&buffers),
        });
        drop(client.before(|| Effect::ReadAny));
        let reply = shared.call_with(&request, Some(page))?;
        let procedure = reply.procedure();
        let reply = match reply.decode().map_err(|error| shared.broken(&error))? {
            Outcome::Ok(Reply::ReadDirDirect(reply)) => reply,
            Outcome::Ok(_) => return Err(shared.broken(&"an answer of another procedure")),
            Outcome::Error { status: Status::NotSupp, .. } => return self.fetch_inline(),
            Outcome::Error { status, .. } => return Err(Error::Status { procedure, status }),
        };
        let mut bytes = vec![0; READDIR_PAGE_BYTES as usize];
        staging.view().copy_to(&mut bytes, Site::Inspect);
        transfer::put_staging(shared, staging);
        let order = shared.byte_order();
        let entries =
            wire::decode_entries_direct(&bytes, order).map_err(|error| shared.broken(&error))?;
        self.take(&entries, reply.cookieverf, reply.eof)
    }

    fn fetch_inline(&mut self) -> Result<()> {
        let client = self.client.clone();
        let room = client.session().response_bytes - READDIR_INLINE_REPLY_ENTRIES_AT as u32;
        let request = Request::ReadDirInline(wire::ReadDirInline {
            fh: self.dir,
            cookie: self.cookie,
            cookieverf: self.verifier,
            dircount: room / 4,
            maxcount: room,
            attributes: convert::WANTED,
        });
        drop(client.before(|| Effect::ReadAny));
        let reply = client.shared().call(&request)?;
        let procedure = reply.procedure();
        match reply.decode().map_err(|error| client.shared().broken(&error))? {
            Outcome::Ok(Reply::ReadDirInline(reply)) => {
                self.take(&reply.entries, reply.cookieverf, reply.eof)
            }
            Outcome::Ok(_) => Err(client.shared().broken(&"an answer of another procedure")),
            Outcome::Error { status, .. } => Err(Error::Status { procedure, status }),
        }
    }

    fn take(
        &mut self,
        entries: &wire::Seq<'_, wire::DirEntry<'_>>,
        verifier: Verifier,
        end: bool,
    ) -> Result<()> {
        for entry in entries.iter() {
            // An invalid name of an entry would let a copy of the tree escape from its target
            // directory.
            if component(entry.name).is_err() {
                let reason = "a directory entry has a name that cannot be one";
                return Err(self.client.shared().broken(&reason));
            }
            if entry.cookie == self.cookie {
                return Err(self.client.shared().broken(&"a directory listing does not advance"));
            }
            self.cookie = entry.cookie;
            let known = !entry.attributes.valid().is_empty();
            let attributes = (known && entry.attributes.filehandle.is_some())
                .then(|| convert::attributes(&entry.attributes, &FileHandle::ZERO));
            let known = DirEntry { name: entry.name.to_vec(), attributes };
            self.page.push_back((entry.cookie, known));
        }
        if entries.is_empty() && !end {
            return Err(self.client.shared().broken(&"a directory listing does not advance"));
        }
        self.verifier = verifier;
        self.end = end;
        Ok(())
    }
}

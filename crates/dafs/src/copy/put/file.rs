//! From this host, or from a server, to a server: the content of a file.
//!
//! Invariants
//! * A copy ends where reading ends, not at the reported size. A source that was truncated
//!   meanwhile is an error.
//! * Data goes from one server to the other in the memory that it was read into, where both transports
//!   can use it.

use super::{Object, Put};
use crate::copy::content::remote_digest;
use crate::copy::digest::Digest;
use crate::copy::error::{CopyError, Outcome, here, remote};
use crate::copy::pieces::{Part, Piece, Ring, Worker};
use crate::copy::report::Copied;
use crate::copy::source::{Folder, Original};
use crate::copy::temporary::{
    crosses_stable_step, resumable_bytes, resumable_name, temporary_name,
};
use crate::failure::Failure;
use crate::limits::{RESUME_BYTES, SENDS_MAX, TEMPORARY_NAME_TRIES};
use crate::remote::{
    Attributes, Create, Error, File, Handle, ObjectType, OpenOptions, Owner, SetAttributes, Status,
};
use dafs_mem::{VolatileSlice, preadv2};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

/// An unfinished file on the server. Removed when dropped.
struct Temporary<'a> {
    put: &'a Put<'a>,
    directory: Handle,
    name: String,
    renamed: bool,
}

impl<'a> Temporary<'a> {
    /// Makes a file that only its owner can access, and opens it.
    fn create(put: &'a Put<'a>, directory: Handle) -> Result<(Self, File), Error> {
        let options = match put.options.verify {
            true => OpenOptions::read_write(),
            false => OpenOptions::write(),
        };
        let options = options.create(Create::New).mode(0o600);
        let mut tries = TEMPORARY_NAME_TRIES;
        loop {
            let name = temporary_name();
            match put.client.open_at(&directory, name.as_bytes(), &options) {
                Ok(file) => return Ok((Self { put, directory, name, renamed: false }, file)),
                Err(error)
                    if tries > 1 && (error.status() == Some(Status::Exist) || error.is_doubt()) =>
                {
                    tries -= 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Goes on with the file of that name if an earlier process has left one, and begins it otherwise.
    /// Returns the number of its bytes that need not be sent again.
    fn resume(
        put: &'a Put<'a>,
        directory: Handle,
        name: String,
    ) -> Result<(Self, File, u64), Error> {
        let options = OpenOptions::write();
        let new = options.create(Create::New).mode(0o600);
        let (file, start) = match put.client.open_at(&directory, name.as_bytes(), &new) {
            Ok(file) => (file, 0),
            Err(error) if error.status() == Some(Status::Exist) || error.is_doubt() => {
                let file = put.client.open_at(&directory, name.as_bytes(), &options)?;
                let found = file.attributes()?;
                // Only this user can have written it then.
                let is_own = found.owner.id() == Some(rustix::process::geteuid().as_raw());
                if !is_own || found.links != 1 || found.mode & 0o077 != 0 {
                    let (made, file) = Self::create(put, directory)?;
                    return Ok((made, file, 0));
                }
                (file, resumable_bytes(found.size))
            }
            Err(error) => return Err(error),
        };
        Ok((Self { put, directory, name, renamed: false }, file, start))
    }

    /// Leaves the file for a later run.
    fn keep(mut self) {
        self.renamed = true;
    }

    /// Renames the complete file, and replaces an object of that name.
    fn rename(mut self, name: &[u8]) -> Result<(), Error> {
        let (client, directory, old) = (&self.put.client, &self.directory, self.name.as_bytes());
        let mut renamed = client.rename(directory, old, directory, name);
        if renamed.as_ref().is_err_and(Error::is_doubt) {
            // No other client knows the temporary name: if it is gone, the rename was done.
            renamed = match client.lookup(directory, old) {
                Err(error) if error.status() == Some(Status::NoEnt) => Ok(()),
                Ok(_) => client.rename(directory, old, directory, name),
                Err(error) => Err(error),
            };
        }
        self.renamed = renamed.is_ok();
        renamed
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        // Without a connection it would only keep the user waiting.
        if !self.renamed && self.put.client.is_connected() {
            // The error that led to the removal is reported, not this one.
            let _ = self.put.client.remove(&self.directory, self.name.as_bytes());
        }
    }
}

impl Put<'_> {
    /// Copies a file under a temporary name and renames it when it is complete.
    pub(super) fn file(&self, worker: &mut Worker<'_>, object: &Object<'_>) -> Outcome<Handle> {
        self.report.go_on()?;
        let source = object.directory.local.open(&object.name);
        let source = source.map_err(|error| object.failed(&error))?;
        let original = source.attributes().map_err(|error| object.failed(&error))?;
        if original.kind != ObjectType::Regular {
            let text = format!("{}: became something else meanwhile", object.source());
            return Err(CopyError::Object(text));
        }
        let failed = |error: Error| object.remote(&error);
        let directory = object.directory.handle;
        let name = self.part_name(object, &original);
        let resumable = name.is_some();
        let (temporary, file, start) = match name {
            Some(name) => Temporary::resume(self, directory, name),
            None => Temporary::create(self, directory).map(|(made, file)| (made, file, 0)),
        }
        .map_err(failed)?;
        let mut ring = worker.ring(original.size)?;
        let sent = self.send(&mut ring, (object, &source, &original), &file, start, resumable);
        let (content, was_longer) = match sent {
            Err(error @ CopyError::Stop(Failure::Unreachable(_))) if resumable => {
                temporary.keep();
                return Err(error);
            }
            other => other?,
        };
        if self.options.xattrs {
            let found = source.xattrs().map_err(|error| object.failed(&error))?;
            self.xattrs(found, file.handle(), &object.target())?;
        }
        let mut final_attributes = self.final_attributes(&original);
        if content.length != content.written || was_longer {
            // The file ends in a hole, or an earlier attempt sent more.
            final_attributes.size = Some(content.length);
        }
        let lost =
            self.keep_set_id_bits(&file, &original, &mut final_attributes).map_err(failed)?;
        file.set_attributes(&final_attributes).map_err(failed)?;
        if self.options.verify {
            self.verify(&mut ring, object, &file, &content)?;
        }
        if self.options.sync {
            file.commit().map_err(failed)?;
        }
        let handle = *file.handle();
        temporary.rename(object.target_name()).map_err(failed)?;
        file.close().map_err(failed)?;
        if content.is_cut {
            self.report.book(Err(CopyError::Object(format!(
                "{}: became shorter while it was copied; the copy has {} bytes",
                object.source(),
                content.length
            ))));
        }
        if lost {
            self.report.warn(&format!(
                "{}: its set-user-id or set-group-id bit was left out, because the copy belongs to \
                 somebody else; --owner keeps both",
                object.target()
            ));
        }
        self.report.add(Copied::File);
        Ok(handle)
    }

    /// Sends a file from the offset `start` on, and all of it again where the server has lost data.
    /// Returns true if an earlier attempt may have sent more.
    fn send(
        &self,
        ring: &mut Ring<'_, '_>,
        (object, source, original): (&Object<'_>, &Original, &Attributes),
        file: &File,
        start: u64,
        resumable: bool,
    ) -> Outcome<(Content, bool)> {
        self.report.resumed(start);
        ring.read_from_source(true);
        let mut from = start;
        for attempt in 1..=SENDS_MAX {
            let digest = Digest::new(self.options.verify);
            let (length, written, is_cut, is_lost) = (from, from, false, false);
            let mut content = Content { length, written, is_cut, is_lost, resumable, digest };
            content.send(self, ring, object, (source, original), file)?;
            from = 0;
            // While the file can still be written: its owner and mode are about to change.
            match file.check_writes() {
                Ok(()) if content.is_lost => {}
                Ok(()) => return Ok((content, attempt > 1 || start > 0)),
                Err(error) if error.is_loss_of_writes() && attempt < SENDS_MAX => {}
                Err(error) => return Err(object.remote(&error)),
            }
        }
        let text = format!("{}: the server loses data again and again", object.target());
        Err(CopyError::Object(text))
    }

    /// The name under which a later run finds the unfinished copy of a long file; `None` for others,
    /// which begin again.
    fn part_name(&self, object: &Object<'_>, original: &Attributes) -> Option<String> {
        let size = original.size;
        let is_long = size > RESUME_BYTES && original.space_used >= size;
        if self.policy.is_none() || !is_long || self.options.verify {
            return None;
        }
        let directory = &object.directory;
        // The numbers of a file are those of one host.
        let host = match &directory.local {
            Folder::Local(_) => std::fs::read("/proc/sys/kernel/random/boot_id").ok()?,
            Folder::Remote(..) => directory.top.path.to_string().into_bytes(),
        };
        let file = (original.handle, original.change, size, original.modified, original.changed);
        Some(resumable_name((host, directory.relative(&object.name), file)))
    }

    /// Clears set-id bits of a copy that has another owner or group, because they would grant the
    /// rights of another user. Returns true if it did.
    fn keep_set_id_bits(
        &self,
        file: &File,
        original: &Attributes,
        final_attributes: &mut SetAttributes,
    ) -> Result<bool, Error> {
        let Some(mode) = final_attributes.mode.filter(|mode| mode & 0o6000 != 0) else {
            return Ok(false);
        };
        if self.options.owner {
            return Ok(false);
        }
        let copy = file.attributes()?;
        let is_same = |one: &Owner, other: &Owner| one.id().is_some() && one.id() == other.id();
        let mut kept = mode;
        if !is_same(&copy.owner, &original.owner) {
            kept &= !0o4000;
        }
        if !is_same(&copy.group, &original.group) {
            kept &= !0o2000;
        }
        final_attributes.mode = Some(kept);
        Ok(kept != mode)
    }

    fn verify(
        &self,
        ring: &mut Ring<'_, '_>,
        object: &Object<'_>,
        file: &File,
        content: &Content,
    ) -> Outcome {
        let failed = |error: &Error| object.remote(error);
        ring.read_from_source(false);
        let (copy, length) = remote_digest(self.report, ring, file, content.length, failed)?;
        if length == content.length && copy.value() == content.digest.value() {
            return Ok(());
        }
        Err(CopyError::Object(format!(
            "{}: the copy differs from its source; check the server's disk, then copy again",
            object.target()
        )))
    }
}

/// The sent part of a file.
struct Content {
    /// The length of the file so far, holes included.
    length: u64,
    /// The offset behind the last written byte.
    written: u64,
    /// The source was truncated meanwhile.
    is_cut: bool,
    /// The server has lost data, so all of it is sent again.
    is_lost: bool,
    /// A later run may go on with the file.
    resumable: bool,
    digest: Digest,
}

impl Content {
    /// Sends the data of `source`, without its holes.
    fn send(
        &mut self,
        put: &Put<'_>,
        ring: &mut Ring<'_, '_>,
        object: &Object<'_>,
        (source, original): (&Original, &Attributes),
        file: &File,
    ) -> Outcome {
        let size = original.size;
        let sparse = original.space_used < size;
        let mut is_over = false;
        while !is_over {
            // A file without holes is one run, in which the file ends.
            let run = match sparse {
                true => source.next_run(self.length, size).map_err(|e| object.failed(&e))?,
                false => Some(self.length..u64::MAX),
            };
            let Some(run) = run else { break };
            self.digest.add_zeros(run.start - self.length);
            self.length = run.start;
            is_over = match source {
                Original::Local(local) => {
                    !self.send_run(put, ring, object, local, run.end, file)?
                }
                Original::Remote(remote) => {
                    self.relay_run(put, ring, object, (remote, size), (run, sparse), file)?
                }
            };
        }
        while ring.is_writing() {
            self.finish_one(put, ring, object, file)?;
        }
        if self.length < size {
            let now = source.attributes().map_err(|error| object.failed(&error))?.size;
            self.is_cut = now < size;
            // Data ends where reading ends, whatever the reported size; otherwise there is a hole.
            let end = if is_over || !sparse { self.length } else { size.min(now).max(self.length) };
            self.digest.add_zeros(end - self.length);
            self.length = end;
        }
        Ok(())
    }

    /// Sends data of this host up to `end`; returns false if the file ended before that.
    fn send_run(
        &mut self,
        put: &Put<'_>,
        ring: &mut Ring<'_, '_>,
        object: &Object<'_>,
        source: &OwnedFd,
        end: u64,
        file: &File,
    ) -> Outcome<bool> {
        while self.length < end {
            put.report.go_on()?;
            let piece = loop {
                match ring.take() {
                    Some(piece) => break piece,
                    None => self.finish_one(put, ring, object, file)?,
                }
            };
            let wanted = (end - self.length).min(ring.piece_bytes() as u64) as usize;
            // INVARIANT: at most the length of a piece is wanted.
            let view = piece.slice(0, wanted).unwrap_or_else(|| piece.view());
            let count = match read_full(source, view, self.length) {
                Ok(count) => count,
                Err(error) => {
                    ring.give_back(piece);
                    return Err(here(object.source(), error));
                }
            };
            if count == 0 {
                ring.give_back(piece);
                return Ok(false);
            }
            if !self.send_part(put, ring, object, (piece, count), file)? || count < wanted {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sends a run of a file of another server, of the reported `size`. Returns true if the file ended
    /// in it.
    fn relay_run(
        &mut self,
        put: &Put<'_>,
        ring: &mut Ring<'_, '_>,
        object: &Object<'_>,
        (source, size): (&File, u64),
        (run, sparse): (Range<u64>, bool),
        file: &File,
    ) -> Outcome<bool> {
        let failed = |error: &Error| remote(object.source(), error);
        ring.read_run(put.report, (source, size), run, failed, |ring, part| {
            let Part { piece, bytes, .. } = part;
            // Servers that do not report holes send zeros.
            if bytes == 0 || (sparse && is_zero(&piece, bytes)) {
                self.digest.add_zeros(bytes as u64);
                self.length += bytes as u64;
                ring.give_back(piece);
                return Ok(true);
            }
            let goes_on = self.send_part(put, ring, object, (piece, bytes), file)?;
            // The next read needs a piece.
            while goes_on && !ring.is_reading() && !ring.has_free() {
                self.finish_one(put, ring, object, file)?;
            }
            Ok(goes_on)
        })
    }

    /// Sends the first `count` bytes of a piece. Returns false if the server has lost data.
    fn send_part(
        &mut self,
        put: &Put<'_>,
        ring: &mut Ring<'_, '_>,
        object: &Object<'_>,
        (piece, count): (Piece, usize),
        file: &File,
    ) -> Outcome<bool> {
        if let Some(filled) = piece.slice(0, count) {
            self.digest.add(filled);
        }
        if self.resumable && crosses_stable_step(self.length, count) {
            while ring.is_writing() {
                self.finish_one(put, ring, object, file)?;
            }
            match file.commit() {
                Err(error) if error.is_loss_of_writes() => {
                    ring.give_back(piece);
                    self.is_lost = true;
                    return Ok(false);
                }
                other => other.map_err(|error| object.remote(&error))?,
            }
        }
        ring.write(file, piece, self.length, count).map_err(|error| object.remote(&error))?;
        self.length += count as u64;
        self.written = self.length;
        Ok(true)
    }

    fn finish_one(
        &self,
        put: &Put<'_>,
        ring: &mut Ring<'_, '_>,
        object: &Object<'_>,
        file: &File,
    ) -> Outcome {
        let bytes = ring.finish_write(file).map_err(|error| object.remote(&error))?;
        put.report.add_bytes(bytes as u64);
        Ok(())
    }
}

/// True if the first `bytes` of a piece are zeros.
fn is_zero(piece: &Piece, bytes: usize) -> bool {
    let mut all = 0u8;
    if let Some(view) = piece.slice(0, bytes) {
        view.scan(|block| all = block.iter().fold(all, |all, byte| all | byte));
    }
    all == 0
}

/// Reads until `view` is full or the file ends.
fn read_full(source: &OwnedFd, view: VolatileSlice<'_>, offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = view.slice(done, view.len() - done).filter(|rest| !rest.is_empty()) {
        match preadv2(source.as_fd(), &[rest], offset + done as u64, 0) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

//! Small files in one chain each (DAFS 8), with many chains in flight: new files that get their name when
//! they are complete, and the starts of files. Also removals, with many in flight.
//!
//! Invariants
//! * A new file is complete before a request gives it its name.
//! * The temporary name of a file that does not get its name is removed while there is a connection. It
//!   stays where the answer to the OPEN is lost.

use crate::Takes;
use crate::attributes::{FileHandle, SetAttributes, Stability};
use crate::cache::Effect;
use crate::chain::{FileStart, take_data};
use crate::client::Client;
use crate::convert::OwnerText;
use crate::core::ReplyMessage;
use crate::driver::Slot;
use crate::error::{Error, Result};
use crate::file::OPENS;
use crate::names::component;
use crate::parts::succeeded;
use dafs_wire::dafs as wire;
use dafs_wire::dafs::{HintWord, Request, StateId, Status};
use std::sync::atomic::Ordering;

/// A small file to make.
#[derive(Debug, Clone, Copy)]
pub struct NewFile<'a> {
    /// The directory of both names.
    pub dir: FileHandle,
    /// The name until the file is complete; nothing may have it.
    pub temporary_name: &'a [u8],
    /// The name of the complete file. The file replaces another object that has it.
    pub name: &'a [u8],
    /// The content, no more than [`Client::step_write_bytes_max`] bytes.
    pub data: &'a [u8],
    /// The attributes of the complete file, without a size.
    pub attributes: &'a SetAttributes,
}

/// A new file in flight. Dropping it abandons the answers.
#[derive(Debug)]
pub struct PendingFile {
    chain: Flight,
    dir: FileHandle,
    temporary_name: Vec<u8>,
    bytes: usize,
    /// Restarts of the server before the chain was sent.
    restarts: u64,
}

/// The read of the start of a file in flight. Dropping it abandons the answers.
#[derive(Debug)]
pub struct PendingStart {
    chain: Flight,
    /// Bytes that READ asks for.
    asked: u32,
}

/// A removal in flight. Dropping it abandons the answer.
#[derive(Debug)]
pub struct PendingRemoval {
    /// A chain of one request.
    chain: Flight,
    dir: FileHandle,
    name: Vec<u8>,
}

/// A chain in flight.
#[derive(Debug)]
struct Flight {
    client: Client,
    slots: Vec<Slot>,
}

impl Client {
    /// Begins to make a file in one round trip: it is opened under its temporary name, filled, given its
    /// attributes, closed and renamed.
    ///
    /// # Errors
    /// Nothing was sent. [`Error::Argument`]: a name, or content that is too long.
    /// [`Error::ChainTooLong`]: the session has not the credits for it now. [`Error::TooMany`].
    pub fn begin_new_file(&self, new: &NewFile<'_>) -> Result<PendingFile> {
        let path = [component(new.temporary_name)?];
        if new.data.len() > self.step_write_bytes_max() {
            return Err(Error::Argument("the content of a small file is longer than a message"));
        }
        let private = SetAttributes::mode(0o600);
        let (private_text, text) = (OwnerText::new(&private), OwnerText::new(new.attributes));
        let (fh, state_id) = (self.root(), StateId::ZERO);
        let owner = OPENS.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let create = wire::CreateMode::Guarded { attributes: private_text.attributes(&private) };
        let open = Request::Open(wire::Open {
            claim: wire::OpenClaim::Null { dir: new.dir, path: wire::Path::new(&path) },
            create: Some(create),
            delete_disposition: wire::DeleteDisposition::DontCare,
            owner: &owner,
            share_access: wire::ShareAccess::Write,
            share_deny: wire::ShareDeny::None,
            share_key: wire::ShareKey::None,
        });
        let write = Request::WriteInline(wire::WriteInline {
            fh,
            state_id,
            offset: 0,
            stable: Stability::Unstable,
            padded_to: None,
            cache_hint: HintWord::NONE,
            data: new.data,
        });
        let attributes = text.attributes(new.attributes);
        let set = Request::SetAttrInline(wire::SetAttrInline { fh, state_id, attributes });
        // RENAME leaves the chain at the directory, so CLOSE comes before it.
        let rename = Request::Rename(wire::Rename {
            source_dir: new.dir,
            target_dir: new.dir,
            old_name: new.temporary_name,
            new_name: component(new.name)?,
        });
        let mut chain = vec![(open, Takes::Nothing.flags())];
        if !new.data.is_empty() {
            chain.push((write, Takes::Both.flags()));
        }
        chain.push((set, Takes::Handle.flags()));
        chain.push((Request::Close(wire::Close { fh, state_id }), Takes::Both.flags()));
        chain.push((rename, Takes::Nothing.flags()));
        let restarts = self.shared().restarts_heard();
        let chain = Flight { client: self.clone(), slots: self.shared().start_chain(&chain)? };
        let (temporary_name, bytes) = (new.temporary_name.to_vec(), new.data.len());
        Ok(PendingFile { chain, dir: new.dir, temporary_name, bytes, restarts })
    }

    /// Begins to read up to `bytes_max` bytes from the start of a file without opening it, in one round
    /// trip, and no more than a message holds. Symbolic links are not followed. Share reservations of
    /// others are respected; no reservation is made.
    ///
    /// # Errors
    /// Nothing was sent. [`Error::Argument`]: the name. [`Error::ChainTooLong`]: the session has not the
    /// credits for it now. [`Error::TooMany`].
    pub fn begin_file_start(
        &self,
        dir: &FileHandle,
        name: &[u8],
        bytes_max: usize,
    ) -> Result<PendingStart> {
        let names = [component(name)?];
        drop(self.before(|| Effect::ReadAny));
        let lookup = wire::Lookup { dir: *dir, path: wire::Path::new(&names) };
        let read = self.read_request(dir, 0, bytes_max);
        let asked = read.byte_count;
        let chain = [
            (Request::Lookup(lookup), Takes::Nothing.flags()),
            (Request::ReadInline(read), Takes::Handle.flags()),
        ];
        let chain = Flight { client: self.clone(), slots: self.shared().start_chain(&chain)? };
        Ok(PendingStart { chain, asked })
    }

    /// Begins to remove a name, as [`Client::remove`] does.
    ///
    /// # Errors
    /// Nothing was sent. [`Error::Argument`]: the name. [`Error::TooMany`].
    pub fn begin_remove(&self, dir: &FileHandle, name: &[u8]) -> Result<PendingRemoval> {
        let remove_mode = wire::RemoveMode::Unchecked;
        let remove = wire::Remove { dir: *dir, name: component(name)?, remove_mode };
        let slots =
            self.shared().start_chain(&[(Request::Remove(remove), Takes::Nothing.flags())])?;
        let chain = Flight { client: self.clone(), slots };
        Ok(PendingRemoval { chain, dir: *dir, name: name.to_vec() })
    }
}

impl PendingFile {
    /// Waits until the file is there; returns it.
    ///
    /// # Errors
    /// The file did not get its name: the server's answer, or a lost connection. [`Error::InDoubt`]: it
    /// may have got it. [`Error::WritesLost`]: it has its name, and the server has restarted and may have
    /// lost its content.
    pub fn wait(mut self) -> Result<FileHandle> {
        let mut replies = self.chain.answers().into_iter();
        let client = &self.chain.client;
        let cut = || client.shared().broken(&"a chain was answered in part");
        let opened = replies.next().ok_or_else(cut)??;
        let (fh, state_id) = client
            .take(Some(&opened), |reply| reply.open().map(|opened| (opened.fh, opened.state_id)))?;
        let rest: Vec<Result<ReplyMessage>> = replies.collect();
        let [between @ .., closed, renamed] = rest.as_slice() else { return Err(cut()) };
        let first_error = self.written(between.first()).err().or_else(|| {
            // Those behind it are refused because of the first.
            rest.iter().find_map(|reply| reply.as_ref().err().cloned())
        });
        if closed.is_err() {
            client.shared().close_file(wire::Close { fh, state_id });
        }
        if renamed.is_err() && client.is_connected() {
            // The caller gets the first error, not this one.
            let _ = client.remove(&self.dir, &self.temporary_name);
        }
        match first_error {
            Some(error) => Err(error),
            None if client.shared().restarts_heard() != self.restarts => Err(Error::WritesLost),
            None => Ok(fh),
        }
    }

    /// Checks the answer to WRITE, which is the second one if there is content.
    fn written(&self, reply: Option<&Result<ReplyMessage>>) -> Result<()> {
        match reply {
            Some(Ok(reply)) if self.bytes > 0 => {
                let client = &self.chain.client;
                let count = client.take(Some(reply), |reply| Some(reply.write_inline()?.count))?;
                if count as usize == self.bytes { Ok(()) } else { Err(Error::WriteZero) }
            }
            _ => Ok(()),
        }
    }
}

impl PendingStart {
    /// Waits for the start of the file.
    ///
    /// # Errors
    /// The server's answer, or a lost connection.
    pub fn wait(mut self) -> Result<FileStart> {
        let mut replies = self.chain.answers().into_iter();
        let client = &self.chain.client;
        let cut = || client.shared().broken(&"a chain was answered in part");
        let mut next = || replies.next().unwrap_or_else(|| Err(cut()));
        let (found, read) = (next()?, next()?);
        let handle = client.take(Some(&found), |reply| Some(reply.lookup()?.fh))?;
        let mut data = Vec::new();
        let is_whole = client.take(Some(&read), |reply| take_data(reply, self.asked, &mut data))?;
        Ok(FileStart { handle, data, is_whole })
    }
}

impl PendingRemoval {
    /// Waits for the end of the removal.
    ///
    /// # Errors
    /// The server's answer, or a lost connection.
    pub fn wait(mut self) -> Result<()> {
        let answer = self.chain.answers().pop();
        let client = &self.chain.client;
        match answer {
            // The server has not carried it out.
            Some(Err(error)) if error.is_passing() || is_unknown_user(&error) => {
                client.remove(&self.dir, &self.name)
            }
            Some(answer) => answer.map(drop),
            None => Err(client.shared().broken(&"a chain was answered in part")),
        }
    }
}

/// True when the server did not know the credential of the request.
fn is_unknown_user(error: &Error) -> bool {
    error.status() == Some(Status::CrHandConflict)
}

impl Flight {
    /// Waits for all answers. A failure is an error.
    fn answers(&mut self) -> Vec<Result<ReplyMessage>> {
        let slots = std::mem::take(&mut self.slots);
        let replies = self.client.shared().wait_replies(&slots);
        replies.into_iter().map(|reply| reply.and_then(succeeded)).collect()
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        for slot in self.slots.drain(..) {
            self.client.shared().abandon(slot);
        }
    }
}

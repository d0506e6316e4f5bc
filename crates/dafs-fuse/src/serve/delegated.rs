//! Delegated files: lookup, open, and return of the delegation.

use super::{Answer, Server};
use crate::content::{self, OpenFile};
use crate::delegated::{DeferredOpen, Opening};
use crate::kernel::{Errno, NodeId, OpenHow, Request, opened};
use crate::tree::Outcome;
use dafs_client::{Attributes, FileHandle, Keeper, User, acting_as};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A change of a file here, which ends when this is dropped.
pub(super) struct Changing<'a> {
    server: &'a Server,
    handle: FileHandle,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        // A removed file has one link less.
        self.server.changes.file(&self.handle);
        self.server.delegated.end_write(&self.handle);
    }
}

impl Changing<'_> {
    /// Lets the change go on until the kernel closes its open for writing.
    pub(super) fn go_on(self) {
        std::mem::forget(self);
    }
}

impl Server {
    /// The object of a name. The server judges whether a user may search the directory.
    pub(super) fn look_up(
        &self,
        node: NodeId,
        name: &[u8],
        user: Option<&User>,
    ) -> Outcome<Attributes> {
        let dir = self.tree.handle(node)?;
        if user.is_none()
            && let Some(known) = self.delegated.lookup(&dir, name)
        {
            return Ok(known);
        }
        let asked = self.delegated.asking();
        let found = self.look(|| self.tree.lookup(node, name))?;
        self.delegated.learn(asked, Some((&dir, name)), &found);
        Ok(found)
    }

    pub(super) fn known_attributes(&self, node: NodeId) -> Outcome<Attributes> {
        if let Some(known) = self.delegated.attributes(&self.tree.handle(node)?) {
            return Ok(known);
        }
        let asked = self.delegated.asking();
        let found = self.look(|| self.tree.attributes(node))?;
        self.delegated.learn(asked, None, &found);
        Ok(found)
    }

    /// Opens a file for reading only.
    pub(super) fn open_to_read(
        self: &Arc<Self>,
        request: &Request<'_>,
        flags: i32,
        user: Option<User>,
    ) -> Outcome<Answer> {
        let node = request.node;
        let handle = self.tree.handle(node)?;
        let number = self.files.reserve();
        let client = &self.tree.client;
        let deferred = DeferredOpen { handle, node, flags, user: user.clone() };
        let asked = self.delegated.asking();
        let file = match self.delegated.open(number, deferred) {
            Opening::Deferred { is_clean } => {
                let how = OpenHow { keeps: is_clean, ..OpenHow::default() };
                return Ok(opened(number, how).into());
            }
            Opening::Delegated => {
                let (file, delegation) = client.open_delegated(&handle)?;
                let is_crowded = match delegation {
                    None => self.delegated.refused(),
                    Some(delegation) if self.delegated.watch.begin(self) => {
                        let keeper: Arc<dyn Keeper> = self.clone();
                        let keeper: Weak<dyn Keeper> = Arc::downgrade(&keeper);
                        self.delegated.came(number, handle, delegation, keeper)
                    }
                    Some(_) => false,
                };
                if is_crowded {
                    self.make_room();
                }
                file
            }
            Opening::Plain => client.open_handle(&handle, &content::options(flags))?,
        };
        // The server has let this user open it.
        self.delegated.admit(asked, number, &handle, &user);
        let file = OpenFile::new(self.home(), node, file, (flags, user));
        let is_first = self.files.take_over(number, file);
        assert!(is_first, "a number is given once");
        Ok(opened(number, OpenHow::default()).into())
    }

    /// An open file, which the server knows from now on.
    pub(super) fn redeemed(&self, number: u64) -> Outcome<Arc<OpenFile>> {
        if let Some(deferred) = self.delegated.deferred(number) {
            let DeferredOpen { handle, node, flags, user } = deferred;
            let options = content::options(flags);
            // This thread may carry out a request of another user.
            let open = || self.tree.client.open_handle(&handle, &options);
            let file = acting_as(user.as_ref(), open)?;
            let mut file = Some(OpenFile::new(self.home(), node, file, (flags, user)));
            self.delegated.settle(number, || {
                if let Some(file) = file.take() {
                    let is_first = self.files.take_over(number, file);
                    assert!(is_first, "a number is given once");
                }
            });
            // An open that lost the race is closed without the lock.
            drop(file);
        }
        self.files.get(number).ok_or(Errno::EBADF)
    }

    /// Makes all deferred opens of a file at the server.
    pub(crate) fn redeem_all(&self, handle: &FileHandle) {
        for number in self.delegated.deferred_of(handle) {
            if let Err(error) = self.redeemed(number) {
                // The kernel has closed it, or its user gets an error.
                tracing::debug!(?error, number, "an open file that the server does not know");
            }
        }
    }

    /// Makes the kernel drop its cache of a file. Never called by a thread that answers it.
    pub(crate) fn drop_content(&self, handle: &FileHandle) {
        // The kernel has no cache of a file that it has forgotten.
        if let Some(node) = self.tree.nodes.known(handle) {
            self.forget_content(node);
        }
    }

    /// As [`drop_content`](Self::drop_content), for a part of it; the range is of whole pages.
    pub(crate) fn drop_part(&self, handle: &FileHandle, range: Range<u64>) {
        if let Some(node) = self.tree.nodes.known(handle)
            && let Err(error) = self.device.forget_part(node, range)
        {
            tracing::warn!(%error, node, "the kernel did not drop a part of a file");
        }
    }

    /// Called before a file is changed here. It is not delegated meanwhile: the kernel drops or
    /// changes its own pages.
    pub(super) fn changing(&self, handle: FileHandle) -> Changing<'_> {
        self.delegated.begin_write(handle);
        let is_kept = self.delegated.leave(&handle);
        self.redeem_all(&handle);
        if is_kept {
            drop(self.delegated.remove(&handle));
        }
        Changing { server: self, handle }
    }

    /// Called before the permissions of a file are changed here: existing opens stay valid. Its
    /// content may stay cached.
    pub(super) fn changing_rights(&self, handle: FileHandle) -> Changing<'_> {
        self.delegated.begin_write(handle);
        self.redeem_all(&handle);
        Changing { server: self, handle }
    }

    /// The kernel has forgotten some of its lookups, and with the last one all content.
    pub(super) fn forget(&self, node: NodeId, lookups: u64) {
        if let Some(handle) = self.tree.nodes.forget(node, lookups) {
            // It may have been looked up again since, and opened.
            self.delegated.forget(&handle, || self.tree.nodes.known(&handle).is_some());
        }
    }

    pub(super) fn remove(&self, dir: NodeId, name: &[u8], is_directory: bool) -> Outcome<()> {
        let _naming = self.delegated.naming();
        self.tree.remove(dir, name, is_directory, |handle| self.changing(*handle))
    }

    pub(super) fn rename(&self, from: (NodeId, &[u8]), to: (NodeId, &[u8])) -> Outcome<()> {
        // From here on no name that is about to change is stored.
        let naming = self.delegated.naming();
        let named = |(dir, name): (NodeId, &[u8])| {
            self.tree.handle(dir).map(|dir| self.delegated.named(&dir, name))
        };
        let (source, mut target) = (named(from)?, named(to)?);
        if target.is_none() && self.delegated.has_promised() {
            // The replaced file may be open, and the server must know that before.
            target = self.tree.lookup(to.0, to.1).ok().map(|found| found.handle);
        }
        let changing = [source, target].map(|found| found.map(|handle| self.changing(handle)));
        let renamed = self.tree.rename(from, to);
        drop(naming);
        drop(changing);
        renamed
    }

    /// Stops all caching, and makes all deferred opens at the server. A user whose rights were
    /// withdrawn loses its file. Never called by a thread that answers the kernel.
    ///
    /// # Errors
    /// `ETIMEDOUT` after the timeout, or the server's answer to an open that it refuses. The caller
    /// then resumes caching.
    pub(crate) fn stop_keeping(self: &Arc<Self>, patience: Duration) -> Outcome<()> {
        self.delegated.pause(true);
        let (tell, end) = std::sync::mpsc::sync_channel(1);
        let server = self.clone();
        let thread = std::thread::Builder::new().name("dafs-dropping".into());
        let begun = thread.spawn(move || {
            // A drop that the kernel blocks has no timeout.
            let _ = tell.send(dafs_client::within(patience, || server.keep_nothing()));
        });
        if let Err(error) = begun {
            tracing::warn!(%error, "no thread to let the kernel drop what it keeps");
            return Err(Errno::EAGAIN);
        }
        end.recv_timeout(patience).unwrap_or(Err(Errno::ETIMEDOUT))
    }

    fn keep_nothing(&self) -> Outcome<()> {
        for handle in self.delegated.all() {
            let is_kept = self.delegated.leave(&handle);
            self.drop_content(&handle);
            self.redeem_all(&handle);
            if is_kept {
                drop(self.delegated.remove(&handle));
                self.drop_content(&handle);
            }
        }
        // Also opens that failed when their file was given up, or that another thread is giving up.
        for number in self.delegated.all_promised() {
            let Err(error) = self.redeemed(number) else { continue };
            let Some(deferred) = self.delegated.deferred(number) else { continue };
            if deferred.user.is_none() || !matches!(error, Errno::EACCES | Errno::EPERM) {
                return Err(error);
            }
            // Its rights were withdrawn. One user must not keep all others from a newer version.
            tracing::warn!(number, "an open file is lost");
            self.delegated.settle(number, || ());
        }
        Ok(())
    }

    /// Gives up the least recently used files: on a thread of its own, since the kernel must drop
    /// their pages.
    fn make_room(self: &Arc<Self>) {
        let server = self.clone();
        let thread = std::thread::Builder::new().name("dafs-room".into());
        let begun = thread.spawn(move || {
            for handle in server.delegated.crowd() {
                server.give_up(&handle, true);
            }
            server.delegated.made_room();
        });
        if let Err(error) = begun {
            tracing::warn!(%error, "no more files are kept because nobody makes room");
            self.delegated.made_room();
        }
    }

    fn give_up(&self, handle: &FileHandle, give_back: bool) {
        if !self.delegated.leave(handle) {
            // Another thread returns it.
            return;
        }
        self.drop_content(handle);
        self.redeem_all(handle);
        let delegation = self.delegated.remove(handle);
        if give_back
            && let Some(delegation) = delegation
            && let Err(error) = delegation.give_back()
        {
            tracing::debug!(%error, "a delegation could not be given back");
        }
        // Pages read since then may be stale as soon as others go on, and no recall would say so.
        self.drop_content(handle);
    }
}

impl Keeper for Server {
    fn recalled(&self, file: &FileHandle) {
        self.give_up(file, true);
    }

    fn lost(&self, file: &FileHandle) {
        self.give_up(file, false);
    }
}

//! The directories of a copy that is being made, and the walk through its source.

use super::error::Outcome;
use super::report::Report;
use crate::remote::{Handle, RemoteUrl};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;

/// The direction of a copy, with the state that all its workers share.
pub(super) trait Side {
    /// The final attributes of a directory of the copy.
    type Attributes;
    /// The entries of a directory of the source.
    type Listing;
    /// An open directory on the side that has no URL here: of the copy for `get`, of the source for
    /// `put`.
    type Folder: Clone + fmt::Debug;
    /// Its name for messages.
    type Path: fmt::Debug;

    fn report(&self) -> &Report;

    /// Sets the final attributes of a directory of the copy.
    fn finish(&self, directory: &Directory<'_, Self>, attributes: &Self::Attributes) -> Outcome
    where
        Self: Sized;
}

/// The copy of a source of the command line, or the directory that it goes into.
#[derive(Debug)]
pub(super) struct Top<S: Side> {
    pub(super) local: S::Folder,
    pub(super) path: S::Path,
    pub(super) url: RemoteUrl,
}

/// A directory that is being filled. It gets its permissions and times when the last object in it
/// is done, and so the last reference to it is dropped. Its path is only built when it is needed,
/// so that deep trees take no more memory than others.
#[derive(Debug)]
pub(super) struct Directory<'a, S: Side> {
    pub(super) side: &'a S,
    pub(super) top: Arc<Top<S>>,
    /// The directory above it, and its name there; `None` for the top.
    pub(super) above: Option<(Arc<Directory<'a, S>>, OsString)>,
    /// It on the side without a URL here.
    pub(super) local: S::Folder,
    /// It at the server.
    pub(super) handle: Handle,
    /// The final attributes of the copy; `None` for an existing directory that the user has named.
    pub(super) final_attributes: Option<S::Attributes>,
}

impl<'a, S: Side> Directory<'a, S> {
    /// The directory at the top of a copy.
    pub(super) fn top(
        side: &'a S,
        (path, url): (S::Path, RemoteUrl),
        (local, handle): (S::Folder, Handle),
        final_attributes: Option<S::Attributes>,
    ) -> Arc<Self> {
        let top = Arc::new(Top { local: local.clone(), path, url });
        Arc::new(Self { side, top, above: None, local, handle, final_attributes })
    }

    /// The names on the path from the top.
    pub(super) fn inside(&self) -> Vec<OsString> {
        let mut names = Vec::new();
        let mut at = self;
        while let Some((above, name)) = &at.above {
            names.push(name.clone());
            at = above;
        }
        names.reverse();
        names
    }

    /// The path from the top to the object `name` in it.
    pub(super) fn relative(&self, name: &OsStr) -> Vec<u8> {
        let mut path = PathBuf::from_iter(self.inside());
        path.push(name);
        path.into_os_string().into_vec()
    }

    pub(super) fn url(&self) -> RemoteUrl {
        let join = |url: RemoteUrl, name: OsString| url.join(name.as_bytes()).unwrap_or(url);
        self.inside().into_iter().fold(self.top.url.clone(), join)
    }

    /// Sets the final attributes, after all contents are done. A second call has no effect.
    fn finish(&mut self) {
        let Some(attributes) = self.final_attributes.take() else { return };
        let report = self.side.report();
        if !report.is_stopped() {
            report.book(self.side.finish(self, &attributes));
        }
    }
}

impl<S: Side> Drop for Directory<'_, S> {
    /// Ends the directory, and those above that end with it, in a loop: a tree may be deeper than
    /// the stack of a thread.
    fn drop(&mut self) {
        self.finish();
        let mut above = self.above.take();
        while let Some(mut ended) = above.and_then(|(above, _)| Arc::into_inner(above)) {
            ended.finish();
            above = ended.above.take();
        }
    }
}

/// The result of an entry of a directory.
pub(super) enum Step<'a, S: Side> {
    Object,
    Directory(S::Listing, Arc<Directory<'a, S>>),
    End,
}

/// Walks through a tree, depth first. `step` takes the next entry of a directory. The walk reads a
/// directory only as fast as it handles the entries.
pub(super) fn walk<'a, S: Side>(
    listing: S::Listing,
    top: Arc<Directory<'a, S>>,
    mut step: impl FnMut(&mut S::Listing, &Arc<Directory<'a, S>>) -> Outcome<Step<'a, S>>,
) -> Outcome {
    let report = top.side.report();
    let mut levels = vec![(listing, top)];
    while let Some((listing, directory)) = levels.last_mut() {
        report.go_on()?;
        let directory = directory.clone();
        match step(listing, &directory) {
            Ok(Step::Object) => {}
            Ok(Step::End) => drop(levels.pop()),
            Ok(Step::Directory(listing, inner)) => levels.push((listing, inner)),
            Err(error) => report.book(Err(error)),
        }
    }
    Ok(())
}

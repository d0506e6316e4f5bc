//! Listing directories.

use super::{Answer, Server};
use crate::changes::Asked;
use crate::convert;
use crate::kernel::{Entry, Errno, Listing, NodeId, OpenHow, opened};
use crate::limits::LISTING_BYTES_MAX;
use crate::listing::{Found, OpenDirectory};
use crate::tree::Outcome;
use dafs_client::{Attributes, User, posix};

/// The number of an entry without attributes.
const UNKNOWN: NodeId = NodeId::MAX;

impl Server {
    pub(super) fn open_directory(&self, node: NodeId, user: Option<User>) -> Outcome<Answer> {
        let handle = self.tree.handle(node)?;
        let directory = OpenDirectory::new(&self.tree.client, handle, user, &self.changes);
        Ok(opened(self.directories.insert(directory), OpenHow::default()).into())
    }

    pub(super) fn list(
        &self,
        node: NodeId,
        handle: u64,
        position: u64,
        len: u32,
        with_attributes: bool,
    ) -> Outcome<Answer> {
        let directory = self.directories.get(handle).ok_or(Errno::EBADF)?;
        let mut listing = Listing::new((len as usize).min(LISTING_BYTES_MAX));
        let mut entered = Vec::new();
        let listed = directory.read(position, &self.changes, |behind, found| {
            let fits = match (&found, with_attributes) {
                // The kernel uses only the number of these.
                (Found::Dot(name), _) => {
                    let none = no_entry(libc::S_IFDIR);
                    let entry = with_attributes.then_some(&none);
                    listing.add(entry, node, libc::S_IFDIR, behind, name)
                }
                (Found::Named(name, Some(found), asked), true)
                    if self.is_news(node, name, found, *asked) =>
                {
                    let left = asked.left_of(self.cache_timeout);
                    let entry = Entry { cache_timeout: left, ..self.entry(found) };
                    let (number, mode) = (entry.attributes.node, entry.attributes.mode);
                    let fits = listing.add(Some(&entry), number, mode, behind, name);
                    match fits {
                        true => entered.push(number),
                        false => self.forget(number, 1),
                    }
                    fits
                }
                // Without a node in its attributes the kernel takes an entry as a name alone.
                (Found::Named(name, Some(found), _), _) => {
                    let (number, none) = (self.tree.nodes.number(found), no_entry(0));
                    let entry = with_attributes.then_some(&none);
                    listing.add(entry, number, posix::type_bits(found.kind), behind, name)
                }
                (Found::Named(name, ..), _) => {
                    let none = no_entry(0);
                    listing.add(with_attributes.then_some(&none), UNKNOWN, 0, behind, name)
                }
            };
            !fits
        });
        match listed {
            Ok(()) => Ok(listing.into_bytes().into()),
            Err(error) => {
                entered.iter().for_each(|&node| self.forget(node, 1));
                Err(error)
            }
        }
    }

    /// True when the fetched attributes of an entry are current, as far as this mount knows, and
    /// within the cache timeout. The kernel would take an old size for a new one, and drop data
    /// written behind it.
    fn is_news(&self, dir: NodeId, name: &[u8], found: &Attributes, asked: Asked) -> bool {
        // An open file may be changing. Its close is recorded as a change, so this is checked
        // first.
        self.kept.find(&found.handle).is_none()
            && !asked.left_of(self.cache_timeout).is_zero()
            && !self.changes.is_file_old(&found.handle, asked)
            && !self.changes.is_name_old(dir, name, asked)
    }
}

/// The entry for a name without attributes.
fn no_entry(mode: u32) -> Entry {
    let attributes = convert::no_attributes(mode);
    Entry { attributes, generation: 0, cache_timeout: std::time::Duration::ZERO }
}

//! Listing directories.

use super::{Answer, Server};
use crate::convert;
use crate::kernel::{Entry, Errno, Listing, NodeId, OpenHow, opened};
use crate::limits::LISTING_BYTES_MAX;
use crate::listing::{Found, OpenDirectory};
use crate::tree::Outcome;
use dafs_client::posix;

/// The number of what cannot be looked at.
const UNKNOWN: NodeId = NodeId::MAX;

impl Server {
    pub(super) fn open_directory(&self, node: NodeId) -> Outcome<Answer> {
        let handle = self.tree.handle(node)?;
        let directory = OpenDirectory::new(&self.tree.client, handle);
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
        let listed = directory.read(position, |behind, found| {
            let fits = match (&found, with_attributes) {
                // The kernel takes no more than the number of these.
                (Found::Dot(name), _) => {
                    let none = no_entry(libc::S_IFDIR);
                    let entry = with_attributes.then_some(&none);
                    listing.add(entry, node, libc::S_IFDIR, behind, name)
                }
                (Found::Named(name, Some(found)), true) if !self.is_in_doubt(found) => {
                    let entry = self.entry(found);
                    let (number, mode) = (entry.attributes.node, entry.attributes.mode);
                    let fits = listing.add(Some(&entry), number, mode, behind, name);
                    match fits {
                        true => entered.push(number),
                        false => self.forget(number, 1),
                    }
                    fits
                }
                (Found::Named(name, Some(found)), false) => {
                    let number = self.tree.nodes.number(found);
                    listing.add(None, number, posix::type_bits(found.kind), behind, name)
                }
                // Without a node in its attributes the kernel takes an entry as a name alone.
                (Found::Named(name, _), _) => {
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
}

/// What stands where nothing is told of a name.
fn no_entry(mode: u32) -> Entry {
    let attributes = convert::no_attributes(mode);
    Entry { attributes, generation: 0, belief: std::time::Duration::ZERO }
}

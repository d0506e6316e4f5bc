//! Listings of the memory store.
//!
//! Invariants
//! * A listing takes each lock once for many entries, and calls the sink with none of them held.

use super::Inner;
use super::object::{R, X};
use crate::{Attr, Cred, DirEntry, FileId, Result, StoreError};
use std::sync::Arc;

/// Entries that are copied out per lock.
const BATCH: usize = 64;

/// An entry that was copied out.
struct Listed {
    cookie: u64,
    name: Arc<[u8]>,
    ino: u64,
    /// Its id and attributes, if they are wanted and the object is still there.
    object: Option<(FileId, Attr)>,
}

impl Inner {
    /// Passes the entries after a cookie to the sink. True at the end of the directory.
    pub(super) fn list(
        &self,
        cred: &Cred,
        dir: &FileId,
        cookie: u64,
        with_attr: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<bool> {
        let dir = self.object(dir)?;
        dir.state().directory()?;
        dir.check(cred, R)?;
        if cookie == 1 || cookie == 2 {
            return Err(StoreError::BadCookie);
        }
        let may_look_up = with_attr && dir.check(cred, X).is_ok();
        let (mut at, mut batch) = (cookie, Vec::<Listed>::with_capacity(BATCH));
        loop {
            {
                let state = dir.state();
                let names = state.directory()?.after(at).take(BATCH);
                batch.extend(names.map(|(cookie, name, ino)| {
                    let name = name.clone();
                    Listed { cookie, name, ino, object: None }
                }));
            }
            let Some(last) = batch.last() else { return Ok(true) };
            at = last.cookie;
            if may_look_up {
                let world = self.world();
                batch.iter_mut().for_each(|entry| entry.object = world.known(entry.ino));
            }
            for Listed { cookie, name, ino, object } in batch.drain(..) {
                if !sink(DirEntry { name: &name, cookie, file_id: ino, object }) {
                    return Ok(false);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CreateHow, MemoryStore, OpenMode, SetAttr, Store};

    #[test]
    fn a_sink_may_change_the_directory() {
        let (store, root) = (MemoryStore::default(), Cred::new(0, 0));
        let (top, none) = (store.root(), SetAttr::default());
        let both = OpenMode { read: true, write: true };
        let names: Vec<String> = (0..3 * BATCH).map(|number| number.to_string()).collect();
        for name in &names {
            store.create(&root, &top, name.as_bytes(), CreateHow::Guarded, &none, both).unwrap();
        }
        let mut seen = Vec::new();
        let end = store.readdir(&root, &top, 0, true, &mut |entry| {
            let (id, attr) = entry.object.unwrap();
            assert_eq!(store.lookup(&root, &top, entry.name), Ok((id, attr)));
            let change = store.remove(&root, &top, entry.name).unwrap();
            assert_eq!(change.attr, Some(store.getattr(&top).unwrap()));
            seen.push(String::from_utf8(entry.name.to_vec()).unwrap());
            true
        });
        assert_eq!((end, seen), (Ok(true), names));
        assert_eq!(store.getattr(&top).unwrap().size, 0);
    }
}

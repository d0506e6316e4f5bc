//! Snapshots of a memory store, and their restoration: for simulations of power cuts.
//!
//! Invariants
//! * An image shares no mutable state with the store.
//! * A restoration does not reuse inode numbers that were used since, so that ids of undone objects
//!   stay stale.

use super::content::Content;
use super::object::{Body, Object, State};
use super::{MemoryStore, number};
use crate::{FileId, Kind, Result};
use dafs_mem::VolatileSlice;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The names and attributes of all objects of a [`MemoryStore`] at one time, without the content of
/// files.
#[derive(Debug, Clone, Default)]
pub struct MemoryImage {
    objects: BTreeMap<u64, Arc<ObjectImage>>,
}

#[derive(Debug)]
struct ObjectImage {
    kind: Kind,
    /// For a named attribute or a directory of them: the inode whose rights apply.
    base: Option<u64>,
    state: State,
}

/// The content of a file: its size in bytes, and pieces of data by their offset. All other bytes
/// are zeros.
pub type MemoryContent = (u64, Vec<(u64, Vec<u8>)>);

impl MemoryStore {
    /// Takes an image of the store. It shares objects that have not changed since `last`, an
    /// earlier image of this store.
    pub fn image(&self, last: Option<&MemoryImage>) -> MemoryImage {
        let world = self.inner.world();
        let objects = world.objects().map(|object| {
            let state = object.state();
            let known = last.and_then(|last| last.objects.get(&object.ino));
            let known = known.filter(|known| {
                let then = &known.state;
                then.change == state.change
                    && then.links == state.links
                    && then.attr_dir == state.attr_dir
            });
            let image = known.cloned().unwrap_or_else(|| {
                Arc::new(ObjectImage {
                    kind: object.kind,
                    base: object.base.as_ref().map(|base| base.ino),
                    state: without_content(&state),
                })
            });
            (object.ino, image)
        });
        MemoryImage { objects: objects.collect() }
    }

    /// Restores an image of this store. `content` returns the content of each regular file and
    /// named attribute. Objects without a name are gone; files that are still open belong to no
    /// store any more.
    ///
    /// # Errors
    /// When the content does not fit into the store.
    pub fn restore(
        &self,
        image: &MemoryImage,
        content: &mut dyn FnMut(&FileId) -> MemoryContent,
    ) -> Result<()> {
        let mut world = self.inner.world_mut();
        world.clear();
        // Objects without a base first, because the others refer to them.
        let (plain, based): (Vec<_>, Vec<_>) =
            image.objects.iter().partition(|(_, object)| object.base.is_none());
        for (&ino, object) in plain.into_iter().chain(based) {
            let mut state = without_content(&object.state);
            let id = self.inner.id(ino);
            if let Body::File(file) = &mut state.body {
                fill(file, content(&id))?;
            }
            let base = object.base.and_then(|base| world.object(base).ok());
            world.put(Object::new((id, ino), object.kind, base, state));
        }
        let all: Vec<Arc<Object>> = world.objects().cloned().collect();
        all.iter().for_each(|object| world.reap(object));
        Ok(())
    }
}

impl MemoryImage {
    /// True if the image holds the object.
    pub fn holds(&self, id: &FileId) -> bool {
        self.objects.contains_key(&number(id))
    }

    /// Takes the attributes of one object, except the number of its names, from a later image: the
    /// effect of a sync of the object itself.
    pub fn take_attributes(&mut self, later: &Self, id: &FileId) {
        let ino = number(id);
        let (Some(mine), Some(then)) = (self.objects.get_mut(&ino), later.objects.get(&ino)) else {
            return;
        };
        let links = mine.state.links;
        let state = State { links, ..without_content(&then.state) };
        *mine = Arc::new(ObjectImage { kind: then.kind, base: then.base, state });
    }
}

fn fill(file: &mut Content, (size, pieces): MemoryContent) -> Result<()> {
    file.set_size(size)?;
    for (offset, mut bytes) in pieces {
        file.write(&[VolatileSlice::from_mut(&mut bytes)], offset)?;
    }
    Ok(())
}

/// Copies a state, with files empty.
fn without_content(state: &State) -> State {
    let body = match &state.body {
        Body::File(content) => Body::File(Content::new(content.space.clone())),
        Body::Directory(directory) => Body::Directory(directory.clone()),
        Body::Symlink(text, room) => Body::Symlink(text.clone(), room.clone()),
        Body::Special => Body::Special,
    };
    State { xattrs: state.xattrs.clone(), body, ..*state }
}

#[cfg(test)]
mod tests {
    use crate::{
        CreateHow, Cred, MemoryOptions, MemoryStore, NewObject, OpenMode, SetAttr, Stability,
        Store, StoreError, Wait,
    };
    use dafs_mem::VolatileSlice;

    #[test]
    fn the_way_back_undoes_names_and_leaves_lost_ids_stale() {
        let store = MemoryStore::new(MemoryOptions::default());
        let (root, top) = (Cred::new(0, 0), store.root());
        let mode = OpenMode { read: true, write: true };
        let make = |name: &[u8]| {
            store.create(&root, &top, name, CreateHow::Guarded, &SetAttr::default(), mode).unwrap()
        };
        let kept = make(b"kept");
        let removed = make(b"removed");
        let image = store.image(None);
        let lost = make(b"lost");
        store.remove(&root, &top, b"removed").unwrap();
        store.make(&root, &top, b"dir", NewObject::Directory, &SetAttr::default()).unwrap();
        store.rename(&root, &top, b"kept", &top, b"moved").unwrap();
        let later = store.image(Some(&image));
        assert!(later.holds(&lost.id) && !image.holds(&lost.id));
        store.restore(&image, &mut |_| (10_000, vec![(5000, vec![7; 3])])).unwrap();
        // A file that was open at the restoration can be closed without harm.
        drop(removed.file);
        assert_eq!(store.lookup(&root, &top, b"kept").unwrap().0, kept.id);
        assert_eq!(store.lookup(&root, &top, b"removed").unwrap().0, removed.id);
        assert_eq!(store.getattr(&lost.id), Err(StoreError::Stale));
        assert_eq!(store.getattr(&top).unwrap().links, 2);
        let next = make(b"lost");
        assert_ne!(next.id, lost.id);
        let file = store.open(&root, &kept.id, mode).unwrap();
        let mut bytes = [1; 5];
        file.read_at(&[VolatileSlice::from_mut(&mut bytes)], 4999, Wait::Allowed).unwrap();
        assert_eq!((bytes, file.attr().unwrap().size), ([0, 7, 7, 7, 0], 10_000));
        let views = [VolatileSlice::from_mut(&mut bytes)];
        file.write_at(&views, 0, Stability::Unstable, Wait::Allowed).unwrap();
    }

    #[test]
    fn a_file_without_a_name_does_not_come_back() {
        let store = MemoryStore::new(MemoryOptions::default());
        let (root, top) = (Cred::new(0, 0), store.root());
        let mode = OpenMode { read: true, write: true };
        let how = CreateHow::Guarded;
        let made = store.create(&root, &top, b"a", how, &SetAttr::default(), mode).unwrap();
        store.remove(&root, &top, b"a").unwrap();
        store.getattr(&made.id).unwrap();
        store.restore(&store.image(None), &mut |_| (0, Vec::new())).unwrap();
        assert_eq!(store.getattr(&made.id), Err(StoreError::Stale));
    }
}

//! Operations on the client's own tree.

use super::Actor;
use super::task::{Listing, Task};
use crate::common::Common;
use crate::limits::{INNER_NAMES, TOP_NAMES};
use crate::model::names::{Change, Entry, Place};
use dafs_wire::dafs::{
    AttrMask, Attributes, Create, CreateMode, DeleteDisposition, FileHandle, Link, Lookup,
    NewObject, ObjectType, Open, OpenClaim, Path, ReadDirInline, Remove, RemoveMode, Rename,
    Request, ShareAccess, ShareDeny, ShareKey,
};

/// A name of the trees, as bytes. It is not UTF-8 on purpose.
pub(crate) fn name(name: u8) -> Vec<u8> {
    vec![b'n', 0xff, b'0' + name]
}

/// The number of a name; `None` for any other bytes.
pub(crate) fn parse_name(bytes: &[u8]) -> Option<u8> {
    match bytes {
        [b'n', 0xff, digit @ b'0'..=b'9'] => Some(digit - b'0'),
        _ => None,
    }
}

/// The components from the client's top directory to a place.
pub(crate) fn path(place: &Place) -> Vec<Vec<u8>> {
    place.dir.into_iter().chain([place.name]).map(name).collect()
}

/// The text of a symlink.
pub(crate) fn link_text(number: u64) -> Vec<u8> {
    format!("to/{number}/").repeat(1 + (number % 7) as usize).into_bytes()
}

impl Actor {
    /// True when the tree may be changed now.
    fn may_change(&self) -> bool {
        let changing = self.flights.values().any(|task| task.change().is_some());
        !changing && self.is_settled() && self.home.certain().is_some()
    }

    /// Draws a place whose directory exists, occupied or not.
    fn draw_place(&mut self) -> Option<Place> {
        let inner: Vec<u8> = self.home.certain()?.directories().into_iter().collect();
        let inside = !inner.is_empty() && self.rng.chance(400_000);
        Some(if inside {
            let dir = inner[self.rng.below(inner.len() as u64) as usize];
            Place { dir: Some(dir), name: self.rng.below(INNER_NAMES) as u8 }
        } else {
            Place { dir: None, name: self.rng.below(TOP_NAMES) as u8 }
        })
    }

    fn begin_change(&mut self) {
        self.version += 1;
    }

    pub(super) fn create(&mut self, common: &mut Common) -> Result<bool, String> {
        if !self.may_change() {
            return Ok(false);
        }
        let Some(place) = self.draw_place() else { return Ok(false) };
        let Some(dir) = self.directory(common, place.dir)? else { return Ok(true) };
        let mode = [0o600, 0o640, 0o644][self.rng.below(3) as usize];
        let file = common.add_file(Some(self.number), mode);
        let attributes = Attributes { mode: Some(mode), ..Attributes::default() };
        let bytes = name(place.name);
        let path: [&[u8]; 1] = [&bytes];
        let owner = format!("owner {}", self.number);
        let request = Request::Open(Open {
            claim: OpenClaim::Null { dir, path: Path::new(&path) },
            create: Some(CreateMode::Guarded { attributes }),
            delete_disposition: DeleteDisposition::DontCare,
            owner: owner.as_bytes(),
            share_access: ShareAccess::Both,
            share_deny: ShareDeny::None,
            share_key: ShareKey::None,
        });
        self.begin_change();
        self.submit(common, Task::Create { change: Change::Create(place, file), file }, &request)
    }

    pub(super) fn change_names(&mut self, common: &mut Common) -> Result<bool, String> {
        if !self.may_change() {
            return Ok(false);
        }
        let (Some(from), Some(to)) = (self.draw_place(), self.draw_place()) else {
            return Ok(false);
        };
        let top = Place { dir: None, ..to.clone() };
        let change = match self.rng.below(10) {
            0..2 => Change::MakeDirectory(top),
            2 => Change::MakeSymlink(to, self.rng.below(1000)),
            3 => Change::Link(from, to),
            4..7 => Change::Remove(from),
            _ => Change::Rename(from, to),
        };
        if !self.is_modelled(&change) {
            return Ok(false);
        }
        self.submit_change(common, change)
    }

    /// True unless the model cannot follow the change: a directory below a directory, or a link to
    /// something other than a file.
    fn is_modelled(&self, change: &Change) -> bool {
        let Some(tree) = self.home.certain() else { return false };
        let is_directory = |place: &Place| tree.get(place) == Some(&Entry::Directory);
        match change {
            Change::Rename(from, to) => {
                let into_itself = to.dir.is_some_and(|dir| from.dir.is_none() && dir == from.name);
                let onto_parent = from.dir.is_some_and(|dir| to.dir.is_none() && dir == to.name);
                let too_deep = is_directory(from) && to.dir.is_some();
                !(into_itself || onto_parent || too_deep)
            }
            Change::Link(from, _) => matches!(tree.get(from), Some(Entry::File(_))),
            _ => true,
        }
    }

    fn submit_change(&mut self, common: &mut Common, change: Change) -> Result<bool, String> {
        let (first, second) = match &change {
            Change::Link(from, to) | Change::Rename(from, to) => (from.clone(), to.clone()),
            Change::Create(place, _)
            | Change::MakeDirectory(place)
            | Change::MakeSymlink(place, _)
            | Change::Remove(place) => (place.clone(), place.clone()),
        };
        let Some(dir) = self.directory(common, first.dir)? else { return Ok(true) };
        let Some(target_dir) = self.directory(common, second.dir)? else { return Ok(true) };
        let (old_name, new_name) = (name(first.name), name(second.name));
        let text;
        let request = match &change {
            Change::Create(..) => return Ok(false),
            Change::MakeDirectory(_) => {
                let attributes = Attributes { mode: Some(0o755), ..Attributes::default() };
                let object = NewObject::Plain(ObjectType::Directory);
                Request::Create(Create { dir, name: &old_name, object, attributes })
            }
            Change::MakeSymlink(_, number) => {
                text = link_text(*number);
                let object = NewObject::Symlink(&text);
                let attributes = Attributes::default();
                Request::Create(Create { dir, name: &old_name, object, attributes })
            }
            Change::Link(from, _) => {
                let Some(source) = self.handle_at(common, from) else { return Ok(false) };
                Request::Link(Link { source, target_dir, name: &new_name })
            }
            Change::Remove(_) => {
                let remove_mode = RemoveMode::Unchecked;
                Request::Remove(Remove { dir, name: &old_name, remove_mode })
            }
            Change::Rename(..) => Request::Rename(Rename {
                source_dir: dir,
                target_dir,
                old_name: &old_name,
                new_name: &new_name,
            }),
        };
        self.begin_change();
        self.submit(common, Task::Names { change }, &request)
    }

    fn handle_at(&self, common: &Common, place: &Place) -> Option<FileHandle> {
        match self.home.certain()?.get(place)? {
            Entry::File(file) => common.files[*file].handle,
            _ => None,
        }
    }

    pub(super) fn list_page(
        &mut self,
        common: &mut Common,
        listing: Listing,
    ) -> Result<bool, String> {
        let Some(fh) = self.directory(common, listing.dir)? else { return Ok(true) };
        let maxcount = 200 + self.rng.below(1500) as u32;
        let request = Request::ReadDirInline(ReadDirInline {
            fh,
            cookie: listing.cookie,
            cookieverf: listing.verifier,
            dircount: maxcount,
            maxcount,
            attributes: AttrMask::OBJECT_TYPE | AttrMask::FILEHANDLE,
        });
        self.submit(common, Task::List(listing), &request)
    }

    /// Looks for a symlink, to read it next.
    pub(super) fn read_link(&mut self, common: &mut Common) -> Result<bool, String> {
        let Some(tree) = self.home.certain() else { return Ok(false) };
        let symlink = |place: &Place| match tree.get(place) {
            Some(Entry::Symlink(number)) => Some((place.clone(), *number)),
            _ => None,
        };
        let found: Vec<_> = tree.places().filter_map(symlink).collect();
        let Some((place, number)) = found.get(self.rng.below(found.len() as u64) as usize).cloned()
        else {
            return Ok(false);
        };
        let Some(dir) = self.directory(common, None)? else { return Ok(true) };
        let components = path(&place);
        let components: Vec<&[u8]> = components.iter().map(Vec::as_slice).collect();
        let request = Request::Lookup(Lookup { dir, path: Path::new(&components) });
        self.submit(common, Task::FindLink { number, version: self.version }, &request)
    }
}

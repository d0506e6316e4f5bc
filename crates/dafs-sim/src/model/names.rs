//! The required state of one client's own directory tree.
//!
//! Only its owner changes a tree, one change at a time, so every answer can be predicted. When the
//! connection breaks before the answer, the tree is one of two until a listing decides.
//!
//! Invariants
//! * There are one or two candidates, and two only after a change in doubt.
//! * A listing that fits no candidate is an error of the system under test.

use std::collections::{BTreeMap, BTreeSet};

/// Index of a file in the world's list of files.
pub type FileNumber = usize;

/// A name in a directory of the tree.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The directory below the top; `None` for the top itself.
    pub dir: Option<u8>,
    /// The name in it.
    pub name: u8,
}

/// The object behind a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A regular file.
    File(FileNumber),
    /// A directory; only in the top.
    Directory,
    /// A symlink with this number in its text.
    Symlink(u64),
}

/// A change of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A guarded create of a regular file.
    Create(Place, FileNumber),
    /// A directory in the top.
    MakeDirectory(Place),
    /// A symlink.
    MakeSymlink(Place, u64),
    /// Another name for a file.
    Link(Place, Place),
    /// A removal.
    Remove(Place),
    /// A move.
    Rename(Place, Place),
}

/// The reason why a change must fail. Where several apply, the error of [`Tree::apply`] is the set
/// of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names are the meaning")]
pub enum Refusal {
    Exists,
    IsDirectory,
    NotDirectory,
    NotEmpty,
    NotFound,
}

/// One candidate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    entries: BTreeMap<Place, Entry>,
}

type Outcome = Result<Tree, Refusal>;

impl Tree {
    /// The object behind a name.
    pub fn get(&self, place: &Place) -> Option<&Entry> {
        self.entries.get(place)
    }

    /// Every occupied place.
    pub fn places(&self) -> impl Iterator<Item = &Place> {
        self.entries.keys()
    }

    /// The names of a directory.
    pub fn list(&self, dir: Option<u8>) -> BTreeMap<u8, &Entry> {
        let inside = self.entries.iter().filter(|(place, _)| place.dir == dir);
        inside.map(|(place, entry)| (place.name, entry)).collect()
    }

    /// The directories below the top.
    pub fn directories(&self) -> BTreeSet<u8> {
        let is_directory = |entry: &Entry| *entry == Entry::Directory;
        let all = self.entries.iter().filter(|(_, entry)| is_directory(entry));
        all.map(|(place, _)| place.name).collect()
    }

    /// How many names a file has.
    pub fn links(&self, file: FileNumber) -> usize {
        self.entries.values().filter(|entry| **entry == Entry::File(file)).count()
    }

    /// Every file that has a name, with one of them.
    pub fn files(&self) -> BTreeMap<FileNumber, Place> {
        let file = |(place, entry): (&Place, &Entry)| match entry {
            Entry::File(number) => Some((*number, place.clone())),
            _ => None,
        };
        self.entries.iter().filter_map(file).collect()
    }

    fn parent_exists(&self, place: &Place) -> Result<(), Refusal> {
        let Some(dir) = place.dir else { return Ok(()) };
        match self.get(&Place { dir: None, name: dir }) {
            Some(Entry::Directory) => Ok(()),
            Some(_) => Err(Refusal::NotDirectory),
            None => Err(Refusal::NotFound),
        }
    }

    fn is_empty_directory(&self, name: u8) -> bool {
        self.entries.keys().all(|place| place.dir != Some(name))
    }

    fn with(&self, place: &Place, entry: Entry) -> Outcome {
        self.parent_exists(place)?;
        if self.get(place).is_some() {
            return Err(Refusal::Exists);
        }
        let mut tree = self.clone();
        tree.entries.insert(place.clone(), entry);
        Ok(tree)
    }

    /// The tree after a change.
    ///
    /// # Errors
    /// The reasons why the change must fail.
    pub fn apply(&self, change: &Change) -> Outcome {
        match change {
            Change::Create(place, file) => self.with(place, Entry::File(*file)),
            Change::MakeDirectory(place) => self.with(place, Entry::Directory),
            Change::MakeSymlink(place, number) => self.with(place, Entry::Symlink(*number)),
            Change::Link(from, to) => {
                self.parent_exists(from)?;
                match self.get(from).ok_or(Refusal::NotFound)? {
                    Entry::Directory => Err(Refusal::IsDirectory),
                    entry => self.with(to, entry.clone()),
                }
            }
            Change::Remove(place) => {
                self.parent_exists(place)?;
                let entry = self.get(place).ok_or(Refusal::NotFound)?;
                if *entry == Entry::Directory && !self.is_empty_directory(place.name) {
                    return Err(Refusal::NotEmpty);
                }
                let mut tree = self.clone();
                tree.entries.remove(place);
                Ok(tree)
            }
            Change::Rename(from, to) => self.rename(from, to),
        }
    }

    fn rename(&self, from: &Place, to: &Place) -> Outcome {
        self.parent_exists(from)?;
        self.parent_exists(to)?;
        let entry = self.get(from).ok_or(Refusal::NotFound)?.clone();
        let target = self.get(to);
        if from == to {
            return Ok(self.clone());
        }
        match (&entry, target) {
            // POSIX: two names of one file stay as they are.
            (Entry::File(a), Some(Entry::File(b))) if a == b => return Ok(self.clone()),
            (Entry::Directory, Some(Entry::Directory)) if !self.is_empty_directory(to.name) => {
                return Err(Refusal::NotEmpty);
            }
            (Entry::Directory, Some(Entry::Directory)) | (_, None) => {}
            (Entry::Directory, Some(_)) => return Err(Refusal::NotDirectory),
            (_, Some(Entry::Directory)) => return Err(Refusal::IsDirectory),
            (_, Some(_)) => {}
        }
        let mut tree = self.clone();
        tree.entries.remove(from);
        tree.entries.insert(to.clone(), entry.clone());
        if entry == Entry::Directory {
            for place in self.entries.keys().filter(|place| place.dir == Some(from.name)) {
                if let Some(inside) = tree.entries.remove(place) {
                    let moved = Place { dir: Some(to.name), name: place.name };
                    tree.entries.insert(moved, inside);
                }
            }
        }
        Ok(tree)
    }
}

/// The tree of one client, certain or one of two.
#[derive(Debug, Clone, Default)]
pub struct HomeModel {
    known: Tree,
    /// The other possibility, after a change in doubt.
    other: Option<Tree>,
}

impl HomeModel {
    /// The tree, if it is certain.
    pub fn certain(&self) -> Option<&Tree> {
        self.other.is_none().then_some(&self.known)
    }

    /// Every possibility.
    pub fn candidates(&self) -> impl Iterator<Item = &Tree> {
        std::iter::once(&self.known).chain(&self.other)
    }

    /// Handles the answer to a change.
    ///
    /// # Errors
    /// An answer that the model excludes.
    pub fn answered(&mut self, change: &Change, answer: Result<(), Refusal>) -> Result<(), String> {
        debug_assert!(self.other.is_none(), "a change was made while another was in doubt");
        match (self.known.apply(change), answer) {
            (Ok(tree), Ok(())) => {
                self.known = tree;
                Ok(())
            }
            (Err(expected), Err(told)) if expected == told => Ok(()),
            (expected, told) => {
                Err(format!("{change:?} was answered {told:?}, not {:?}", expected.map(|_| ())))
            }
        }
    }

    /// Handles a change whose connection broke before the answer.
    pub fn in_doubt(&mut self, change: &Change) {
        self.other = self.known.apply(change).ok().filter(|tree| *tree != self.known);
    }

    /// Keeps the candidates that `fits`.
    ///
    /// # Errors
    /// No candidate fits.
    pub fn decide(&mut self, fits: impl Fn(&Tree) -> bool) -> Result<(), String> {
        let fitting: Vec<Tree> = self.candidates().filter(|tree| fits(tree)).cloned().collect();
        match <[Tree; 1]>::try_from(fitting) {
            Ok([tree]) => {
                self.known = tree;
                self.other = None;
                Ok(())
            }
            Err(several) if several.is_empty() => Err("the listing fits no candidate".to_owned()),
            Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn top(name: u8) -> Place {
        Place { dir: None, name }
    }

    fn inside(dir: u8, name: u8) -> Place {
        Place { dir: Some(dir), name }
    }

    fn home(changes: &[Change]) -> HomeModel {
        let mut home = HomeModel::default();
        for change in changes {
            home.answered(change, Ok(())).unwrap();
        }
        home
    }

    #[test]
    fn changes_apply_as_a_file_system_would() {
        let mut home = home(&[
            Change::MakeDirectory(top(1)),
            Change::Create(inside(1, 5), 0),
            Change::Link(inside(1, 5), top(2)),
        ]);
        assert_eq!(home.certain().unwrap().links(0), 2);
        home.answered(&Change::Remove(top(1)), Err(Refusal::NotEmpty)).unwrap();
        home.answered(&Change::Create(top(2), 1), Err(Refusal::Exists)).unwrap();
        home.answered(&Change::Rename(top(2), top(1)), Err(Refusal::IsDirectory)).unwrap();
        home.answered(&Change::Rename(top(1), top(2)), Err(Refusal::NotDirectory)).unwrap();
        home.answered(&Change::Rename(top(1), top(3)), Ok(())).unwrap();
        home.answered(&Change::Remove(inside(1, 5)), Err(Refusal::NotFound)).unwrap();
        home.answered(&Change::Remove(inside(3, 5)), Ok(())).unwrap();
        assert_eq!(home.certain().unwrap().links(0), 1);
        assert!(home.answered(&Change::Remove(top(2)), Err(Refusal::NotFound)).is_err());
    }

    #[test]
    fn a_change_in_doubt_leaves_two_trees_until_a_listing_tells() {
        let mut home = home(&[Change::Create(top(1), 0)]);
        home.in_doubt(&Change::Rename(top(1), top(2)));
        assert!(home.certain().is_none());
        let mut moved = home.clone();
        moved.decide(|tree| tree.get(&top(2)).is_some()).unwrap();
        assert!(moved.certain().unwrap().get(&top(1)).is_none());
        assert!(home.clone().decide(|tree| tree.list(None).is_empty()).is_err());
        home.decide(|tree| tree.list(None).contains_key(&1)).unwrap();
        assert!(home.certain().is_some());
        // A change that must fail leaves no doubt.
        home.in_doubt(&Change::Remove(top(9)));
        assert!(home.certain().is_some());
    }
}

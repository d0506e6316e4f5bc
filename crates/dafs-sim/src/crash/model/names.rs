//! The names of one client, which no other client changes.
//!
//! Invariants
//! * At most one outstanding change names a place. A place of a lost change stays undecided: it is
//!   not used again.

use dafs_store::FileId;
use dafs_wire::dafs::{FileHandle, Status};
use std::collections::{BTreeMap, BTreeSet};

/// A name in one of the shared directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) dir: u8,
    pub(crate) name: u8,
}

/// The object behind a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) object: u32,
    pub(crate) is_directory: bool,
}

/// The mode of a file's creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    Unchecked,
    Guarded,
    Exclusive(u64),
}

/// One change of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Create { at: Place, object: u32, how: How },
    MakeDirectory { at: Place, object: u32 },
    Remove { at: Place },
    Rename { from: Place, to: Place },
    Link { from: Place, to: Place },
    SetMode { at: Place, mode: u32 },
}

impl Change {
    pub(crate) fn places(&self) -> impl Iterator<Item = Place> {
        let (first, second) = match *self {
            Self::Create { at, .. }
            | Self::MakeDirectory { at, .. }
            | Self::Remove { at }
            | Self::SetMode { at, .. } => (at, None),
            Self::Rename { from, to } | Self::Link { from, to } => (from, Some(to)),
        };
        std::iter::once(first).chain(second)
    }
}

/// The objects at some places.
pub(crate) type Holds = Vec<(Place, Option<Entry>)>;

/// A change that may have happened.
#[derive(Debug)]
pub(crate) struct Doubt {
    pub(crate) change: Change,
    pub(crate) before: Holds,
    pub(crate) after: Holds,
}

/// The names of one client.
#[derive(Debug, Default)]
pub(crate) struct Names {
    entries: BTreeMap<Place, Entry>,
    busy: BTreeSet<Place>,
    pub(crate) doubts: Vec<Doubt>,
    /// The known handles of objects.
    pub(crate) handles: BTreeMap<u32, FileHandle>,
    /// The permission bits that an object may have.
    pub(crate) modes: BTreeMap<u32, BTreeSet<u32>>,
    last_object: u32,
}

impl Names {
    pub(crate) fn new_object(&mut self) -> u32 {
        self.last_object += 1;
        self.last_object
    }

    pub(crate) fn is_busy(&self, place: Place) -> bool {
        self.busy.contains(&place)
    }

    pub(crate) fn get(&self, place: Place) -> Option<Entry> {
        self.entries.get(&place).copied()
    }

    pub(crate) fn handle(&self, place: Place) -> Option<FileHandle> {
        self.handles.get(&self.get(place)?.object).copied()
    }

    /// All certain entries.
    pub(crate) fn certain(&self) -> impl Iterator<Item = (Place, Entry)> {
        let open: BTreeSet<Place> =
            self.doubts.iter().flat_map(|doubt| doubt.change.places()).collect();
        let entries = self.entries.iter().map(|(place, entry)| (*place, *entry));
        entries.filter(move |(place, _)| !open.contains(place))
    }

    /// Takes the places of a change. Returns false if one of them is busy.
    pub(crate) fn begin(&mut self, change: &Change) -> bool {
        if change.places().any(|place| self.is_busy(place)) {
            return false;
        }
        self.busy.extend(change.places());
        true
    }

    /// The result of a change, or the statuses of which one must refuse it.
    fn outcome(&self, change: &Change) -> Result<Holds, &'static [Status]> {
        let found = |place: Place| self.get(place).ok_or(&[Status::NoEnt][..]);
        match *change {
            Change::Create { at, object, how } => match (self.get(at), how) {
                (None, _) => Ok(vec![(at, Some(Entry { object, is_directory: false }))]),
                (Some(entry), How::Unchecked) if entry.is_directory => {
                    Err(&[Status::IsDir, Status::Exist])
                }
                (Some(_), How::Unchecked) => Ok(Vec::new()),
                (Some(_), _) => Err(&[Status::Exist]),
            },
            Change::MakeDirectory { at, object } => match self.get(at) {
                None => Ok(vec![(at, Some(Entry { object, is_directory: true }))]),
                Some(_) => Err(&[Status::Exist]),
            },
            Change::Remove { at } => found(at).map(|_| vec![(at, None)]),
            Change::Rename { from, to } => {
                let moved = found(from)?;
                match self.get(to) {
                    // Two names of one file: rename has no effect.
                    Some(there) if there.object == moved.object => Ok(Vec::new()),
                    Some(there) if there.is_directory != moved.is_directory => {
                        Err(&[Status::Exist, Status::IsDir, Status::NotDir])
                    }
                    _ => Ok(vec![(from, None), (to, Some(moved))]),
                }
            }
            Change::Link { from, to } => match (found(from)?, self.get(to)) {
                (linked, None) => Ok(vec![(to, Some(linked))]),
                (_, Some(_)) => Err(&[Status::Exist]),
            },
            Change::SetMode { at, .. } => found(at).map(|_| Vec::new()),
        }
    }

    /// Handles the answer to a change.
    pub(crate) fn answered(&mut self, change: &Change, status: Status) -> Result<(), String> {
        match (self.outcome(change), status) {
            (Ok(holds), Status::Ok) => {
                for (place, entry) in holds {
                    match entry {
                        Some(entry) => self.entries.insert(place, entry),
                        None => self.entries.remove(&place),
                    };
                }
                if let Change::SetMode { at, mode } = change
                    && let Some(entry) = self.get(*at)
                {
                    self.modes.insert(entry.object, BTreeSet::from([*mode]));
                }
            }
            (Err(expected), status) if expected.contains(&status) => {}
            (expected, _) => {
                return Err(format!("answered {status}, expected {expected:?}"));
            }
        }
        change.places().for_each(|place| {
            self.busy.remove(&place);
        });
        Ok(())
    }

    /// Notes a change whose outcome stays unknown.
    pub(crate) fn lost(&mut self, change: &Change) {
        if let Change::SetMode { at, mode } = change
            && let Some(entry) = self.get(*at)
            // Without known modes, the object may also have the unknown mode of its creation.
            && let Some(modes) = self.modes.get_mut(&entry.object)
        {
            modes.insert(*mode);
        }
        let Ok(after) = self.outcome(change) else { return };
        let before = after.iter().map(|(place, _)| (*place, self.get(*place))).collect();
        self.doubts.push(Doubt { change: *change, before, after });
    }

    /// Compares with the actual entries.
    pub(crate) fn check(&self, actual: &BTreeMap<Place, (FileId, bool)>) -> Result<(), String> {
        let fits = |place: Place, entry: Option<Entry>| match (entry, actual.get(&place)) {
            (None, None) => true,
            (Some(entry), Some((id, is_directory))) => {
                entry.is_directory == *is_directory
                    && self.handles.get(&entry.object).is_none_or(|known| known.file == id.0)
            }
            _ => false,
        };
        for (place, entry) in self.certain() {
            if !fits(place, Some(entry)) {
                return Err(format!("{place:?} must be {entry:?}, not {:?}", actual.get(&place)));
            }
        }
        let mut explained: BTreeSet<Place> = self.certain().map(|(place, _)| place).collect();
        for doubt in &self.doubts {
            explained.extend(doubt.change.places());
            let holds = |holds: &Holds| holds.iter().all(|(place, entry)| fits(*place, *entry));
            if !holds(&doubt.before) && !holds(&doubt.after) {
                let places: Vec<_> =
                    doubt.change.places().map(|place| (place, actual.get(&place))).collect();
                return Err(format!("{doubt:?} left {places:?}"));
            }
        }
        match actual.keys().find(|place| !explained.contains(place)) {
            Some(place) => Err(format!("{place:?} is there, which was removed or never made")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Place = Place { dir: 0, name: 0 };
    const B: Place = Place { dir: 1, name: 1 };

    fn id(number: u8) -> FileId {
        FileId([number; 48])
    }

    #[test]
    fn a_rename_in_doubt_is_all_or_nothing() {
        let mut names = Names::default();
        let object = names.new_object();
        let create = Change::Create { at: A, object, how: How::Guarded };
        assert!(names.begin(&create) && !names.begin(&create));
        names.answered(&create, Status::Ok).unwrap();
        names.handles.insert(object, FileHandle { fs: [0; 16], file: id(1).0 });
        assert!(names.answered(&create, Status::Ok).is_err(), "made twice");
        let rename = Change::Rename { from: A, to: B };
        assert!(names.begin(&rename));
        names.lost(&rename);
        let here = (id(1), false);
        names.check(&BTreeMap::from([(A, here)])).unwrap();
        names.check(&BTreeMap::from([(B, here)])).unwrap();
        assert!(names.check(&BTreeMap::from([(A, here), (B, here)])).is_err());
        assert!(names.check(&BTreeMap::new()).is_err());
        assert!(names.check(&BTreeMap::from([(B, (id(2), false))])).is_err());
    }

    #[test]
    fn an_answered_change_must_have_happened() {
        let mut names = Names::default();
        let object = names.new_object();
        let make = Change::MakeDirectory { at: A, object };
        names.answered(&make, Status::Ok).unwrap();
        assert!(names.check(&BTreeMap::new()).is_err());
        names.answered(&Change::Remove { at: A }, Status::Ok).unwrap();
        names.answered(&Change::Remove { at: A }, Status::NoEnt).unwrap();
        names.check(&BTreeMap::new()).unwrap();
        assert!(names.check(&BTreeMap::from([(A, (id(1), true))])).is_err());
    }
}

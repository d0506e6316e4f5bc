//! Attributes that a change sets: the pre-image that is logged, and the conclusions from the
//! attributes after a crash.
//!
//! Invariants
//! * Conclusions come from the attributes that the change sets. The change attribute moves with
//!   every change of the object, so only an unchanged one leads to a conclusion.
//! * An attribute that had the new value before proves nothing. A change of such attributes only is
//!   reported as not executed: its first and second execution cannot be distinguished.
//! * A value that is neither the old nor the new one is another client's. That change may have come
//!   before or after this one. So the client is told neither that its change happened nor to retry
//!   it.

use super::bytes::{Reader, Writer};
use super::change::MaskedMode;
use super::digest;
use super::evidence::Outcome;
use super::intent::{decode_set_attr, encode_set_attr, is_gone, is_passing, look, server};
use dafs_store::{
    Acl, Attr, FileId, Kind, SetAttr, SetTime, SetXattr, Store, StoreError, TimeSpec,
};

/// All permission bits with setuid, setgid and sticky.
const MODE_BITS: u32 = 0o7777;
/// The bits that an access control list sets.
const ACL_BITS: u32 = 0o777;
/// The bits that file systems clear when others write, or when the owner changes.
const FLEETING_BITS: u32 = 0o6000;

/// The evidence of one attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trace {
    /// None.
    Silent,
    /// It has the new value.
    New,
    /// It has the old value.
    Old,
    /// It has another value.
    Foreign,
}

fn trace<T: PartialEq>(before: &T, wish: &T, now: &T) -> Trace {
    match () {
        () if before == wish => Trace::Silent,
        () if now == wish => Trace::New,
        () if now == before => Trace::Old,
        () => Trace::Foreign,
    }
}

/// Returns the evidence of a size. Writers do not wait, so the old size may have come back: the
/// change attribute shows if it can have.
fn size(before: &Before, wish: u64, now: &Attr) -> Trace {
    match trace(&before.size, &wish, &now.size) {
        Trace::Old if now.change > before.change => Trace::Foreign,
        trace => trace,
    }
}

/// Combines the evidence of several attributes. A partial change is executed again as a whole.
fn outcome(traces: impl IntoIterator<Item = Trace>) -> Outcome {
    let (mut new, mut foreign) = (false, false);
    for trace in traces {
        match trace {
            Trace::Old => return Outcome::Not,
            Trace::New => new = true,
            Trace::Foreign => foreign = true,
            Trace::Silent => {}
        }
    }
    match (foreign, new) {
        (true, _) => Outcome::InDoubt,
        (false, true) => Outcome::Happened,
        (false, false) => Outcome::Not,
    }
}

/// The pre-image of attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Before {
    mode: u32,
    uid: u32,
    gid: u32,
    size: u64,
    atime: TimeSpec,
    mtime: TimeSpec,
    change: u64,
}

/// Checksums of an access control list before the change, and of the new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AclStep {
    before: u32,
    /// `None` when the change will be refused.
    wish: Option<u32>,
}

/// The attributes of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attributes {
    /// `None` when the object is gone.
    before: Option<Before>,
    wish: SetAttr,
    /// The bits of the mode that the change sets.
    mode_bits: u32,
    acl: Option<AclStep>,
}

impl Before {
    fn of(attr: &Attr) -> Self {
        let Attr { mode, uid, gid, size, atime, mtime, change, .. } = *attr;
        Self { mode, uid, gid, size, atime, mtime, change }
    }
}

impl Attributes {
    /// # Errors
    /// `BadHandle` for an object that never existed.
    pub(super) fn pre_image(
        store: &dyn Store,
        file: &FileId,
        change: &SetAttr,
        masked: Option<MaskedMode>,
        acl: Option<&Acl>,
    ) -> Result<Self, StoreError> {
        let found = look(store, file)?;
        let directory = found.is_some_and(|attr| attr.kind == Kind::Directory);
        let (mut wish, mut mode_bits) = (*change, MODE_BITS);
        if let Some(MaskedMode { value, mask }) = masked {
            (wish.mode, mode_bits) = (Some(value), mask & MODE_BITS);
        }
        if acl.is_some() {
            mode_bits &= !ACL_BITS;
        }
        let step = |acl: &Acl| {
            let before = match store.acl(file) {
                Err(error) if is_passing(error) => return Err(error),
                // A list that cannot be read cannot be set either.
                before => before.map(|acl| sum(&acl)),
            };
            let wish = acl.as_kept(directory).map(|acl| sum(&acl));
            Ok(AclStep { before: before.unwrap_or(0), wish: before.and(wish).ok() })
        };
        let acl = acl.map(step).transpose()?;
        Ok(Self { before: found.as_ref().map(Before::of), wish, mode_bits, acl })
    }

    pub(super) fn judge(&self, store: &dyn Store, file: &FileId) -> Result<Outcome, StoreError> {
        // A refused request will be refused again.
        let Some(before) = &self.before else { return Ok(Outcome::Not) };
        let now = match store.getattr(file) {
            Err(error) if is_gone(error) || error == StoreError::BadHandle => {
                return Ok(Outcome::Not);
            }
            now => now?,
        };
        let acl = match self.acl {
            None => Trace::Silent,
            Some(AclStep { wish: None, .. }) => Trace::Old,
            Some(AclStep { before, wish: Some(wish) }) => {
                trace(&before, &wish, &sum(&store.acl(file)?))
            }
        };
        let wish = &self.wish;
        let plain = [
            wish.mode.map(|wish| self.mode(before.mode, wish, now.mode)),
            wish.uid.map(|wish| trace(&before.uid, &wish, &now.uid)),
            wish.gid.map(|wish| trace(&before.gid, &wish, &now.gid)),
            wish.size.map(|wish| size(before, wish, &now)),
            wish.atime.map(|wish| time(before.atime, wish, now.atime)),
            wish.mtime.map(|wish| time(before.mtime, wish, now.mtime)),
            (wish.uid.or(wish.gid).and(Some(Trace::New)))
                .filter(|_| wish.mode.is_none() && lost_rights(before.mode, now.mode)),
        ];
        outcome(plain.into_iter().flatten().chain([acl])).if_newer(store, file, before.change)
    }

    fn mode(&self, before: u32, wish: u32, now: u32) -> Trace {
        let [before, wish, now] = [before, wish, now].map(|mode| mode & self.mode_bits);
        match trace(&before, &wish, &now) {
            Trace::Foreign if now | wish & FLEETING_BITS == wish => Trace::New,
            trace => trace,
        }
    }

    pub(super) fn encode(&self, out: &mut Writer<'_>) {
        out.option(self.before, |out, before| {
            let Before { mode, uid, gid, size, atime, mtime, change } = before;
            [mode, uid, gid].into_iter().for_each(|value| out.u32(value));
            out.u64(size);
            out.time(atime);
            out.time(mtime);
            out.u64(change);
        });
        encode_set_attr(&self.wish, out);
        out.u32(self.mode_bits);
        out.option(self.acl, |out, AclStep { before, wish }| {
            out.u32(before);
            out.option(wish, Writer::u32);
        });
    }

    pub(super) fn decode(from: &mut Reader<'_>) -> Option<Self> {
        let before = from.option(|from| {
            let (mode, uid, gid) = (from.u32()?, from.u32()?, from.u32()?);
            let (size, atime, mtime) = (from.u64()?, from.time()?, from.time()?);
            Some(Before { mode, uid, gid, size, atime, mtime, change: from.u64()? })
        })?;
        let (wish, mode_bits) = (decode_set_attr(from)?, from.u32()?);
        let acl = from.option(|from| {
            Some(AclStep { before: from.u32()?, wish: from.option(Reader::u32)? })
        })?;
        Some(Self { before, wish, mode_bits, acl })
    }
}

/// True if setuid and setgid were cleared, as by a change of the owner. This is evidence even if
/// the new owner is the old one.
fn lost_rights(before: u32, now: u32) -> bool {
    let lent = if before & 0o010 != 0 { FLEETING_BITS } else { 0o4000 };
    before & lent != 0 && now == before & !lent
}

/// Judges a time that the server chooses. Any other time than the old one counts as new: a later
/// change has set its own time, or a time after this one.
fn time(before: TimeSpec, wish: SetTime, now: TimeSpec) -> Trace {
    match wish {
        SetTime::To(wish) => trace(&before, &wish, &now),
        SetTime::Now if now == before => Trace::Old,
        SetTime::Now => Trace::New,
    }
}

/// A change of an extended attribute: a new value, or its removal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Xattr {
    name: Vec<u8>,
    /// The digest of its value, `None` where there was none. The outer `None` where there cannot be
    /// any, so that the request will be refused.
    before: Option<Option<u32>>,
    /// The object's change attribute before.
    change: u64,
    wish: Option<u32>,
    how: SetXattr,
}

/// Returns the digest of an attribute's value. The outer `None` means that there cannot be any.
fn value(store: &dyn Store, file: &FileId, name: &[u8]) -> Result<Option<Option<u32>>, StoreError> {
    match store.xattr(&server(), file, name) {
        Ok(value) => Ok(Some(Some(digest(0, &value)))),
        Err(StoreError::NoXattr) => Ok(Some(None)),
        Err(error) if is_passing(error) || error == StoreError::BadHandle => Err(error),
        Err(_) => Ok(None),
    }
}

impl Xattr {
    /// # Errors
    /// `BadHandle` for an object that never existed. Those of a store that cannot tell.
    pub(super) fn pre_image(
        store: &dyn Store,
        file: &FileId,
        name: &[u8],
        wish: Option<u32>,
        how: SetXattr,
    ) -> Result<Self, StoreError> {
        let change = look(store, file)?.map_or(0, |attr| attr.change);
        Ok(Self { name: name.to_vec(), before: value(store, file, name)?, change, wish, how })
    }

    pub(super) fn judge(&self, store: &dyn Store, file: &FileId) -> Result<Outcome, StoreError> {
        let Some(before) = self.before else { return Ok(Outcome::Not) };
        let refused = match self.how {
            SetXattr::Create => before.is_some(),
            SetXattr::Replace => before.is_none(),
            SetXattr::Either => false,
        };
        let now = match value(store, file, &self.name) {
            Err(StoreError::BadHandle) | Ok(None) => return Ok(Outcome::Not),
            now => now?.flatten(),
        };
        if refused {
            return Ok(Outcome::Not);
        }
        outcome([trace(&before, &self.wish, &now)]).if_newer(store, file, self.change)
    }

    pub(super) fn encode(&self, out: &mut Writer<'_>) {
        out.bytes(&self.name);
        out.option(self.before, |out, before| out.option(before, Writer::u32));
        out.u64(self.change);
        out.option(self.wish, Writer::u32);
        out.u8(match self.how {
            SetXattr::Either => 0,
            SetXattr::Create => 1,
            SetXattr::Replace => 2,
        });
    }

    pub(super) fn decode(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            name: from.bytes()?.to_vec(),
            before: from.option(|from| from.option(Reader::u32))?,
            change: from.u64()?,
            wish: from.option(Reader::u32)?,
            how: match from.u8()? {
                0 => SetXattr::Either,
                1 => SetXattr::Create,
                2 => SetXattr::Replace,
                _ => return None,
            },
        })
    }
}

/// Returns the checksum of an access control list.
fn sum(acl: &Acl) -> u32 {
    use dafs_store::AceWho::{Everyone, Group, NamedGroup, Owner, User};
    acl.entries.iter().fold(0, |before, entry| {
        let (who, id) = match entry.who {
            Owner => (0, 0),
            Group => (1, 0),
            Everyone => (2, 0),
            User(id) => (3, id),
            NamedGroup(id) => (4, id),
        };
        let numbers = [entry.kind as u32, entry.flags.bits(), entry.mask.bits(), who, id];
        numbers.iter().fold(before, |before, number| digest(before, &number.to_le_bytes()))
    })
}

#[cfg(test)]
mod tests {
    use super::Trace::{Foreign, New, Old, Silent};
    use super::*;
    use dafs_store::{MemoryOptions, MemoryStore};
    use dafs_testkit::stores::layer::{Call, Layer, Layered};
    use std::sync::Arc;

    struct Failing(StoreError);

    impl Layer for Failing {
        fn before(&self, call: Call<'_>) -> Result<(), StoreError> {
            match call {
                Call::GetAttr | Call::Xattr | Call::Acl => Err(self.0),
                _ => Ok(()),
            }
        }
    }

    #[test]
    fn a_store_that_cannot_tell_is_not_taken_for_one_without_the_object() {
        let inner = Arc::new(MemoryStore::new(MemoryOptions::default()));
        let file = inner.root();
        let acl = Acl::default();
        for error in [StoreError::Busy, StoreError::Io, StoreError::TooManyOpen] {
            let store = Layered::new(inner.clone(), Failing(error));
            let noted = Attributes::pre_image(&store, &file, &SetAttr::default(), None, Some(&acl));
            assert_eq!(noted.err(), Some(error));
            assert_eq!(value(&store, &file, b"user.x").err(), Some(error));
            assert_eq!(look(&store, &file).err(), Some(error));
        }
        let store = Layered::new(inner, Failing(StoreError::Stale));
        assert!(look(&store, &file).unwrap().is_none());
        assert_eq!(value(&store, &file, b"user.x"), Ok(None));
    }

    #[test]
    fn a_value_that_is_neither_old_nor_new_is_somebody_elses() {
        assert_eq!(trace(&1, &1, &2), Silent);
        assert_eq!([1, 2, 3].map(|now| trace(&1, &2, &now)), [Old, New, Foreign]);
        assert_eq!(outcome([Silent]), Outcome::Not);
        assert_eq!(outcome([Silent, New]), Outcome::Happened);
        assert_eq!(outcome([New, Old]), Outcome::Not, "a part of it is made again");
        assert_eq!(outcome([New, Foreign]), Outcome::InDoubt);
        assert_eq!(outcome([Foreign, Old]), Outcome::Not);
    }

    #[test]
    fn bits_that_a_write_takes_away_are_not_missed() {
        let attributes =
            |mode_bits| Attributes { before: None, wish: SetAttr::default(), mode_bits, acl: None };
        assert_eq!(attributes(0o7777).mode(0o644, 0o4755, 0o755), New);
        assert_eq!(attributes(0o7777).mode(0o644, 0o755, 0o2755), Foreign);
        assert_eq!(attributes(0o7777).mode(0o644, 0o4755, 0o700), Foreign);
        assert_eq!(attributes(0o070).mode(0o644, 0o020, 0o624), New);
        assert_eq!(attributes(0o070).mode(0o644, 0o020, 0o604), Foreign);
        assert_eq!(attributes(0o070).mode(0o644, 0o040, 0o777), Silent);
    }
}

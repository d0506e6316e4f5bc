//! Lists and paths that are either Rust slices (to be sent) or views of a message (received).
//!
//! Invariants
//! * A view was validated when it was decoded, unless its elements cannot be invalid. So iterating
//!   it never fails, and its length is exact.
//! * Views hold no memory of their own.

use super::codec::{Element, Field, Scope, Writer};
use super::error::{DecodeError, EncodeError};
use super::limits::PATH_COMPONENTS_MAX;
use std::fmt;
use std::iter::FusedIterator;

/// A list of `T` without memory of its own: a slice to encode, or a view of a received counted
/// array (DAFS 5.1). Equality is by content.
#[derive(Clone, Copy)]
pub struct Seq<'a, T> {
    inner: Inner<'a, T>,
}

#[derive(Clone, Copy)]
enum Inner<'a, T> {
    Slice(&'a [T]),
    Wire { array: Scope<'a>, count: usize },
}

/// Position of the first element: after the count, and after a pad word when elements are aligned
/// to 8 (DAFS 5.1).
pub(crate) const fn first_element_at(align: usize) -> usize {
    if align == 8 { 8 } else { 4 }
}

impl<'a, T: Element<'a>> Seq<'a, T> {
    /// The list of the slice's elements.
    pub const fn new(slice: &'a [T]) -> Self {
        Self { inner: Inner::Slice(slice) }
    }

    /// The empty list.
    pub const fn empty() -> Self {
        Self::new(&[])
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self.inner {
            Inner::Slice(slice) => slice.len(),
            Inner::Wire { count, .. } => count,
        }
    }

    /// True when the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element at `index`.
    #[inline]
    pub fn get(&self, index: usize) -> Option<T> {
        match self.inner {
            Inner::Slice(slice) => slice.get(index).copied(),
            Inner::Wire { array, count } if index < count => {
                T::read(array, first_element_at(T::ALIGN) + index * T::BYTES).ok()
            }
            Inner::Wire { .. } => None,
        }
    }

    /// The first element.
    pub fn first(&self) -> Option<T> {
        self.get(0)
    }

    /// The elements in order.
    pub fn iter(&self) -> SeqIter<'a, T> {
        SeqIter { seq: *self, next: 0 }
    }

    /// The counted array that begins with the scope.
    pub(crate) fn read_array(array: Scope<'a>) -> Result<Self, DecodeError> {
        let count = array.u32(0)? as usize;
        if count > T::COUNT_MAX {
            return Err(DecodeError::TooMany { count, max: T::COUNT_MAX });
        }
        let first = first_element_at(T::ALIGN);
        let bytes = count.saturating_mul(T::BYTES);
        if count > 0 {
            array.require(first, bytes)?;
        }
        if !T::TRIVIAL {
            for index in 0..count {
                T::read(array, first + index * T::BYTES)?;
            }
        }
        Ok(Self { inner: Inner::Wire { array, count } })
    }

    /// Writes the counted array to the heap; returns its position.
    pub(crate) fn write_array(&self, writer: &mut Writer<'_>) -> Result<usize, EncodeError> {
        let array = writer.allocate(first_element_at(T::ALIGN), 8)?;
        writer.put_count(array, self.len())?;
        let bytes = self.len().saturating_mul(T::BYTES);
        let first = writer.allocate(bytes, T::ALIGN)?;
        writer.within(array, |writer| {
            for (index, element) in self.iter().enumerate() {
                element.write(writer, first + index * T::BYTES)?;
            }
            Ok(array)
        })
    }
}

impl<'a, T: Element<'a>> Field<'a> for Seq<'a, T> {
    const TRIVIAL: bool = false;

    #[inline]
    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        match scope.target(at, 8)? {
            Some(target) => Self::read_array(scope.inner(target)?),
            None => Ok(Self::empty()),
        }
    }

    #[inline]
    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        let target = self.write_array(writer)?;
        writer.put_offset(at, target)
    }
}

impl<'a, T: Element<'a>> Default for Seq<'a, T> {
    fn default() -> Self {
        Self::empty()
    }
}

impl<'a, T: Element<'a> + PartialEq> PartialEq for Seq<'a, T> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<'a, T: Element<'a> + Eq> Eq for Seq<'a, T> {}

impl<'a, T: Element<'a> + fmt::Debug> fmt::Debug for Seq<'a, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a, T: Element<'a>> IntoIterator for Seq<'a, T> {
    type Item = T;
    type IntoIter = SeqIter<'a, T>;

    fn into_iter(self) -> SeqIter<'a, T> {
        SeqIter { seq: self, next: 0 }
    }
}

impl<'a, T: Element<'a>> From<&'a [T]> for Seq<'a, T> {
    fn from(slice: &'a [T]) -> Self {
        Self::new(slice)
    }
}

/// Iterator over the elements of a [`Seq`].
#[derive(Clone)]
pub struct SeqIter<'a, T> {
    seq: Seq<'a, T>,
    next: usize,
}

impl<'a, T: Element<'a>> Iterator for SeqIter<'a, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        let element = self.seq.get(self.next)?;
        self.next += 1;
        Some(element)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.seq.len() - self.next;
        (left, Some(left))
    }
}

impl<'a, T: Element<'a>> ExactSizeIterator for SeqIter<'a, T> {}
impl<'a, T: Element<'a>> FusedIterator for SeqIter<'a, T> {}

/// A path: a list of components, packed inline on the wire, each on an 8-byte boundary (DAFS O11).
/// Components are any bytes, because not every name is UTF-8 (a decision of dafs). Equality is by
/// content.
#[derive(Clone, Copy)]
pub struct Path<'a> {
    inner: PathInner<'a>,
}

#[derive(Clone, Copy)]
enum PathInner<'a> {
    Slice(&'a [&'a [u8]]),
    Wire { array: Scope<'a>, count: usize },
}

impl<'a> Path<'a> {
    /// The path with these components.
    pub const fn new(components: &'a [&'a [u8]]) -> Self {
        Self { inner: PathInner::Slice(components) }
    }

    /// The path without components.
    pub const fn empty() -> Self {
        Self::new(&[])
    }

    /// Number of components.
    pub fn len(&self) -> usize {
        match self.inner {
            PathInner::Slice(components) => components.len(),
            PathInner::Wire { count, .. } => count,
        }
    }

    /// True when the path is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The components from the first to the last.
    pub fn iter(&self) -> PathIter<'a> {
        PathIter { path: *self, next: 0, at: 8 }
    }

    fn read_array(array: Scope<'a>) -> Result<Self, DecodeError> {
        let count = array.u32(0)? as usize;
        if count > PATH_COMPONENTS_MAX {
            return Err(DecodeError::TooMany { count, max: PATH_COMPONENTS_MAX });
        }
        let mut at = 8;
        for _ in 0..count {
            at = component_end(at, array.string(at)?);
        }
        Ok(Self { inner: PathInner::Wire { array, count } })
    }
}

/// The position after a component.
fn component_end(at: usize, component: &[u8]) -> usize {
    (at + 4 + component.len()).next_multiple_of(8)
}

impl<'a> Field<'a> for Path<'a> {
    const TRIVIAL: bool = false;

    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        match scope.target(at, 8)? {
            Some(target) => Self::read_array(scope.inner(target)?),
            None => Ok(Self::empty()),
        }
    }

    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        let array = writer.allocate(8, 8)?;
        writer.put_count(array, self.len())?;
        for component in self.iter() {
            writer.allocate(0, 8)?;
            writer.string(component)?;
        }
        writer.put_offset(at, array)
    }
}

impl Default for Path<'_> {
    fn default() -> Self {
        Self::empty()
    }
}

impl PartialEq for Path<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl Eq for Path<'_> {}

impl fmt::Debug for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for (index, component) in self.iter().enumerate() {
            write!(f, "{}{}", if index > 0 { "/" } else { "" }, component.escape_ascii())?;
        }
        f.write_str("\"")
    }
}

impl<'a> IntoIterator for Path<'a> {
    type Item = &'a [u8];
    type IntoIter = PathIter<'a>;

    fn into_iter(self) -> PathIter<'a> {
        PathIter { path: self, next: 0, at: 8 }
    }
}

/// Iterator over the components of a [`Path`].
#[derive(Clone)]
pub struct PathIter<'a> {
    path: Path<'a>,
    next: usize,
    at: usize,
}

impl<'a> Iterator for PathIter<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let component = match self.path.inner {
            PathInner::Slice(components) => *components.get(self.next)?,
            PathInner::Wire { array, count } if self.next < count => array.string(self.at).ok()?,
            PathInner::Wire { .. } => return None,
        };
        self.at = component_end(self.at, component);
        self.next += 1;
        Some(component)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.path.len() - self.next;
        (left, Some(left))
    }
}

impl ExactSizeIterator for PathIter<'_> {}
impl FusedIterator for PathIter<'_> {}

//! Reading and writing of fields at offsets, and the `layout!` macro that declares fixed sections.
//!
//! Invariants
//! * A [`Scope`] starts at the base of its offsets (DAFS 5.1) and ends with the message; every
//!   access is checked against that end.
//! * A [`Writer`] zeroes every byte it allocates, so pad bytes are zero (DAFS O7).
//! * Bases are multiples of 8 from the start of the message, so the offset alone determines
//!   alignment.

use super::error::{DecodeError, EncodeError};
use super::limits::HEADER_BYTES;
use super::order::ByteOrder;

/// A part of a message that is the base of offsets.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'a> {
    bytes: &'a [u8],
    order: ByteOrder,
}

impl<'a> Scope<'a> {
    /// The scope of the given bytes.
    pub(crate) fn new(bytes: &'a [u8], order: ByteOrder) -> Self {
        Self { bytes, order }
    }

    /// The bytes from the base to the end of the message.
    pub(crate) fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Fails unless `bytes` bytes lie at `at`.
    #[inline(always)]
    pub(crate) fn require(self, at: usize, bytes: usize) -> Result<(), DecodeError> {
        match at.checked_add(bytes) {
            Some(end) if end <= self.bytes.len() => Ok(()),
            _ => Err(DecodeError::Overrun { offset: at, bytes }),
        }
    }

    #[inline(always)]
    pub(crate) fn array<const N: usize>(self, at: usize) -> Result<[u8; N], DecodeError> {
        match self.bytes.get(at..).and_then(|rest| rest.first_chunk::<N>()) {
            Some(bytes) => Ok(*bytes),
            None => Err(DecodeError::Overrun { offset: at, bytes: N }),
        }
    }

    #[inline]
    pub(crate) fn slice(self, at: usize, bytes: usize) -> Result<&'a [u8], DecodeError> {
        at.checked_add(bytes)
            .and_then(|end| self.bytes.get(at..end))
            .ok_or(DecodeError::Overrun { offset: at, bytes })
    }

    #[inline(always)]
    pub(crate) fn u16(self, at: usize) -> Result<u16, DecodeError> {
        Ok(self.order.u16(u16::from_ne_bytes(self.array(at)?)))
    }

    #[inline(always)]
    pub(crate) fn u32(self, at: usize) -> Result<u32, DecodeError> {
        Ok(self.order.u32(u32::from_ne_bytes(self.array(at)?)))
    }

    #[inline(always)]
    pub(crate) fn u64(self, at: usize) -> Result<u64, DecodeError> {
        Ok(self.order.u64(u64::from_ne_bytes(self.array(at)?)))
    }

    /// Follows the offset stored at `at`. Returns the start of its target in this scope, or `None`
    /// for 0, which means absent or empty (DAFS O8).
    #[inline]
    pub(crate) fn target(self, at: usize, align: usize) -> Result<Option<usize>, DecodeError> {
        let offset = self.u32(at)? as usize;
        if offset == 0 {
            return Ok(None);
        }
        if !offset.is_multiple_of(align) {
            return Err(DecodeError::Misaligned { offset, align });
        }
        if offset > self.bytes.len() {
            return Err(DecodeError::Overrun { offset, bytes: 0 });
        }
        Ok(Some(offset))
    }

    /// The scope that begins at `at` (an array or an attribute block).
    #[inline]
    pub(crate) fn inner(self, at: usize) -> Result<Scope<'a>, DecodeError> {
        match self.bytes.get(at..) {
            Some(bytes) => Ok(Self { bytes, order: self.order }),
            None => Err(DecodeError::Overrun { offset: at, bytes: 0 }),
        }
    }

    #[inline]
    pub(crate) fn string(self, at: usize) -> Result<&'a [u8], DecodeError> {
        let count = self.u32(at)? as usize;
        self.slice(at.saturating_add(4), count)
    }
}

/// Writes a message front to back: fixed parts by position, then the heap.
#[derive(Debug)]
pub struct Writer<'b> {
    out: &'b mut [u8],
    base: usize,
    end: usize,
    order: ByteOrder,
}

impl<'b> Writer<'b> {
    /// A writer whose first byte goes to `out[start]` and whose offsets count from there.
    /// `start` is a multiple of 8.
    pub(crate) fn new(out: &'b mut [u8], start: usize, order: ByteOrder) -> Self {
        Self { out, base: start, end: start, order }
    }

    /// Fails unless a header fits before the body.
    #[inline]
    pub(crate) fn require_header(&self) -> Result<(), EncodeError> {
        if self.out.len() < HEADER_BYTES { Err(self.no_room()) } else { Ok(()) }
    }

    /// Position after the last allocated byte.
    pub(crate) fn end(&self) -> usize {
        self.end
    }

    /// The error of a message that does not fit.
    #[cold]
    fn no_room(&self) -> EncodeError {
        EncodeError::NoRoom { room: self.out.len() }
    }

    /// Allocates zeroed bytes at the next multiple of `align`; returns the position.
    #[inline]
    pub(crate) fn allocate(&mut self, bytes: usize, align: usize) -> Result<usize, EncodeError> {
        let at = self.end.next_multiple_of(align);
        let end = at.checked_add(bytes).filter(|end| *end <= self.out.len());
        let Some(end) = end else { return Err(self.no_room()) };
        // INVARIANT: self.end <= at <= end, since both only grow from one to the next.
        self.out[self.end..end].fill(0);
        self.end = end;
        Ok(at)
    }

    /// Appends raw bytes at the current end.
    #[inline]
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        let end = self.end.checked_add(bytes.len()).filter(|end| *end <= self.out.len());
        let Some(end) = end else { return Err(self.no_room()) };
        self.out[self.end..end].copy_from_slice(bytes);
        self.end = end;
        Ok(())
    }

    /// Stores bytes at a position.
    #[inline(always)]
    pub(crate) fn put<const N: usize>(
        &mut self,
        at: usize,
        bytes: [u8; N],
    ) -> Result<(), EncodeError> {
        match self.out.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<N>()) {
            Some(place) => {
                *place = bytes;
                Ok(())
            }
            None => Err(self.no_room()),
        }
    }

    /// Stores a number at a position.
    #[inline(always)]
    pub(crate) fn put_u16(&mut self, at: usize, value: u16) -> Result<(), EncodeError> {
        self.put(at, self.order.u16(value).to_ne_bytes())
    }

    /// Stores a number at a position.
    #[inline(always)]
    pub(crate) fn put_u32(&mut self, at: usize, value: u32) -> Result<(), EncodeError> {
        self.put(at, self.order.u32(value).to_ne_bytes())
    }

    /// Stores a number at a position.
    #[inline(always)]
    pub(crate) fn put_u64(&mut self, at: usize, value: u64) -> Result<(), EncodeError> {
        self.put(at, self.order.u64(value).to_ne_bytes())
    }

    /// Subtracts `bytes` from an offset that was stored before.
    #[inline]
    pub(crate) fn lower_u32(&mut self, at: usize, bytes: usize) -> Result<(), EncodeError> {
        let stored = self.out.get(at..).and_then(|rest| rest.first_chunk::<4>());
        let Some(stored) = stored else { return Err(self.no_room()) };
        let offset = self.order.u32(u32::from_ne_bytes(*stored)) as usize;
        let offset = offset.checked_sub(bytes).ok_or_else(|| self.no_room())?;
        self.put_count(at, offset)
    }

    /// Stores a count or length.
    #[inline]
    pub(crate) fn put_count(&mut self, at: usize, value: usize) -> Result<(), EncodeError> {
        let value = u32::try_from(value).map_err(|_| self.no_room())?;
        self.put_u32(at, value)
    }

    /// Stores at `at` the offset of `target` in the current scope.
    #[inline]
    pub(crate) fn put_offset(&mut self, at: usize, target: usize) -> Result<(), EncodeError> {
        self.put_count(at, target - self.base)
    }

    /// Writes a string to the heap; returns its position. Strings are counted arrays, so they begin
    /// at multiples of 8 (DAFS 5.1); this decoder also accepts multiples of 4.
    #[inline]
    pub(crate) fn string(&mut self, text: &[u8]) -> Result<usize, EncodeError> {
        let at = self.allocate(4, 8)?;
        self.put_count(at, text.len())?;
        self.append(text)?;
        Ok(at)
    }

    /// Runs `write` with offsets counted from `base`.
    #[inline]
    pub(crate) fn within<T>(
        &mut self,
        base: usize,
        write: impl FnOnce(&mut Self) -> Result<T, EncodeError>,
    ) -> Result<T, EncodeError> {
        let outer = std::mem::replace(&mut self.base, base);
        let result = write(self);
        self.base = outer;
        result
    }
}

/// A value that can be stored in a fixed section, an array element or an attribute block.
pub trait Field<'a>: Sized {
    /// True if a read cannot fail once the bytes exist, so that arrays of it need no validation.
    const TRIVIAL: bool;

    /// Reads the value whose fixed part is at `at` in the scope.
    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError>;

    /// Writes the fixed part at position `at`, which has been allocated, and the rest to the heap.
    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError>;
}

/// A value that can be an element of a counted array.
pub trait Element<'a>: Field<'a> + Copy {
    /// Length of the element's fixed part, in bytes.
    const BYTES: usize;
    /// Alignment of the element, 4 or 8 bytes; 8 puts a pad word after the count (DAFS 5.1).
    const ALIGN: usize;
    /// The most elements that a decoder accepts.
    const COUNT_MAX: usize;
}

macro_rules! number_field {
    ($($type:ty, $read:ident, $put:ident;)*) => { $(
        impl<'a> Field<'a> for $type {
            const TRIVIAL: bool = true;

            #[inline(always)]
            fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
                scope.$read(at)
            }

            #[inline(always)]
            fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
                writer.$put(at, *self)
            }
        }
    )* };
}

number_field! {
    u16, u16, put_u16;
    u32, u32, put_u32;
    u64, u64, put_u64;
}

impl<'a, const N: usize> Field<'a> for [u8; N] {
    const TRIVIAL: bool = true;

    #[inline(always)]
    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        scope.array(at)
    }

    #[inline(always)]
    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        writer.put(at, *self)
    }
}

/// Declares a type of opaque bytes, which are never swapped (DAFS 5.1).
macro_rules! opaque_bytes {
    ($( $(#[$meta:meta])* $name:ident [$bytes:literal]; )*) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub [u8; $bytes]);

        impl $name {
            /// All bytes zero.
            pub const ZERO: Self = Self([0; $bytes]);
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(concat!(stringify!($name), "("))?;
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
                f.write_str(")")
            }
        }

        impl<'a> Field<'a> for $name {
            const TRIVIAL: bool = true;

            #[inline(always)]
            fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
                scope.array(at).map(Self)
            }

            #[inline(always)]
            fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
                writer.put(at, self.0)
            }
        }
    )* };
}
pub(crate) use opaque_bytes;

/// A boolean is one byte, 0 or 1 (DAFS 5.1).
impl<'a> Field<'a> for bool {
    const TRIVIAL: bool = false;

    #[inline(always)]
    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        match scope.array::<1>(at)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [value] => Err(DecodeError::BadValue { field: "boolean", value: value.into() }),
        }
    }

    #[inline(always)]
    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        writer.put(at, [u8::from(*self)])
    }
}

/// A boolean that the draft declares as a word.
pub(crate) struct WordBool(bool);

impl From<bool> for WordBool {
    fn from(value: bool) -> Self {
        Self(value)
    }
}

impl From<WordBool> for bool {
    fn from(value: WordBool) -> Self {
        value.0
    }
}

impl<'a> Field<'a> for WordBool {
    const TRIVIAL: bool = false;

    #[inline(always)]
    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        match scope.u32(at)? {
            0 => Ok(Self(false)),
            1 => Ok(Self(true)),
            value => Err(DecodeError::BadValue { field: "boolean word", value: value.into() }),
        }
    }

    #[inline(always)]
    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        writer.put_u32(at, u32::from(self.0))
    }
}

/// Strings are on the heap; the fixed part is their offset. Any bytes are accepted, because names
/// that are not UTF-8 must survive (a decision of dafs; the draft requires UTF-8).
impl<'a> Field<'a> for &'a [u8] {
    const TRIVIAL: bool = false;

    #[inline]
    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        match scope.target(at, 4)? {
            Some(target) => scope.string(target),
            None => Ok(&[]),
        }
    }

    #[inline]
    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        let target = writer.string(self)?;
        writer.put_offset(at, target)
    }
}

impl<'a> Element<'a> for &'a [u8] {
    const BYTES: usize = 4;
    const ALIGN: usize = 4;
    const COUNT_MAX: usize = super::limits::UNLIMITED;
}

impl Element<'_> for u32 {
    const BYTES: usize = 4;
    const ALIGN: usize = 4;
    const COUNT_MAX: usize = super::limits::GROUPS_MAX;
}

/// Declares structs of the wire format with the position of each field, and their codec.
///
/// `layout! { /// doc  pub struct Name<'a> [BYTES] { /// doc  field: Type = position, } }`; a field
/// may say `as Codec` to be stored as another type, and a struct `[BYTES, array ALIGN]` to be an
/// element of counted arrays.
macro_rules! layout {
    (@read $scope:ident, $at:expr, $type:ty) => {
        <$type as $crate::dafs::codec::Field<'_>>::read($scope, $at)?
    };
    (@read $scope:ident, $at:expr, $type:ty, $codec:ty) => {
        <$type>::from(<$codec as $crate::dafs::codec::Field<'_>>::read($scope, $at)?)
    };
    (@write $value:expr, $writer:ident, $at:expr) => {
        $crate::dafs::codec::Field::write(&$value, $writer, $at)?
    };
    (@write $value:expr, $writer:ident, $at:expr, $codec:ty) => {
        $crate::dafs::codec::Field::write(&<$codec>::from($value), $writer, $at)?
    };
    (@trivial $type:ty) => { <$type as $crate::dafs::codec::Field<'_>>::TRIVIAL };
    (@trivial $type:ty, $codec:ty) => { <$codec as $crate::dafs::codec::Field<'_>>::TRIVIAL };
    (@codec $name:ty, [$bytes:literal $(, array $align:literal max $max:expr)?],
        $( $field:ident: $type:ty $(, $codec:ty)? = $at:literal; )*) => {
        impl<'a> $crate::dafs::codec::Field<'a> for $name {
            const TRIVIAL: bool =
                true $( && $crate::dafs::codec::layout!(@trivial $type $(, $codec)?) )*;

            #[inline]
            fn read(
                scope: $crate::dafs::codec::Scope<'a>,
                at: usize,
            ) -> Result<Self, $crate::dafs::error::DecodeError> {
                scope.require(at, $bytes)?;
                Ok(Self {
                    $( $field: $crate::dafs::codec::layout!(
                        @read scope, at + $at, $type $(, $codec)?), )*
                })
            }

            #[inline]
            fn write(
                &self,
                writer: &mut $crate::dafs::codec::Writer<'_>,
                at: usize,
            ) -> Result<(), $crate::dafs::error::EncodeError> {
                $( $crate::dafs::codec::layout!(
                    @write self.$field, writer, at + $at $(, $codec)?); )*
                Ok(())
            }
        }

        impl<'a> $crate::dafs::codec::Section for $name {
            const BYTES: usize = $bytes;
        }

        impl<'a> $name {
            /// Reads the struct from the body of a message, which begins after the header. A caller
            /// that expects this type decodes it faster than with the general decoder.
            ///
            /// # Errors
            /// The fault in the body.
            #[inline]
            pub fn decode_body(
                body: &'a [u8],
                order: $crate::dafs::order::ByteOrder,
            ) -> Result<Self, $crate::dafs::error::DecodeError> {
                $crate::dafs::codec::Field::read(
                    $crate::dafs::codec::Scope::new(body, order), 0)
            }
        }

        $( impl<'a> $crate::dafs::codec::Element<'a> for $name {
            const BYTES: usize = $bytes;
            const ALIGN: usize = $align;
            const COUNT_MAX: usize = $max;
        } )?
    };
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident $(<$life:lifetime>)? [$($spec:tt)*] {
            $( $(#[$field_meta:meta])* $field:ident: $type:ty $(as $codec:ty)? = $at:literal, )*
        }
    )*) => { $(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name $(<$life>)? { $( $(#[$field_meta])* pub $field: $type, )* }
        $crate::dafs::codec::layout!(@codec $name $(<$life>)?, [$($spec)*],
            $( $field: $type $(, $codec)? = $at; )*);
    )* };
}
pub(crate) use layout;

/// A struct with a fixed length.
pub(crate) trait Section {
    /// Length in bytes.
    const BYTES: usize;
}

/// Declares enumerations that travel as a u32 (DAFS 5.1).
macro_rules! word_enum {
    ($(
        $(#[$meta:meta])*
        pub enum $name:ident { $( $(#[$value_meta:meta])* $variant:ident = $value:literal, )* }
    )*) => { $(
        $crate::numbers::numbered! {
            $(#[$meta])*
            pub enum $name { $( $(#[$value_meta])* $variant = $value, )* }
        }

        impl<'a> $crate::dafs::codec::Field<'a> for $name {
            const TRIVIAL: bool = false;

            #[inline]
            fn read(
                scope: $crate::dafs::codec::Scope<'a>,
                at: usize,
            ) -> Result<Self, $crate::dafs::error::DecodeError> {
                let value = scope.u32(at)?;
                Self::from_u32(value).ok_or($crate::dafs::error::DecodeError::BadValue {
                    field: stringify!($name),
                    value: value.into(),
                })
            }

            #[inline]
            fn write(
                &self,
                writer: &mut $crate::dafs::codec::Writer<'_>,
                at: usize,
            ) -> Result<(), $crate::dafs::error::EncodeError> {
                writer.put_u32(at, *self as u32)
            }
        }
    )* };
}
pub(crate) use word_enum;

/// Gives a bit mask its codec; unknown bits are an error, so that no request is ignored silently.
macro_rules! mask_field {
    ($name:ty, $word:ty) => {
        impl<'a> $crate::dafs::codec::Field<'a> for $name {
            const TRIVIAL: bool = false;

            #[inline]
            fn read(
                scope: $crate::dafs::codec::Scope<'a>,
                at: usize,
            ) -> Result<Self, $crate::dafs::error::DecodeError> {
                let value = <$word as $crate::dafs::codec::Field<'a>>::read(scope, at)?;
                Self::from_bits(value).ok_or($crate::dafs::error::DecodeError::BadValue {
                    field: stringify!($name),
                    value: value.into(),
                })
            }

            #[inline]
            fn write(
                &self,
                writer: &mut $crate::dafs::codec::Writer<'_>,
                at: usize,
            ) -> Result<(), $crate::dafs::error::EncodeError> {
                $crate::dafs::codec::Field::write(&self.bits(), writer, at)
            }
        }
    };
}
pub(crate) use mask_field;

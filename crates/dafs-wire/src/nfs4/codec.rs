//! The XDR codec for fields of NFS and MOUNT structures, and the macros that declare structures,
//! enumerations and bit sets. One list of fields serves both directions.
//!
//! Invariants
//! * A structure is read and written by the same list of fields, so the directions cannot differ.
//! * Opaque fields borrow from the input. Arrays grow with the items that are present; a count
//!   alone reserves little memory.

use crate::xdr::{Decode, Decoder, XdrError};

/// The most items for which a count from a peer reserves room at once.
const RESERVE_ITEMS_MAX: usize = 16;

/// A field with a limit on its length: `opaque x<max>` or an array `x<max>`.
pub(super) trait DecodeMax<'a>: Sized {
    /// Reads the field; fails if it has more than `max` bytes or items.
    fn decode_max(d: &mut Decoder<'a>, max: usize) -> Result<Self, XdrError>;
}

impl<'a> DecodeMax<'a> for &'a [u8] {
    #[inline]
    fn decode_max(d: &mut Decoder<'a>, max: usize) -> Result<Self, XdrError> {
        d.opaque(max)
    }
}

impl<'a, T: Decode<'a>> DecodeMax<'a> for Vec<T> {
    fn decode_max(d: &mut Decoder<'a>, max: usize) -> Result<Self, XdrError> {
        let count = d.array_len(max, 4)?;
        let mut items = Self::with_capacity(count.min(RESERVE_ITEMS_MAX));
        for _ in 0..count {
            items.push(T::decode(d)?);
        }
        Ok(items)
    }
}

/// Declares operations without arguments.
macro_rules! xdr_void {
    ($( $( #[$meta:meta] )* $name:ident; )*) => { $(
        $( #[$meta] )*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name;

        impl<'a> $crate::xdr::Decode<'a> for $name {
            #[inline]
            fn decode(
                _: &mut $crate::xdr::Decoder<'a>,
            ) -> Result<Self, $crate::xdr::XdrError> {
                Ok(Self)
            }
        }

        impl $crate::xdr::Encode for $name {
            #[inline]
            fn encode(&self, _: &mut $crate::xdr::Encoder<'_>) {}
        }
    )* };
}

/// Declares structures whose fields follow each other in XDR, in the given order. The limit of an
/// opaque field or an array follows its type in brackets.
macro_rules! xdr_struct {
    ($(
        $( #[$meta:meta] )*
        pub struct $name:ident $( <$lt:lifetime> )? {
            $( $( #[$fmeta:meta] )* pub $field:ident: $ty:ty $( [max $max:expr] )?, )*
        }
    )*) => { $(
        $( #[$meta] )*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name $( <$lt> )? { $( $( #[$fmeta] )* pub $field: $ty, )* }

        impl<'a> $crate::xdr::Decode<'a> for $name $( <$lt> )? {
            #[inline]
            fn decode(
                d: &mut $crate::xdr::Decoder<'a>,
            ) -> Result<Self, $crate::xdr::XdrError> {
                Ok(Self { $( $field: $crate::nfs4::codec::xdr_field!(d, $ty $( [max $max] )?), )* })
            }
        }

        impl $( <$lt> )? $crate::xdr::Encode for $name $( <$lt> )? {
            #[inline]
            fn encode(&self, e: &mut $crate::xdr::Encoder<'_>) {
                $( $crate::xdr::Encode::encode(&self.$field, e); )*
            }
        }
    )* };
}

/// Reads one field of [`xdr_struct`].
macro_rules! xdr_field {
    ($d:ident, $ty:ty) => {
        <$ty as $crate::xdr::Decode<'_>>::decode($d)?
    };
    ($d:ident, $ty:ty [max $max:expr]) => {
        <$ty as $crate::nfs4::codec::DecodeMax<'_>>::decode_max($d, $max)?
    };
}

/// Declares enumerations. `closed` ones refuse undefined numbers, and the operation then cannot be
/// decoded. `open` ones keep them in `Other`, where the RFC names a different error for them.
macro_rules! xdr_enum {
    (closed $( $( #[$meta:meta] )* pub enum $name:ident {
        $( $( #[$vmeta:meta] )* $variant:ident = $number:literal, )*
    } )*) => { $(
        $crate::numbers::numbered! {
            $( #[$meta] )*
            pub enum $name { $( $( #[$vmeta] )* $variant = $number, )* }
        }

        impl<'a> $crate::xdr::Decode<'a> for $name {
            #[inline]
            fn decode(
                d: &mut $crate::xdr::Decoder<'a>,
            ) -> Result<Self, $crate::xdr::XdrError> {
                let value = d.u32()?;
                Self::from_u32(value)
                    .ok_or_else(|| $crate::xdr::no_such(stringify!($name), value))
            }
        }

        impl $crate::xdr::Encode for $name {
            #[inline]
            fn encode(&self, e: &mut $crate::xdr::Encoder<'_>) {
                e.u32(*self as u32);
            }
        }
    )* };
    (open $( $( #[$meta:meta] )* pub enum $name:ident {
        $( $( #[$vmeta:meta] )* $variant:ident = $number:literal, )*
    } )*) => { $(
        $( #[$meta] )*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $( $( #[$vmeta] )* $variant, )*
            /// An undefined number.
            Other(u32),
        }

        impl $name {
            /// Every defined value.
            pub const ALL: &'static [Self] = &[$( Self::$variant, )*];

            /// The value with this number.
            #[inline]
            pub fn from_u32(number: u32) -> Self {
                match number {
                    $( $number => Self::$variant, )*
                    number => Self::Other(number),
                }
            }

            /// The number on the wire.
            #[inline]
            pub fn number(self) -> u32 {
                match self {
                    $( Self::$variant => $number, )*
                    Self::Other(number) => number,
                }
            }
        }

        impl<'a> $crate::xdr::Decode<'a> for $name {
            #[inline]
            fn decode(
                d: &mut $crate::xdr::Decoder<'a>,
            ) -> Result<Self, $crate::xdr::XdrError> {
                Ok(Self::from_u32(d.u32()?))
            }
        }

        impl $crate::xdr::Encode for $name {
            #[inline]
            fn encode(&self, e: &mut $crate::xdr::Encoder<'_>) {
                e.u32(self.number());
            }
        }
    )* };
}

/// Declares sets of flags in 32 bits. Undefined bits are kept, so that the server can refuse them.
macro_rules! xdr_flags {
    ($( $( #[$($meta:tt)*] )* pub struct $name:ident {
        $( $( #[$($vmeta:tt)*] )* const $flag:ident = $bits:literal; )*
    } )*) => { $(
        bitflags::bitflags! {
            $( #[$($meta)*] )*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
            pub struct $name: u32 {
                $( $( #[$($vmeta)*] )* const $flag = $bits; )*
            }
        }

        impl $name {
            /// True if an undefined bit is set.
            #[inline]
            pub fn has_unknown(self) -> bool {
                self.bits() & !Self::all().bits() != 0
            }
        }

        impl<'a> $crate::xdr::Decode<'a> for $name {
            #[inline]
            fn decode(
                d: &mut $crate::xdr::Decoder<'a>,
            ) -> Result<Self, $crate::xdr::XdrError> {
                Ok(Self::from_bits_retain(d.u32()?))
            }
        }

        impl $crate::xdr::Encode for $name {
            #[inline]
            fn encode(&self, e: &mut $crate::xdr::Encoder<'_>) {
                e.u32(self.bits());
            }
        }
    )* };
}

pub(super) use {xdr_enum, xdr_flags, xdr_void};
pub(crate) use {xdr_field, xdr_struct};

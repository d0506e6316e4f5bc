//! The field codec for records of NFS version 3 and MOUNT.

use super::{HANDLE_BYTES_MAX, VERIFIER_BYTES};
use crate::xdr::{Decoder, Encoder, Payload, XdrError};

/// A part of a record.
pub(crate) trait Field<'a>: Sized {
    fn read(decoder: &mut Decoder<'a>) -> Result<Self, XdrError>;
    fn write(&self, encoder: &mut Encoder<'_>);
}

/// Defines a structure with its codec, field by field.
macro_rules! record {
    (
        $(#[$meta:meta])*
        pub struct $name:ident $(<$life:lifetime>)? {
            $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name $(<$life>)? {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl<'a> $crate::nfs3::field::Field<'a> for $name $(<$life>)? {
            #[inline]
            fn read(
                decoder: &mut $crate::xdr::Decoder<'a>,
            ) -> Result<Self, $crate::xdr::XdrError> {
                $(let $field = <$type as $crate::nfs3::field::Field<'a>>::read(decoder)?;)*
                Ok(Self { $($field,)* })
            }

            #[inline]
            fn write(&self, encoder: &mut $crate::xdr::Encoder<'_>) {
                $($crate::nfs3::field::Field::write(&self.$field, encoder);)*
            }
        }

        impl<'a> $crate::xdr::Decode<'a> for $name $(<$life>)? {
            #[inline]
            fn decode(
                decoder: &mut $crate::xdr::Decoder<'a>,
            ) -> Result<Self, $crate::xdr::XdrError> {
                $crate::nfs3::field::Field::read(decoder)
            }
        }

        impl $(<$life>)? $crate::xdr::Encode for $name $(<$life>)? {
            #[inline]
            fn encode(&self, encoder: &mut $crate::xdr::Encoder<'_>) {
                $crate::nfs3::field::Field::write(self, encoder);
            }
        }
    };
}

pub(crate) use record;

/// Defines statuses by their numbers, or procedures by their numbers and names.
macro_rules! numbers {
    (
        $(#[$meta:meta])*
        pub enum $name:ident { $($value:ident = $number:literal,)* }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        #[allow(missing_docs, reason = "the names are those of the RFC")]
        pub enum $name { $($value = $number,)* }

        impl $name {
            /// All values, by number.
            pub const ALL: [Self; [$($number,)*].len()] = [$(Self::$value,)*];

            /// The value of a number, if there is one.
            pub fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$value),)* _ => None }
            }

            /// The number on the wire.
            pub const fn number(self) -> u32 {
                self as u32
            }
        }
    };
    (
        $(#[$meta:meta])*
        pub enum $name:ident { $($value:ident = $number:literal, $text:literal;)* }
    ) => {
        $crate::nfs3::field::numbers! {
            $(#[$meta])*
            pub enum $name { $($value = $number,)* }
        }

        impl $name {
            /// The procedure's name in the RFC.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$value => $text,)* }
            }
        }
    };
}

pub(crate) use numbers;

impl<'a> Field<'a> for u32 {
    #[inline]
    fn read(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        decoder.u32()
    }

    #[inline]
    fn write(&self, encoder: &mut Encoder<'_>) {
        encoder.u32(*self);
    }
}

impl<'a> Field<'a> for u64 {
    #[inline]
    fn read(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        decoder.u64()
    }

    #[inline]
    fn write(&self, encoder: &mut Encoder<'_>) {
        encoder.u64(*self);
    }
}

impl<'a> Field<'a> for bool {
    #[inline]
    fn read(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        decoder.bool()
    }

    #[inline]
    fn write(&self, encoder: &mut Encoder<'_>) {
        encoder.bool(*self);
    }
}

/// A name or a path, limited by the record.
impl<'a> Field<'a> for &'a [u8] {
    #[inline]
    fn read(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        decoder.opaque(usize::MAX)
    }

    #[inline]
    fn write(&self, encoder: &mut Encoder<'_>) {
        encoder.opaque(self);
    }
}

/// Data, which a transport may have moved outside of the message.
impl<'a> Field<'a> for Payload<'a> {
    #[inline]
    fn read(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        decoder.payload(usize::MAX)
    }

    #[inline]
    fn write(&self, encoder: &mut Encoder<'_>) {
        encoder.payload(*self);
    }
}

/// A verifier.
impl<'a> Field<'a> for [u8; VERIFIER_BYTES] {
    #[inline]
    fn read(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        decoder.fixed().copied()
    }

    #[inline]
    fn write(&self, encoder: &mut Encoder<'_>) {
        encoder.fixed(self);
    }
}

impl<'a, T: Field<'a>> Field<'a> for Option<T> {
    #[inline]
    fn read(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        if decoder.bool()? { T::read(decoder).map(Some) } else { Ok(None) }
    }

    #[inline]
    fn write(&self, encoder: &mut Encoder<'_>) {
        encoder.bool(self.is_some());
        if let Some(value) = self {
            value.write(encoder);
        }
    }
}

impl<'a> Field<'a> for super::FileHandle<'a> {
    #[inline]
    fn read(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        decoder.opaque(HANDLE_BYTES_MAX).map(Self)
    }

    #[inline]
    fn write(&self, encoder: &mut Encoder<'_>) {
        encoder.opaque(self.0);
    }
}

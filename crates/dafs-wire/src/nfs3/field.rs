//! The macros for records and numbers of NFS version 3 and MOUNT.

/// Defines structures whose fields follow each other in XDR, with their codec.
macro_rules! record {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident $(<$life:lifetime>)? {
            $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)*
        }
    )*) => { $(
        $crate::nfs4::codec::xdr_struct! {
            $(#[$meta])*
            #[derive(Copy)]
            pub struct $name $(<$life>)? { $($(#[$field_meta])* pub $field: $type,)* }
        }
    )* };
}

pub(crate) use record;

/// Defines statuses by their numbers, or procedures by their numbers and names.
macro_rules! numbers {
    (
        $(#[$meta:meta])*
        pub enum $name:ident { $($(#[$value_meta:meta])* $value:ident = $number:literal,)* }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        #[allow(missing_docs, reason = "the names are those of the RFC")]
        pub enum $name { $($(#[$value_meta])* $value = $number,)* }

        impl $name {
            /// All values, by number.
            pub const ALL: [Self; [$($number,)*].len()] = [$(Self::$value,)*];

            /// The value of a number, if there is one.
            #[inline]
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

//! The macros for enumerations by number: procedures, operations and other values.

/// Declares an enumeration with the numbers of its values.
macro_rules! numbered {
    (
        $(#[$meta:meta])*
        pub enum $name:ident { $( $(#[$value_meta:meta])* $variant:ident = $number:literal, )* }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum $name { $( $(#[$value_meta])* $variant = $number, )* }

        impl $name {
            /// Every value, in numerical order unless the enumeration says otherwise.
            pub const ALL: [Self; [$( $number, )*].len()] = [$( Self::$variant, )*];

            /// The value with this number, if it is defined.
            #[inline]
            pub fn from_u32(number: u32) -> Option<Self> {
                match number {
                    $( $number => Some(Self::$variant), )*
                    _ => None,
                }
            }
        }
    };
}
pub(crate) use numbered;

/// As [`numbered`], for values with a name in their specification.
macro_rules! named {
    (
        $(#[$meta:meta])*
        pub enum $name:ident { $( $variant:ident = $number:literal, $text:literal; )* }
    ) => {
        $crate::numbers::numbered! {
            $(#[$meta])*
            #[allow(missing_docs, reason = "the names are the meaning")]
            pub enum $name { $( $variant = $number, )* }
        }

        impl $name {
            /// The name in the specification, without its prefix, for logs and metrics.
            pub fn name(self) -> &'static str {
                match self { $( Self::$variant => $text, )* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
pub(crate) use named;

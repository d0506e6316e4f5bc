//! The macro for tables of status codes, of DAFS and of NFS version 4.

/// Declares `Status` from a table: the documentation of the type, that of an undefined code with
/// its sentence, and each code with its name in the specification and its sentence, which is worded
/// for the person who must act.
macro_rules! statuses {
    (
        $(#[$meta:meta])* Status;
        $(#[$unknown_meta:meta])* Unknown, $unknown:literal;
        $( $variant:ident = $code:literal, $name:literal, $sentence:literal; )*
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "each is explained by its sentence")]
        pub enum Status {
            $( #[doc = $sentence] $variant, )*
            $(#[$unknown_meta])*
            Unknown(u32),
        }

        impl Status {
            /// Every defined code, in numerical order.
            pub const ALL: &'static [Self] = &[$( Self::$variant, )*];

            /// The status with this code.
            #[inline]
            pub fn from_u32(code: u32) -> Self {
                match code {
                    $( $code => Self::$variant, )*
                    code => Self::Unknown(code),
                }
            }

            /// The code on the wire.
            #[inline]
            pub fn code(self) -> u32 {
                match self {
                    $( Self::$variant => $code, )*
                    Self::Unknown(code) => code,
                }
            }

            /// The name in the specification, without its prefix.
            pub fn name(self) -> &'static str {
                match self {
                    $( Self::$variant => $name, )*
                    Self::Unknown(_) => "UNKNOWN",
                }
            }

            /// The meaning, worded for the person who must act.
            pub fn sentence(self) -> &'static str {
                match self {
                    $( Self::$variant => $sentence, )*
                    Self::Unknown(_) => $unknown,
                }
            }
        }
    };
}

pub(crate) use statuses;

//! File attributes and the attribute block (DAFS 14, O12).
//!
//! Invariants
//! * `valid` is a subset of `included`; any other block is refused.
//! * A block begins at a multiple of 8 and is the scope of the offsets in it.

use super::attr_args::XattrHow;
use super::codec::{Scope, Writer};
use super::error::{DecodeError, EncodeError};
use super::ids::{Ace, FileHandle, ObjectType, SetTime, SpecData, Time};
use super::order::ByteOrder;
use super::seq::Seq;

/// Declares a set of attributes: the mask, the struct and the codec of the block.
macro_rules! attribute_block {
    (
        mask $mask:ident $mask_name:literal; block $block:ident $life:lifetime;
        $( $(#[$meta:meta])* $number:literal $constant:ident $field:ident: $type:ty,
            $bytes:literal, $align:literal; )*
    ) => {
        #[doc = concat!("A set of ", $mask_name, "; attribute n is bit n - 1 (DAFS 14).")]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $mask(pub u64);

        impl $mask {
            /// No attribute.
            pub const NONE: Self = Self(0);
            /// Every defined attribute.
            pub const ALL: Self = Self(0 $( | 1 << ($number - 1) )*);
            $( $(#[$meta])* pub const $constant: Self = Self(1 << ($number - 1)); )*

            /// True when every attribute of `other` is in this set.
            #[inline]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// True when an attribute is in both sets.
            #[inline]
            pub const fn intersects(self, other: Self) -> bool {
                self.0 & other.0 != 0
            }

            /// The attributes of either set.
            #[inline]
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// The attributes of both sets.
            #[inline]
            pub const fn intersection(self, other: Self) -> Self {
                Self(self.0 & other.0)
            }

            /// The attributes that are not in `other`.
            #[inline]
            pub const fn difference(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// True when the set is empty.
            #[inline]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }
        }

        impl std::ops::BitOr for $mask {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }

        impl std::ops::BitOrAssign for $mask {
            fn bitor_assign(&mut self, other: Self) {
                self.0 |= other.0;
            }
        }

        impl std::ops::BitAnd for $mask {
            type Output = Self;
            fn bitand(self, other: Self) -> Self {
                self.intersection(other)
            }
        }

        impl std::fmt::Debug for $mask {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut set = f.debug_set();
                $( if self.contains(Self::$constant) {
                    set.entry(&format_args!("{}", stringify!($field)));
                } )*
                let unknown = self.difference(Self::ALL).0;
                if unknown != 0 {
                    set.entry(&format_args!("0x{unknown:x}"));
                }
                set.finish()
            }
        }

        impl<'a> $crate::dafs::codec::Field<'a> for $mask {
            const TRIVIAL: bool = true;

            #[inline(always)]
            fn read(
                scope: $crate::dafs::codec::Scope<'a>,
                at: usize,
            ) -> Result<Self, $crate::dafs::error::DecodeError> {
                Ok(Self(scope.u64(at)?))
            }

            #[inline(always)]
            fn write(
                &self,
                writer: &mut $crate::dafs::codec::Writer<'_>,
                at: usize,
            ) -> Result<(), $crate::dafs::error::EncodeError> {
                writer.put_u64(at, self.0)
            }
        }

        #[doc = concat!("Values of ", $mask_name, " (DAFS 14). `None` is not valid.")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $block<$life> {
            /// Attributes that take space in the block beyond those with a value. A sender may
            /// include some without a value, so that the receiver can use precomputed offsets. A
            /// decoded block holds the whole bitmap as received.
            pub included: $mask,
            $( $(#[$meta])* pub $field: Option<$type>, )*
        }

        impl<$life> $block<$life> {
            /// The attributes that have a value.
            pub fn valid(&self) -> $mask {
                let mut valid = 0;
                $( valid |= u64::from(self.$field.is_some()) << ($number - 1); )*
                $mask(valid)
            }

            /// The values of the attributes in `wanted` only.
            #[must_use]
            pub fn only(mut self, wanted: $mask) -> Self {
                $( if !wanted.contains($mask::$constant) { self.$field = None; } )*
                self.included = self.included & wanted;
                self
            }

            pub(crate) fn read_block(
                block: $crate::dafs::codec::Scope<$life>,
            ) -> Result<Self, $crate::dafs::error::DecodeError> {
                let included = $mask(block.u64(0)?);
                let valid = $mask(block.u64(8)?);
                if !$mask::ALL.contains(included) || !included.contains(valid) {
                    let value = if $mask::ALL.contains(included) { valid } else { included };
                    return Err($crate::dafs::error::DecodeError::BadValue {
                        field: stringify!($mask),
                        value: value.0,
                    });
                }
                let mut values = Self { included, ..Self::default() };
                let mut at: usize = 16;
                $( if included.contains($mask::$constant) {
                    at = at.next_multiple_of($align);
                    block.require(at, $bytes)?;
                    if valid.contains($mask::$constant) {
                        values.$field = Some($crate::dafs::codec::Field::read(block, at)?);
                    }
                    at += $bytes;
                } )*
                let _ = at;
                Ok(values)
            }

            pub(crate) fn write_block(
                &self,
                writer: &mut $crate::dafs::codec::Writer<'_>,
            ) -> Result<usize, $crate::dafs::error::EncodeError> {
                let valid = self.valid();
                let included = self.included.intersection($mask::ALL).union(valid);
                let mut bytes: usize = 16;
                $( if included.contains($mask::$constant) {
                    bytes = bytes.next_multiple_of($align) + $bytes;
                } )*
                let block = writer.allocate(bytes, 8)?;
                writer.put_u64(block, included.0)?;
                writer.put_u64(block + 8, valid.0)?;
                writer.within(block, |writer| {
                    let mut at = block + 16;
                    $( if included.contains($mask::$constant) {
                        at = at.next_multiple_of($align);
                        if let Some(value) = &self.$field {
                            $crate::dafs::codec::Field::write(value, writer, at)?;
                        }
                        at += $bytes;
                    } )*
                    let _ = at;
                    Ok(block)
                })
            }
        }

        impl<$life> $crate::dafs::codec::Field<$life> for $block<$life> {
            const TRIVIAL: bool = false;

            fn read(
                scope: $crate::dafs::codec::Scope<$life>,
                at: usize,
            ) -> Result<Self, $crate::dafs::error::DecodeError> {
                match scope.target(at, 8)? {
                    Some(target) => Self::read_block(scope.inner(target)?),
                    None => Ok(Self::default()),
                }
            }

            fn write(
                &self,
                writer: &mut $crate::dafs::codec::Writer<'_>,
                at: usize,
            ) -> Result<(), $crate::dafs::error::EncodeError> {
                let block = self.write_block(writer)?;
                writer.put_offset(at, block)
            }
        }
    };
}
pub(crate) use attribute_block;

attribute_block! {
    mask AttrMask "file attributes"; block Attributes 'a;
    /// True if the object has named attributes.
    1 NAMED_ATTR named_attr: bool, 1, 1;
    /// True if the object is to be archived.
    2 ARCHIVE archive: bool, 1, 1;
    /// True if the object is hidden.
    3 HIDDEN hidden: bool, 1, 1;
    /// True if the object belongs to the system.
    4 SYSTEM system: bool, 1, 1;
    /// The type of the object.
    5 OBJECT_TYPE object_type: ObjectType, 4, 4;
    /// Permission bits.
    6 MODE mode: u32, 4, 4;
    /// Number of hard links.
    7 NUM_LINKS num_links: u32, 4, 4;
    /// Changes with every change of content or attributes.
    8 CHANGE change: u64, 8, 8;
    /// Length in bytes.
    9 OBJECT_SIZE object_size: u64, 8, 8;
    /// Number of the object in its file system.
    10 FILE_ID file_id: u64, 8, 8;
    /// Bytes allocated.
    11 SPACE_USED space_used: u64, 8, 8;
    /// Last access.
    12 TIME_ACCESS time_access: Time, 16, 8;
    /// New time of the last access.
    13 TIME_ACCESS_SET time_access_set: SetTime, 24, 8;
    /// Last backup.
    14 TIME_BACKUP time_backup: Time, 16, 8;
    /// Creation.
    15 TIME_CREATE time_create: Time, 16, 8;
    /// The finest time difference that the server stores.
    16 TIME_DELTA time_delta: Time, 16, 8;
    /// Last change of the attributes.
    17 TIME_METADATA time_metadata: Time, 16, 8;
    /// Last change of the content.
    18 TIME_MODIFY time_modify: Time, 16, 8;
    /// New time of the last change of the content.
    19 TIME_MODIFY_SET time_modify_set: SetTime, 24, 8;
    /// The numbers of a device file.
    20 RAW_DEV raw_dev: SpecData, 16, 8;
    /// The handle of the object.
    21 FILEHANDLE filehandle: FileHandle, 64, 8;
    /// The access control list of the object.
    22 ACL acl: Seq<'a, Ace<'a>>, 4, 4;
    /// MIME type of the content.
    23 MIME_TYPE mime_type: &'a [u8], 4, 4;
    /// Owner.
    24 OWNER owner: &'a [u8], 4, 4;
    /// Group.
    25 OWNER_GROUP owner_group: &'a [u8], 4, 4;
    /// The names of the object's extended attributes (an extension, as the attributes below).
    48 X_XATTR_NAMES x_xattr_names: Seq<'a, &'a [u8]>, 4, 4;
    /// The extended attribute that SETATTR sets or removes.
    49 X_XATTR_NAME x_xattr_name: &'a [u8], 4, 4;
    /// The new value of the extended attribute.
    50 X_XATTR_VALUE x_xattr_value: &'a [u8], 4, 4;
    /// The effect on the extended attribute.
    51 X_XATTR_HOW x_xattr_how: XattrHow, 4, 4;
}

impl<'a> Attributes<'a> {
    /// Writes the bare attribute block of a direct transfer at byte 0 (DAFS O12); returns its
    /// length in bytes.
    pub fn encode_direct(&self, out: &mut [u8], order: ByteOrder) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(out, 0, order);
        self.write_block(&mut writer)?;
        Ok(writer.end())
    }

    /// Reads the bare attribute block of a direct transfer (DAFS O12).
    pub fn decode_direct(bytes: &'a [u8], order: ByteOrder) -> Result<Self, DecodeError> {
        Self::read_block(Scope::new(bytes, order))
    }
}

/// Writes the link text of a direct transfer as a counted string at byte 0 (DAFS O12); returns its
/// length in bytes.
pub fn encode_text_direct(
    text: &[u8],
    out: &mut [u8],
    order: ByteOrder,
) -> Result<usize, EncodeError> {
    let mut writer = Writer::new(out, 0, order);
    writer.string(text)?;
    Ok(writer.end())
}

/// Reads the link text of a direct transfer (DAFS O12).
pub fn decode_text_direct(bytes: &[u8], order: ByteOrder) -> Result<&[u8], DecodeError> {
    Scope::new(bytes, order).string(0)
}

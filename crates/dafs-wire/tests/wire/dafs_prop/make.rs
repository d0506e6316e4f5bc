//! Generates values of every type from a string of bytes.
//!
//! Invariants
//! * Missing bytes count as zero, so every string of bytes yields a value.
//! * Borrowed parts are leaked: tests are short.

use dafs_wire::dafs::*;

/// The bytes that a value is generated from.
pub(crate) struct Source<'s> {
    bytes: &'s [u8],
}

impl<'s> Source<'s> {
    pub(crate) fn new(bytes: &'s [u8]) -> Self {
        Self { bytes }
    }

    pub(crate) fn byte(&mut self) -> u8 {
        match self.bytes.split_first() {
            Some((first, rest)) => {
                self.bytes = rest;
                *first
            }
            None => 0,
        }
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        u16::make(self) as usize % bound
    }

    pub(crate) fn make<T: Make>(&mut self) -> T {
        T::make(self)
    }

    pub(crate) fn list<T: Make>(&mut self, count_max: usize) -> &'static [T] {
        let count = usize::from(self.byte()) % (count_max + 1);
        let list: Vec<T> = (0..count).map(|_| self.make()).collect();
        list.leak()
    }
}

/// A value that can be generated.
pub(crate) trait Make: Sized {
    fn make(source: &mut Source<'_>) -> Self;
}

impl Make for u8 {
    fn make(source: &mut Source<'_>) -> Self {
        source.byte()
    }
}

impl<const N: usize> Make for [u8; N] {
    fn make(source: &mut Source<'_>) -> Self {
        std::array::from_fn(|_| source.byte())
    }
}

macro_rules! make_numbers {
    ($($type:ty)*) => { $( impl Make for $type {
        fn make(source: &mut Source<'_>) -> Self {
            Self::from_le_bytes(source.make())
        }
    } )* };
}
make_numbers!(u16 u32 u64 i64);

impl Make for bool {
    fn make(source: &mut Source<'_>) -> Self {
        source.byte() & 1 != 0
    }
}

impl Make for &'static [u8] {
    fn make(source: &mut Source<'_>) -> Self {
        source.list::<u8>(40)
    }
}

impl<T: Make> Make for Option<T> {
    fn make(source: &mut Source<'_>) -> Self {
        source.make::<bool>().then(|| source.make())
    }
}

macro_rules! make_seq {
    ($($type:ty)*) => { $( impl Make for Seq<'static, $type> {
        fn make(source: &mut Source<'_>) -> Self {
            Seq::new(source.list(5))
        }
    } )* };
}
make_seq!(u32 &'static [u8] DirectBuffer FileChunk Ace<'static> FsLocation<'static>);
make_seq!(ReadWriteRequest<'static> CompletionNotification SecInfoEntry<'static>);
make_seq!(DirEntry<'static> LayoutComponent LayoutError LayoutServer<'static>);
make_seq!(CancelItem CancelResult ExposedWindow ExposedSegment);

impl Make for Path<'static> {
    fn make(source: &mut Source<'_>) -> Self {
        Path::new(source.list(5))
    }
}

macro_rules! make_new_types {
    ($($type:ident)*) => { $( impl Make for $type {
        fn make(source: &mut Source<'_>) -> Self {
            $type(source.make())
        }
    } )* };
}
make_new_types!(SessionId ClientId StateId Analyzer Verifier CredHandle Checksum);

impl Make for ShareKey {
    fn make(source: &mut Source<'_>) -> Self {
        match source.below(3) {
            0 => Self::None,
            1 => Self::Both(source.make()),
            _ => Self::XStrict(source.make()),
        }
    }
}

macro_rules! make_choices {
    ($($type:ident)*) => { $( impl Make for $type {
        fn make(source: &mut Source<'_>) -> Self {
            $type::ALL[source.below($type::ALL.len())]
        }
    } )* };
}
make_choices!(ObjectType Stability ShareAccess ShareDeny AceType RemoveMode AccessPattern);
make_choices!(LockType FenceObject FenceAccess FenceUpdate ReadWrite DeleteDisposition);
make_choices!(DelegationType AuthType GssProcedure GssService Procedure Status);
make_choices!(LayoutMode LayoutKind LayoutPacking LayoutScope SeekWhat XattrHow);
make_choices!(CancelKind CancelOutcome ExposedKind);

macro_rules! make_masks {
    ($($type:ident)*) => { $( impl Make for $type {
        fn make(source: &mut Source<'_>) -> Self {
            $type::from_bits_truncate(source.make())
        }
    } )* };
}
make_masks!(ChainFlags SpecCond AccessMask OpenResultFlags LockOptions);

impl Make for AttrMask {
    fn make(source: &mut Source<'_>) -> Self {
        Self(source.make::<u64>()) & Self::ALL
    }
}

impl Make for FsAttrMask {
    fn make(source: &mut Source<'_>) -> Self {
        Self(source.make::<u64>()) & Self::ALL
    }
}

impl Make for ChannelUse {
    fn make(source: &mut Source<'_>) -> Self {
        match source.make::<u64>() % 3 {
            0 => Self::BackControl,
            1 => Self::RdmaRead,
            _ => Self::Optimistic,
        }
    }
}

impl Make for FailoverLocations<'static> {
    fn make(source: &mut Source<'_>) -> Self {
        Self(source.make())
    }
}

impl Make for HintWord {
    fn make(source: &mut Source<'_>) -> Self {
        Self::from_bits(source.make())
    }
}

/// Generates a struct field by field.
macro_rules! make_struct {
    ($($type:ident $(<$life:lifetime>)? { $($field:ident),* })*) => { $(
        impl $crate::dafs_prop::make::Make for $type $(<$life>)? {
            fn make(source: &mut $crate::dafs_prop::make::Source<'_>) -> Self {
                Self { $( $field: source.make() ),* }
            }
        }
    )* };
}
pub(crate) use make_struct;

make_struct! {
    FileHandle { fs, file }
    DirectBuffer { address, byte_count, context }
    FileChunk { offset, byte_count, cache_hint }
    ChangeInfo { before, after, atomic }
    Time { seconds, nseconds }
    SpecData { major, minor }
    Ace<'static> { ace_type, flag, access_mask, who }
    FsLocation<'static> { server, root_path }
    FsLocations<'static> { fs_root, locations }
    DirEntry<'static> { cookie, attributes, name }
    LayoutComponent { device, fh }
    LayoutError { device, status, writing }
    LayoutServer<'static> { addresses }
}

impl Make for SetTime {
    fn make(source: &mut Source<'_>) -> Self {
        if source.make() { Self::Client(source.make()) } else { Self::Server }
    }
}

/// The decoder includes every attribute with a value, so the generator does as well.
macro_rules! make_block {
    ($type:ident { $($field:ident)* }) => {
        impl Make for $type<'static> {
            fn make(source: &mut Source<'_>) -> Self {
                let included = source.make();
                let mut block = Self { included, $( $field: source.make() ),* };
                block.included |= block.valid();
                block
            }
        }
    };
}

make_block!(Attributes {
    named_attr archive hidden system object_type mode num_links change object_size file_id
    space_used time_access time_access_set time_backup time_create time_delta time_metadata
    time_modify time_modify_set raw_dev filehandle acl mime_type owner owner_group
    x_xattr_names x_xattr_name x_xattr_value x_xattr_how
});
make_block!(FsAttributes {
    link_support symlink_support can_set_time case_insensitive case_preserving chown_restricted
    homogeneous no_trunc unique_handle lease_time rd_attr_error acl_support max_link max_name
    supported_fattr supported_fsattr files_available files_free files_total max_file_size max_read
    max_write quota_hard quota_soft quota_used space_available space_free space_total fshandle
    failover_locations max_append pref_io_size fh_expire_type x_layouts x_cancel x_optimistic
    x_reclaim_complete
});

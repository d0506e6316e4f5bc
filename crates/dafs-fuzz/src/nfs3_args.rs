//! Arguments of NFSv3 and of MOUNT: byte 0 chooses the procedure, the arguments follow.

use dafs_wire::mount3;
use dafs_wire::nfs3::{
    AccessArgs, CommitArgs, CreateArgs, DirOpArgs, GetattrArgs, LinkArgs, MkdirArgs, MknodArgs,
    Procedure, ReadArgs, ReaddirArgs, ReaddirplusArgs, RenameArgs, SetattrArgs, SymlinkArgs,
    WriteArgs,
};
use dafs_wire::xdr::{Decode, Decoder, Encode};

/// A decoded value must encode to bytes that decode to the same value.
fn check<'a, T: Decode<'a> + Encode>(bytes: &'a [u8], twice: impl Fn(&[u8]) -> Option<Vec<u8>>) {
    let mut decoder = Decoder::new(bytes);
    let Ok(value) = T::decode(&mut decoder) else { return };
    let again = value.encoded();
    assert_eq!(again.len(), decoder.position());
    assert_eq!(twice(&again), Some(again));
}

macro_rules! check {
    ($type:ty, $bytes:expr) => {
        check::<$type>($bytes, |again| {
            <$type>::decode(&mut Decoder::new(again)).ok().map(|value| value.encoded())
        })
    };
}

pub fn run(input: &[u8]) {
    let Some((choice, args)) = input.split_first() else { return };
    let Some(procedure) = Procedure::from_number(u32::from(*choice)) else {
        check!(mount3::Path<'_>, args);
        check!(mount3::HostName<'_>, args);
        return;
    };
    match procedure {
        Procedure::Null => {}
        Procedure::Getattr
        | Procedure::Readlink
        | Procedure::FsStat
        | Procedure::FsInfo
        | Procedure::PathConf => check!(GetattrArgs<'_>, args),
        Procedure::Setattr => check!(SetattrArgs<'_>, args),
        Procedure::Lookup | Procedure::Remove | Procedure::Rmdir => check!(DirOpArgs<'_>, args),
        Procedure::Access => check!(AccessArgs<'_>, args),
        Procedure::Read => check!(ReadArgs<'_>, args),
        Procedure::Write => check!(WriteArgs<'_>, args),
        Procedure::Create => check!(CreateArgs<'_>, args),
        Procedure::Mkdir => check!(MkdirArgs<'_>, args),
        Procedure::Symlink => check!(SymlinkArgs<'_>, args),
        Procedure::Mknod => check!(MknodArgs<'_>, args),
        Procedure::Rename => check!(RenameArgs<'_>, args),
        Procedure::Link => check!(LinkArgs<'_>, args),
        Procedure::Readdir => check!(ReaddirArgs<'_>, args),
        Procedure::Readdirplus => check!(ReaddirplusArgs<'_>, args),
        Procedure::Commit => check!(CommitArgs<'_>, args),
    }
}

//! Results of NFSv3 and of MOUNT as a client reads them: byte 0 chooses the procedure, the results
//! follow.

use dafs_wire::mount3::{self, Exported, Mounted};
use dafs_wire::nfs3::{
    AccessOk, ChangeFailure, CommitOk, CreateOk, FsInfoOk, FsStatOk, GetattrOk, LinkResult, List,
    LookupOk, NoFailureBody, ObjectFailure, PathConfOk, Procedure, ReadOk, ReaddirOk,
    ReaddirplusOk, ReadlinkOk, RenameResult, WccResult, WriteOk, decode_results, encode_failure,
    encode_ok,
};
use dafs_wire::xdr::{Decode, Decoder, Encode, Encoder};

/// A decoded value must encode to as many bytes, which differ in padding only.
fn check<'a, T: Decode<'a> + Encode, F: Decode<'a> + Encode>(bytes: &'a [u8]) {
    let Ok(result) = decode_results::<T, F>(bytes) else { return };
    let mut again = Vec::new();
    let mut encoder = Encoder::new(&mut again);
    match &result {
        Ok(body) => encode_ok(&mut encoder, body),
        Err(failure) => encode_failure(&mut encoder, failure.status, &failure.body),
    }
    assert_eq!(again.len(), bytes.len());
    assert!(again.iter().zip(bytes).all(|(new, old)| new == old || *new == 0));
}

fn mount(bytes: &[u8]) {
    let _ = mount3::decode_mounted(bytes);
    if let Ok(list) = List::<Exported<'_>>::decode(&mut Decoder::new(bytes)) {
        let items = list.iter().map(|export| export.groups.iter().count()).sum::<usize>();
        assert!(items <= bytes.len());
    }
    if let Ok(list) = List::<Mounted<'_>>::decode(&mut Decoder::new(bytes)) {
        assert!(list.iter().count() <= bytes.len());
    }
}

pub fn run(input: &[u8]) {
    let Some((choice, bytes)) = input.split_first() else { return };
    let Some(procedure) = Procedure::from_number(u32::from(*choice)) else {
        return mount(bytes);
    };
    match procedure {
        Procedure::Null => {}
        Procedure::Getattr => check::<GetattrOk, NoFailureBody>(bytes),
        Procedure::Setattr | Procedure::Remove | Procedure::Rmdir => {
            check::<WccResult, ChangeFailure>(bytes);
        }
        Procedure::Lookup => check::<LookupOk<'_>, ObjectFailure>(bytes),
        Procedure::Access => check::<AccessOk, ObjectFailure>(bytes),
        Procedure::Readlink => check::<ReadlinkOk<'_>, ObjectFailure>(bytes),
        Procedure::Read => check::<ReadOk<'_>, ObjectFailure>(bytes),
        Procedure::Write => check::<WriteOk, ChangeFailure>(bytes),
        Procedure::Create | Procedure::Mkdir | Procedure::Symlink | Procedure::Mknod => {
            check::<CreateOk<'_>, ChangeFailure>(bytes);
        }
        Procedure::Rename => check::<RenameResult, RenameResult>(bytes),
        Procedure::Link => check::<LinkResult, LinkResult>(bytes),
        Procedure::Readdir => check::<ReaddirOk<'_>, ObjectFailure>(bytes),
        Procedure::Readdirplus => check::<ReaddirplusOk<'_>, ObjectFailure>(bytes),
        Procedure::FsStat => check::<FsStatOk, ObjectFailure>(bytes),
        Procedure::FsInfo => check::<FsInfoOk, ObjectFailure>(bytes),
        Procedure::PathConf => check::<PathConfOk, ObjectFailure>(bytes),
        Procedure::Commit => check::<CommitOk, ChangeFailure>(bytes),
    }
}

//! Random requests, some of them damaged. The server never panics, every answer is well-formed, and
//! later answers about a file agree with earlier ones.

use super::*;
use dafs_wire::nfs3::{
    CommitArgs, CommitOk, FsInfoOk, FsStatOk, LinkArgs, LinkResult, MkdirArgs, MknodArgs,
    MknodObject, PathConfOk, ReadArgs, ReadOk, ReaddirArgs, ReaddirOk, ReaddirplusArgs,
    ReaddirplusOk, ReadlinkOk, RenameArgs, RenameResult, SetattrArgs, Stability, SymlinkArgs,
    WriteArgs, WriteOk,
};
use proptest::prelude::*;

const NAMES: [&[u8]; 8] = [b"a", b"b", b"c", b"d", b".", b"..", b"", b"x/y"];

#[derive(Debug, Clone)]
struct Step {
    procedure: Procedure,
    handles: (usize, usize),
    names: (usize, usize),
    number: u64,
    count: u32,
    choice: u32,
    /// The offset of a byte to change, and its new value.
    damage: Option<(usize, u8)>,
    xid: u32,
}

prop_compose! {
    fn any_step()(
        procedure in 0..22u32,
        handles: (u8, u8),
        names in (0..NAMES.len(), 0..NAMES.len()),
        number in prop_oneof![4 => 0..70_000u64, 1 => any::<u64>()],
        count in prop_oneof![4 => 0..70_000u32, 1 => any::<u32>()],
        choice in 0..3u32,
        damage in prop_oneof![6 => Just(None), 1 => any::<(u8, u8)>().prop_map(Some)],
        xid in 0..8u32,
    ) -> Step {
        Step {
            procedure: Procedure::from_number(procedure).unwrap(),
            handles: (handles.0.into(), handles.1.into()),
            names,
            number,
            count,
            choice,
            damage: damage.map(|(at, value)| (at.into(), value)),
            xid,
        }
    }
}

fn arguments(step: &Step, known: &[Fh]) -> Vec<u8> {
    let Step { number, count, choice, .. } = *step;
    let object = FileHandle(&known[step.handles.0 % known.len()]);
    let other = FileHandle(&known[step.handles.1 % known.len()]);
    let place = DirOpArgs { dir: object, name: NAMES[step.names.0] };
    let to = DirOpArgs { dir: other, name: NAMES[step.names.1] };
    let size = (choice == 1).then_some(number);
    let attributes = SetAttributes { mode: Some(count & 0o7777), size, ..Default::default() };
    let verifier = if choice == 0 { [0; 8] } else { *b"dafsdir1" };
    match step.procedure {
        Procedure::Null
        | Procedure::Getattr
        | Procedure::Readlink
        | Procedure::FsStat
        | Procedure::FsInfo
        | Procedure::PathConf => bytes(&GetattrArgs { object }),
        Procedure::Setattr => bytes(&SetattrArgs { object, new: attributes, guard: None }),
        Procedure::Lookup | Procedure::Remove | Procedure::Rmdir => bytes(&place),
        Procedure::Access => bytes(&AccessArgs { object, wanted: count }),
        Procedure::Read => bytes(&ReadArgs { file: object, offset: number, count }),
        Procedure::Write => {
            let data = vec![choice as u8; (count % 9000) as usize];
            let stable = [Stability::Unstable, Stability::DataSync, Stability::FileSync];
            let stable = stable[choice as usize];
            let count = data.len() as u32;
            bytes(&WriteArgs {
                file: object,
                offset: number % (1 << 40),
                count,
                stable,
                data: data.as_slice().into(),
            })
        }
        Procedure::Create => {
            let how = match choice {
                0 => CreateHow::Unchecked(attributes),
                1 => CreateHow::Guarded(SetAttributes { size: None, ..attributes }),
                _ => CreateHow::Exclusive(number.to_be_bytes()),
            };
            bytes(&CreateArgs { place, how })
        }
        Procedure::Mkdir => bytes(&MkdirArgs { place, attributes }),
        Procedure::Symlink => bytes(&SymlinkArgs { place, attributes, target: b"target".into() }),
        Procedure::Mknod => {
            let object = match choice {
                0 => MknodObject::Fifo(attributes),
                1 => MknodObject::BlockDevice { attributes, device: (count, count) },
                _ => MknodObject::Other(count),
            };
            bytes(&MknodArgs { place, object })
        }
        Procedure::Rename => bytes(&RenameArgs { from: place, to }),
        Procedure::Link => bytes(&LinkArgs { file: other, place }),
        Procedure::Readdir => bytes(&ReaddirArgs { dir: object, cookie: number, verifier, count }),
        Procedure::Readdirplus => bytes(&ReaddirplusArgs {
            dir: object,
            cookie: number,
            verifier,
            dir_count: count,
            max_count: count,
        }),
        Procedure::Commit => bytes(&CommitArgs { file: object, offset: number, count }),
    }
}

/// Checks that the results are those of the procedure. Handles in them become known.
fn well_formed(procedure: Procedure, results: &[u8], known: &mut Vec<Fh>) -> bool {
    let mut learn = |handle: Option<FileHandle<'_>>| {
        if let Some(handle) = handle
            && known.len() < 32
            && !known.iter().any(|other| *other == handle.0)
        {
            known.push(handle.0.to_vec());
        }
    };
    match procedure {
        Procedure::Null => results.is_empty(),
        Procedure::Getattr => decode_results::<GetattrOk, NoFailureBody>(results).is_ok(),
        Procedure::Setattr | Procedure::Remove | Procedure::Rmdir => {
            decode_results::<WccResult, ChangeFailure>(results).is_ok()
        }
        Procedure::Lookup => {
            let result = decode_results::<LookupOk<'_>, ObjectFailure>(results);
            learn(result.ok().and_then(Result::ok).map(|ok| ok.object));
            result.is_ok()
        }
        Procedure::Access => decode_results::<AccessOk, ObjectFailure>(results).is_ok(),
        Procedure::Readlink => decode_results::<ReadlinkOk<'_>, ObjectFailure>(results).is_ok(),
        Procedure::Read => match decode_results::<ReadOk<'_>, ObjectFailure>(results) {
            Ok(Ok(ok)) => ok.count as usize == ok.data.len() && ok.attributes.is_some(),
            other => other.is_ok(),
        },
        Procedure::Write => decode_results::<WriteOk, ChangeFailure>(results).is_ok(),
        Procedure::Create | Procedure::Mkdir | Procedure::Symlink | Procedure::Mknod => {
            let result = decode_results::<CreateOk<'_>, ChangeFailure>(results);
            learn(result.ok().and_then(Result::ok).and_then(|ok| ok.object));
            result.is_ok()
        }
        Procedure::Rename => decode_results::<RenameResult, RenameResult>(results).is_ok(),
        Procedure::Link => decode_results::<LinkResult, LinkResult>(results).is_ok(),
        Procedure::Readdir => decode_results::<ReaddirOk<'_>, ObjectFailure>(results).is_ok(),
        Procedure::Readdirplus => {
            decode_results::<ReaddirplusOk<'_>, ObjectFailure>(results).is_ok()
        }
        Procedure::FsStat => decode_results::<FsStatOk, ObjectFailure>(results).is_ok(),
        Procedure::FsInfo => decode_results::<FsInfoOk, ObjectFailure>(results).is_ok(),
        Procedure::PathConf => decode_results::<PathConfOk, ObjectFailure>(results).is_ok(),
        Procedure::Commit => decode_results::<CommitOk, ChangeFailure>(results).is_ok(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_answer_is_well_formed(steps in proptest::collection::vec(any_step(), 1..80)) {
        let world = World::new();
        let mut known = vec![world.root(), vec![0; 64], Vec::new()];
        for step in steps {
            let mut args = arguments(&step, &known);
            if let Some((at, value)) = step.damage {
                let at = at % args.len();
                args[at] = value;
            }
            let results = world.send(step.xid, step.procedure, &args);
            match results {
                Some(results) => {
                    prop_assert!(well_formed(step.procedure, &results, &mut known), "{step:?}");
                }
                None => prop_assert!(step.damage.is_some(), "{step:?}"),
            }
        }
    }
}

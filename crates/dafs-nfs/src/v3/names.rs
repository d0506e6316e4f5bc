//! REMOVE, RMDIR, RENAME, LINK (RFC 1813 3.3.12 to 3.3.15).

use super::{Args, Context, Done, Stop, args, convert};
use dafs_service::RemoveMode;
use dafs_service::durable::Change;
use dafs_store::RemoveKind;
use dafs_wire::nfs3::{
    ChangeFailure, DirOpArgs, LinkArgs, LinkResult, RenameArgs, RenameResult, Status, WccResult,
};

pub(super) fn remove(cx: &mut Context<'_>, wire: Args<'_>) -> Done {
    let args: DirOpArgs<'_> = args(wire)?;
    let outcome = remove_of(cx, &args, RemoveKind::NoDirectory);
    cx.finish(outcome, |cx| ChangeFailure { wcc: cx.wcc_of(args.dir) })
}

pub(super) fn rmdir(cx: &mut Context<'_>, wire: Args<'_>) -> Done {
    let args: DirOpArgs<'_> = args(wire)?;
    let outcome = match args.name {
        // The parent of a directory is never empty.
        b".." => cx.handle(args.dir).and(Err(Status::NotEmpty.into())),
        _ => remove_of(cx, &args, RemoveKind::Directory),
    };
    cx.finish(outcome, |cx| ChangeFailure { wcc: cx.wcc_of(args.dir) })
}

fn remove_of(cx: &mut Context<'_>, args: &DirOpArgs<'_>, kind: RemoveKind) -> Result<(), Stop> {
    let dir = cx.handle(args.dir)?;
    let name = convert::old_name(args.name)?;
    cx.guard(&Change::Remove { dir: &dir, name })?;
    let mode = RemoveMode::Unchecked;
    let change = cx.service().remove_of_kind(cx.caller(), &dir, name, mode, kind)?;
    let wcc = cx.wcc(&dir, &change);
    cx.ok(&WccResult { wcc })
}

pub(super) fn rename(cx: &mut Context<'_>, wire: Args<'_>) -> Done {
    let args: RenameArgs<'_> = args(wire)?;
    let outcome = rename_of(cx, &args);
    cx.finish(outcome, |cx| RenameResult {
        from_dir: cx.wcc_of(args.from.dir),
        to_dir: cx.wcc_of(args.to.dir),
    })
}

fn rename_of(cx: &mut Context<'_>, args: &RenameArgs<'_>) -> Result<(), Stop> {
    let (from_dir, to_dir) = (cx.handle(args.from.dir)?, cx.handle(args.to.dir)?);
    let (from, to) = (convert::old_name(args.from.name)?, convert::old_name(args.to.name)?);
    cx.guard(&Change::Rename { from_dir: &from_dir, from, to_dir: &to_dir, to })?;
    let changes = cx.service().rename(cx.caller(), &from_dir, from, &to_dir, to)?;
    let from_wcc = cx.wcc(&from_dir, &changes.0);
    let to_wcc = if from_dir == to_dir { from_wcc } else { cx.wcc(&to_dir, &changes.1) };
    cx.ok(&RenameResult { from_dir: from_wcc, to_dir: to_wcc })
}

pub(super) fn link(cx: &mut Context<'_>, wire: Args<'_>) -> Done {
    let args: LinkArgs<'_> = args(wire)?;
    let outcome = link_of(cx, &args);
    cx.finish(outcome, |cx| LinkResult {
        attributes: cx.attributes_of(args.file),
        dir: cx.wcc_of(args.place.dir),
    })
}

fn link_of(cx: &mut Context<'_>, args: &LinkArgs<'_>) -> Result<(), Stop> {
    let (file, dir) = (cx.handle(args.file)?, cx.handle(args.place.dir)?);
    let name = convert::new_name(args.place.name)?;
    cx.guard(&Change::Link { source: &file, dir: &dir, name })?;
    let change = cx.service().link(cx.caller(), &file, &dir, name)?;
    let attributes = cx.attributes(&file);
    let dir = cx.wcc(&dir, &change);
    cx.ok(&LinkResult { attributes, dir })
}

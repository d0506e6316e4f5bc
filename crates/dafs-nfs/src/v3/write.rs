//! WRITE and COMMIT (RFC 1813 3.3.7, 3.3.21): moves bytes of the request into the file.
//!
//! Invariants
//! * `committed` is the requested stability, and has been reached.
//! * The verifier changes when unstable data may be lost.

use super::read::only_files;
use super::{Args, Context, Done, Stop, args, attr_of, convert};
use crate::io;
use crate::limits::{TRANSFER_BYTES_MAX, WRITE_INLINE_BYTES_MAX};
use dafs_store::{OpenMode, Stability, StoreError, Wait};
use dafs_wire::nfs3::{ChangeFailure, CommitArgs, CommitOk, Status, WccData, WriteArgs, WriteOk};

const WRITE: OpenMode = OpenMode { read: false, write: true };

pub(super) fn write(cx: &mut Context<'_>, wire: Args<'_>) -> Done {
    let args: WriteArgs<'_> = args(wire)?;
    let outcome = write_of(cx, wire, &args).map_err(only_files);
    cx.finish(outcome, |cx| ChangeFailure { wcc: cx.wcc_of(args.file) })
}

fn write_of<'a>(cx: &mut Context<'_>, wire: Args<'a>, args: &WriteArgs<'a>) -> Result<(), Stop> {
    let handle = cx.handle(args.file)?;
    let len = args.data.len();
    if args.count as usize != len || len > TRANSFER_BYTES_MAX as usize {
        return Err(Status::Inval.into());
    }
    let end = args.offset.checked_add(len as u64);
    if end.is_none_or(|end| i64::try_from(end).is_err()) {
        return Err(Status::FBig.into());
    }
    let data = wire.view(args.data).ok_or(Stop::Garbage)?;
    let stability = convert::stability(args.stable);
    let small = stability == Stability::Unstable && len <= WRITE_INLINE_BYTES_MAX;
    if !small && cx.wait == Wait::Never {
        return Err(Stop::Wait);
    }
    let file = cx.service().opens.stateless_file(cx.caller(), &handle, WRITE)?.file;
    cx.service().locks.check_span(&handle, args.offset, len as u64)?;
    let verifier = cx.shared.write_verifier.current();
    let written = match io::write_all(&*file, data, args.offset, stability, cx.wait) {
        Ok(written) => written,
        Err(error) if stability != Stability::Unstable => return Err(sync_failed(cx, error)),
        Err(error) => return Err(error.into()),
    };
    let after = file.attr().ok().and_then(|attr| attr_of(&handle, &attr));
    cx.stages.written_bytes = written as u64;
    cx.ok(&WriteOk {
        wcc: WccData { before: None, after },
        count: written as u32,
        committed: args.stable,
        verifier,
    })
}

/// Handles a failure to make data stable. If a device failed, unstable data of any client may be
/// lost with it: the kernel reports that once, and then drops the data.
fn sync_failed(cx: &Context<'_>, error: StoreError) -> Stop {
    if error == StoreError::Io {
        // The verifier changes first: the next commit of the file may succeed.
        cx.shared.write_verifier.change();
        tracing::error!(%error, "data could not be made stable");
    }
    error.into()
}

pub(super) fn commit(cx: &mut Context<'_>, wire: Args<'_>) -> Done {
    let args: CommitArgs<'_> = args(wire)?;
    let outcome = commit_of(cx, &args).map_err(only_files);
    cx.finish(outcome, |cx| ChangeFailure { wcc: cx.wcc_of(args.file) })
}

fn commit_of(cx: &mut Context<'_>, args: &CommitArgs<'_>) -> Result<(), Stop> {
    let handle = cx.handle(args.file)?;
    if args.offset.checked_add(args.count.into()).is_none() {
        return Err(Status::Inval.into());
    }
    if cx.wait == Wait::Never {
        return Err(Stop::Wait);
    }
    let file = cx.service().file_for_sync(cx.caller(), &handle)?;
    // Read before the data is made stable: if the verifier changes meanwhile, the client must see
    // that.
    let verifier = cx.shared.write_verifier.current();
    match file.commit(args.offset, args.count.into()) {
        Ok(()) => {}
        Err(error @ (StoreError::NoSpace | StoreError::Quota)) => {
            // The disk had no space for cached data, so that data is lost too.
            sync_failed(cx, StoreError::Io);
            return Err(error.into());
        }
        Err(error) => return Err(sync_failed(cx, error)),
    }
    // A race: another thread has found that data is lost, which may be this client's.
    if cx.shared.write_verifier.current() != verifier {
        return Err(StoreError::Busy.into());
    }
    let after = file.attr().ok().and_then(|attr| attr_of(&handle, &attr));
    cx.ok(&CommitOk { wcc: WccData { before: None, after }, verifier })
}

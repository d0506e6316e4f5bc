//! FSSTAT, FSINFO, PATHCONF (RFC 1813 3.3.18 to 3.3.20).

use super::{Args, Context, Done, Stop, args};
use crate::limits::{READDIR_BYTES_PREFERRED, TRANSFER_BYTES_MAX, TRANSFER_BYTES_MULTIPLE};
use dafs_wire::nfs3::{
    FSF_CAN_SET_TIME, FSF_HOMOGENEOUS, FSF_LINK, FSF_SYMLINK, FsInfoOk, FsStatOk, GetattrArgs,
    ObjectFailure, PathConfOk, Time,
};

fn with_object(
    cx: &mut Context<'_>,
    wire: Args<'_>,
    answer: impl FnOnce(&mut Context<'_>, &GetattrArgs<'_>) -> Result<(), Stop>,
) -> Done {
    let args: GetattrArgs<'_> = args(wire)?;
    let outcome = answer(cx, &args);
    cx.finish(outcome, |cx| ObjectFailure { attributes: cx.attributes_of(args.object) })
}

pub(super) fn fsstat(cx: &mut Context<'_>, wire: Args<'_>) -> Done {
    with_object(cx, wire, |cx, args| {
        let handle = cx.handle(args.object)?;
        let stat = cx.service().fs_limits(cx.caller(), &handle)?.stat;
        let attributes = cx.attributes(&handle);
        cx.ok(&FsStatOk {
            attributes,
            bytes_total: stat.space_total,
            bytes_free: stat.space_free,
            bytes_available: stat.space_available,
            files_total: stat.files_total,
            files_free: stat.files_free,
            files_available: stat.files_available,
            invariant_seconds: 0,
        })
    })
}

pub(super) fn fsinfo(cx: &mut Context<'_>, wire: Args<'_>) -> Done {
    with_object(cx, wire, |cx, args| {
        let handle = cx.handle_at_mount(args.object)?;
        let stat = cx.service().fs_limits(cx.caller(), &handle)?.stat;
        let attributes = cx.attributes(&handle);
        cx.ok(&FsInfoOk {
            attributes,
            read_max: TRANSFER_BYTES_MAX,
            read_preferred: TRANSFER_BYTES_MAX,
            read_multiple: TRANSFER_BYTES_MULTIPLE,
            write_max: TRANSFER_BYTES_MAX,
            write_preferred: TRANSFER_BYTES_MAX,
            write_multiple: TRANSFER_BYTES_MULTIPLE,
            readdir_preferred: READDIR_BYTES_PREFERRED,
            file_bytes_max: stat.file_bytes_max,
            time_delta: Time { seconds: 0, nanoseconds: 1 },
            properties: FSF_LINK | FSF_SYMLINK | FSF_HOMOGENEOUS | FSF_CAN_SET_TIME,
        })
    })
}

pub(super) fn pathconf(cx: &mut Context<'_>, wire: Args<'_>) -> Done {
    with_object(cx, wire, |cx, args| {
        let handle = cx.handle(args.object)?;
        let stat = cx.service().fs_limits(cx.caller(), &handle)?.stat;
        let attributes = cx.attributes(&handle);
        cx.ok(&PathConfOk {
            attributes,
            links_max: stat.links_max,
            name_bytes_max: stat.name_bytes_max,
            no_truncation: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        })
    })
}

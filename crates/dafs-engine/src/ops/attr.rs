//! GETATTR, SETATTR, VERIFY, NVERIFY, GET_FSATTR and READLINK, inline and direct.
//!
//! Direct results are encoded into a staging chunk and RDMA-written. The reply follows on the same
//! connection, so it needs no completion in between (DAFS 2.7).

use crate::engine::convert::{self, AttrChange, OwnerText, READABLE, SUPPORTED};
use crate::engine::flows::Flow;
use crate::engine::request::{Call, Context, Done};
use crate::engine::staging::Staging;
use crate::engine::transfers::{release, remote};
use crate::engine::work::{JobResult, Pending, PendingId, Work};
use crate::limits::{APPEND_BYTES_MAX, STAGING_CHUNK_BYTES};
use dafs_service::{Caller, FsLimits, Handle, Service, ServiceError, StateId, Touch};
use dafs_store::{Attr, Quota, StoreError};
use dafs_wire::dafs::{
    self, AttrMask, Attributes, ByteOrder, Checksum, DirectBuffer, DirectReply, EncodeError,
    ErrorBody, FsAttrMask, FsAttributes, GetAttrDirect, GetAttrInline, GetAttrInlineReply,
    GetFsAttr, GetFsAttrReply, Procedure, ReadLinkDirect, ReadLinkInline, ReadLinkInlineReply,
    Reply, Seq, SetAttrDirect, SetAttrInline, SetAttrReply, Status, Verify, XGetXattr, checksum,
};

/// Preferred size of reads and writes, in bytes.
const PREFERRED_IO_BYTES: u64 = 1 << 20;

/// Attributes to set that come by RDMA.
pub(crate) struct FetchAttributes {
    args: Box<SetAttrDirect>,
    /// Their chunk, while they are being fetched.
    chunk: Option<u32>,
    /// Their bytes, while the intent of the change is logged.
    fetched: Vec<u8>,
}

impl FetchAttributes {
    pub(crate) fn has_job(&self) -> bool {
        self.chunk.is_none()
    }

    pub(crate) fn abandon(self, staging: &mut Staging) {
        release(staging, self.chunk);
    }
}

/// Encodes into a chunk and writes it to the client's buffers, which count as one area (DAFS O12).
pub(crate) fn send_direct(
    cx: &mut Context<'_>,
    buffers: &[DirectBuffer],
    encode: impl FnOnce(&mut [u8], ByteOrder) -> Result<usize, EncodeError>,
) -> Result<Checksum, Status> {
    let mut by = cx.transfers();
    let sum: u64 = buffers.iter().map(|buffer| u64::from(buffer.byte_count)).sum();
    let room = usize::try_from(sum).unwrap_or(usize::MAX).min(STAGING_CHUNK_BYTES);
    let chunk = by.take_chunk(Flow::Out).ok_or(Status::Delay)?;
    let order = by.order();
    let len = match encode(&mut by.bytes_mut(chunk)[..room], order) {
        Ok(len) => len,
        Err(error) => {
            by.give_back(chunk);
            return Err(match error {
                EncodeError::NoRoom { .. } => Status::TooSmall,
                _ => Status::ServerFault,
            });
        }
    };
    let direct_checksum =
        if by.checksums() { checksum(&by.bytes_mut(chunk)[..len]) } else { Checksum::ZERO };
    by.place_all(chunk, len, buffers);
    Ok(direct_checksum)
}

pub(crate) fn getattr_inline(cx: &mut Context<'_>, call: &Call, args: &GetAttrInline) -> Done {
    let (handle, wanted) = (convert::handle(&args.fh), args.attributes);
    cx.call_at(
        call,
        (&handle, Touch::Object),
        move |service, caller| Told::ask(service, caller, &handle, wanted),
        move |cx, call, told| {
            told.map_err(convert::status)?.with(&handle, wanted, |attributes| {
                let attributes = *attributes;
                cx.reply(call, &Reply::GetAttrInline(GetAttrInlineReply { attributes }))
            })
        },
    )
}

pub(crate) fn getattr_direct(cx: &mut Context<'_>, call: &Call, args: &GetAttrDirect) -> Done {
    let (handle, wanted, buffer) = (convert::handle(&args.fh), args.attributes, args.buffer);
    cx.call_at(
        call,
        (&handle, Touch::Object),
        move |service, caller| Told::ask(service, caller, &handle, wanted),
        move |cx, call, told| {
            let told = told.map_err(convert::status)?;
            let direct_checksum = send_direct(cx, &[buffer], |out, order| {
                told.with(&handle, wanted, |attributes| attributes.encode_direct(out, order))
            })?;
            cx.reply(call, &Reply::GetAttrDirect(DirectReply { direct_checksum }))
        },
    )
}

pub(crate) fn get_xattr(cx: &mut Context<'_>, call: &Call, args: &XGetXattr<'_>) -> Done {
    let (handle, buffer) = (convert::handle(&args.fh), args.buffer);
    let name = args.name.to_vec();
    cx.call_at(
        call,
        (&handle, Touch::Object),
        move |service, caller| service.xattr(caller, &handle, &name),
        move |cx, call, value| {
            let value = value.map_err(convert::status)?;
            let direct_checksum = send_direct(cx, &[buffer], |out, order| {
                dafs::encode_text_direct(&value, out, order)
            })?;
            cx.reply(call, &Reply::XGetXattr(DirectReply { direct_checksum }))
        },
    )
}

pub(crate) fn setattr_inline(cx: &mut Context<'_>, call: &Call, args: &SetAttrInline<'_>) -> Done {
    let (handle, id) = (convert::handle(&args.fh), convert::state_id(args.state_id));
    let (valid, wish) = (args.attributes.valid(), AttrChange::of(&args.attributes));
    if let Ok(wish) = &wish
        && cx.log_intent(call, &wish.change(&handle))?
    {
        return Ok(());
    }
    set_wish(cx, call, (handle, id), valid, wish, Reply::SetAttrInline)
}

fn set_wish(
    cx: &mut Context<'_>,
    call: &Call,
    (handle, id): (Handle, StateId),
    valid: AttrMask,
    wish: Result<AttrChange, Status>,
    reply: fn(SetAttrReply) -> Reply<'static>,
) -> Done {
    let wish = match wish {
        Ok(wish) => wish,
        Err(status) => return setattr_reply(cx, call, valid, Err(status), reply),
    };
    cx.call_at(
        call,
        (&handle, wish.touch()),
        move |service, caller| wish.execute(service, caller, &handle, id),
        move |cx, call, done| setattr_reply(cx, call, valid, done.map_err(convert::status), reply),
    )
}

fn setattr_reply(
    cx: &mut Context<'_>,
    call: &Call,
    valid: AttrMask,
    done: Result<(), Status>,
    reply: impl FnOnce(SetAttrReply) -> Reply<'static>,
) -> Done {
    match done {
        Ok(()) => cx.reply(call, &reply(SetAttrReply { attributes: valid })),
        Err(status) => {
            // The store's change is atomic.
            let body = ErrorBody::SetAttr(SetAttrReply { attributes: AttrMask::NONE });
            cx.fail_with(call, status, &body);
            Ok(())
        }
    }
}

/// Fetches the attributes first. See `fetched`.
pub(crate) fn setattr_direct(cx: &mut Context<'_>, call: &Call, args: &SetAttrDirect) -> Done {
    let len = args.buffer.byte_count as usize;
    if len > STAGING_CHUNK_BYTES || len == 0 {
        return Err(Status::Inval);
    }
    // No store waits for these bytes: they are copied out as soon as they have come.
    let chunk = cx.transfers().take_chunk(Flow::Out).ok_or(Status::Delay)?;
    let (args, fetched) = (Box::new(*args), Vec::new());
    let remote = remote(&args.buffer, 0, len);
    let fetch = FetchAttributes { args, chunk: Some(chunk), fetched };
    let id = cx.defer(call, Work::FetchAttributes(fetch));
    cx.transfers().fetch(id, (chunk, 0), remote);
    Ok(())
}

/// Handles the fetched attributes of a SETATTR_DIRECT: logs the intent of the change, if needed.
pub(crate) fn fetched(cx: &mut Context<'_>, id: PendingId, ok: bool) {
    let Some((Work::FetchAttributes(fetch), mut by)) = cx.work(id) else { return };
    let Some(chunk) = fetch.chunk.take() else { return };
    // A private copy, which no peer can change any more.
    fetch.fetched = by.bytes_mut(chunk)[..fetch.args.buffer.byte_count as usize].to_vec();
    by.give_back(chunk);
    if !ok || by.is_closing() {
        // The change has not begun.
        return cx.abandon(id);
    }
    match log_fetched(cx, id) {
        Ok(true) => {}
        Ok(false) => set_fetched(cx, id),
        Err(status) => cx.refuse(id, status),
    }
}

fn log_fetched(cx: &mut Context<'_>, id: PendingId) -> Result<bool, Status> {
    let Some((Work::FetchAttributes(fetch), by)) = cx.work(id) else { return Ok(true) };
    if by.checksums() && checksum(&fetch.fetched) != fetch.args.direct_checksum {
        return Err(Status::ChkSum);
    }
    let attributes = Attributes::decode_direct(&fetch.fetched, by.order());
    let attributes = attributes.map_err(|_| Status::Inval)?;
    // The execution of the change reports invalid attributes.
    let Ok(wish) = AttrChange::of(&attributes) else { return Ok(false) };
    let file = convert::handle(&fetch.args.fh);
    cx.log_fetched_intent(id, &wish.change(&file))
}

/// Goes on with a SETATTR_DIRECT whose intent was logged, or was not.
pub(crate) fn intent_logged(cx: &mut Context<'_>, id: PendingId, result: JobResult) {
    if cx.transfers().is_closing() {
        return cx.abandon(id);
    }
    if matches!(result, JobResult::Journal(Ok(()))) {
        return set_fetched(cx, id);
    }
    cx.intent_failed(id, result);
}

fn set_fetched(cx: &mut Context<'_>, id: PendingId) {
    let Some(pending) = cx.take_in_slot(id) else { return };
    let Pending { call, work: Work::FetchAttributes(fetch), .. } = pending else { return };
    cx.execute(&call, |cx| {
        let attributes = Attributes::decode_direct(&fetch.fetched, cx.transfers().order());
        let attributes = attributes.map_err(|_| Status::Inval)?;
        let at = (convert::handle(&fetch.args.fh), convert::state_id(fetch.args.state_id));
        let (valid, wish) = (attributes.valid(), AttrChange::of(&attributes));
        set_wish(cx, &call, at, valid, wish, Reply::SetAttrDirect)
    });
}

/// VERIFY succeeds when all given attributes match, NVERIFY when they do not.
pub(crate) fn verify(cx: &mut Context<'_>, call: &Call, args: &Verify<'_>) -> Done {
    let equal = call.procedure == Some(Procedure::Verify);
    if !READABLE.contains(args.attributes.valid()) {
        return Err(Status::NotSupp);
    }
    let handle = convert::handle(&args.fh);
    let ask = move |service: &Service, caller: Caller<'_>| {
        service.delegations.attributes(caller, &handle)
    };
    let first = cx.call_service_raw(call, ask)?;
    if first != Err(ServiceError::WouldWait) {
        return verified(cx, call, (&handle, first), &args.attributes, equal);
    }
    // The request does not stay that long.
    let (order, mut given) = (cx.transfers().order(), vec![0; STAGING_CHUNK_BYTES]);
    let length = args.attributes.encode_direct(&mut given, order);
    given.truncate(length.map_err(|_| Status::ServerFault)?);
    cx.call_elsewhere(call, &handle, ask, move |cx, call, attr| {
        let given = Attributes::decode_direct(&given, order).map_err(|_| Status::ServerFault)?;
        verified(cx, call, (&handle, attr), &given, equal)
    })
}

fn verified(
    cx: &mut Context<'_>,
    call: &Call,
    (handle, attr): (&Handle, dafs_service::Result<Attr>),
    attributes: &Attributes<'_>,
    equal: bool,
) -> Done {
    let (attr, given) = (attr.map_err(convert::status)?, attributes.valid());
    let text = OwnerText::new(&attr);
    let actual = convert::attributes(handle, &attr, &text, given);
    let same =
        Attributes { included: given, ..*attributes } == Attributes { included: given, ..actual };
    match (same, equal) {
        (true, true) => cx.reply(call, &Reply::Verify),
        (false, false) => cx.reply(call, &Reply::NVerify),
        (false, true) => Err(Status::NotSame),
        (true, false) => Err(Status::Same),
    }
}

pub(crate) fn get_fs_attr(cx: &mut Context<'_>, call: &Call, args: &GetFsAttr) -> Done {
    let (handle, wanted) = (convert::handle(&args.fh), args.attributes);
    let shown_by = cx.shown_by();
    cx.call_at(
        call,
        (&handle, Touch::Data),
        move |service, caller| {
            let limits = service.fs_limits(caller, &handle)?;
            let quota = if (wanted & (QUOTAS | FsAttrMask::SUPPORTED_FSATTR)).is_empty() {
                None
            } else {
                service.quota(caller, &handle)?
            };
            let is_optimistic = shown_by.is_some_and(|by| service.exposes(&handle, by.is_remote()));
            Ok((limits, quota, service.layouts.tells_of_layouts(&handle), is_optimistic))
        },
        move |cx, call, told: dafs_service::Result<_>| {
            let (limits, quota, layouts, is_optimistic) = told.map_err(convert::status)?;
            fs_attr_reply(cx, call, &handle, wanted, (&limits, quota, layouts, is_optimistic))
        },
    )
}

fn fs_attr_reply(
    cx: &mut Context<'_>,
    call: &Call,
    handle: &Handle,
    wanted: FsAttrMask,
    (limits, quota, layouts, is_optimistic): (&FsLimits, Option<Quota>, bool, bool),
) -> Done {
    let transfer = cx.transfers().bytes_max() as u64;
    let stat = limits.stat;
    // A quota without a limit has the largest one.
    let limit = |of: fn(Quota) -> Option<u64>| quota.map(|quota| of(quota).unwrap_or(u64::MAX));
    let all = FsAttributes {
        included: wanted.intersection(FsAttrMask::ALL),
        link_support: Some(stat.links_max > 1),
        symlink_support: Some(true),
        can_set_time: Some(true),
        case_insensitive: Some(false),
        case_preserving: Some(true),
        chown_restricted: Some(true),
        homogeneous: Some(true),
        no_trunc: Some(true),
        unique_handle: Some(true),
        lease_time: Some(cx.service().config().lease_time.as_secs() as u32),
        rd_attr_error: Some(Status::Io.code()),
        acl_support: Some(0),
        max_link: Some(stat.links_max),
        max_name: Some(stat.name_bytes_max),
        supported_fattr: Some(SUPPORTED.0),
        supported_fsattr: Some(SUPPORTED_FS.0 | quota.map_or(0, |_| QUOTAS.0)),
        files_available: Some(stat.files_available),
        files_free: Some(stat.files_free),
        files_total: Some(stat.files_total),
        max_file_size: Some(stat.file_bytes_max),
        max_read: Some(transfer),
        max_write: Some(transfer),
        max_append: Some(APPEND_BYTES_MAX as u64),
        space_available: Some(stat.space_available),
        space_free: Some(stat.space_free),
        space_total: Some(stat.space_total),
        quota_hard: limit(|quota| quota.hard),
        quota_soft: limit(|quota| quota.soft),
        quota_used: quota.map(|quota| quota.used),
        fshandle: Some(handle.fs.0),
        pref_io_size: Some(PREFERRED_IO_BYTES.min(transfer)),
        fh_expire_type: Some(0),
        x_layouts: Some(layouts),
        x_cancel: Some(true),
        x_optimistic: Some(is_optimistic),
        x_reclaim_complete: Some(true),
        ..FsAttributes::default()
    };
    let attributes = all.only(wanted);
    cx.reply(call, &Reply::GetFsAttr(GetFsAttrReply { attributes }))
}

pub(crate) fn readlink_inline(cx: &mut Context<'_>, call: &Call, args: &ReadLinkInline) -> Done {
    let handle = convert::handle(&args.fh);
    cx.call_at(
        call,
        (&handle, Touch::Object),
        move |service, caller| service.readlink(caller, &handle),
        |cx, call, text| {
            let text = text.map_err(convert::status)?;
            cx.reply(call, &Reply::ReadLinkInline(ReadLinkInlineReply { text: &text }))
        },
    )
}

pub(crate) fn readlink_direct(cx: &mut Context<'_>, call: &Call, args: &ReadLinkDirect) -> Done {
    let (handle, buffer) = (convert::handle(&args.fh), args.buffer);
    cx.call_at(
        call,
        (&handle, Touch::Object),
        move |service, caller| service.readlink(caller, &handle),
        move |cx, call, text| {
            let text = text.map_err(convert::status)?;
            let direct_checksum = send_direct(cx, &[buffer], |out, order| {
                dafs::encode_text_direct(&text, out, order)
            })?;
            cx.reply(call, &Reply::ReadLinkDirect(DirectReply { direct_checksum }))
        },
    )
}

/// The result of a GETATTR.
struct Told {
    attr: Attr,
    /// The names of extended attributes, if they are requested.
    names: Option<Vec<Vec<u8>>>,
}

impl Told {
    fn ask(
        service: &Service,
        caller: Caller<'_>,
        handle: &Handle,
        wanted: AttrMask,
    ) -> dafs_service::Result<Self> {
        let attr = service.delegations.attributes(caller, handle)?;
        let names = match wanted.contains(AttrMask::X_XATTR_NAMES) {
            false => None,
            true => match service.list_xattrs(caller, handle) {
                // An object that cannot have extended attributes has an empty list.
                Err(ServiceError::Store(StoreError::NotSupported)) => Some(Vec::new()),
                names => Some(names?),
            },
        };
        Ok(Self { attr, names })
    }

    fn with<T>(
        &self,
        handle: &Handle,
        wanted: AttrMask,
        then: impl FnOnce(&Attributes<'_>) -> T,
    ) -> T {
        let text = OwnerText::new(&self.attr);
        let names: Option<Vec<&[u8]>> =
            self.names.as_ref().map(|names| names.iter().map(Vec::as_slice).collect());
        let x_xattr_names = names.as_deref().map(Seq::new);
        let attributes = convert::attributes(handle, &self.attr, &text, wanted);
        then(&Attributes { x_xattr_names, ..attributes })
    }
}

/// The quota of the caller, which exports with quotas have.
const QUOTAS: FsAttrMask =
    FsAttrMask::QUOTA_HARD.union(FsAttrMask::QUOTA_SOFT).union(FsAttrMask::QUOTA_USED);

/// File-system attributes that can be read of every export.
const SUPPORTED_FS: FsAttrMask =
    FsAttrMask(FsAttrMask::ALL.0 & !(QUOTAS.0 | FsAttrMask::FAILOVER_LOCATIONS.0));

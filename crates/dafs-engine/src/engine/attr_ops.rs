//! GETATTR, SETATTR, VERIFY, NVERIFY, GET_FSATTR and READLINK, inline and direct.
//!
//! Direct results are encoded into a staging chunk and RDMA-written. The reply follows on the same
//! connection, so it needs no completion in between (DAFS 2.7).

use super::connection::Phase;
use super::convert::{self, OwnerText, READABLE, SUPPORTED, Wish};
use super::durable::journal_status;
use super::request::{Call, Context, Done};
use super::work::{JobResult, Pending, PendingId, Work};
use super::{Link, PIECE_ONLY, Tag};
use crate::limits::{APPEND_BYTES_MAX, STAGING_CHUNK_BYTES};
use dafs_dat::RemoteBuffer;
use dafs_service::{Caller, FsLimits, Handle, Service, ServiceError, StateId, Touch};
use dafs_store::{Attr, StoreError};
use dafs_wire::dafs::{
    self, AttrMask, Attributes, ByteOrder, Checksum, DirectBuffer, DirectReply, EncodeError,
    ErrorBody, FsAttrMask, FsAttributes, GetAttrDirect, GetAttrInline, GetAttrInlineReply,
    GetFsAttr, GetFsAttrReply, ReadLinkDirect, ReadLinkInline, ReadLinkInlineReply, Reply, Seq,
    SetAttrDirect, SetAttrInline, SetAttrReply, Status, Verify, XGetXattr, checksum,
};

/// Preferred size of reads and writes, in bytes.
const PREFERRED_IO_BYTES: u64 = 1 << 20;

/// Attributes to set that come by RDMA.
pub(super) struct FetchAttributes {
    args: Box<SetAttrDirect>,
    /// Their chunk, while they are being fetched.
    chunk: Option<u32>,
    /// Their bytes, while the intent of the change is logged.
    fetched: Vec<u8>,
}

impl FetchAttributes {
    pub(super) fn has_job(&self) -> bool {
        self.chunk.is_none()
    }

    pub(super) fn abandon(self, link: &mut Link) {
        if let Some(chunk) = self.chunk {
            link.staging.give_back(chunk);
        }
    }
}

impl Context<'_> {
    pub(super) fn getattr_inline(&mut self, call: &Call, args: &GetAttrInline) -> Done {
        let (handle, wanted) = (convert::handle(&args.fh), args.attributes);
        self.call_at(
            call,
            (&handle, Touch::Object),
            move |service, caller| Told::ask(service, caller, &handle, wanted),
            move |context, call, told| {
                told.map_err(convert::status)?.with(&handle, wanted, |attributes| {
                    let attributes = *attributes;
                    context.reply(call, &Reply::GetAttrInline(GetAttrInlineReply { attributes }))
                })
            },
        )
    }

    pub(super) fn getattr_direct(&mut self, call: &Call, args: &GetAttrDirect) -> Done {
        let (handle, wanted, buffer) = (convert::handle(&args.fh), args.attributes, args.buffer);
        self.call_at(
            call,
            (&handle, Touch::Object),
            move |service, caller| Told::ask(service, caller, &handle, wanted),
            move |context, call, told| {
                let told = told.map_err(convert::status)?;
                let direct_checksum = context.send_direct(&[buffer], |out, order| {
                    told.with(&handle, wanted, |attributes| attributes.encode_direct(out, order))
                })?;
                context.reply(call, &Reply::GetAttrDirect(DirectReply { direct_checksum }))
            },
        )
    }

    pub(super) fn get_xattr(&mut self, call: &Call, args: &XGetXattr<'_>) -> Done {
        let (handle, buffer) = (convert::handle(&args.fh), args.buffer);
        let name = args.name.to_vec();
        self.call_at(
            call,
            (&handle, Touch::Object),
            move |service, caller| service.xattr(caller, &handle, &name),
            move |context, call, value| {
                let value = value.map_err(convert::status)?;
                let direct_checksum = context.send_direct(&[buffer], |out, order| {
                    dafs::encode_text_direct(&value, out, order)
                })?;
                context.reply(call, &Reply::XGetXattr(DirectReply { direct_checksum }))
            },
        )
    }

    /// Encodes into a chunk and writes it to the client's buffers, which count as one area (DAFS
    /// O12).
    pub(super) fn send_direct(
        &mut self,
        buffers: &[DirectBuffer],
        encode: impl FnOnce(&mut [u8], ByteOrder) -> Result<usize, EncodeError>,
    ) -> Result<Checksum, Status> {
        let order = self.connection.order;
        let sum: u64 = buffers.iter().map(|buffer| u64::from(buffer.byte_count)).sum();
        let room = usize::try_from(sum).unwrap_or(usize::MAX).min(STAGING_CHUNK_BYTES);
        let chunk = self.take_chunk().ok_or(Status::Delay)?;
        let len = match encode(&mut self.link.staging.bytes_mut(chunk)[..room], order) {
            Ok(len) => len,
            Err(error) => {
                self.link.staging.give_back(chunk);
                return Err(match error {
                    EncodeError::NoRoom { .. } => Status::TooSmall,
                    _ => Status::ServerFault,
                });
            }
        };
        let direct_checksum = if self.connection.checksums() {
            checksum(&self.link.staging.bytes_mut(chunk)[..len])
        } else {
            Checksum::ZERO
        };
        self.write_chunk(chunk, len, buffers);
        Ok(direct_checksum)
    }

    /// RDMA-writes the first `len` bytes of a chunk to a list of buffers. The chunk is free again
    /// when the last piece is sent.
    fn write_chunk(&mut self, chunk: u32, len: usize, buffers: &[DirectBuffer]) {
        let mut at = 0;
        let mut pieces = buffers.iter().filter(|buffer| buffer.byte_count > 0).peekable();
        while at < len
            && let Some(buffer) = pieces.next()
        {
            let part = (buffer.byte_count as usize).min(len - at);
            let remote =
                RemoteBuffer { key: buffer.context, address: buffer.address, len: part as u32 };
            let segment = self.link.staging.segment(chunk, at, part);
            at += part;
            let last = at == len || pieces.peek().is_none();
            let work = Tag::ChunkOut(if last { chunk } else { PIECE_ONLY }).pack();
            let endpoint = self.connection.endpoint;
            self.connection.count_posted(self.now);
            if self.link.adapter.rdma_write(endpoint, work, &[segment], remote).is_err() {
                // The connection broke. Pieces that are posted already are flushed before its end,
                // and only the last one would have freed the chunk.
                return self.link.staging.give_back(chunk);
            }
        }
        if len == 0 {
            self.link.staging.give_back(chunk);
        }
    }

    pub(super) fn setattr_inline(&mut self, call: &Call, args: &SetAttrInline<'_>) -> Done {
        let (handle, id) = (convert::handle(&args.fh), convert::state_id(args.state_id));
        let (valid, wish) = (args.attributes.valid(), Wish::of(&args.attributes));
        if let Ok(wish) = &wish
            && self.log_intent(call, &wish.change(&handle))?
        {
            return Ok(());
        }
        self.set_wish(call, (handle, id), valid, wish, Reply::SetAttrInline)
    }

    fn set_wish(
        &mut self,
        call: &Call,
        (handle, id): (Handle, StateId),
        valid: AttrMask,
        wish: Result<Wish, Status>,
        reply: fn(SetAttrReply) -> Reply<'static>,
    ) -> Done {
        let wish = match wish {
            Ok(wish) => wish,
            Err(status) => return self.setattr_reply(call, valid, Err(status), reply),
        };
        self.call_at(
            call,
            (&handle, wish.touch()),
            move |service, caller| wish.execute(service, caller, &handle, id),
            move |context, call, done| {
                context.setattr_reply(call, valid, done.map_err(convert::status), reply)
            },
        )
    }

    fn setattr_reply(
        &mut self,
        call: &Call,
        valid: AttrMask,
        done: Result<(), Status>,
        reply: impl FnOnce(SetAttrReply) -> Reply<'static>,
    ) -> Done {
        match done {
            Ok(()) => self.reply(call, &reply(SetAttrReply { attributes: valid })),
            Err(status) => {
                // The store's change is atomic.
                let body = ErrorBody::SetAttr(SetAttrReply { attributes: AttrMask::NONE });
                self.fail_with(call, status, &body);
                Ok(())
            }
        }
    }

    /// Fetches the attributes first. See `attributes_fetched`.
    pub(super) fn setattr_direct(&mut self, call: &Call, args: &SetAttrDirect) -> Done {
        let len = args.buffer.byte_count as usize;
        if len > STAGING_CHUNK_BYTES || len == 0 {
            return Err(Status::Inval);
        }
        let chunk = self.take_chunk().ok_or(Status::Delay)?;
        let (fetched, chunk_held) = (Vec::new(), Some(chunk));
        let fetch = FetchAttributes { args: Box::new(*args), chunk: chunk_held, fetched };
        let id = self.defer(call, Work::FetchAttributes(fetch));
        let remote = RemoteBuffer {
            key: args.buffer.context,
            address: args.buffer.address,
            len: args.buffer.byte_count,
        };
        let segment = self.link.staging.segment(chunk, 0, len);
        let work = Self::tag_in(id, chunk);
        let endpoint = self.connection.endpoint;
        match self.link.adapter.rdma_read(endpoint, work, segment, remote) {
            Ok(()) => self.connection.count_fetch(self.now),
            // The end of the connection releases all its resources.
            Err(error) => self.drop_session(&format!("attributes cannot be fetched: {error}")),
        }
        Ok(())
    }

    fn fetch_attributes(&mut self, id: PendingId) -> Option<(Call, &mut FetchAttributes)> {
        match self.pending.get_mut(id)? {
            Pending { call, work: Work::FetchAttributes(fetch), .. } => Some((*call, fetch)),
            _ => None,
        }
    }

    /// Handles the fetched attributes of a SETATTR_DIRECT: logs the intent of the change, if
    /// needed.
    pub(super) fn attributes_fetched(&mut self, id: PendingId, ok: bool) {
        let Some((call, fetch)) = self.fetch_attributes(id) else { return };
        let (chunk, args) = (fetch.chunk.take(), *fetch.args);
        let Some(chunk) = chunk else { return };
        let len = args.buffer.byte_count as usize;
        // A private copy, which no peer can change any more.
        let bytes = self.link.staging.bytes_mut(chunk)[..len].to_vec();
        self.link.staging.give_back(chunk);
        if !ok || self.connection.phase == Phase::Closing {
            // The change has not begun.
            return self.abandon(id);
        }
        let waits = self.log_attributes_intent(id, &call, &args, &bytes);
        match waits {
            Ok(true) => {
                if let Some((_, fetch)) = self.fetch_attributes(id) {
                    fetch.fetched = bytes;
                }
            }
            Ok(false) => self.set_fetched(id, &bytes),
            Err(status) => {
                self.take_pending(id);
                self.fail(&call, status);
            }
        }
    }

    fn log_attributes_intent(
        &mut self,
        id: PendingId,
        call: &Call,
        args: &SetAttrDirect,
        bytes: &[u8],
    ) -> Result<bool, Status> {
        if self.connection.checksums() && checksum(bytes) != args.direct_checksum {
            return Err(Status::ChkSum);
        }
        let attributes = Attributes::decode_direct(bytes, self.connection.order);
        let attributes = attributes.map_err(|_| Status::Inval)?;
        // The execution of the change reports invalid attributes.
        let Ok(wish) = Wish::of(&attributes) else { return Ok(false) };
        self.log_fetched_intent(id, call, &wish.change(&convert::handle(&args.fh)))
    }

    /// Goes on with a SETATTR_DIRECT whose intent was logged, or was not.
    pub(super) fn attributes_logged(&mut self, id: PendingId, result: JobResult) {
        let Some((call, fetch)) = self.fetch_attributes(id) else { return };
        let bytes = std::mem::take(&mut fetch.fetched);
        if self.connection.phase == Phase::Closing {
            return self.abandon(id);
        }
        if matches!(result, JobResult::Journal(Ok(()))) {
            return self.set_fetched(id, &bytes);
        }
        self.abandon(id);
        self.fail(&call, journal_status(result));
    }

    fn set_fetched(&mut self, id: PendingId, bytes: &[u8]) {
        let Some(pending) = self.pending.take(id) else { return };
        let Pending { call, work: Work::FetchAttributes(fetch), .. } = pending else { return };
        let args = fetch.args;
        // The message stays in its slot if the request has to wait for another step.
        self.deferred = false;
        let outcome = match Attributes::decode_direct(bytes, self.connection.order) {
            Ok(attributes) => self.set_fetched_attributes(&call, &args, &attributes),
            Err(_) => Err(Status::Inval),
        };
        self.finish(&call, outcome);
        if !self.deferred {
            self.connection.receives.give_back(call.slot);
        }
    }

    fn set_fetched_attributes(
        &mut self,
        call: &Call,
        args: &SetAttrDirect,
        attributes: &Attributes<'_>,
    ) -> Done {
        let at = (convert::handle(&args.fh), convert::state_id(args.state_id));
        let (valid, wish) = (attributes.valid(), Wish::of(attributes));
        self.set_wish(call, at, valid, wish, Reply::SetAttrDirect)
    }

    /// VERIFY succeeds when all given attributes match, NVERIFY when they do not.
    pub(super) fn verify(&mut self, call: &Call, args: &Verify<'_>, equal: bool) -> Done {
        let given = args.attributes.valid();
        if !READABLE.contains(given) {
            return Err(Status::NotSupp);
        }
        let handle = convert::handle(&args.fh);
        let attr = self.call_service(call, |service, caller| {
            service.delegations.attributes(caller, &handle)
        })?;
        let text = OwnerText::new(&attr);
        let actual = convert::attributes(&handle, &attr, &text, given);
        let same = Attributes { included: given, ..args.attributes }
            == Attributes { included: given, ..actual };
        match (same, equal) {
            (true, true) => self.reply(call, &Reply::Verify),
            (false, false) => self.reply(call, &Reply::NVerify),
            (false, true) => Err(Status::NotSame),
            (true, false) => Err(Status::Same),
        }
    }

    pub(super) fn get_fs_attr(&mut self, call: &Call, args: &GetFsAttr) -> Done {
        let (handle, wanted) = (convert::handle(&args.fh), args.attributes);
        self.call_at(
            call,
            (&handle, Touch::Data),
            move |service, caller| {
                let limits = service.fs_limits(caller, &handle)?;
                Ok((limits, service.layouts.tells_of_layouts(&handle)))
            },
            move |context, call, told: dafs_service::Result<_>| {
                let (limits, layouts) = told.map_err(convert::status)?;
                context.fs_attr_reply(call, &handle, wanted, (&limits, layouts))
            },
        )
    }

    fn fs_attr_reply(
        &mut self,
        call: &Call,
        handle: &Handle,
        wanted: FsAttrMask,
        (limits, layouts): (&FsLimits, bool),
    ) -> Done {
        let transfer = u64::from(self.shared.limits.transfer_bytes_max);
        let stat = limits.stat;
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
            lease_time: Some(self.shared.service.config().lease_time.as_secs() as u32),
            rd_attr_error: Some(Status::Io.code()),
            acl_support: Some(0),
            max_link: Some(stat.links_max),
            max_name: Some(stat.name_bytes_max),
            supported_fattr: Some(SUPPORTED.0),
            supported_fsattr: Some(SUPPORTED_FS.0),
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
            fshandle: Some(handle.fs.0),
            pref_io_size: Some(PREFERRED_IO_BYTES.min(transfer)),
            fh_expire_type: Some(0),
            x_layouts: Some(layouts),
            ..FsAttributes::default()
        };
        let attributes = all.only(wanted);
        self.reply(call, &Reply::GetFsAttr(GetFsAttrReply { attributes }))
    }

    pub(super) fn readlink_inline(&mut self, call: &Call, args: &ReadLinkInline) -> Done {
        let handle = convert::handle(&args.fh);
        self.call_at(
            call,
            (&handle, Touch::Object),
            move |service, caller| service.readlink(caller, &handle),
            |context, call, text| {
                let text = text.map_err(convert::status)?;
                context.reply(call, &Reply::ReadLinkInline(ReadLinkInlineReply { text: &text }))
            },
        )
    }

    pub(super) fn readlink_direct(&mut self, call: &Call, args: &ReadLinkDirect) -> Done {
        let (handle, buffer) = (convert::handle(&args.fh), args.buffer);
        self.call_at(
            call,
            (&handle, Touch::Object),
            move |service, caller| service.readlink(caller, &handle),
            move |context, call, text| {
                let text = text.map_err(convert::status)?;
                let direct_checksum = context.send_direct(&[buffer], |out, order| {
                    dafs::encode_text_direct(&text, out, order)
                })?;
                context.reply(call, &Reply::ReadLinkDirect(DirectReply { direct_checksum }))
            },
        )
    }
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

/// File-system attributes that can be read. Quotas are unknown.
const SUPPORTED_FS: FsAttrMask = FsAttrMask(
    FsAttrMask::ALL.0
        & !(FsAttrMask::QUOTA_HARD.0
            | FsAttrMask::QUOTA_SOFT.0
            | FsAttrMask::QUOTA_USED.0
            | FsAttrMask::FAILOVER_LOCATIONS.0),
);

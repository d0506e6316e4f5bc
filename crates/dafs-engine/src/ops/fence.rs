//! GET_ and SET_FENCING_LIST, and the refusal of requests of fenced sessions (DAFS 11, O43 to O48).

use crate::engine::convert;
use crate::engine::request::{Call, Context, Done};
use crate::engine::work::{JobResult, Report, Work};
use dafs_mem::Mutex;
use dafs_service::{
    Caller, FenceObject, FenceRight, FenceUpdate, Handle, Service, ServiceError, Subject,
};
use dafs_store::Wait;
use dafs_wire::dafs::{
    self, FenceAccess, FileHandle, GetFencingList, GetFencingListReply, Reply, Request, Seq,
    SetFencingList, Status,
};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// The kind of an update (DAFS O44), without the names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Lift,
    Install,
    Add,
    Remove,
}

/// Refuses a request that names an object that this session is fenced from.
pub(crate) fn check_fences(cx: &Context<'_>, request: &Request<'_>) -> Done {
    if !cx.service().fences.exist() {
        return Ok(());
    }
    let subject = Subject::Session(cx.fence_id());
    named(request).iter().try_for_each(|fh| {
        let handle = convert::handle(fh);
        cx.service().fences.check(&subject, &handle).map_err(convert::status)
    })
}

pub(crate) fn get_fencing_list(cx: &mut Context<'_>, call: &Call, args: &GetFencingList) -> Done {
    // DAFS O43.
    let object = match args.fh.file == FileHandle::ZERO.file {
        true => dafs::FenceObject::FileSystem,
        false => dafs::FenceObject::File,
    };
    let object = object_of(&args.fh, object);
    let trusted = cx.is_trusted();
    let names = cx.call_service(call, |service, caller| {
        service.fences.list(FenceRight::Client(caller, trusted), &object)
    })?;
    let names = names.map(|names| match names.is_empty() {
        // DAFS O46.
        true => vec![Vec::new()],
        false => names,
    });
    let names = names.unwrap_or_default();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    cx.reply(call, &Reply::GetFencingList(GetFencingListReply { list: Seq::new(&names) }))
}

pub(crate) fn set_fencing_list(
    cx: &mut Context<'_>,
    call: &Call,
    args: &SetFencingList<'_>,
) -> Done {
    if args.object == dafs::FenceObject::File && args.fh.file == FileHandle::ZERO.file {
        return Err(Status::Inval);
    }
    let (act, names) = update_of(args)?;
    let caller =
        cx.call_service(call, |_, caller| Ok((caller.client.clone(), caller.cred.clone())));
    let (client, cred) = caller?;
    let (fence_id, trusted) = (cx.fence_id().to_vec(), cx.is_trusted());
    let (object, now_ns) = (object_of(&args.fh, args.object), cx.now.0);
    let service = cx.service().clone();
    let id = cx.defer(call, Work::Fence);
    cx.submit_report(id, move |report| {
        let subject = Subject::Session(&fence_id);
        let wait = Wait::Allowed;
        let caller = Caller { client: &client, cred: &cred, subject, wait, now_ns };
        run(&service, FenceRight::Client(caller, trusted), &object, act, &names, report);
    });
    Ok(())
}

/// Answers when the list has changed and the fenced sessions have no request under way, or when
/// the change failed.
pub(crate) fn fence_done(
    cx: &mut Context<'_>,
    call: &Call,
    result: Result<(), ServiceError>,
) -> Done {
    result.map_err(convert::status)?;
    cx.reply(call, &Reply::SetFencingList)
}

fn run(
    service: &Service,
    right: FenceRight<'_>,
    object: &FenceObject,
    act: Act,
    names: &[Vec<u8>],
    report: Report,
) {
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let update = match act {
        Act::Lift => FenceUpdate::Lift,
        Act::Install => FenceUpdate::Install(&names),
        Act::Add => FenceUpdate::Add(&names),
        Act::Remove => FenceUpdate::Remove(&names),
    };
    let report = Arc::new(Mutex::new(Some(report)));
    let tell = |report: &Mutex<Option<Report>>, result| {
        if let Some(report) = report.lock().take() {
            report.tell(JobResult::Fence(result));
        }
    };
    let drained = report.clone();
    let outcome =
        service.set_fence(right, object, update, Box::new(move || tell(&drained, Ok(()))));
    if let Err(error) = outcome {
        tell(&report, Err(error));
    }
}

fn object_of(fh: &FileHandle, object: dafs::FenceObject) -> FenceObject {
    let handle: Handle = convert::handle(fh);
    match object {
        dafs::FenceObject::File => FenceObject::File(handle),
        dafs::FenceObject::FileSystem => FenceObject::FileSystem(handle.fs),
    }
}

/// Decodes the pair of access and update.
fn update_of(args: &SetFencingList<'_>) -> Result<(Act, Vec<Vec<u8>>), Status> {
    let mut names: Vec<Vec<u8>> = args.list.iter().map(<[u8]>::to_vec).collect();
    let act = match (args.access, args.update) {
        (FenceAccess::Allow, dafs::FenceUpdate::Overwrite) if names.is_empty() => Act::Lift,
        (FenceAccess::Allow, dafs::FenceUpdate::Overwrite) => {
            // The list that GET returns for an empty list can be set again (DAFS O46).
            if matches!(&names[..], [name] if name.is_empty()) {
                names.clear();
            }
            Act::Install
        }
        (FenceAccess::Allow, dafs::FenceUpdate::Append) => Act::Add,
        (FenceAccess::Deny, dafs::FenceUpdate::Append | dafs::FenceUpdate::Remove) => Act::Remove,
        (FenceAccess::Allow, dafs::FenceUpdate::Remove)
        | (FenceAccess::Deny, dafs::FenceUpdate::Overwrite) => return Err(Status::Inval),
    };
    Ok((act, names))
}

fn one(fh: FileHandle) -> SmallVec<[FileHandle; 2]> {
    SmallVec::from_slice(&[fh])
}

/// Returns the handles that a request names. Changes of fences are checked separately: a manager
/// that is on no list must be able to lift its own fence.
pub(crate) fn named(request: &Request<'_>) -> SmallVec<[FileHandle; 2]> {
    match request {
        Request::Access(args) => one(args.fh),
        Request::AppendDirect(args) => one(args.fh),
        Request::AppendInline(args) => one(args.fh),
        Request::BatchSubmit(args) => args.requests.iter().map(|request| request.fh).collect(),
        Request::CacheHint(args) => one(args.fh),
        Request::Close(args) => one(args.fh),
        Request::Commit(args) => one(args.fh),
        Request::Create(args) => one(args.dir),
        Request::GetAttrDirect(args) => one(args.fh),
        Request::GetAttrInline(args) => one(args.fh),
        Request::GetFsAttr(args) => one(args.fh),
        Request::Link(args) => smallvec![args.source, args.target_dir],
        Request::Lock(args) => one(args.fh),
        Request::LockT(args) => one(args.fh),
        Request::LockU(args) => one(args.fh),
        Request::Lookup(args) => one(args.dir),
        Request::LookupP(args) => one(args.fh),
        Request::NVerify(args) | Request::Verify(args) => one(args.fh),
        Request::Open(args) => one(args.claim.handle()),
        Request::OpenAttr(args) => one(args.fh),
        Request::OpenDowngrade(args) => one(args.fh),
        Request::ReadDirDirect(args) => one(args.fh),
        Request::ReadDirInline(args) => one(args.fh),
        Request::ReadDirect(args) => one(args.fh),
        Request::ReadInline(args) => one(args.fh),
        Request::ReadLinkDirect(args) => one(args.fh),
        Request::ReadLinkInline(args) => one(args.fh),
        Request::Remove(args) => one(args.dir),
        Request::Rename(args) => smallvec![args.source_dir, args.target_dir],
        Request::SetAttrDirect(args) => one(args.fh),
        Request::SetAttrInline(args) => one(args.fh),
        Request::WriteDirect(args) => one(args.fh),
        Request::WriteInline(args) => one(args.fh),
        Request::XLayoutCommit(args) => one(args.fh),
        Request::XGetXattr(args) => one(args.fh),
        Request::XExposeGet(args) => one(args.fh),
        Request::XLayoutGet(args) => one(args.fh),
        Request::XSeek(args) => one(args.fh),
        Request::BcBatchCompletion(_)
        | Request::BcGetAttr(_)
        | Request::BcNull
        | Request::BcRecall(_)
        | Request::CheckResponse(_)
        | Request::ClientAuth(_)
        | Request::ClientConnect(_)
        | Request::ClientConnectAuth(_)
        | Request::ConnectBind(_)
        | Request::DelegPurge
        | Request::DelegReturn(_)
        | Request::DiscardResponses(_)
        | Request::Disconnect
        | Request::FetchResponse(_)
        | Request::GetFencingList(_)
        | Request::GetRootHandle
        | Request::HurryUp(_)
        | Request::XCancel(_)
        | Request::Null
        | Request::RegisterCred(_)
        | Request::ReleaseCred(_)
        | Request::SecInfo
        | Request::ServerAuth(_)
        | Request::SetFencingList(_)
        | Request::XBcLayoutRecall(_)
        | Request::XLayoutReturn(_) // A fenced client may return its state.
        | Request::XNodeInfo(_)
        | Request::XReclaimComplete => SmallVec::new(),
    }
}

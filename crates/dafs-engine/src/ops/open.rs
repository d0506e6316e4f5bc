//! OPEN, CLOSE, OPEN_DOWNGRADE, COMMIT, CACHE_HINT and X_SEEK.

use super::delegation;
use super::name::{change_info, fail_walked};
use crate::engine::convert;
use crate::engine::hints::advice_of;
use crate::engine::request::{Call, Context, Done};
use crate::engine::work::{JobResult, Work};
use dafs_service::durable::Change;
use dafs_service::{
    Caller, Handle, OpenHow, OpenRequest, OpenTarget, Opened, Service, Share, ShareKey, StateRef,
    Touch,
};
use dafs_store::{Advised, CacheAdvice, CreateHow, OpenMode, SeekWhat, SetAttr, StoreError};
use dafs_wire::dafs::{
    self, AccessPattern, CacheHint, Close, Commit, CommitReply, CreateMode, DeleteDisposition,
    FileHandle, HintWord, Open, OpenClaim, OpenDowngrade, OpenReply, OpenResultFlags, Path, Reply,
    ShareAccess, ShareDeny, Status, XSeek, XSeekReply,
};

/// A target that outlives the message of a request.
enum Place {
    Name(Handle, Vec<u8>),
    Handle(Handle),
    Unlinked(Handle),
}

impl Place {
    fn of(target: OpenTarget<'_>) -> Self {
        match target {
            OpenTarget::Name { dir, name } => Self::Name(*dir, name.to_vec()),
            OpenTarget::Handle(handle) => Self::Handle(*handle),
            OpenTarget::Unlinked { dir } => Self::Unlinked(*dir),
        }
    }

    fn target(&self) -> OpenTarget<'_> {
        match self {
            Self::Name(dir, name) => OpenTarget::Name { dir, name },
            Self::Handle(handle) => OpenTarget::Handle(handle),
            Self::Unlinked(dir) => OpenTarget::Unlinked { dir },
        }
    }

    fn handle(&self) -> &Handle {
        let (Self::Name(handle, _) | Self::Handle(handle) | Self::Unlinked(handle)) = self;
        handle
    }
}

pub(crate) fn open(cx: &mut Context<'_>, call: &Call, args: &Open<'_>) -> Done {
    match args.claim {
        OpenClaim::Previous { fh, .. } => open_again(cx, call, args, &fh),
        // An empty path means the object itself.
        OpenClaim::Null { dir, path } if path.is_empty() => open_again(cx, call, args, &dir),
        OpenClaim::Null { dir, path } | OpenClaim::DelegateCur { dir, path, .. } => {
            open_named(cx, call, args, &dir, path)
        }
        OpenClaim::CreateUnlinked { dir } => open_unlinked(cx, call, args, &dir),
        // The server keeps no delegations of a client across its restart.
        OpenClaim::DelegatePrev { .. } => Err(Status::NotSupp),
    }
}

/// Records a client before it gets any state, so that it may reclaim that after a restart. This
/// runs on the pool, because it waits for the disk, and then the request is retried. Returns
/// true when it waits for that.
fn record_first(cx: &mut Context<'_>, call: &Call) -> Result<bool, Status> {
    let needed = cx.call_service_raw(call, |service, caller| {
        service.clients.needs_record(caller.client).then(|| caller.client.clone())
    })?;
    let Some(client) = needed else { return Ok(false) };
    let service = cx.service().clone();
    let id = cx.defer(call, Work::Again);
    cx.submit_in(0, id, move || {
        service.clients.record(&client);
        JobResult::Unit(Ok(()))
    });
    Ok(true)
}

/// Opens a file that the client knows by its handle, perhaps from before a restart of the
/// server.
fn open_again(cx: &mut Context<'_>, call: &Call, args: &Open<'_>, fh: &FileHandle) -> Done {
    if args.create.is_some() {
        return Err(Status::Inval);
    }
    let handle = convert::handle(fh);
    let target = OpenTarget::Handle(&handle);
    open_at(cx, call, args, target, OpenHow::Existing, (&handle, 0))
}

fn open_named(
    cx: &mut Context<'_>,
    call: &Call,
    args: &Open<'_>,
    dir: &FileHandle,
    path: Path<'_>,
) -> Done {
    let how = open_how(&args.create)?;
    let dir = convert::handle(dir);
    let parents = path.len().checked_sub(1).ok_or(Status::Inval)?;
    // If the path leads to another directory since the intent was logged, the file is still
    // made in the logged directory.
    let logged = cx.logged_at(call);
    let at = match logged {
        Some(at) => at,
        None => {
            let walked = cx.call_service_raw(call, |service, caller| {
                service.lookup(caller, &dir, path.iter().take(parents))
            })?;
            match walked {
                Ok(reached) => reached.handle,
                Err(walked) => {
                    let status = convert::status(walked.error);
                    fail_walked(cx, call, status, &walked.handle, walked.components);
                    return Ok(());
                }
            }
        }
    };
    // INVARIANT: the path has `parents + 1` components.
    let name = path.iter().nth(parents).ok_or(Status::Inval)?;
    if let (OpenHow::Create(_, attr), OpenClaim::Null { .. }) = (&how, &args.claim)
        && cx.log_intent(call, &Change::Create { dir: &at, name, attr })?
    {
        return Ok(());
    }
    let target = OpenTarget::Name { dir: &at, name };
    open_at(cx, call, args, target, how, (&at, parents as u32))
}

/// Opens a new unlinked file, whatever the request says about an existing one (DAFS 10.3).
fn open_unlinked(cx: &mut Context<'_>, call: &Call, args: &Open<'_>, dir: &FileHandle) -> Done {
    let how = match args.create {
        None => OpenHow::Create(CreateHow::Guarded, Default::default()),
        Some(_) => open_how(&args.create)?,
    };
    let dir = convert::handle(dir);
    open_at(cx, call, args, OpenTarget::Unlinked { dir: &dir }, how, (&dir, 0))
}

/// Opens a file that was found or is to be made. `reached` is the part of the path that was
/// resolved without it.
fn open_at(
    cx: &mut Context<'_>,
    call: &Call,
    args: &Open<'_>,
    target: OpenTarget<'_>,
    how: OpenHow,
    (reached, components): (&Handle, u32),
) -> Done {
    if record_first(cx, call)? {
        return Ok(());
    }
    let request = OpenRequest {
        target,
        claim: delegation::claim(&args.claim),
        deny_delete: args.delete_disposition == DeleteDisposition::Deny,
        share_key: share_key(args.share_key),
        ..OpenRequest::by_name(
            reached,
            b"",
            args.owner,
            share(args.share_access, args.share_deny),
            how,
        )
    };
    let named = matches!(target, OpenTarget::Name { .. });
    // An exclusive create is stable before the reply.
    let exclusive = named && matches!(how, OpenHow::Create(CreateHow::Exclusive(_), _));
    let data = matches!(how, OpenHow::Create(_, SetAttr { size: Some(_), .. }));
    let touch = if data { Touch::Data } else { Touch::Object };
    if !exclusive && !cx.waits_for(reached, touch) {
        let opened =
            cx.call_service_raw(call, |service, caller| service.opens.open(caller, &request))?;
        return answer_open(cx, call, opened, (reached, components), named);
    }
    let place = Place::of(target);
    let (owner, claim, share) = (args.owner.to_vec(), request.claim, request.share);
    let (deny_delete, share_key) = (request.deny_delete, request.share_key);
    let open = move |service: &Service, caller: Caller<'_>| {
        let (target, by) = (place.target(), place.handle());
        let request = OpenRequest::by_name(by, b"", &owner, share, how);
        let request = OpenRequest { target, claim, deny_delete, share_key, ..request };
        service.opens.open(caller, &request)
    };
    let (at, waits) = (*reached, cx.waits_for(reached, touch));
    let then = move |cx: &mut Context<'_>, call: &Call, opened| {
        answer_open(cx, call, opened, (&at, components), named)
    };
    if waits {
        cx.call_at(call, (reached, touch), open, then)
    } else {
        cx.call_or_wait((call, cx.lane(reached)), open, then)
    }
}

/// Answers an open. `reached` is the part of the path that was resolved without the file.
/// `named` is true if the file was opened by its name.
fn answer_open(
    cx: &mut Context<'_>,
    call: &Call,
    opened: dafs_service::Result<Opened>,
    (reached, components): (&Handle, u32),
    named: bool,
) -> Done {
    match opened {
        Ok(opened) => {
            cx.remember_open(&opened.state);
            let reply = OpenReply {
                fh: convert::file_handle(opened.state.handle()),
                state_id: convert::wire_state_id(opened.state.id()),
                change: change_info(opened.dir),
                component_count: components + u32::from(named),
                result_flags: OpenResultFlags::empty(),
                delegation: delegation::granted(&opened.delegation),
            };
            cx.reply(call, &Reply::Open(reply))
        }
        Err(error) => {
            fail_walked(cx, call, convert::open_status(error), reached, components);
            Ok(())
        }
    }
}

pub(crate) fn close(cx: &mut Context<'_>, call: &Call, args: &Close) -> Done {
    let (handle, id) = (convert::handle(&args.fh), convert::state_id(args.state_id));
    cx.forget_open();
    // Persistent locks that end with the open are released on disk first.
    cx.call_or_wait(
        (call, cx.lane(&handle)),
        move |service, caller| service.opens.close(caller, &handle, id),
        |cx, call, closed| {
            closed.map_err(convert::status)?;
            cx.reply(call, &Reply::Close)
        },
    )
}

pub(crate) fn open_downgrade(cx: &mut Context<'_>, call: &Call, args: &OpenDowngrade) -> Done {
    let (handle, id) = (convert::handle(&args.fh), convert::state_id(args.state_id));
    let share = share(args.share_access, args.share_deny);
    let key = share_key(args.share_key);
    cx.call_service(call, |service, caller| {
        service.opens.downgrade(caller, &handle, id, share, key)
    })?;
    cx.reply(call, &Reply::OpenDowngrade)
}

pub(crate) fn commit(cx: &mut Context<'_>, call: &Call, args: &Commit) -> Done {
    let handle = convert::handle(&args.fh);
    let file = cx.call_service(call, |service, caller| service.file_for_sync(caller, &handle))?;
    let (offset, count) = (args.offset, u64::from(args.count));
    cx.defer_job((call, &handle), Work::Commit, move || {
        JobResult::Unit(file.commit(offset, count))
    });
    Ok(())
}

pub(crate) fn commit_done(
    cx: &mut Context<'_>,
    call: &Call,
    result: Result<(), StoreError>,
) -> Done {
    result.map_err(|error| match error {
        // The disk had no space for cached data, so that data is lost too.
        StoreError::NoSpace | StoreError::Quota => {
            cx.transfers().sync_failed(StoreError::Io);
            convert::store_status(error)
        }
        error => cx.transfers().sync_failed(error),
    })?;
    let reply = CommitReply { verifier: cx.transfers().write_verifier() };
    cx.reply(call, &Reply::Commit(reply))
}

/// Finds data or a hole. The file system may have to read its map of the file, so this runs on
/// the pool.
pub(crate) fn seek(cx: &mut Context<'_>, call: &Call, args: &XSeek) -> Done {
    let (handle, offset) = (convert::handle(&args.fh), args.offset);
    let what = match args.what {
        dafs::SeekWhat::Data => SeekWhat::Data,
        dafs::SeekWhat::Hole => SeekWhat::Hole,
    };
    // A client that has the file open may seek, as with lseek.
    let is_open = args.state_id != dafs::StateId::ZERO;
    let need = OpenMode { read: !is_open, write: false };
    let (file, _) = cx.io_file(call, &args.fh, args.state_id, need, (0, 0))?;
    cx.call_elsewhere(
        call,
        &handle,
        move |service, caller| -> dafs_service::Result<XSeekReply> {
            service.layouts.extend_to_own(caller, &handle)?;
            let found = file.seek(offset, what)?;
            let size = file.attr()?.size;
            let offset = found.unwrap_or(size);
            Ok(XSeekReply { offset, eof: offset >= size })
        },
        |cx, call, found| cx.reply(call, &Reply::XSeek(found.map_err(convert::status)?)),
    )
}

/// Passes hints on, on the pool, because the kernel may wait for a device before it reads ahead.
pub(crate) fn cache_hint(cx: &mut Context<'_>, call: &Call, args: &CacheHint) -> Done {
    let handle: Handle = convert::handle(&args.fh);
    let (offset, len, word) = (args.offset, u64::from(args.count), args.cache_hint);
    let advice = advice(args.access_pattern, word);
    cx.call_elsewhere(
        call,
        &handle,
        move |service, caller| -> dafs_service::Result<bool> {
            let file = service.advised_file(caller, &handle, StateRef::ANONYMOUS)?;
            let mut prefetches = true;
            for advice in advice.into_iter().flatten() {
                let advised = file.advise(offset, len, advice)?;
                prefetches &= advice != CacheAdvice::WillNeed || advised == Advised::Followed;
            }
            Ok(prefetches)
        },
        move |cx, call, prefetches| match prefetches.map_err(convert::status)? {
            false if word.asks_prefetch() => Err(Status::PrefetchNotSupported),
            _ => cx.reply(call, &Reply::CacheHint),
        },
    )
}

fn share(access: ShareAccess, deny: ShareDeny) -> Share {
    Share {
        read: access.reads(),
        write: access.writes(),
        deny_read: matches!(deny, ShareDeny::Read | ShareDeny::Both),
        deny_write: matches!(deny, ShareDeny::Write | ShareDeny::Both),
    }
}

fn share_key(key: dafs::ShareKey) -> Option<ShareKey> {
    match key {
        dafs::ShareKey::None => None,
        dafs::ShareKey::Both(key) => Some(ShareKey { key, strict: false }),
        dafs::ShareKey::XStrict(key) => Some(ShareKey { key, strict: true }),
    }
}

pub(crate) fn open_how(create: &Option<CreateMode<'_>>) -> Result<OpenHow, Status> {
    Ok(match create {
        None => OpenHow::Existing,
        Some(CreateMode::Unchecked { attributes }) => {
            OpenHow::Create(CreateHow::Unchecked, convert::set_attr(attributes)?)
        }
        Some(CreateMode::Guarded { attributes }) => {
            OpenHow::Create(CreateHow::Guarded, convert::set_attr(attributes)?)
        }
        Some(CreateMode::Exclusive { verifier }) => {
            OpenHow::Create(CreateHow::Exclusive(verifier.0), Default::default())
        }
    })
}

/// Returns the advice of a pattern and a hint word. No pattern beside a prediction says nothing about
/// the pattern, so an earlier one stays.
fn advice(pattern: AccessPattern, word: HintWord) -> [Option<CacheAdvice>; 2] {
    let pattern = match pattern {
        AccessPattern::Normal if word != HintWord::NONE => None,
        AccessPattern::Normal => Some(CacheAdvice::Normal),
        AccessPattern::Random => Some(CacheAdvice::Random),
        AccessPattern::Sequential => Some(CacheAdvice::Sequential),
        AccessPattern::WillNeed => Some(CacheAdvice::WillNeed),
        AccessPattern::DontNeed => Some(CacheAdvice::DontNeed),
    };
    let range = if word.asks_prefetch() { Some(CacheAdvice::WillNeed) } else { advice_of(word) };
    [pattern, range.filter(|range| Some(*range) != pattern)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_become_advice() {
        let check = |pattern, word, advised| {
            assert_eq!(advice(pattern, HintWord::from_bits(word)), advised, "{word:#x}");
        };
        let (normal, ahead) = (Some(CacheAdvice::Normal), Some(CacheAdvice::WillNeed));
        check(AccessPattern::Normal, 0, [normal, None]);
        check(AccessPattern::Normal, 0xffff_ff80, [normal, None]);
        check(AccessPattern::Normal, 0x01, [None, None]);
        check(AccessPattern::Normal, 0x01 | 7 << 1, [None, ahead]);
        check(AccessPattern::Normal, 0x01 | 4 << 4, [None, ahead]);
        check(AccessPattern::Normal, 0x01 | 2 << 1 | 3 << 4, [None, Some(CacheAdvice::LeaveFirst)]);
        check(AccessPattern::Normal, 1 << 1 | 1 << 4, [None, Some(CacheAdvice::DontNeed)]);
        check(AccessPattern::Sequential, 0, [Some(CacheAdvice::Sequential), None]);
        let random = Some(CacheAdvice::Random);
        check(AccessPattern::Random, 6 << 1, [random, Some(CacheAdvice::Keep)]);
        check(AccessPattern::WillNeed, 0x01 | 7 << 1, [ahead, None]);
        check(AccessPattern::DontNeed, 0, [Some(CacheAdvice::DontNeed), None]);
    }
}

//! READDIR (RFC 8881 18.23): moves entries from the store into the reply.
//!
//! Invariants
//! * The result is never longer than `maxcount`, counted with all XDR around the entries. Names
//!   with their cookies are never longer than `dircount`, unless the first entry alone is.
//! * The attributes of an export's root are told only to callers that the export admits.
//! * If the attributes of an entry cannot be read, the entry reports it to a client that requests
//!   `rdattr_error`. Otherwise the operation fails, unless the object has just been removed.

use super::getattr::check_request;
use crate::limits::READDIR_LOOK_BYTES_MAX;
use crate::v4::attr::get::{self, Object};
use crate::v4::attr::owner::Names;
use crate::v4::compound::context::OpContext;
use crate::v4::status::{self, OpError, OpResult, without_perm};
use dafs_rpc::Reply;
use dafs_service::{Caller, EntryObject, Handle, Service, ServiceError};
use dafs_store::{DirEntry, FsId, StoreError, Wait};
use dafs_wire::nfs4::{Attr, Bitmap, ReaddirArgs, Status, Verifier};

/// The verifier of all directories. Cookies stay valid as long as their entries exist, so one
/// suffices.
const COOKIE_VERIFIER: Verifier = Verifier(*b"dafsdir1");

/// Bytes of a result without entries: verifier, end of the list, end-of-directory flag.
const FRAME_BYTES: usize = 8 + 4 + 4;

/// Attributes of an entry that need no access to its object.
const WITHOUT_LOOK: Bitmap = Attr::set(&[Attr::RdattrError, Attr::MountedOnFileid]);

/// Cookies below this are reserved (RFC 8881 18.23.3).
const COOKIE_MIN: u64 = 3;

pub(crate) fn readdir(cx: &mut OpContext<'_>, args: &ReaddirArgs) -> OpResult {
    let dir = cx.current()?;
    check_request(args.request)?;
    match args.cookie {
        0 => {}
        cookie if cookie < COOKIE_MIN => return Err(Status::BadCookie.into()),
        _ if args.cookie_verifier != COOKIE_VERIFIER => return Err(Status::NotSame.into()),
        _ => {}
    }
    let look = !args.request.is_subset_of(WITHOUT_LOOK);
    let longest = if look { READDIR_LOOK_BYTES_MAX } else { usize::MAX };
    let room = (args.result_bytes_max as usize).min(cx.room()).min(longest);
    let (here, listings) = (cx.wait() == Wait::Never, cx.call().connection.listings().clone());
    if here && !listings.may(cx.call().now_ns, room, look) {
        return Err(OpError::Wait);
    }
    let (shared, origin, flavour) = (cx.shared(), cx.call().origin, cx.call().who.flavour);
    let refusal = |object: &Handle| shared.admits(object, &origin, flavour).err();
    let names = cx.names();
    let (service, caller, minor, reply) = cx.split()?;
    if room < FRAME_BYTES {
        return Err(not_even_one(service, caller, &dir));
    }
    reply.encoder().value(&COOKIE_VERIFIER);
    let mut listing = Listing {
        service,
        caller,
        minor,
        names: &names,
        fs: dir.fs,
        refusal: &refusal,
        request: args.request,
        begin: reply.len(),
        reply,
        room: room - FRAME_BYTES,
        names_left: match args.directory_bytes {
            0 => usize::MAX,
            bytes => bytes as usize,
        },
        count: 0,
        failed: None,
    };
    let eof = service
        .readdir(caller, &dir, args.cookie, look, &mut |entry, object| listing.push(entry, object))
        .map_err(without_perm)?;
    let Listing { count, failed, reply, begin, .. } = listing;
    if here {
        listings.add(reply.len() - begin, look);
    }
    if let Some(error) = failed {
        return Err(error);
    }
    if count == 0 && !eof {
        return Err(Status::TooSmall.into());
    }
    let mut encoder = reply.encoder();
    encoder.bool(false);
    encoder.bool(eof);
    cx.await_names(names)
}

/// Returns the status when not even an empty list fits: that of the directory, if it has one.
fn not_even_one(service: &Service, caller: Caller<'_>, dir: &Handle) -> OpError {
    match service.readdir(caller, dir, 0, false, &mut |_, _| false) {
        Ok(_) => OpError::Status(Status::TooSmall),
        Err(error) => without_perm(error),
    }
}

/// A result under construction.
struct Listing<'a> {
    service: &'a Service,
    caller: Caller<'a>,
    minor: u32,
    names: &'a Names<'a>,
    /// The file system of the directory.
    fs: FsId,
    /// Returns the reason why an export refuses the caller.
    refusal: &'a dyn Fn(&Handle) -> Option<Status>,
    request: Bitmap,
    reply: &'a mut Reply,
    /// Length of the reply at the start of the entries.
    begin: usize,
    /// Bytes that the entries may take.
    room: usize,
    /// Bytes that names and cookies may still take.
    names_left: usize,
    count: usize,
    failed: Option<OpError>,
}

impl Listing<'_> {
    /// Adds an entry. Returns false when it was not added because there is no room, or the list has
    /// failed.
    fn push(&mut self, entry: DirEntry<'_>, object: EntryObject) -> bool {
        let name_bytes = 8 + 4 + entry.name.len().next_multiple_of(4);
        if name_bytes > self.names_left && self.count > 0 {
            return false;
        }
        let mark = self.reply.mark();
        let mut encoder = self.reply.encoder();
        encoder.bool(true);
        encoder.u64(entry.cookie);
        encoder.opaque(entry.name);
        match self.attributes(&entry, object) {
            Ok(()) => {}
            // A race: the object was removed after it was listed, so its entry may be left out.
            Err(ServiceError::Store(
                StoreError::Stale | StoreError::MovedOut | StoreError::NotFound,
            )) => {
                self.reply.truncate_to(mark);
                return true;
            }
            Err(error) => {
                self.failed = Some(without_perm(error));
                return false;
            }
        }
        if self.reply.len() - self.begin > self.room {
            self.reply.truncate_to(mark);
            return false;
        }
        self.names_left = self.names_left.saturating_sub(name_bytes);
        self.count += 1;
        true
    }

    fn attributes(
        &mut self,
        entry: &DirEntry<'_>,
        object: EntryObject,
    ) -> Result<(), ServiceError> {
        let mut encoder = self.reply.encoder();
        if self.request.is_subset_of(WITHOUT_LOOK) {
            get::encode_entry(&mut encoder, self.request, entry.file_id);
            return Ok(());
        }
        let found = object.and_then(|object| object.ok_or(StoreError::Stale.into()));
        let (handle, attr) = match found {
            Ok(found) => found,
            Err(error) if self.request.contains(Attr::RdattrError) => {
                get::encode_error(&mut encoder, status::of(error));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        // The root of an export in the directory of exports has rules of its own.
        let refused = if handle.fs == self.fs { None } else { (self.refusal)(&handle) };
        if let Some(status) = refused {
            if !self.request.contains(Attr::RdattrError) {
                return Err(StoreError::Access.into());
            }
            get::encode_error(&mut encoder, status);
            return Ok(());
        }
        let object = Object {
            service: self.service,
            caller: self.caller,
            minor: self.minor,
            names: self.names,
            handle,
            attr,
            mounted_on_file_id: Some(entry.file_id),
        };
        match get::encode(&mut encoder, &object, self.request) {
            Err(error) if self.request.contains(Attr::RdattrError) => {
                match OpError::from(error) {
                    OpError::Wait => return Err(error),
                    _ => get::encode_error(&mut encoder, status::of(error)),
                }
                Ok(())
            }
            done => done,
        }
    }
}

//! Error codes, their sentences, and the last one of each thread.

use dafs_client::{Error, LockError, Status};
use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::sync::LazyLock;

/// Success.
pub const DAP_OK: i32 = 0;
/// The handle is closed, was never open, or is of another kind.
pub const DAP_E_BAD_HANDLE: i32 = -1;
/// An argument is not valid: null, too long, out of its range.
pub const DAP_E_INVALID: i32 = -2;
/// Memory is not mapped, or does not allow this access.
pub const DAP_E_FAULT: i32 = -3;
/// The object is in use by an operation or by another thread.
pub const DAP_E_BUSY: i32 = -4;
/// The object belongs to the process that this one was forked from: connect again.
pub const DAP_E_FORKED: i32 = -5;
/// The library failed.
pub const DAP_E_INTERNAL: i32 = -6;
/// Memory could not be allocated or registered.
pub const DAP_E_NO_MEMORY: i32 = -7;
/// Too many operations, handles or completions: wait for some, or close some.
pub const DAP_E_TOO_MANY: i32 = -8;
/// The timeout of a wait has expired. The operation goes on.
pub const DAP_E_TIMED_OUT: i32 = -9;
/// The server has not answered in time. The outcome of the request is unknown.
pub const DAP_E_DEADLINE: i32 = -10;
/// Not sent in time; the request has no effect and will have none.
pub const DAP_E_NOT_SENT: i32 = -11;
/// The connection was lost, and the outcome of the request is unknown.
pub const DAP_E_IN_DOUBT: i32 = -12;
/// The session is over.
pub const DAP_E_LOST: i32 = -13;
/// The server broke the protocol; the session is over.
pub const DAP_E_PROTOCOL: i32 = -14;
/// The session could not be opened.
pub const DAP_E_CONNECT: i32 = -15;
/// The operation was cancelled.
pub const DAP_E_CANCELED: i32 = -16;
/// The request was not executed because of another one, or does not fit one chain.
pub const DAP_E_CHAIN: i32 = -17;
/// The server lost data that was written and not committed: write it again.
pub const DAP_E_WRITES_LOST: i32 = -18;
/// The connection string cannot be understood.
pub const DAP_E_URL: i32 = -19;
/// The file, buffer, group or batch belongs to another session.
pub const DAP_E_FOREIGN: i32 = -20;
/// Another owner holds a conflicting lock.
pub const DAP_E_LOCK_HELD: i32 = -21;
/// Too many symbolic links in one path.
pub const DAP_E_LOOP: i32 = -22;
/// The buffer for a result is too small.
pub const DAP_E_SHORT: i32 = -23;
/// Another error; dap_last_error() describes it.
pub const DAP_E_OTHER: i32 = -24;

/// Codes from here downwards are the server's answers: this minus the number of the status.
pub const DAP_E_STATUS: i32 = -1000;
/// The server: only the owner or a privileged caller may do this.
pub const DAP_E_PERM: i32 = -1001;
/// The server: there is no such file or directory.
pub const DAP_E_NOENT: i32 = -1002;
/// The server: the server could not read or write its storage.
pub const DAP_E_IO: i32 = -1005;
/// The server: the device behind the file does not exist.
pub const DAP_E_NXIO: i32 = -1006;
/// The server: the caller's permissions do not allow this.
pub const DAP_E_ACCES: i32 = -1013;
/// The server: an object of that name exists already.
pub const DAP_E_EXIST: i32 = -1017;
/// The server: both names have to be in one file system.
pub const DAP_E_XDEV: i32 = -1018;
/// The server: the device does not support this.
pub const DAP_E_NODEV: i32 = -1019;
/// The server: a directory is needed here, and the object is none.
pub const DAP_E_NOTDIR: i32 = -1020;
/// The server: the object is a directory.
pub const DAP_E_ISDIR: i32 = -1021;
/// The server: an argument is not valid.
pub const DAP_E_INVAL: i32 = -1022;
/// The server: the file would become larger than the server allows.
pub const DAP_E_FBIG: i32 = -1027;
/// The server: the file system is full.
pub const DAP_E_NOSPC: i32 = -1028;
/// The server: the file system is read-only.
pub const DAP_E_ROFS: i32 = -1030;
/// The server: the file has as many links as it can have.
pub const DAP_E_MLINK: i32 = -1031;
/// The server: the name is longer than the server allows.
pub const DAP_E_NAMETOOLONG: i32 = -1063;
/// The server: the directory is not empty.
pub const DAP_E_NOTEMPTY: i32 = -1066;
/// The server: the caller's quota is used up.
pub const DAP_E_DQUOT: i32 = -1069;
/// The server: the file behind the handle is gone.
pub const DAP_E_STALE: i32 = -1070;
/// The server: the file handle is not one of this server.
pub const DAP_E_BADHANDLE: i32 = -11001;
/// The server: the directory position is not valid any more; read it from the start.
pub const DAP_E_BAD_COOKIE: i32 = -11003;
/// The server: the server does not support this.
pub const DAP_E_NOTSUPP: i32 = -11004;
/// The server: the result does not fit the message or buffer offered.
pub const DAP_E_TOOSMALL: i32 = -11005;
/// The server: the server failed internally.
pub const DAP_E_SERVERFAULT: i32 = -11006;
/// The server: an object of that type cannot be used or made so.
pub const DAP_E_BADTYPE: i32 = -11007;
/// The server: the server needs more time; try again.
pub const DAP_E_DELAY: i32 = -11008;
/// The server: the attributes are the same.
pub const DAP_E_SAME: i32 = -11009;
/// The server: another owner holds a conflicting lock or share.
pub const DAP_E_DENIED: i32 = -11010;
/// The server: the lease ran out and its state is gone.
pub const DAP_E_EXPIRED: i32 = -11011;
/// The server: the range is locked by another owner.
pub const DAP_E_LOCKED: i32 = -11012;
/// The server: the server has restarted and waits for its former clients; try again.
pub const DAP_E_GRACE: i32 = -11013;
/// The server: the file handle has expired; look the name up again.
pub const DAP_E_FHEXPIRED: i32 = -11014;
/// The server: another open denies this access.
pub const DAP_E_SHARE_DENIED: i32 = -11015;
/// The server: the security in use is not allowed here.
pub const DAP_E_WRONGSEC: i32 = -11016;
/// The server: the client id string belongs to another principal.
pub const DAP_E_CLID_INUSE: i32 = -11017;
/// The server: the server has run out of a resource.
pub const DAP_E_RESOURCE: i32 = -11018;
/// The server: the file system has moved to another server.
pub const DAP_E_MOVED: i32 = -11019;
/// The server: the request lacks a file handle.
pub const DAP_E_NOFILEHANDLE: i32 = -11020;
/// The server: the server does not speak this minor version.
pub const DAP_E_MINOR_VERS_MISMATCH: i32 = -11021;
/// The server: the server does not know this client any more; connect again.
pub const DAP_E_STALE_CLIENTID: i32 = -11022;
/// The server: the state-id is from before a server restart or was freed.
pub const DAP_E_STALE_STATEID: i32 = -11023;
/// The server: the state-id has been replaced by a newer one.
pub const DAP_E_OLD_STATEID: i32 = -11024;
/// The server: the state-id is not one of this server.
pub const DAP_E_BAD_STATEID: i32 = -11025;
/// The server: the sequence number is out of order.
pub const DAP_E_BAD_SEQID: i32 = -11026;
/// The server: the attributes differ.
pub const DAP_E_NOT_SAME: i32 = -11027;
/// The server: the range does not match the lock held.
pub const DAP_E_LOCK_RANGE: i32 = -11028;
/// The server: the last component is a symbolic link.
pub const DAP_E_SYMLINK: i32 = -11029;
/// The server: not even one directory entry fits the space offered.
pub const DAP_E_READDIR_NOSPC: i32 = -11030;
/// The server: a lease has moved to another server.
pub const DAP_E_LEASE_MOVED: i32 = -11031;
/// The server: the server does not speak this protocol version.
pub const DAP_E_ILLEGAL_PROT: i32 = -16002;
/// The server: the request is not allowed in the present state of the session.
pub const DAP_E_ILLEGAL_STATE: i32 = -16003;
/// The server: the server knows nothing of that session any more.
pub const DAP_E_UNKNOWN_SESSION: i32 = -16004;
/// The server: the request in question was not executed.
pub const DAP_E_NOXID_MATCH: i32 = -16005;
/// The server: the proof of identity was not accepted.
pub const DAP_E_NOT_AUTHORIZED: i32 = -16006;
/// The server: what was asked for was not found.
pub const DAP_E_NOT_FOUND: i32 = -16007;
/// The server: direct transfers need an RDMA-read channel, and there is none.
pub const DAP_E_RDMA_READ_CHANNEL_UNUSABLE: i32 = -16008;
/// The server: the chain of requests is not well formed.
pub const DAP_E_CHAIN_FORM: i32 = -16009;
/// The server: an earlier request of the chain failed.
pub const DAP_E_CHAIN_BROKEN: i32 = -16010;
/// The server: authentication needs another round.
pub const DAP_E_GSS_CONTINUE_INIT: i32 = -16011;
/// The server: the session is being closed.
pub const DAP_E_BAD_SESSION: i32 = -16012;
/// The server: the server's credential table is full.
pub const DAP_E_NO_CREDS: i32 = -16013;
/// The server: the credential handle is unknown or belongs to another client.
pub const DAP_E_CRHAND_CONFLICT: i32 = -16014;
/// The server: an open of the file forbids its removal.
pub const DAP_E_DENYDISP_CONFLICT: i32 = -16015;
/// The server: the server cannot forbid removal or know about all opens.
pub const DAP_E_DENYDISP_NOTSUPP: i32 = -16016;
/// The server: the file is open under a share key that this open lacks.
pub const DAP_E_KEY_MISMATCH: i32 = -16017;
/// The server: the write or append is larger than the server allows.
pub const DAP_E_WRITE_TOOBIG: i32 = -16018;
/// The server: this needs a back-control channel, and there is none.
pub const DAP_E_BACK_CHANNEL_UNUSABLE: i32 = -16019;
/// The server: the checksum does not match the data.
pub const DAP_E_CHKSUM: i32 = -16020;
/// The server: the last owner of the lock failed; the data may need repair.
pub const DAP_E_LOCK_BROKEN: i32 = -16021;
/// The server: the session has to be authenticated first.
pub const DAP_E_NOT_AUTHENTICATED: i32 = -16022;
/// The server: no outstanding batch request has that id.
pub const DAP_E_BATCH_REQUEST_NOT_FOUND: i32 = -16023;
/// The server: the server does not prefetch.
pub const DAP_E_PREFETCH_NOT_SUPPORTED: i32 = -16024;
/// The server: the server cannot say how far it came.
pub const DAP_E_NO_PARTIAL_INFO: i32 = -16025;
/// The server: too many batch requests are outstanding; wait for a completion.
pub const DAP_E_WHOA_COWBOY: i32 = -16026;
/// The server: the protocol versions do not match.
pub const DAP_E_VERS_MISMATCH: i32 = -16027;
/// The server: this client is fenced from the object.
pub const DAP_E_FENCED: i32 = -16100;
/// The server: no layout allows this; read and write through the metadata server.
pub const DAP_E_X_NO_LAYOUT: i32 = -16101;
/// The server: the layout is asked back and has to be given back first.
pub const DAP_E_X_LAYOUT_RECALLED: i32 = -16102;
/// The server: the client has written elsewhere since this session began; a new one may write here.
pub const DAP_E_X_SESSION_OLD: i32 = -16103;
/// The server: the client has cancelled this; nothing of it was done.
pub const DAP_E_X_CANCELED: i32 = -16104;

/// Code, error number, name and sentence of the library's own errors.
type Own = (i32, i32, &'static CStr, &'static CStr);

/// A table of such errors, each with the name of its code.
macro_rules! named {
    ($($code:ident, $number:expr, $sentence:literal;)*) => {
        &[$(($code, $number, name(concat!(stringify!($code), "\0")), $sentence)),*]
    };
}

const fn name(text: &str) -> &CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name without zero bytes"),
    }
}

const OWN: &[Own] = named! {
    DAP_OK, 0, c"it worked";
    DAP_E_BAD_HANDLE, libc::EBADF, c"the handle is not one of an open object";
    DAP_E_INVALID, libc::EINVAL, c"an argument is not valid";
    DAP_E_FAULT, libc::EFAULT, c"memory is not mapped, or may not be used like that";
    DAP_E_BUSY, libc::EBUSY, c"it is in use by an operation or by another thread";
    DAP_E_FORKED, libc::EBADF, c"this process was forked; connect again in the child";
    DAP_E_INTERNAL, libc::EIO, c"the library failed; please report this";
    DAP_E_NO_MEMORY, libc::ENOMEM, c"memory could not be had or registered";
    DAP_E_TOO_MANY, libc::EAGAIN, c"too many operations or handles; wait for some, or close some";
    DAP_E_TIMED_OUT, libc::ETIMEDOUT, c"not done in the time given; it goes on";
    DAP_E_DEADLINE, libc::ETIMEDOUT, c"the server did not answer in time";
    DAP_E_NOT_SENT, libc::ETIMEDOUT, c"not sent in time, so nothing was done";
    DAP_E_IN_DOUBT, libc::ECONNRESET,
        c"the connection was lost, and it may or may not have been done";
    DAP_E_LOST, libc::ECONNRESET, c"the session is over; connect again";
    DAP_E_PROTOCOL, libc::EPROTO, c"the server broke the protocol";
    DAP_E_CONNECT, libc::ECONNREFUSED, c"the session could not be opened";
    DAP_E_CANCELED, libc::ECANCELED, c"the operation was cancelled";
    DAP_E_CHAIN, libc::ECANCELED, c"not carried out, because another request of its chain failed";
    DAP_E_WRITES_LOST, libc::EIO,
        c"data that was written and not committed is lost; write it again";
    DAP_E_URL, libc::EINVAL, c"the connection string cannot be understood";
    DAP_E_FOREIGN, libc::EINVAL, c"the objects belong to different sessions";
    DAP_E_LOCK_HELD, libc::EAGAIN, c"somebody else has a lock in the way";
    DAP_E_LOOP, libc::ELOOP, c"too many symbolic links in one path";
    DAP_E_SHORT, libc::ERANGE, c"the place for the result is too small";
    DAP_E_OTHER, libc::EIO, c"something else; dap_last_error() says what";
};

/// A code, its name and its sentence.
type NamedCode = (i64, CString, CString);

/// The codes of servers' answers, as `dafs-client` knows them.
static SERVERS: LazyLock<Vec<NamedCode>> = LazyLock::new(|| {
    let told = |status: &Status| -> Option<NamedCode> {
        let name = CString::new(format!("DAP_E_{}", status.name())).ok()?;
        Some((status_code(*status).into(), name, CString::new(status.sentence()).ok()?))
    };
    Status::ALL.iter().filter(|status| !status.is_ok()).filter_map(told).collect()
});

/// The name and the sentence of a code, with static lifetime.
fn told(code: i64) -> Option<(&'static CStr, &'static CStr)> {
    match OWN.iter().find(|(known, ..)| i64::from(*known) == code) {
        Some((_, _, name, sentence)) => Some((name, sentence)),
        None => {
            let (_, name, sentence) = SERVERS.iter().find(|(known, ..)| *known == code)?;
            Some((name, sentence))
        }
    }
}

/// The reason why a function of the library failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: i32,
    sentence: Cow<'static, str>,
}

impl Failure {
    pub(crate) fn new(code: i32, sentence: impl Into<Cow<'static, str>>) -> Self {
        Self { code, sentence: sentence.into() }
    }

    #[cfg(test)]
    pub(crate) fn code(&self) -> i32 {
        self.code
    }
}

/// The failure of an argument that is not valid.
pub(crate) fn invalid(why: &'static str) -> Failure {
    Failure::new(DAP_E_INVALID, why)
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { code: code(&error), sentence: error.to_string().into() }
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        let code = match error {
            LockError::Other(error) => return error.into(),
            LockError::Held(_) => DAP_E_LOCK_HELD,
            LockError::Broken(_) => DAP_E_LOCK_BROKEN,
            _ => DAP_E_OTHER,
        };
        Self { code, sentence: error.to_string().into() }
    }
}

impl From<dafs_client::UrlError> for Failure {
    fn from(error: dafs_client::UrlError) -> Self {
        Error::from(error).into()
    }
}

/// The code of an error.
pub(crate) fn code(error: &Error) -> i32 {
    match error {
        Error::Argument(_) => DAP_E_INVALID,
        Error::TooLong(_) => DAP_E_NAMETOOLONG,
        Error::BadMemory => DAP_E_FAULT,
        Error::BusyMemory => DAP_E_BUSY,
        Error::ForeignBuffer | Error::ForeignFile => DAP_E_FOREIGN,
        Error::Canceled => DAP_E_CANCELED,
        Error::ChainBroken { .. } | Error::ChainTooLong { .. } => DAP_E_CHAIN,
        Error::Connect { .. } => DAP_E_CONNECT,
        Error::Deadline { .. } => DAP_E_DEADLINE,
        Error::DelegationLost | Error::WritesLost => DAP_E_WRITES_LOST,
        Error::Forked => DAP_E_FORKED,
        Error::InDoubt { .. } => DAP_E_IN_DOUBT,
        Error::Lost { .. } => DAP_E_LOST,
        Error::NotSent { .. } => DAP_E_NOT_SENT,
        Error::Memory(_) => DAP_E_NO_MEMORY,
        Error::Protocol { .. } => DAP_E_PROTOCOL,
        Error::Status { status, .. } => status_code(*status),
        Error::SymlinkLoop(_) => DAP_E_LOOP,
        Error::TimedOut(_) => DAP_E_TIMED_OUT,
        Error::TooMany => DAP_E_TOO_MANY,
        Error::Url(_) => DAP_E_URL,
        _ => DAP_E_OTHER,
    }
}

pub(crate) fn status_code(status: Status) -> i32 {
    let known = i32::try_from(status.code()).ok().filter(|code| *code < 1 << 20);
    known.map_or(DAP_E_SERVERFAULT, |code| DAP_E_STATUS - code)
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Stores the sentence for [`dap_last_error`]; returns the code.
pub(crate) fn remember(failure: &Failure) -> i64 {
    let bytes: Vec<u8> = failure.sentence.bytes().filter(|byte| *byte != 0).collect();
    let sentence = CString::new(bytes).unwrap_or_default();
    // A thread that is ending has lost its storage.
    let _ = LAST.try_with(|last| last.replace(sentence));
    i64::from(failure.code)
}

/// The meaning of a code, in one sentence, for any number. The text is never freed.
///
/// Threads: any, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn dap_strerror(code: i64) -> *const c_char {
    let unknown = if code > 0 { c"it worked" } else { c"not a code of this library" };
    told(code).map_or(unknown, |(_, sentence)| sentence).as_ptr()
}

/// The name of a code, as in this header; "?" for any other number. The text is never freed.
///
/// Threads: any, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn dap_error_name(code: i64) -> *const c_char {
    told(code).map_or(c"?", |(name, _)| name).as_ptr()
}

/// The number in errno.h that comes nearest to a code; 0 for a number that is no error.
///
/// Threads: any, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn dap_errno(code: i64) -> i32 {
    if code >= 0 {
        return 0;
    }
    if let Some((_, number, ..)) = OWN.iter().find(|(known, ..)| i64::from(*known) == code) {
        return *number;
    }
    match u32::try_from(i64::from(DAP_E_STATUS).saturating_sub(code)) {
        Ok(status) => {
            let procedure = dafs_client::Procedure::Null;
            Error::Status { procedure, status: Status::from_u32(status) }.to_errno()
        }
        Err(_) => libc::EIO,
    }
}

/// The error of the last call of this thread that failed, in one sentence with a remedy. Valid
/// until the next call that fails in this thread. Never null.
///
/// Threads: each has its own.
#[unsafe(no_mangle)]
pub extern "C" fn dap_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pointer: *const c_char) -> &'static str {
        // SAFETY: the pointer is to a constant of the tables above.
        unsafe { CStr::from_ptr(pointer) }.to_str().unwrap()
    }

    #[test]
    fn every_status_has_its_code_in_the_header() {
        let header = include_str!("../include/dafs.h");
        for status in Status::ALL.iter().filter(|status| !status.is_ok()) {
            let (name, sentence, code) = (status.name(), status.sentence(), status_code(*status));
            let lines = format!("// The server: {sentence}.\n#define DAP_E_{name} {code}\n");
            assert!(header.contains(&lines), "{lines}");
            let code = i64::from(code);
            assert_eq!(text(dap_error_name(code)), format!("DAP_E_{name}"));
            assert_eq!(text(dap_strerror(code)), sentence);
        }
        assert_eq!(dap_errno(DAP_E_NOENT.into()), libc::ENOENT);
        assert_eq!(dap_errno(DAP_E_BUSY.into()), libc::EBUSY);
        assert_eq!((dap_errno(5), dap_errno(i64::MIN)), (0, libc::EIO));
        assert_eq!(status_code(Status::Unknown(u32::MAX)), DAP_E_SERVERFAULT);
        assert_eq!(text(dap_error_name(-77)), "?");
    }
}

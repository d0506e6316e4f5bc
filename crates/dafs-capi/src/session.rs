//! Sessions.

use crate::boundary::{call_plainly, limit_thread};
use crate::error::{Failure, invalid};
use crate::handle::{dap_session_t, tables};
use crate::options::{dap_options_init, dap_options_t, parse};
use crate::pointer::{Out, text, utf8};
use dafs_client::{Client, DafsUrl, FileHandle, Follow};
use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Duration;

/// The object behind a session handle.
pub(crate) struct Session {
    pub(crate) client: Client,
    /// The directory of the connection string, where paths begin that do not start with a slash.
    base: FileHandle,
    base_path: Vec<u8>,
}

/// The session of a handle.
pub(crate) fn session(handle: dap_session_t) -> Result<Arc<Session>, Failure> {
    tables().sessions.get(handle.id)
}

impl Session {
    /// The start of a caller's path, and the path.
    ///
    /// # Safety
    /// As [`text`].
    pub(crate) unsafe fn path(&self, path: *const c_char) -> Result<(FileHandle, &[u8]), Failure> {
        // SAFETY: as the caller promises.
        let path = unsafe { text(path) }?;
        Ok(match path.first() {
            None => (self.client.root(), &self.base_path),
            Some(b'/') => (self.client.root(), path),
            Some(_) => (self.base, path),
        })
    }
}

/// The parameters that a session has negotiated.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct dap_session_info_t {
    /// The longest single read, in bytes.
    pub read_bytes_max: u64,
    /// The longest single write, in bytes.
    pub write_bytes_max: u64,
    /// Most outstanding requests.
    pub requests: u32,
    /// The lease time, in seconds: the server forgets a client that is silent for longer.
    pub lease_seconds: u32,
    /// DAP_TRANSPORT_IWARP, DAP_TRANSPORT_SHM or DAP_TRANSPORT_VERBS; DAP_TRANSPORT_AUTO for another
    /// one.
    pub transport: u32,
    /// 1 when messages and data carry checksums.
    pub checksums: u32,
}

/// Counters of a session.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct dap_stats_t {
    /// Requests answered.
    pub answered: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Reads and writes whose data was sent inside messages.
    pub inline_transfers: u64,
    /// Reads and writes whose data was placed directly.
    pub direct_transfers: u64,
    /// Connections lost and replaced.
    pub recoveries: u64,
    /// Restarts of the server seen.
    pub restarts: u64,
    /// Credits: requests that the session may have outstanding now.
    pub credits: u32,
    /// Requests outstanding.
    pub in_flight: u32,
}

/// Opens a session with the server of a connection string:
/// dafs://[USER@]HOST[:PORT]/PATH[?OPTION=VALUE&...]. The options are deadline=SECONDS,
/// recovery=SECONDS, connect-timeout=SECONDS, fence-id=NAME, wait=adaptive, poll or sleep, and
/// checksums=yes or no. With transport=auto, iwarp, shm or verbs the caller chooses how data travels;
/// verbs is an RDMA device. The option pnfs=yes or no is about reads and writes at data servers. The
/// option optimistic=yes or no is about reads from memory that a server shows. The
/// option inline-padding=yes or no aligns the data of writes inside messages. With sec=gss Kerberos
/// proves who the client is. They take precedence over `options`; beside sec=gss there may be no
/// user and password. It takes tickets from the default cache, from ccache=NAME, or from
/// keytab=FILE with principal=NAME or without.
///
/// Paths given to other functions begin at PATH, or at the server's root if they begin with a
/// slash; the empty path is PATH itself. `options` may be null.
///
/// Threads: any. All threads may use one session at the same time. A fork of the process may not;
/// it opens one of its own.
///
/// # Safety
/// `url` is a text or null, `options` null or made by dap_options_init(), `session` null or good for a
/// handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_connect(
    url: *const c_char,
    options: *const dap_options_t,
    session: *mut dap_session_t,
) -> i32 {
    call_plainly(|| {
        // SAFETY: as the caller promises.
        let (url, out) = unsafe { (utf8(url)?, Out::new(session)?) };
        let url = DafsUrl::parse(url)?;
        let mut usual = MaybeUninit::uninit();
        let options = if options.is_null() {
            // SAFETY: it is good for one, and filled in whole.
            unsafe {
                dap_options_init(usual.as_mut_ptr());
                usual.assume_init()
            }
        } else if options.is_aligned() {
            // SAFETY: as the caller promises.
            unsafe { *options }
        } else {
            return Err(invalid("the options are not aligned"));
        };
        // SAFETY: as the caller promises.
        let options = unsafe { parse(&options, &url) }?;
        let client = Client::connect(&url, &options)?;
        let base = match url.path() {
            b"/" => client.root(),
            path => client.resolve(path, Follow::Yes)?.handle,
        };
        let base_path = url.path().to_vec();
        out.set(dap_session_t { id: tables().sessions.add(Session { client, base, base_path })? });
        Ok(())
    })
}

/// Ends a session in order, after its outstanding operations. Its files, buffers and groups must
/// still be closed; other calls with them fail with DAP_E_LOST. The handle is closed even if the
/// server did not answer.
///
/// Threads: DAP_E_BUSY while another thread is in a call that names the session.
#[unsafe(no_mangle)]
pub extern "C" fn dap_disconnect(session: dap_session_t) -> i32 {
    call_plainly(|| {
        let session = tables().sessions.remove(session.id, |_| Ok(()))?;
        Ok(session.client.disconnect()?)
    })
}

/// Pings the server; returns the round trip in `nanoseconds`, if that is not null.
///
/// Threads: any.
///
/// # Safety
/// `nanoseconds` is null or good for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_ping(session: dap_session_t, nanoseconds: *mut u64) -> i32 {
    call_plainly(|| {
        // SAFETY: as the caller promises.
        let out = unsafe { Out::optional(nanoseconds) }?;
        let time = crate::session::session(session)?.client.ping()?;
        if let Some(out) = out {
            out.set(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        }
        Ok(())
    })
}

/// Sends submitted requests that have not been sent yet.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn dap_flush(session: dap_session_t) -> i32 {
    call_plainly(|| Ok(crate::session::session(session)?.client.flush()?))
}

/// 1 if the session is connected now, as far as is known; 0 while a lost connection is being
/// replaced, or after the end of the session.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn dap_is_connected(session: dap_session_t) -> i32 {
    crate::boundary::call(|| Ok(i64::from(crate::session::session(session)?.client.is_connected())))
        as i32
}

/// The parameters that the session has negotiated.
///
/// Threads: any.
///
/// # Safety
/// `info` is null or good for one struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_session_info(
    session: dap_session_t,
    info: *mut dap_session_info_t,
) -> i32 {
    call_plainly(|| {
        // SAFETY: as the caller promises.
        let out = unsafe { Out::new(info) }?;
        let session = crate::session::session(session)?;
        let agreed = session.client.session();
        out.set(dap_session_info_t {
            read_bytes_max: agreed.read_bytes_max,
            write_bytes_max: agreed.write_bytes_max,
            requests: agreed.requests.into(),
            lease_seconds: u32::try_from(agreed.lease.as_secs()).unwrap_or(u32::MAX),
            transport: match session.client.transport().kind {
                dafs_client::TransportKind::Iwarp => crate::options::DAP_TRANSPORT_IWARP,
                dafs_client::TransportKind::Shm => crate::options::DAP_TRANSPORT_SHM,
                dafs_client::TransportKind::Verbs => crate::options::DAP_TRANSPORT_VERBS,
                _ => crate::options::DAP_TRANSPORT_AUTO,
            },
            checksums: agreed.checksums.into(),
        });
        Ok(())
    })
}

/// The counters of the session.
///
/// Threads: any.
///
/// # Safety
/// `stats` is null or good for one struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_stats(session: dap_session_t, stats: *mut dap_stats_t) -> i32 {
    call_plainly(|| {
        // SAFETY: as the caller promises.
        let out = unsafe { Out::new(stats) }?;
        let stats = crate::session::session(session)?.client.stats();
        out.set(dap_stats_t {
            answered: stats.answered,
            bytes_read: stats.bytes_read,
            bytes_written: stats.bytes_written,
            inline_transfers: stats.inline_transfers,
            direct_transfers: stats.direct_transfers,
            recoveries: stats.recoveries,
            restarts: stats.restarts,
            credits: stats.credits.into(),
            in_flight: stats.in_flight.into(),
        });
        Ok(())
    })
}

/// Sets a timeout in milliseconds for every later call of this thread; a negative number ends that.
/// A call that takes longer fails with DAP_E_NOT_SENT if it had no effect, and with DAP_E_DEADLINE
/// if it may have had one.
///
/// Threads: each has its own time.
#[unsafe(no_mangle)]
pub extern "C" fn dap_limit_thread(milliseconds: i64) {
    limit_thread(u64::try_from(milliseconds).ok().map(Duration::from_millis));
}

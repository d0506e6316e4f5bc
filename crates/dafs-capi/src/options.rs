//! Options of a connection.

use crate::error::{Failure, invalid};
use crate::pointer::{Out, optional_utf8};
use dafs_client::core::{Authenticator, Exchange, Fixed, Proof};
use dafs_client::{
    Authentication, CacheOptions, ConnectOptions, DafsUrl, TransportChoice, WaitPolicy,
};
use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;
use std::time::Duration;

/// Shared memory when the server is on this host and offers it, an RDMA adapter when one leads to a
/// server that listens there, else iWARP over TCP. A device in software (rxe) is not chosen.
pub const DAP_TRANSPORT_AUTO: u32 = 0;
/// iWARP over TCP.
pub const DAP_TRANSPORT_IWARP: u32 = 1;
/// Shared memory.
pub const DAP_TRANSPORT_SHM: u32 = 2;
/// An RDMA device.
pub const DAP_TRANSPORT_VERBS: u32 = 3;

/// Waiting threads poll for a while, then sleep.
pub const DAP_WAIT_ADAPTIVE: u32 = 0;
/// Waiting threads poll until the answer comes: least latency, and all of a processor.
pub const DAP_WAIT_POLL: u32 = 1;
/// Waiting threads sleep at once.
pub const DAP_WAIT_SLEEP: u32 = 2;

/// DAFS checksums over messages and data.
pub const DAP_CONNECT_CHECKSUMS: u32 = 1;
/// CRC32C on iWARP.
pub const DAP_CONNECT_CRC: u32 = 2;
/// Caches file content in this process as far as the server's delegations allow.
pub const DAP_CONNECT_CACHE: u32 = 4;

/// Size of the buffer of a name or a password, with its end.
pub const DAP_PASSWORD_BYTES: usize = 256;

/// Fills in the user's name and password, each at most DAP_PASSWORD_BYTES with its zero; returns 0,
/// or another number if it cannot. Called at every connect, also when a lost connection is
/// replaced, from any thread. It must not call this library.
pub type dap_credentials_t = Option<
    unsafe extern "C" fn(context: *mut c_void, user: *mut c_char, password: *mut c_char) -> i32,
>;

/// Options of a connection. Initialise it with dap_options_init() first.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dap_options_t {
    /// The size of this struct, as dap_options_init() has set it.
    pub size: usize,
    /// DAP_TRANSPORT_... An option in the connection string takes precedence, here and for all
    /// fields below.
    pub transport: u32,
    /// DAP_WAIT_...; wait=... in the connection string takes precedence.
    pub wait: u32,
    /// DAP_CONNECT_...; checksums=yes or no in the connection string takes precedence over
    /// DAP_CONNECT_CHECKSUMS.
    pub flags: u32,
    /// Most outstanding requests, as proposed to the server; 0 for the default.
    pub requests: u32,
    /// Timeout of connecting; 0 for the default. connect-timeout=SECONDS in the connection string
    /// takes precedence.
    pub connect_milliseconds: u32,
    /// Timeout of the answer to an operation; negative for none. deadline=SECONDS in the connection
    /// string takes precedence.
    pub deadline_milliseconds: i64,
    /// Time for replacing a lost connection; 0 for none. recovery=SECONDS in the connection string
    /// takes precedence.
    pub recovery_milliseconds: i64,
    /// The name of the session in fences, or null. fence-id=NAME in the connection string takes
    /// precedence.
    pub fence_id: *const c_char,
    /// The name of this client for the server across restarts, or null.
    pub client_id: *const c_char,
    /// The user, or null for that of the connection string; two that differ are DAP_E_INVALID.
    pub user: *const c_char,
    /// The user's password, or null.
    pub password: *const c_char,
    /// Replaces user and password, or null.
    pub credentials: dap_credentials_t,
    /// The argument of `credentials`.
    pub context: *mut c_void,
}

/// Fills in the defaults.
///
/// Threads: any.
///
/// # Safety
/// `options` is null or good for one struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_options_init(options: *mut dap_options_t) -> i32 {
    crate::boundary::call_plainly(|| {
        let milliseconds =
            |time: Option<Duration>, none| time.map_or(none, |time| time.as_millis() as i64);
        let usual = ConnectOptions::default();
        // SAFETY: as the caller promises.
        unsafe { Out::new(options) }?.set(dap_options_t {
            size: size_of::<dap_options_t>(),
            transport: DAP_TRANSPORT_AUTO,
            wait: DAP_WAIT_ADAPTIVE,
            flags: 0,
            requests: 0,
            connect_milliseconds: 0,
            deadline_milliseconds: milliseconds(usual.deadline, -1),
            recovery_milliseconds: milliseconds(usual.recovery, 0),
            fence_id: std::ptr::null(),
            client_id: std::ptr::null(),
            user: std::ptr::null(),
            password: std::ptr::null(),
            credentials: None,
            context: std::ptr::null_mut(),
        });
        Ok(())
    })
}

/// # Safety
/// The texts in `given` are as [`optional_utf8`] requires, and any thread can call `credentials`
/// with `context` for as long as the session lasts.
pub(crate) unsafe fn parse(
    given: &dap_options_t,
    url: &DafsUrl,
) -> Result<ConnectOptions, Failure> {
    if given.size != size_of::<dap_options_t>() {
        return Err(invalid("the options were not made by dap_options_init() of this version"));
    }
    let transport = match given.transport {
        DAP_TRANSPORT_AUTO => TransportChoice::Auto,
        DAP_TRANSPORT_IWARP => TransportChoice::Iwarp,
        DAP_TRANSPORT_SHM => TransportChoice::Shm,
        DAP_TRANSPORT_VERBS => TransportChoice::Verbs,
        _ => return Err(invalid("there is no such transport")),
    };
    let wait = match given.wait {
        DAP_WAIT_ADAPTIVE => WaitPolicy::default(),
        DAP_WAIT_POLL => WaitPolicy::Poll,
        DAP_WAIT_SLEEP => WaitPolicy::Sleep,
        _ => return Err(invalid("there is no such way to wait")),
    };
    let mut options = ConnectOptions { transport, wait, ..ConnectOptions::default() };
    if given.flags & !(DAP_CONNECT_CHECKSUMS | DAP_CONNECT_CRC | DAP_CONNECT_CACHE) != 0 {
        return Err(invalid("there is no such flag for connecting"));
    }
    options.checksums = given.flags & DAP_CONNECT_CHECKSUMS != 0;
    options.crc = given.flags & DAP_CONNECT_CRC != 0;
    options.cache = (given.flags & DAP_CONNECT_CACHE != 0).then(CacheOptions::default);
    if given.requests != 0 {
        let requests = u16::try_from(given.requests);
        options.requests = requests.map_err(|_| invalid("over 65535 requests at a time"))?;
    }
    if given.connect_milliseconds != 0 {
        options.connect_timeout = Duration::from_millis(given.connect_milliseconds.into());
    }
    options.deadline = u64::try_from(given.deadline_milliseconds).ok().map(Duration::from_millis);
    let recovery = u64::try_from(given.recovery_milliseconds).ok().filter(|time| *time != 0);
    options.recovery = recovery.map(Duration::from_millis);
    // SAFETY: as the caller promises.
    let take = |text| unsafe { optional_utf8(text) };
    options.fence_id = take(given.fence_id)?.map(str::to_owned);
    options.client_id = take(given.client_id)?.map(str::to_owned);
    let (user, password) = (take(given.user)?, take(given.password)?);
    let Some(ask) = given.credentials else {
        options.prove_by_password(url, user, password.map(str::to_owned))?;
        return Ok(options);
    };
    if user.or(url.user()).or(password).is_some() {
        return Err(invalid("there is a user and a function that tells one"));
    }
    let callback = Callback { ask, context: given.context };
    options.prove(Authentication::Custom(Arc::new(callback)));
    Ok(options)
}

/// Asks the application for a name and a password.
struct Callback {
    ask: unsafe extern "C" fn(*mut c_void, *mut c_char, *mut c_char) -> i32,
    context: *mut c_void,
}

// SAFETY: the header demands that any thread may call it.
unsafe impl Send for Callback {}
// SAFETY: as above.
unsafe impl Sync for Callback {}

impl Authenticator for Callback {
    fn start(&self, _binding: Option<&[u8]>) -> Result<Box<dyn Exchange>, String> {
        let (mut user, mut password) = ([0u8; DAP_PASSWORD_BYTES], [0u8; DAP_PASSWORD_BYTES]);
        let (user_at, password_at) = (user.as_mut_ptr(), password.as_mut_ptr());
        // SAFETY: the application gave the function for this, and the buffers are as large as the
        // header says.
        let said = unsafe { (self.ask)(self.context, user_at.cast(), password_at.cast()) };
        if said != 0 {
            return Err("the application knows no user and password".into());
        }
        let text = |bytes: &[u8]| {
            let text = CStr::from_bytes_until_nul(bytes).map(|text| text.to_bytes().to_vec());
            text.map_err(|_| "the application's user or password does not end".to_owned())
        };
        let proof = Proof::Text { id: text(&user)?, password: text(&password)? };
        password.fill(0);
        Ok(Fixed::exchange(proof))
    }
}

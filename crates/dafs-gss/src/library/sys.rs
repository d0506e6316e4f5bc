//! libgssapi_krb5, loaded at run time. With [`lucid`](super::lucid) and [`cache`](super::cache), the only module
//! of this crate with unsafe code.
//!
//! Notes
//! * The structures and numbers are those of RFC 2744 and of the library's headers, which have not changed
//!   since 2010.
//! * The library keeps nothing of its arguments after a call. Credentials may be used by several threads at
//!   once, a context by one at a time.
//!
//! Invariants
//! * Every name, credential, context and buffer of the library is released exactly once.
//! * The texts of a status are asked for in the thread and before any other call, since the library keeps them
//!   per thread.

use super::remedy::remedy;
use crate::limits::{TEXT_BYTES_MAX, TEXTS_MAX};
use crate::mechanism::Failure;
use dafs_mem::{Library, Unavailable, library};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

/// Flags of a context (RFC 2744 3.2, and GSS_C_CHANNEL_BOUND_FLAG of the library).
pub(super) mod flag {
    pub(in crate::library) const MUTUAL: u32 = 0x2;
    pub(in crate::library) const CONFIDENTIALITY: u32 = 0x10;
    pub(in crate::library) const INTEGRITY: u32 = 0x20;
    pub(in crate::library) const CHANNEL_BOUND: u32 = 0x800;
}

/// The mechanism Kerberos, 1.2.840.113554.1.2.2 (RFC 4121).
const KERBEROS: &[u8] = b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02";

/// A service on a host, 1.2.840.113554.1.2.1.4 (RFC 2743 4.1).
const HOST_BASED_SERVICE: &[u8] = b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x01\x04";

/// A principal of Kerberos, 1.2.840.113554.1.2.2.1 (RFC 1964 2.1.1).
const KERBEROS_PRINCIPAL: &[u8] = b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02\x01";

const CONTINUE_NEEDED: u32 = 1;
/// The bits of errors in a major status.
const ERRORS: u32 = 0xffff_0000;
const STATUS_OF_GSS: c_int = 1;
const STATUS_OF_MECHANISM: c_int = 2;
/// The longest possible time.
const INDEFINITE: u32 = u32::MAX;

type Minor = *mut u32;
type RawName = *mut c_void;
type RawCredential = *mut c_void;
pub(super) type RawContext = *mut c_void;

/// `gss_buffer_desc`.
#[repr(C)]
pub(super) struct Bytes {
    length: usize,
    value: *mut c_void,
}

/// `gss_OID_desc`.
#[repr(C)]
pub(super) struct Oid {
    length: u32,
    elements: *const c_void,
}

/// `gss_OID_set_desc`.
#[repr(C)]
pub(super) struct OidSet {
    count: usize,
    elements: *const Oid,
}

/// `gss_channel_bindings_struct`.
#[repr(C)]
pub(super) struct ChannelBindings {
    initiator_type: u32,
    initiator: Bytes,
    acceptor_type: u32,
    acceptor: Bytes,
    application: Bytes,
}

/// `gss_key_value_element_desc`.
#[repr(C)]
pub(super) struct StoreElement {
    key: *const c_char,
    value: *const c_char,
}

/// `gss_key_value_set_desc`.
#[repr(C)]
pub(super) struct StoreSet {
    count: u32,
    elements: *const StoreElement,
}

// SAFETY: the initialisers of the library have no requirements; the types are those of gssapi.h,
// gssapi_ext.h and gssapi_krb5.h.
library! {
    unsafe Functions, Library {
        file_system: "Kerberos",
        name: "libgssapi_krb5",
        package: "libgssapi-krb5-2",
        file: c"libgssapi_krb5.so.2",
        version: "1.19",
    };
    fn gss_accept_sec_context(
        Minor, *mut RawContext, RawCredential, *const Bytes, *const ChannelBindings, *mut RawName,
        *mut *const Oid, *mut Bytes, *mut u32, *mut u32, *mut RawCredential,
    ) -> u32;
    fn gss_acquire_cred_from(
        Minor, RawName, u32, *const OidSet, c_int, *const StoreSet, *mut RawCredential,
        *mut *mut OidSet, *mut u32,
    ) -> u32;
    fn gss_delete_sec_context(Minor, *mut RawContext, *mut Bytes) -> u32;
    fn gss_display_name(Minor, RawName, *mut Bytes, *mut *const Oid) -> u32;
    fn gss_display_status(Minor, u32, c_int, *const Oid, *mut u32, *mut Bytes) -> u32;
    fn gss_export_name(Minor, RawName, *mut Bytes) -> u32;
    fn gss_import_name(Minor, *const Bytes, *const Oid, *mut RawName) -> u32;
    fn gss_init_sec_context(
        Minor, RawCredential, *mut RawContext, RawName, *const Oid, u32, u32,
        *const ChannelBindings, *const Bytes, *mut *const Oid, *mut Bytes, *mut u32, *mut u32,
    ) -> u32;
    fn gss_inquire_context(
        Minor, RawContext, *mut RawName, *mut RawName, *mut u32, *mut *const Oid, *mut u32,
        *mut c_int, *mut c_int,
    ) -> u32;
    fn gss_krb5_export_lucid_sec_context(Minor, *mut RawContext, u32, *mut *mut c_void) -> u32;
    fn gss_krb5_free_lucid_sec_context(Minor, *mut c_void) -> u32;
    fn gss_release_buffer(Minor, *mut Bytes) -> u32;
    fn gss_release_cred(Minor, *mut RawCredential) -> u32;
    fn gss_release_name(Minor, *mut RawName) -> u32;
}

impl Bytes {
    /// The library only reads what it is given this way.
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self { length: bytes.len(), value: bytes.as_ptr().cast_mut().cast() }
    }

    pub(super) const fn none() -> Self {
        Self { length: 0, value: null_mut() }
    }
}

impl Oid {
    fn of(bytes: &'static [u8]) -> Self {
        Self { length: bytes.len() as u32, elements: bytes.as_ptr().cast() }
    }

    fn is(&self, bytes: &[u8]) -> bool {
        // SAFETY: an identifier of the library has this many bytes, for ever.
        self.length as usize == bytes.len()
            && unsafe { std::slice::from_raw_parts(self.elements.cast::<u8>(), bytes.len()) }
                == bytes
    }
}

impl ChannelBindings {
    fn of(bindings: &[u8]) -> Self {
        let (initiator, acceptor) = (Bytes::none(), Bytes::none());
        let application = Bytes::of(bindings);
        Self { initiator_type: 0, initiator, acceptor_type: 0, acceptor, application }
    }
}

/// A buffer that the library fills.
pub(super) struct Output {
    gss: Gss,
    bytes: Bytes,
}

impl Output {
    pub(super) fn new(gss: Gss) -> Self {
        Self { gss, bytes: Bytes::none() }
    }

    pub(super) fn as_mut(&mut self) -> *mut Bytes {
        &raw mut self.bytes
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        if self.bytes.value.is_null() || self.bytes.length == 0 {
            return Vec::new();
        }
        let start = self.bytes.value.cast::<u8>();
        // SAFETY: the library has filled the buffer: an address of so many bytes.
        unsafe { std::slice::from_raw_parts(start, self.bytes.length) }.to_vec()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: a buffer of the library, or an empty one, released once.
        unsafe { (self.gss.0.gss_release_buffer)(&raw mut minor, &raw mut self.bytes) };
    }
}

/// The loaded library.
#[derive(Clone, Copy)]
pub(super) struct Gss(pub(super) &'static Functions);

/// The purpose of credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Usage {
    Initiate = 1,
    Accept = 2,
}

/// A kind of name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    HostBasedService,
    Principal,
}

impl Gss {
    /// Loads the library with the first call.
    pub(super) fn get() -> Result<Self, Unavailable> {
        Functions::get().map(Self)
    }

    /// Turns the status of a call into a failure with its texts.
    pub(super) fn check(self, major: u32, minor: u32) -> Result<(), Failure> {
        if major & ERRORS == 0 {
            return Ok(());
        }
        Err(Failure {
            major,
            minor,
            minor_text: self.text(minor, STATUS_OF_MECHANISM),
            major_text: self.text(major, STATUS_OF_GSS),
            remedy: remedy(major, minor),
            token: None,
        })
    }

    fn text(self, status: u32, kind: c_int) -> String {
        let (mechanism, mut more, mut text) = (Oid::of(KERBEROS), 0, String::new());
        for _ in 0..TEXTS_MAX {
            let (mut minor, mut output) = (0, Output::new(self));
            // SAFETY: all addresses are of values that outlive the call.
            let major = unsafe {
                (self.0.gss_display_status)(
                    &raw mut minor,
                    status,
                    kind,
                    &raw const mechanism,
                    &raw mut more,
                    output.as_mut(),
                )
            };
            let next = output.to_vec();
            if major & ERRORS != 0 || text.len() + next.len() > TEXT_BYTES_MAX {
                break;
            }
            if !text.is_empty() {
                text.push_str(", ");
            }
            // Texts may quote names that strangers chose, and go to logs.
            let clean = |char: char| if char.is_control() { '?' } else { char };
            text.extend(String::from_utf8_lossy(&next).chars().map(clean));
            if more == 0 {
                break;
            }
        }
        text
    }

    pub(super) fn import(self, name: &str, kind: Kind) -> Result<Name, Failure> {
        let kind = Oid::of(match kind {
            Kind::HostBasedService => HOST_BASED_SERVICE,
            Kind::Principal => KERBEROS_PRINCIPAL,
        });
        let (bytes, mut minor, mut raw) = (Bytes::of(name.as_bytes()), 0, null_mut());
        // SAFETY: all addresses are of values that outlive the call.
        let major = unsafe {
            (self.0.gss_import_name)(
                &raw mut minor,
                &raw const bytes,
                &raw const kind,
                &raw mut raw,
            )
        };
        let name = Name { gss: self, raw };
        self.check(major, minor).map(|()| name)
    }

    /// Acquires credentials for Kerberos from a store: pairs of a kind and a place.
    pub(super) fn acquire(
        self,
        usage: Usage,
        name: Option<&Name>,
        store: &[(&CStr, &CStr)],
    ) -> Result<Credential, Failure> {
        let kerberos = Oid::of(KERBEROS);
        let mechanisms = OidSet { count: 1, elements: &raw const kerberos };
        let elements: Vec<_> = store
            .iter()
            .map(|(key, value)| StoreElement { key: key.as_ptr(), value: value.as_ptr() })
            .collect();
        let store = StoreSet { count: elements.len() as u32, elements: elements.as_ptr() };
        let (mut minor, mut raw) = (0, null_mut());
        // SAFETY: all addresses are of values that outlive the call, or null where that is permitted.
        let major = unsafe {
            (self.0.gss_acquire_cred_from)(
                &raw mut minor,
                name.map_or(null_mut(), |name| name.raw),
                INDEFINITE,
                &raw const mechanisms,
                usage as c_int,
                &raw const store,
                &raw mut raw,
                null_mut(),
                null_mut(),
            )
        };
        let credential = Credential { gss: self, raw };
        self.check(major, minor).map(|()| credential)
    }
}

/// A name of the library.
pub(super) struct Name {
    gss: Gss,
    raw: RawName,
}

impl Name {
    /// Returns the exported form and the text.
    pub(super) fn forms(&self) -> Result<(Vec<u8>, Vec<u8>), Failure> {
        let (mut minor, mut exported, mut text) = (0, Output::new(self.gss), Output::new(self.gss));
        // SAFETY: a name of the library, and addresses of values that outlive the call.
        let major =
            unsafe { (self.gss.0.gss_export_name)(&raw mut minor, self.raw, exported.as_mut()) };
        self.gss.check(major, minor)?;
        // SAFETY: as above; the kind of the name is not asked for.
        let major = unsafe {
            (self.gss.0.gss_display_name)(&raw mut minor, self.raw, text.as_mut(), null_mut())
        };
        self.gss.check(major, minor)?;
        Ok((exported.to_vec(), text.to_vec()))
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let mut minor = 0;
        if !self.raw.is_null() {
            // SAFETY: a name of the library, released once.
            unsafe { (self.gss.0.gss_release_name)(&raw mut minor, &raw mut self.raw) };
        }
    }
}

// SAFETY: a name is memory of its own, which the library changes only when it is released.
unsafe impl Send for Name {}

/// Credentials of the library.
pub(super) struct Credential {
    gss: Gss,
    raw: RawCredential,
}

impl Drop for Credential {
    fn drop(&mut self) {
        let mut minor = 0;
        if !self.raw.is_null() {
            // SAFETY: credentials of the library, released once, after all calls with them.
            unsafe { (self.gss.0.gss_release_cred)(&raw mut minor, &raw mut self.raw) };
        }
    }
}

// SAFETY: the library has a lock in every credential, and takes it wherever it uses one.
unsafe impl Send for Credential {}
// SAFETY: as above.
unsafe impl Sync for Credential {}

/// A context of the library, established or on the way there.
pub(super) struct Context {
    gss: Gss,
    raw: RawContext,
}

/// A step of establishing that did not fail.
pub(super) struct Moved {
    /// Nothing more is needed from the other side.
    pub(super) is_complete: bool,
    /// The token for the other side, which may be empty.
    pub(super) token: Vec<u8>,
    /// The flags of the context.
    pub(super) flags: u32,
    /// The initiator, as the acceptor knows it once all is complete.
    pub(super) initiator: Option<Name>,
}

impl Context {
    pub(super) fn new(gss: Gss) -> Self {
        Self { gss, raw: null_mut() }
    }

    pub(super) fn gss(&self) -> Gss {
        self.gss
    }

    /// The raw context, for [`lucid`](super::lucid), which may consume it.
    pub(super) fn raw(&mut self) -> &mut RawContext {
        &mut self.raw
    }

    /// Takes a token of the initiator.
    pub(super) fn accept(
        &mut self,
        credential: &Credential,
        token: &[u8],
        bindings: Option<&[u8]>,
    ) -> Result<Moved, Failure> {
        let (input, bindings) = (Bytes::of(token), bindings.map(ChannelBindings::of));
        let mut output = Output::new(self.gss);
        let mut name = Name { gss: self.gss, raw: null_mut() };
        let (mut minor, mut mechanism, mut flags) = (0, null(), 0);
        // SAFETY: all addresses are of values that outlive the call, or null where that is permitted: without
        // a place for them, delegated credentials are not taken.
        let major = unsafe {
            (self.gss.0.gss_accept_sec_context)(
                &raw mut minor,
                &raw mut self.raw,
                credential.raw,
                &raw const input,
                bindings.as_ref().map_or(null(), std::ptr::from_ref),
                &raw mut name.raw,
                &raw mut mechanism,
                output.as_mut(),
                &raw mut flags,
                null_mut(),
                null_mut(),
            )
        };
        let initiator = (!name.raw.is_null()).then_some(name);
        self.moved(major, minor, mechanism, &output, flags, initiator)
    }

    /// Makes the next token for an acceptor, with these credentials or with those of the environment.
    pub(super) fn initiate(
        &mut self,
        credential: Option<&Credential>,
        target: &Name,
        wanted: u32,
        token: &[u8],
        bindings: Option<&[u8]>,
    ) -> Result<Moved, Failure> {
        let (input, bindings) = (Bytes::of(token), bindings.map(ChannelBindings::of));
        let (kerberos, mut output) = (Oid::of(KERBEROS), Output::new(self.gss));
        let (mut minor, mut mechanism, mut flags) = (0, null(), 0);
        // SAFETY: all addresses are of values that outlive the call, or null where that is permitted.
        let major = unsafe {
            (self.gss.0.gss_init_sec_context)(
                &raw mut minor,
                credential.map_or(null_mut(), |credential| credential.raw),
                &raw mut self.raw,
                target.raw,
                &raw const kerberos,
                wanted,
                0,
                bindings.as_ref().map_or(null(), std::ptr::from_ref),
                if token.is_empty() { null() } else { &raw const input },
                &raw mut mechanism,
                output.as_mut(),
                &raw mut flags,
                null_mut(),
            )
        };
        self.moved(major, minor, mechanism, &output, flags, None)
    }

    fn moved(
        &self,
        major: u32,
        minor: u32,
        mechanism: *const Oid,
        output: &Output,
        flags: u32,
        initiator: Option<Name>,
    ) -> Result<Moved, Failure> {
        let token = output.to_vec();
        if let Err(failure) = self.gss.check(major, minor) {
            return Err(Failure { token: (!token.is_empty()).then_some(token), ..failure });
        }
        // SAFETY: null, or an identifier of the library, which lives for ever.
        if let Some(mechanism) = unsafe { mechanism.as_ref() }
            && !mechanism.is(KERBEROS)
        {
            return Err(Failure::defective("the token is of another mechanism than Kerberos"));
        }
        Ok(Moved { is_complete: major & CONTINUE_NEEDED == 0, token, flags, initiator })
    }

    /// Returns the initiator of an established context.
    pub(super) fn initiator(&self) -> Result<Name, Failure> {
        let mut name = Name { gss: self.gss, raw: null_mut() };
        let mut minor = 0;
        // SAFETY: a context of the library; null for all that is not asked for.
        let major = unsafe {
            (self.gss.0.gss_inquire_context)(
                &raw mut minor,
                self.raw,
                &raw mut name.raw,
                null_mut(),
                null_mut(),
                null_mut(),
                null_mut(),
                null_mut(),
                null_mut(),
            )
        };
        self.gss.check(major, minor).map(|()| name)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let mut minor = 0;
        if !self.raw.is_null() {
            // SAFETY: a context of the library, deleted once; no token about it is wanted.
            unsafe {
                (self.gss.0.gss_delete_sec_context)(&raw mut minor, &raw mut self.raw, null_mut())
            };
        }
    }
}

// SAFETY: a context is used by one thread at a time, as its methods that change it need it alone.
unsafe impl Send for Context {}

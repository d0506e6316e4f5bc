//! GSS-API with Kerberos (RFC 4121), for RPCSEC_GSS and for the authentication of DAFS, without their wire
//! formats.
//!
//! | module | what |
//! |---|---|
//! | [`token`] | the messages of an established context: MICs and sealed data, in code of our own |
//! | [`mechanism`] | establishing a context: the traits [`Accept`](mechanism::Accept) and [`Initiate`](mechanism::Initiate) |
//! | [`library`] | these traits by libgssapi_krb5, which is opened at run time |
//! | [`keytab`] | the entries of a keytab, for those who look for a mistake in it |
//! | [`testing`] | these traits for tests and simulations, from a shared secret |
//!
//! Invariants
//! * The library establishes contexts, and no message of a context goes through it. So messages need no lock,
//!   no copy and no foreign code.
//! * All unsafe code is in `library/sys.rs`, `library/lucid.rs` and `library/cache.rs`.
//! * Everything that a stranger sends is bounded, and checked before it is believed.

mod enctype;
pub mod keytab;
pub mod library;
pub mod limits;
pub mod mechanism;
pub mod testing;
pub mod token;

//! RPCSEC_GSS at a server: calls and attacks without a connection, and over one.

mod attacks;
mod floods;
mod wired;

use dafs_testkit_rpc::gss as toy;

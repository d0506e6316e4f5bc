//! Network status monitor, version 1 (X/Open C702 chapter 11): the message by which a host says
//! that it has restarted. A server and its own lock manager are one program, so the procedures by
//! which a lock manager asks its monitor are not here.

use crate::nfs3::field::{numbers, record};
use crate::nlm4::HostName;

/// The RPC program.
pub const PROGRAM: u32 = 100_024;

/// The version of the program.
pub const VERSION: u32 = 1;

numbers! {
    /// Procedure numbers.
    pub enum Procedure {
        Null = 0, "SM_NULL";
        Notify = 6, "SM_NOTIFY";
    }
}

record! {
    /// Arguments of NOTIFY (stat_chge).
    pub struct NotifyArgs<'a> {
        /// The host that has restarted.
        pub name: HostName<'a>,
        /// Its state number: another one than before the restart, odd while it runs.
        pub state: u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdr::{Decode, Decoder, Encode};

    #[test]
    fn a_notification_has_a_name_and_a_state() {
        let args = NotifyArgs { name: HostName(b"host"), state: 5 };
        let bytes = args.encoded();
        assert_eq!(bytes, b"\0\0\0\x04host\0\0\0\x05");
        assert_eq!(NotifyArgs::decode(&mut Decoder::new(&bytes)), Ok(args));
        for len in 0..bytes.len() {
            assert!(NotifyArgs::decode(&mut Decoder::new(&bytes[..len])).is_err());
        }
    }
}

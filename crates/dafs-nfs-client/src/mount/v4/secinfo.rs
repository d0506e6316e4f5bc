//! The flavours that a server takes, for the user whose flavour it refuses (RFC 8881 2.6.3).

use super::client::Client;
use crate::files::{Handle, putfh};
use crate::mount::error::{MountError, Result};
use crate::mount::security::SecurityFlavour;
use dafs_wire::nfs4::{
    Op, OpNum, PutrootfhArgs, SecinfoArgs, SecinfoNoNameArgs, SecinfoStyle, Status,
};

/// An object whose flavours are asked for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Guarded<'a> {
    Name(&'a Handle, &'a [u8]),
    Object(&'a Handle),
    Root,
}

impl Client {
    /// The error of an operation. If the server refuses the flavour of this mount, the error tells
    /// which ones it takes.
    pub(super) fn explained(&self, error: MountError, object: Guarded<'_>) -> MountError {
        if error.status() != Some(Status::WrongSec) {
            return error;
        }
        match self.flavours(object) {
            Ok(takes) => self.link.wrong_flavour(&takes),
            Err(reason) => {
                tracing::debug!(%reason, "the server does not tell its flavours");
                error
            }
        }
    }

    fn flavours(&self, object: Guarded<'_>) -> Result<Vec<SecurityFlavour>> {
        let no_name = Op::SecinfoNoName(SecinfoNoNameArgs { style: SecinfoStyle::Current });
        let mut results = self.ask(&|compound| {
            match object {
                Guarded::Name(dir, name) => {
                    compound.op(&putfh(dir)).op(&Op::Secinfo(SecinfoArgs { name }))
                }
                Guarded::Object(handle) => compound.op(&putfh(handle)).op(&no_name),
                Guarded::Root => compound.op(&Op::Putrootfh(PutrootfhArgs)).op(&no_name),
            };
        })?;
        let result = match object {
            Guarded::Name(..) => results.skip(&[OpNum::Putfh])?.take_secinfo()?,
            Guarded::Object(_) => results.skip(&[OpNum::Putfh])?.take_secinfo_no_name()?,
            Guarded::Root => results.skip(&[OpNum::Putrootfh])?.take_secinfo_no_name()?,
        };
        Ok(result.flavors.iter().filter_map(SecurityFlavour::from_secinfo).collect())
    }
}

//! Extended attributes of users: small values beside the content of an object, by name. They are
//! our extension of the protocol; named attributes of DAFS, which are files, cannot be replaced
//! atomically.
//!
//! Invariants
//! * A value is replaced atomically, whatever fails.

use crate::attributes::FileHandle;
use crate::cache::Effect;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::transfer;
use dafs_mem::Site;
use dafs_wire::dafs as wire;
use dafs_wire::dafs::{
    AttrMask, Checksum, EncodeError, Procedure, Reply, Request, StateId, Status, XattrHow,
};

/// The rule for an extended attribute that is set: it may, must not or must exist before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetXattr {
    /// Makes or replaces it.
    #[default]
    Either,
    /// Makes it: EXIST when it is there.
    Create,
    /// Replaces it: NOENT when it is not there.
    Replace,
}

impl Client {
    /// The value of an extended attribute. Names stand without "user." and may hold slashes.
    ///
    /// # Errors
    /// The server's answer: NOENT when there is none of this name.
    pub fn xattr(&self, object: &FileHandle, name: &[u8]) -> Result<Vec<u8>> {
        let ask = |buffer| Request::XGetXattr(wire::XGetXattr { fh: *object, buffer, name });
        let take = |reply: &Reply<'_>| Some(reply.x_get_xattr()?.direct_checksum);
        let (bytes, sum) = self.fetch(object, ask, take)?;
        let order = self.shared().byte_order();
        let value = wire::decode_text_direct(&bytes, order);
        let value = value.map_err(|error| self.shared().broken(&error))?;
        self.check_sum(sum, bytes.len(), |out| wire::encode_text_direct(value, out, order))?;
        Ok(value.to_vec())
    }

    /// The names of all extended attributes of an object, each without "user.".
    ///
    /// # Errors
    /// The server's answer; NOTSUPP from an earlier server, which leaves unknown attributes out.
    pub fn xattr_names(&self, object: &FileHandle) -> Result<Vec<Vec<u8>>> {
        let attributes = AttrMask::X_XATTR_NAMES;
        let ask = |buffer| {
            Request::GetAttrDirect(wire::GetAttrDirect { fh: *object, attributes, buffer })
        };
        let take = |reply: &Reply<'_>| Some(reply.get_attr_direct()?.direct_checksum);
        let (bytes, sum) = self.fetch(object, ask, take)?;
        let order = self.shared().byte_order();
        let told = wire::Attributes::decode_direct(&bytes, order);
        let told = told.map_err(|error| self.shared().broken(&error))?;
        self.check_sum(sum, bytes.len(), |out| told.encode_direct(out, order))?;
        let names = told.x_xattr_names.ok_or(Error::Status {
            procedure: Procedure::GetAttrDirect,
            status: Status::NotSupp,
        })?;
        let names: Vec<_> = names.iter().map(<[u8]>::to_vec).collect();
        if names.iter().any(|name| name.is_empty() || name.contains(&0)) {
            return Err(self
                .shared()
                .broken(&"an extended attribute has a name that cannot be one"));
        }
        Ok(names)
    }

    /// Sets an extended attribute atomically.
    ///
    /// # Errors
    /// The server's answer: NOSPC or FBIG when the file system there does not take so much.
    pub fn set_xattr(
        &self,
        object: &FileHandle,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        let how = match how {
            SetXattr::Either => XattrHow::Either,
            SetXattr::Create => XattrHow::Create,
            SetXattr::Replace => XattrHow::Replace,
        };
        self.change_xattr(object, name, Some(value), how)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// The server's answer: NOENT when there is none of this name.
    pub fn remove_xattr(&self, object: &FileHandle, name: &[u8]) -> Result<()> {
        self.change_xattr(object, name, None, XattrHow::Remove)
    }

    fn change_xattr(
        &self,
        object: &FileHandle,
        name: &[u8],
        value: Option<&[u8]>,
        how: XattrHow,
    ) -> Result<()> {
        let wish = wire::Attributes {
            x_xattr_name: Some(name),
            x_xattr_value: value,
            x_xattr_how: Some(how),
            ..wire::Attributes::default()
        };
        let shared = self.shared();
        let staging = transfer::take_staging(shared)?;
        let mut bytes = vec![0; staging.len()];
        let len = wish.encode_direct(&mut bytes, shared.byte_order());
        let len = len.map_err(|_| Error::Argument("an extended attribute is over 256 KiB long"))?;
        staging.view().copy_from(&bytes[..len], Site::ClientStaging);
        let piece = shared.piece(&staging, 0..len, 0, usize::MAX)?;
        let request = Request::SetAttrDirect(wire::SetAttrDirect {
            fh: *object,
            state_id: StateId::ZERO,
            direct_checksum: shared.data_checksum(&piece)?,
            buffer: piece.direct_buffer(),
        });
        let _used = self.before(|| Effect::Read(*object));
        let reply = shared.call_with(&request, Some(piece))?;
        transfer::put_staging(shared, staging);
        self.shared().taken(&reply, |reply| matches!(reply, Reply::SetAttrDirect(_)).then_some(()))
    }

    /// The bytes that the server writes into a buffer, and their checksum.
    fn fetch<'r>(
        &self,
        object: &FileHandle,
        ask: impl FnOnce(wire::DirectBuffer) -> Request<'r>,
        take: impl FnOnce(&Reply<'_>) -> Option<Checksum>,
    ) -> Result<(Vec<u8>, Checksum)> {
        let shared = self.shared();
        let staging = transfer::take_staging(shared)?;
        let piece = shared.piece(&staging, 0..staging.len(), 0, usize::MAX)?;
        drop(self.before(|| Effect::Read(*object)));
        let reply = shared.call_with(&ask(piece.direct_buffer()), Some(piece))?;
        let mut bytes = vec![0; staging.len()];
        staging.view().copy_to(&mut bytes, Site::ClientStaging);
        transfer::put_staging(shared, staging);
        Ok((bytes, self.shared().taken(&reply, take)?))
    }

    /// Verifies a checksum: the decoded value, encoded again, equals the bytes that the server
    /// sent.
    fn check_sum(
        &self,
        told: Checksum,
        room: usize,
        encode: impl FnOnce(&mut [u8]) -> std::result::Result<usize, EncodeError>,
    ) -> Result<()> {
        if !self.session().checksums {
            return Ok(());
        }
        let mut bytes = vec![0; room];
        let len = encode(&mut bytes).map_err(|error| self.shared().broken(&error))?;
        match wire::checksum(&bytes[..len]) == told {
            true => Ok(()),
            false => Err(self.shared().broken(&"the checksum of an extended attribute is wrong")),
        }
    }
}

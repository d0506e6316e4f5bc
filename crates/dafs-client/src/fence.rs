//! Fences: access lists of clients for a file or a whole file system (DAFS 11).

use crate::attributes::FileHandle;
use crate::client::Client;
use crate::error::Result;
use dafs_wire::dafs::{
    FenceAccess, FenceUpdate, GetFencingList, Reply, Request, Seq, SetFencingList,
};

pub use dafs_wire::dafs::FenceObject;

/// A change of a fence list. Names are fence ids of DAFS sessions; `nfs:OWNER` is an NFSv4 client
/// by its owner string, and `addr:ADDRESS/BITS` is NFS clients by address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceChange<'a> {
    /// Everybody has access.
    Clear,
    /// Only these have access; an empty list shuts everybody out.
    Set(&'a [&'a [u8]]),
    /// These have access, too. A new list contains only these.
    Add(&'a [&'a [u8]]),
    /// These lose access. There must be a list.
    Remove(&'a [&'a [u8]]),
}

impl Client {
    /// The names on the list of an object, or of the file system that holds it; `None` where there
    /// is no list and everybody has access.
    ///
    /// # Errors
    /// The server's answer: `Perm` for a caller who neither owns the file nor is trusted, `Fenced`.
    pub fn fence_list(
        &self,
        object: &FileHandle,
        what: FenceObject,
    ) -> Result<Option<Vec<Vec<u8>>>> {
        let fh = match what {
            FenceObject::File => *object,
            // DAFS O43.
            FenceObject::FileSystem => FileHandle { fs: object.fs, ..FileHandle::ZERO },
        };
        let names: Vec<Vec<u8>> = self
            .ask(&Request::GetFencingList(GetFencingList { fh }), |reply| {
                Some(reply.get_fencing_list()?.list.iter().map(<[u8]>::to_vec).collect())
            })?;
        Ok(match names.as_slice() {
            [] => None,
            // DAFS O46: nobody has access.
            [name] if name.is_empty() => Some(Vec::new()),
            _ => Some(names),
        })
    }

    /// Changes the list of an object, or of the file system that holds it. When this returns, no
    /// request of clients that lost access is under way, and none will be carried out.
    ///
    /// # Errors
    /// The server's answer: `Perm` for a caller who neither owns the file nor is trusted, `Fenced`
    /// for a caller without access, `Inval` for an invalid name. When the session is lost instead,
    /// the change may have been made; it is idempotent, so retry it.
    pub fn set_fence(
        &self,
        object: &FileHandle,
        what: FenceObject,
        change: FenceChange<'_>,
    ) -> Result<()> {
        // DAFS O44, O46.
        let nobody: &[&[u8]] = &[b""];
        let (access, update, names) = match change {
            FenceChange::Clear => (FenceAccess::Allow, FenceUpdate::Overwrite, &[][..]),
            FenceChange::Set([]) => (FenceAccess::Allow, FenceUpdate::Overwrite, nobody),
            FenceChange::Set(names) => (FenceAccess::Allow, FenceUpdate::Overwrite, names),
            FenceChange::Add(names) => (FenceAccess::Allow, FenceUpdate::Append, names),
            FenceChange::Remove(names) => (FenceAccess::Deny, FenceUpdate::Remove, names),
        };
        let list = Seq::new(names);
        let args = SetFencingList { fh: *object, object: what, access, update, list };
        self.ask(&Request::SetFencingList(args), |reply| {
            matches!(reply, Reply::SetFencingList).then_some(())
        })
    }
}

//! Locks, delegation returns and recalls, fencing (DAFS 6, 9, 11).
//!
//! Invariants
//! * LOCK and LOCKT succeed with 40 zero bytes or none (DAFS O14), and otherwise name the holder
//!   (DAFS O13).

use super::codec::{WordBool, layout, word_enum};
use super::ids::{ClientId, FileHandle, LockOptions, ShareAccess, ShareDeny, StateId};
use super::open_args::ShareKey;
use super::seq::Seq;

word_enum! {
    /// The type of a lock request (DAFS 9.2).
    pub enum LockType {
        /// A shared lock.
        Read = 1,
        /// An exclusive lock.
        Write = 2,
        /// A shared lock, with fairness for a client that polls.
        ReadWait = 3,
        /// An exclusive lock, with fairness for a client that polls.
        WriteWait = 4,
        /// Roll back an auto-recovery lock.
        Abort = 5,
    }
}

layout! {
    /// Arguments of LOCK.
    pub struct Lock [96] {
        /// The file.
        fh: FileHandle = 0,
        /// The requested lock.
        lock_type: LockType = 64,
        /// Options of the lock.
        options: LockOptions = 68,
        /// The open.
        state_id: StateId = 72,
        /// First byte.
        offset: u64 = 80,
        /// Length in bytes; all ones means to the end, 0 is reserved.
        length: u64 = 88,
    }

    /// Arguments of LOCKT.
    pub struct LockT<'a> [88] {
        /// The file.
        fh: FileHandle = 0,
        /// The lock to test.
        lock_type: LockType = 64,
        /// The requesting lock owner.
        owner: &'a [u8] = 68,
        /// First byte.
        offset: u64 = 72,
        /// Bytes, as in LOCK.
        length: u64 = 80,
    }

    /// Arguments of LOCKU.
    pub struct LockU [96] {
        /// The file.
        fh: FileHandle = 0,
        /// The type of the lock.
        lock_type: LockType = 64,
        /// The open.
        state_id: StateId = 72,
        /// First byte.
        offset: u64 = 80,
        /// Bytes, as in LOCK.
        length: u64 = 88,
    }

    /// The conflicting lock: the body of LOCK and LOCKT with DENIED and LOCK_BROKEN (DAFS O13).
    pub struct LockHolder<'a> [40] {
        /// The holder's client.
        client_id: ClientId = 0,
        /// The lock owner at that client.
        owner: &'a [u8] = 8,
        /// First byte held.
        offset: u64 = 16,
        /// Bytes held, as in LOCK.
        length: u64 = 24,
        /// The type of the held lock.
        lock_type: LockType = 32,
    }

    /// Arguments of OPEN_DOWNGRADE.
    pub struct OpenDowngrade [96] {
        /// The file.
        fh: FileHandle = 0,
        /// The open.
        state_id: StateId = 64,
        /// The access that it keeps.
        share_access: ShareAccess = 72,
        /// The access that it still denies.
        share_deny: ShareDeny = 76,
        /// The share key it keeps.
        share_key: ShareKey = 80,
    }

    /// Arguments of DELEGRETURN.
    pub struct DelegReturn [8] {
        /// The delegation.
        state_id: StateId = 0,
    }

    /// Arguments of BC_RECALL.
    pub struct BcRecall [80] {
        /// The file.
        fh: FileHandle = 0,
        /// The delegation.
        state_id: StateId = 64,
        /// True when the file is about to be truncated, so that dirty data need not be written.
        truncate: bool as WordBool = 72,
    }
}

word_enum! {
    /// The object of a fence (DAFS 11).
    pub enum FenceObject {
        /// The file of the handle.
        File = 1,
        /// The file system of the handle.
        FileSystem = 2,
    }

    /// The access of the listed fence ids (DAFS 11, O44).
    pub enum FenceAccess {
        /// They get access.
        Allow = 1,
        /// They lose access.
        Deny = 2,
    }

    /// The update of the list (DAFS 11, O44).
    pub enum FenceUpdate {
        /// Replace the list.
        Overwrite = 1,
        /// Add to the list.
        Append = 2,
        /// Remove from the list.
        Remove = 3,
    }
}

layout! {
    /// Arguments of GET_FENCING_LIST.
    pub struct GetFencingList [64] {
        /// The file, or with an all-zero file part the file system (DAFS O43).
        fh: FileHandle = 0,
    }

    /// Result of GET_FENCING_LIST.
    pub struct GetFencingListReply<'a> [8] {
        /// The fence ids with access; one empty string when there are none (DAFS O46).
        list: Seq<'a, &'a [u8]> = 0,
    }

    /// Arguments of SET_FENCING_LIST.
    pub struct SetFencingList<'a> [80] {
        /// The object.
        fh: FileHandle = 0,
        /// The object that the handle names.
        object: FenceObject = 64,
        /// Grant or remove access.
        access: FenceAccess = 68,
        /// The update of the list.
        update: FenceUpdate = 72,
        /// The fence ids.
        list: Seq<'a, &'a [u8]> = 76,
    }
}

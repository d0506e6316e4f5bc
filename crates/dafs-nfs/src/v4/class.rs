//! The class of each operation: its effect, as far as its compound and the journal have to know.
//!
//! Invariants
//! * Each operation has a class, and the compiler notices one without.

use dafs_wire::nfs4::OpNum;

/// The kinds of operations. Sizes of results are in bytes, without number and status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Begins the compound.
    Sequence,
    /// Only stores and returns file handles.
    Handle,
    /// Only reads files, and uses no state of the client.
    Read,
    /// Leaves no trace when its result is removed.
    Probe,
    /// Changes one object or none: a refusal means that it has changed none. Its result takes at
    /// most so many bytes.
    Atomic(usize),
    /// Changes something. Its result takes at most so many bytes.
    Change(usize),
    /// Changes nothing, or may be repeated. Its result is checked afterwards.
    Other,
}

impl Class {
    pub(super) fn of(op: OpNum) -> Self {
        use OpNum::*;
        match op {
            Sequence => Self::Sequence,
            Putfh | Putrootfh | Putpubfh | Getfh | Savefh | Restorefh => Self::Handle,
            Access | Getattr | Getxattr | Listxattrs | Lookup | Lookupp | Nverify | Readdir
            | Readlink | Secinfo | SecinfoNoName | Verify => Self::Read,
            IoAdvise | Lockt | OffloadStatus | Read | ReadPlus | Seek | TestStateid => Self::Probe,
            Create | Link | Remove | Rename | Setxattr | Removexattr => Self::Atomic(48),
            Setattr => Self::Change(48),
            Open => Self::Change(192),
            Copy => Self::Change(64),
            // The result with one name for all data servers. Several names make it longer
            // (`layoutget.rs`).
            Layoutget => Self::Change(320),
            Close | Commit | Lock | Layoutcommit | Locku | OpenDowngrade | Write => {
                Self::Change(16)
            }
            Layoutreturn => Self::Change(20),
            CreateSession => Self::Change(96),
            BindConnToSession => Self::Change(24),
            Allocate | Clone | Deallocate | Delegreturn | FreeStateid | Layouterror
            | Layoutstats | OffloadCancel | ReclaimComplete => Self::Change(0),
            BackchannelCtl | CopyNotify | Delegpurge | DestroyClientid | DestroySession
            | ExchangeId | GetDirDelegation | Getdeviceinfo | Getdevicelist | Openattr | SetSsv
            | WantDelegation | WriteSame | OpenConfirm | ReleaseLockowner | Renew | Setclientid
            | SetclientidConfirm => Self::Other,
        }
    }

    /// True if the operation only stores and returns handles.
    pub(super) fn is_about_handles(self) -> bool {
        matches!(self, Self::Sequence | Self::Handle)
    }

    /// True if the operation only reads files, and uses no state of the client.
    pub(super) fn is_read_only(self) -> bool {
        matches!(self, Self::Handle | Self::Read)
    }

    /// True if the operation leaves no trace when its result is removed.
    pub(super) fn leaves_no_trace(self) -> bool {
        self.is_read_only() || self == Self::Probe
    }

    /// The most bytes that the result of a change can take. `None` for other operations.
    pub(super) fn change_result_bytes(self) -> Option<usize> {
        match self {
            Self::Atomic(bytes) | Self::Change(bytes) => Some(bytes),
            Self::Sequence | Self::Handle | Self::Read | Self::Probe | Self::Other => None,
        }
    }
}

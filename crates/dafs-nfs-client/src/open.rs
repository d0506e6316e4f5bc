//! Opens and delegations over a session.

use crate::compound::Compound;
use crate::error::NfsError;
use crate::files::{Handle, handle, putfh};
use crate::session::Session;
use dafs_wire::nfs4::*;

/// Options of an open.
#[derive(Debug, Clone)]
pub struct OpenOptions<'a> {
    /// [`ShareAccess::READ`], [`ShareAccess::WRITE`] or both, and wants.
    pub access: u32,
    /// The accesses denied to others.
    pub deny: u32,
    /// The owner of the open.
    pub owner: &'a [u8],
    /// The rule for creation.
    pub create: Create<'a>,
}

/// The rule for a missing or existing file.
#[derive(Debug, Clone)]
pub enum Create<'a> {
    /// It has to exist.
    No,
    /// It is created if it does not exist.
    Unchecked(SetAttributes<'a>),
    /// It must not exist.
    Guarded(SetAttributes<'a>),
    /// It must not exist, or was made with this verifier.
    Exclusive([u8; 8], SetAttributes<'a>),
}

impl Default for OpenOptions<'_> {
    fn default() -> Self {
        Self {
            access: ShareAccess::BOTH | Want::None.number(),
            deny: DENY_NONE,
            owner: b"owner",
            create: Create::No,
        }
    }
}

/// An open file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenFile {
    /// Its handle.
    pub handle: Handle,
    /// The open.
    pub stateid: Stateid,
    /// The delegation that came with it.
    pub delegation: Option<Delegation>,
    /// The flags of the server's answer.
    pub flags: OpenFlags,
}

/// A delegation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delegation {
    /// Its state-id.
    pub stateid: Stateid,
    /// Its kind.
    pub kind: DelegationType,
    /// True when it is recalled already.
    pub recalled: bool,
}

impl Delegation {
    fn from_wire(given: &OpenDelegation<'_>) -> Option<Self> {
        let (kind, stateid, recalled) = match given {
            OpenDelegation::Read(d) => (DelegationType::Read, d.stateid, d.recall),
            OpenDelegation::Write(d) => (DelegationType::Write, d.stateid, d.recall),
            OpenDelegation::ReadAttributes(d) => {
                (DelegationType::ReadAttributes, d.stateid, d.recall)
            }
            OpenDelegation::WriteAttributes(d) => {
                (DelegationType::WriteAttributes, d.stateid, d.recall)
            }
            _ => return None,
        };
        Some(Self { stateid, kind, recalled })
    }
}

impl Session {
    /// Opens a file by name.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn open(
        &self,
        directory: &Handle,
        name: &[u8],
        options: &OpenOptions<'_>,
    ) -> Result<OpenFile, NfsError> {
        self.open_claim(directory, OpenClaim::Null(name), options)
    }

    /// Opens the file with this handle.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn open_handle(
        &self,
        file: &Handle,
        options: &OpenOptions<'_>,
    ) -> Result<OpenFile, NfsError> {
        self.open_claim(file, OpenClaim::Handle, options)
    }

    /// Reclaims an open after the server's restart, and the delegation that was held.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn reclaim_open(
        &self,
        file: &Handle,
        delegation: DelegationType,
        options: &OpenOptions<'_>,
    ) -> Result<OpenFile, NfsError> {
        self.open_claim(file, OpenClaim::Previous(delegation), options)
    }

    /// Opens a file with any claim; `current` is the current file handle that the claim needs.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn open_claim(
        &self,
        current: &Handle,
        claim: OpenClaim<'_>,
        options: &OpenOptions<'_>,
    ) -> Result<OpenFile, NfsError> {
        let mut results = self.call_cached(|compound| {
            compound.op(&putfh(current));
            append_open(compound, claim, options);
            compound.op(&Op::Getfh(GetfhArgs));
        })?;
        let opened = results.skip(&[OpNum::Putfh])?.take_open()?;
        let (stateid, flags) = (opened.stateid, opened.flags);
        let delegation = Delegation::from_wire(&opened.delegation);
        let handle = handle(&mut results)?;
        Ok(OpenFile { handle, stateid, delegation, flags })
    }

    /// Creates a file, or opens it if it exists, for reading and writing.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn create(&self, directory: &Handle, name: &[u8]) -> Result<OpenFile, NfsError> {
        let new = SetAttributes { mode: Some(0o644), ..SetAttributes::default() };
        let options = OpenOptions { create: Create::Unchecked(new), ..OpenOptions::default() };
        self.open(directory, name, &options)
    }

    /// Closes a file.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn close(&self, file: &OpenFile) -> Result<(), NfsError> {
        self.change(&file.handle, &Op::Close(CloseArgs { seqid: 0, stateid: file.stateid }))?
            .finish()
    }

    /// Gives up access and denials of an open; returns its new state-id.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn downgrade(&self, file: &OpenFile, access: u32, deny: u32) -> Result<Stateid, NfsError> {
        let mut results = self.change(
            &file.handle,
            &Op::OpenDowngrade(OpenDowngradeArgs {
                stateid: file.stateid,
                seqid: 0,
                share_access: ShareAccess(access),
                share_deny: deny,
            }),
        )?;
        Ok(results.take_open_downgrade()?.stateid)
    }

    /// Returns a delegation.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn return_delegation(&self, file: &Handle, stateid: Stateid) -> Result<(), NfsError> {
        self.change(file, &Op::Delegreturn(DelegreturnArgs { stateid }))?.finish()
    }
}

/// Appends an OPEN.
pub fn append_open(compound: &mut Compound, claim: OpenClaim<'_>, options: &OpenOptions<'_>) {
    let (values, mask) = match &options.create {
        Create::No => (Vec::new(), Bitmap::EMPTY),
        Create::Unchecked(new) | Create::Guarded(new) | Create::Exclusive(_, new) => {
            (new.to_values(), new.mask())
        }
    };
    let fattr = Fattr { mask, values: &values };
    let how = match &options.create {
        Create::No => OpenHow::NoCreate,
        Create::Unchecked(_) => OpenHow::Unchecked(fattr),
        Create::Guarded(_) => OpenHow::Guarded(fattr),
        Create::Exclusive(verifier, _) => OpenHow::Exclusive41(Verifier(*verifier), fattr),
    };
    compound.op(&Op::Open(OpenArgs {
        seqid: 0,
        share_access: ShareAccess(options.access),
        share_deny: options.deny,
        owner: StateOwner { client_id: 0, owner: options.owner },
        how,
        claim,
    }));
}

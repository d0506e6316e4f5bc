//! The security flavours of file handles (RFC 8881 2.6.3.1).
//!
//! Invariants
//! * No operation but SECINFO and SECINFO_NO_NAME uses a handle whose export refuses the caller,
//!   and those tell flavours alone. The one exception are operations that the client's machine may
//!   send for its users, and GETATTR beside one that gives up state: Linux's client sends CLOSE and
//!   DELEGRETURN behind it. That state must be one that the client has of the same object. Else
//!   GETATTR answers ACCESS, upon which Linux sends its request again without it.
//! * WRONGSEC comes only from operations that set a handle or resolve a name. An operation that
//!   finds a refused handle behind an exempted one answers ACCESS.
//! * An operation that sets a handle looks at the one that follows: SECINFO must be reached with
//!   any flavour, and a name is judged by the object that it leads to.

use super::context::{CurrentHandle, OpContext};
use crate::v4::protect;
use crate::v4::status::{OpError, OpResult};
use dafs_service::{Handle, StateRef};
use dafs_wire::nfs4::{Op, OpNum, OpenClaim, Status};
use dafs_wire::xdr::Decoder;

/// The operation behind one that has set a handle. SAVEFH does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Follower {
    /// None: the handle is not used.
    Nothing,
    /// One that sets another handle, resolves a name, or tells flavours. It is judged by itself.
    Judged,
    /// Another one.
    Other(OpNum),
    /// No operation of the protocol.
    Unknown,
}

impl Follower {
    /// Finds it in the `left` operations of `rest`.
    fn find(rest: &[u8], left: u32, minor: u32) -> Self {
        let mut decoder = Decoder::new(rest);
        for _ in 0..left {
            let Ok(number) = { decoder }.u32() else { return Self::Unknown };
            match OpNum::from_u32(number) {
                Some(OpNum::Savefh) => {
                    if decoder.u32().is_err() {
                        return Self::Unknown;
                    }
                }
                Some(
                    OpNum::Putfh
                    | OpNum::Putrootfh
                    | OpNum::Putpubfh
                    | OpNum::Restorefh
                    | OpNum::Lookup
                    | OpNum::Lookupp
                    | OpNum::Secinfo
                    | OpNum::SecinfoNoName,
                ) => return Self::Judged,
                Some(OpNum::Open) => return Self::of_open(&mut decoder, minor),
                Some(other) => return Self::Other(other),
                None => return Self::Unknown,
            }
        }
        Self::Nothing
    }

    /// An OPEN resolves a name, or uses the handle.
    fn of_open(decoder: &mut Decoder<'_>, minor: u32) -> Self {
        match Op::decode(decoder, minor) {
            Ok(Op::Open(args)) => match args.claim {
                OpenClaim::Null(_)
                | OpenClaim::DelegateCurrent(..)
                | OpenClaim::DelegatePrevious(_) => Self::Judged,
                OpenClaim::Previous(_)
                | OpenClaim::Handle
                | OpenClaim::DelegateCurrentHandle(_)
                | OpenClaim::DelegatePreviousHandle => Self::Other(OpNum::Open),
            },
            _ => Self::Unknown,
        }
    }
}

impl OpContext<'_> {
    /// Notes the operation that runs next. `rest` are the operations that follow.
    pub(super) fn begin_operation(&mut self, number: OpNum, op: &Op<'_>, rest: &[u8]) {
        self.frame.running = Some(number);
        if !self.is_wrong_flavour() {
            self.frame.by_machine = self.machine_may(number);
            return;
        }
        // If this operation fails, no other one follows.
        let gives_up = self.gives_up_state(op);
        if let Some(current) = self.frame.current.as_mut() {
            current.gave_up_state |= gives_up;
        }
        let is_beside = || {
            let gave_up = self.frame.current.is_some_and(|current| current.gave_up_state);
            gave_up || self.behind_attributes(rest).is_some_and(|op| self.gives_up_state(&op))
        };
        self.frame.by_machine =
            self.machine_may(number) || (number == OpNum::Getattr && is_beside());
    }

    /// True if the client's machine gives up state with this operation that the client has of the
    /// current file.
    fn gives_up_state(&self, op: &Op<'_>) -> bool {
        let names = protect::state_given_up(op).filter(|_| self.machine_may_send(op));
        let found = names.and_then(|stateid| self.state(stateid).ok());
        let (Some(state), Some(current), Ok(caller)) = (found, self.frame.current, self.caller())
        else {
            return false;
        };
        // Another version of the state is still state of the client. The operation itself reports
        // that.
        let state = StateRef { seqid: 0, ..state };
        self.service().state.check_state(caller, Some(&current.handle), state).is_ok()
    }

    /// True if the client reads attributes and then ends its open or delegation. `rest` are the
    /// operations that follow.
    pub(crate) fn ends_state_next(&self, rest: &[u8]) -> bool {
        matches!(self.behind_attributes(rest), Some(Op::Close(_) | Op::Delegreturn(_)))
    }

    /// Returns the first operation of `rest` behind those for attributes.
    fn behind_attributes<'o>(&self, rest: &'o [u8]) -> Option<Op<'o>> {
        let mut decoder = Decoder::new(rest);
        (0..self.left()).find_map(|_| match Op::decode(&mut decoder, self.minor) {
            Ok(Op::Getattr(_)) => None,
            other => Some(other.ok()),
        })?
    }

    /// The number of operations that follow.
    fn left(&self) -> u32 {
        self.frame.op_count.saturating_sub(self.frame.op_index + 1)
    }

    fn machine_may_send(&self, op: &Op<'_>) -> bool {
        OpNum::from_u32(op.number()).is_some_and(|number| self.machine_may(number))
    }

    fn machine_may(&self, number: OpNum) -> bool {
        let session = self.session.as_ref();
        session.is_some_and(|session| protect::allows(session.owner(), &self.call.who, number))
    }

    /// Checks the flavour for the current file handle, for the operation that has set it. `rest` are
    /// the operations that follow.
    ///
    /// # Errors
    /// `WrongSec` if the next operation would use the handle.
    pub(crate) fn check_put(&self, rest: &[u8]) -> OpResult {
        if !self.is_wrong_flavour() {
            return Ok(());
        }
        match Follower::find(rest, self.left(), self.minor) {
            Follower::Nothing | Follower::Judged => Ok(()),
            Follower::Other(number) if self.machine_may(number) && self.is_secure_here() => Ok(()),
            // GETATTR looks the state up.
            Follower::Other(OpNum::Getattr)
                if self.behind_attributes(rest).is_some_and(|op| {
                    protect::state_given_up(&op).is_some() && self.machine_may_send(&op)
                }) && self.is_secure_here() =>
            {
                Ok(())
            }
            Follower::Other(_) | Follower::Unknown => Err(Status::WrongSec.into()),
        }
    }

    /// True if the connection has the protection that the export of a handle demands. No operation
    /// is exempt from that, whoever sends it.
    fn is_secure_for(&self, handle: &Handle) -> bool {
        let namespace = self.service().namespace();
        let security = self.call.origin.security();
        // An operation reports a handle without an export.
        namespace
            .export(handle)
            .map_or(true, |export| export.options().admits.is_secure_enough(security))
    }

    fn is_secure_here(&self) -> bool {
        self.frame.current.is_none_or(|current| self.is_secure_for(&current.handle))
    }

    /// Sets the current file handle to an object that an operation has found.
    ///
    /// # Errors
    /// `WrongSec` if its export demands another flavour.
    pub(crate) fn set_found(&mut self, handle: Handle) -> OpResult {
        self.set_current(handle);
        if self.is_wrong_flavour() { Err(Status::WrongSec.into()) } else { Ok(()) }
    }

    /// Returns the directory of exports if the current file handle is the root of an export in it
    /// that demands another flavour.
    pub(crate) fn above_refused_export(&self) -> Option<Handle> {
        let current = self.frame.current.filter(|_| self.is_wrong_flavour())?.handle;
        let namespace = self.service().namespace();
        let export = namespace.export(&current).ok()?;
        let top = namespace.root();
        (export.root() == current && top.fs != current.fs).then_some(top)
    }

    /// Returns a handle for the running operation.
    ///
    /// # Errors
    /// `NoFileHandle`. `Access` or `WrongSec` if its export does not admit the caller.
    pub(super) fn allowed(&self, at: Option<CurrentHandle>) -> Result<Handle, OpError> {
        let at = at.ok_or(Status::NoFileHandle)?;
        match at.refused {
            None => Ok(at.handle),
            Some(Status::WrongSec) if self.frame.by_machine && self.is_secure_for(&at.handle) => {
                Ok(at.handle)
            }
            Some(Status::WrongSec) if self.frame.running.is_some_and(reports_flavours) => {
                Err(Status::WrongSec.into())
            }
            Some(_) => Err(Status::Access.into()),
        }
    }
}

/// True if an operation may answer WRONGSEC (RFC 8881 2.6.3.1.1.7, 2.6.3.1.2).
fn reports_flavours(number: OpNum) -> bool {
    matches!(
        number,
        OpNum::Putfh
            | OpNum::Putrootfh
            | OpNum::Putpubfh
            | OpNum::Restorefh
            | OpNum::Lookup
            | OpNum::Lookupp
            | OpNum::Open
            | OpNum::Link
            | OpNum::Rename
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_wire::nfs4::*;
    use dafs_wire::xdr::{Encode, Encoder};

    fn follower(ops: &[Op<'_>]) -> Follower {
        let mut bytes = Vec::new();
        ops.iter().for_each(|op| op.encode(&mut Encoder::new(&mut bytes)));
        Follower::find(&bytes, ops.len() as u32, 1)
    }

    fn open(claim: OpenClaim<'_>) -> Op<'_> {
        Op::Open(OpenArgs {
            seqid: 0,
            share_access: ShareAccess(ShareAccess::READ),
            share_deny: 0,
            owner: StateOwner { client_id: 0, owner: b"o" },
            how: OpenHow::NoCreate,
            claim,
        })
    }

    #[test]
    fn the_next_operation_decides_who_reports_the_flavour() {
        let getattr = || Op::Getattr(GetattrArgs { request: Bitmap::EMPTY });
        let save = || Op::Savefh(SavefhArgs);
        let lookup = || Op::Lookup(LookupArgs { name: b"a" });
        assert_eq!(follower(&[]), Follower::Nothing);
        assert_eq!(follower(&[save(), save()]), Follower::Nothing);
        assert_eq!(follower(&[getattr()]), Follower::Other(OpNum::Getattr));
        assert_eq!(follower(&[save(), getattr()]), Follower::Other(OpNum::Getattr));
        let judged = [
            lookup(),
            Op::Lookupp(LookuppArgs),
            Op::Putrootfh(PutrootfhArgs),
            Op::Putpubfh(PutpubfhArgs),
            Op::Restorefh(RestorefhArgs),
            Op::Putfh(PutfhArgs { handle: b"x" }),
            Op::Secinfo(SecinfoArgs { name: b"a" }),
            Op::SecinfoNoName(SecinfoNoNameArgs { style: SecinfoStyle::Current }),
            open(OpenClaim::Null(b"a")),
        ];
        for op in judged {
            assert_eq!(follower(&[op.clone(), getattr()]), Follower::Judged, "{op:?}");
            assert_eq!(follower(&[save(), op]), Follower::Judged);
        }
        assert_eq!(follower(&[open(OpenClaim::Handle)]), Follower::Other(OpNum::Open));
    }

    #[test]
    fn bytes_that_are_no_operation_do_not_pass() {
        let find = |bytes: &[u8], left| Follower::find(bytes, left, 1);
        assert_eq!(find(&[], 1), Follower::Unknown);
        assert_eq!(find(&[0, 0], 1), Follower::Unknown);
        assert_eq!(find(&9999u32.to_be_bytes(), 1), Follower::Unknown);
        assert_eq!(find(&(OpNum::Open as u32).to_be_bytes(), 1), Follower::Unknown);
        assert_eq!(find(&(OpNum::Savefh as u32).to_be_bytes(), 2), Follower::Unknown);
        assert_eq!(find(&(OpNum::Read as u32).to_be_bytes(), 0), Follower::Nothing);
    }
}

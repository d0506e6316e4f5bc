//! Fills the current names of objects into a request, which may have changed since the application
//! made it: the keys of its memory and the state-ids of its opens.

use super::back::Delegations;
use super::failure::Failure;
use super::memory::Piece;
use super::open_states::OpenStates;
use dafs_wire::dafs::{
    AppendDirect, AppendInline, BatchSubmit, ClientId, Close, DelegReturn, DirectBuffer,
    GetAttrDirect, Lock, LockU, Open, OpenClaim, OpenDowngrade, ReadDirDirect, ReadDirect,
    ReadInline, ReadLinkDirect, ReadWriteRequest, Request, Seq, SetAttrDirect, SetAttrInline,
    Status, WriteDirect, WriteInline, XExposeGet, XGetXattr, XLayoutGet, XSeek,
};

/// The names that objects have on the current connection.
pub(crate) struct Names<'a> {
    /// The memory of the request.
    pub(crate) memory: &'a [Piece],
    /// The opens of the session.
    pub(crate) opens: &'a OpenStates,
    /// Its delegations.
    pub(crate) delegations: &'a Delegations,
    /// The run of the server.
    pub(crate) server: ClientId,
}

/// The reason why a request cannot be sent any more.
#[derive(Debug)]
pub(crate) enum Nameless {
    /// Its memory is not registered.
    Memory(Failure),
    /// Its open is gone, with this status.
    Open(Status),
}

impl From<Failure> for Nameless {
    fn from(failure: Failure) -> Self {
        Self::Memory(failure)
    }
}

impl From<Status> for Nameless {
    fn from(status: Status) -> Self {
        Self::Open(status)
    }
}

impl Names<'_> {
    fn buffer(&self, buffer: DirectBuffer) -> Result<DirectBuffer, Failure> {
        for piece in self.memory {
            if let Some(renamed) = piece.rename(&buffer)? {
                return Ok(renamed);
            }
        }
        // Memory that the session does not know has no registration here; the server will refuse
        // it.
        Ok(buffer)
    }

    fn buffers(&self, buffers: Seq<'_, DirectBuffer>) -> Result<Vec<DirectBuffer>, Failure> {
        buffers.iter().map(|buffer| self.buffer(buffer)).collect()
    }

    /// Hands the request to `then` with the current names.
    pub(crate) fn apply<R>(
        &self,
        request: &Request<'_>,
        then: impl FnOnce(&Request<'_>) -> R,
    ) -> Result<R, Nameless> {
        let state = |name| self.opens.current(name);
        let renamed = match *request {
            Request::GetAttrDirect(args) => {
                let buffer = self.buffer(args.buffer)?;
                Request::GetAttrDirect(GetAttrDirect { buffer, ..args })
            }
            Request::ReadLinkDirect(args) => {
                let buffer = self.buffer(args.buffer)?;
                Request::ReadLinkDirect(ReadLinkDirect { buffer, ..args })
            }
            Request::XGetXattr(args) => {
                let buffer = self.buffer(args.buffer)?;
                Request::XGetXattr(XGetXattr { buffer, ..args })
            }
            Request::SetAttrDirect(args) => {
                let (buffer, state_id) = (self.buffer(args.buffer)?, state(args.state_id)?);
                Request::SetAttrDirect(SetAttrDirect { buffer, state_id, ..args })
            }
            Request::AppendDirect(args) => {
                let (buffer, state_id) = (self.buffer(args.buffer)?, state(args.state_id)?);
                Request::AppendDirect(AppendDirect { buffer, state_id, ..args })
            }
            Request::ReadDirDirect(args) => {
                let buffers = self.buffers(args.buffers)?;
                let buffers = Seq::new(&buffers);
                return Ok(then(&Request::ReadDirDirect(ReadDirDirect { buffers, ..args })));
            }
            Request::ReadDirect(args) => {
                let buffers = self.buffers(args.buffers)?;
                let (buffers, state_id) = (Seq::new(&buffers), state(args.state_id)?);
                return Ok(then(&Request::ReadDirect(ReadDirect { buffers, state_id, ..args })));
            }
            Request::WriteDirect(args) => {
                let buffers = self.buffers(args.buffers)?;
                let (buffers, state_id) = (Seq::new(&buffers), state(args.state_id)?);
                return Ok(then(&Request::WriteDirect(WriteDirect { buffers, state_id, ..args })));
            }
            Request::BatchSubmit(args) => return self.apply_batch(args, then),
            Request::AppendInline(args) => {
                let state_id = state(args.state_id)?;
                Request::AppendInline(AppendInline { state_id, ..args })
            }
            Request::Close(args) => {
                let state_id = self.opens.current_for_close(args.state_id, self.server)?;
                Request::Close(Close { state_id, ..args })
            }
            Request::DelegReturn(args) => {
                let state_id = self.delegations.current(args.state_id)?;
                Request::DelegReturn(DelegReturn { state_id })
            }
            Request::Lock(args) => Request::Lock(Lock { state_id: state(args.state_id)?, ..args }),
            Request::LockU(args) => {
                Request::LockU(LockU { state_id: state(args.state_id)?, ..args })
            }
            Request::Open(mut args) => {
                if let OpenClaim::DelegateCur { dir, path, state_id } = args.claim {
                    let state_id = self.delegations.current(state_id)?;
                    args = Open { claim: OpenClaim::DelegateCur { dir, path, state_id }, ..args };
                }
                Request::Open(args)
            }
            Request::OpenDowngrade(args) => {
                Request::OpenDowngrade(OpenDowngrade { state_id: state(args.state_id)?, ..args })
            }
            Request::ReadInline(args) => {
                Request::ReadInline(ReadInline { state_id: state(args.state_id)?, ..args })
            }
            Request::SetAttrInline(args) => {
                Request::SetAttrInline(SetAttrInline { state_id: state(args.state_id)?, ..args })
            }
            Request::WriteInline(args) => {
                Request::WriteInline(WriteInline { state_id: state(args.state_id)?, ..args })
            }
            Request::XLayoutGet(args) => {
                Request::XLayoutGet(XLayoutGet { state_id: state(args.state_id)?, ..args })
            }
            Request::XExposeGet(args) => {
                Request::XExposeGet(XExposeGet { state_id: state(args.state_id)?, ..args })
            }
            Request::XSeek(args) => {
                Request::XSeek(XSeek { state_id: state(args.state_id)?, ..args })
            }
            other => other,
        };
        Ok(then(&renamed))
    }

    fn apply_batch<R>(
        &self,
        args: BatchSubmit<'_>,
        then: impl FnOnce(&Request<'_>) -> R,
    ) -> Result<R, Nameless> {
        let buffers: Result<Vec<Vec<DirectBuffer>>, Failure> =
            args.requests.iter().map(|part| self.buffers(part.buffers)).collect();
        let buffers = buffers?;
        let mut requests = Vec::with_capacity(buffers.len());
        for (part, buffers) in args.requests.iter().zip(&buffers) {
            let (buffers, state_id) = (Seq::new(buffers), self.opens.current(part.state_id)?);
            requests.push(ReadWriteRequest { buffers, state_id, ..part });
        }
        Ok(then(&Request::BatchSubmit(BatchSubmit { requests: Seq::new(&requests), ..args })))
    }
}

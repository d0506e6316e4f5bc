//! NFSv3 and MOUNT: one call per function.

use crate::error::NfsError;
use crate::files::Handle;
use dafs_rpc::client::{Identity, Options, Pending, Procedure as RpcProcedure, Results, RpcClient};
use dafs_wire::mount3;
use dafs_wire::nfs3::*;
use dafs_wire::xdr::{Decode, Decoder, Encode, Encoder};
use std::net::SocketAddr;

/// A connection for NFSv3 calls.
#[derive(Debug, Clone)]
pub struct Client3 {
    rpc: RpcClient,
}

fn encoded(args: &impl Encode) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(128);
    args.encode(&mut Encoder::new(&mut bytes));
    bytes
}

fn decoded<'a, T: Decode<'a>, F: Decode<'a>>(
    procedure: Procedure,
    results: &'a [u8],
) -> Result<T, NfsError> {
    let decoded = decode_results::<T, F>(results)?;
    decoded.map_err(|failure| NfsError::Status3 {
        procedure: procedure.name(),
        status: failure.status,
    })
}

fn found(object: Option<FileHandle<'_>>) -> Result<Handle, NfsError> {
    let handle = object.ok_or(NfsError::Unexpected("no file handle"))?;
    Ok(Handle(handle.0.to_vec()))
}

/// An entry of a directory with the results of READDIRPLUS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry3 {
    /// The cookie with which a listing goes on behind it.
    pub cookie: u64,
    /// Its name.
    pub name: Vec<u8>,
    /// The number of its object.
    pub file_id: u64,
    /// Its attributes.
    pub attributes: Option<Attributes>,
    /// Its handle.
    pub handle: Option<Handle>,
}

impl Client3 {
    /// Connects to a server as this caller.
    ///
    /// # Errors
    /// [`NfsError::Io`].
    pub fn connect(server: SocketAddr, identity: Identity) -> Result<Self, NfsError> {
        let options = Options { identity, ..Options::default() };
        Ok(Self { rpc: RpcClient::connect(server, options, None)? })
    }

    /// The RPC connection.
    pub fn rpc(&self) -> &RpcClient {
        &self.rpc
    }

    /// Sends a call; the answer goes to the decoders of `dafs_wire::nfs3`.
    ///
    /// # Errors
    /// [`NfsError::Call`].
    pub fn submit(&self, procedure: Procedure, args: &impl Encode) -> Result<Pending, NfsError> {
        let procedure =
            RpcProcedure { program: PROGRAM, version: VERSION, procedure: procedure.number() };
        Ok(self.rpc.submit(procedure, &[&encoded(args)])?)
    }

    fn call(&self, procedure: Procedure, args: &impl Encode) -> Result<Results, NfsError> {
        Ok(self.submit(procedure, args)?.wait()?)
    }

    /// The root of an export, by MOUNT on the same port.
    ///
    /// # Errors
    /// [`NfsError::Call`], [`NfsError::Malformed`]; [`NfsError::Local`] when the server refuses.
    pub fn mount(&self, path: &str) -> Result<Handle, NfsError> {
        let procedure = RpcProcedure {
            program: mount3::PROGRAM,
            version: mount3::VERSION,
            procedure: mount3::Procedure::Mnt.number(),
        };
        let mut args = Vec::new();
        Encoder::new(&mut args).opaque(path.as_bytes());
        let results = self.rpc.call(procedure, &args)?;
        let mut d = Decoder::new(&results);
        match d.u32()? {
            0 => Ok(Handle(d.opaque(HANDLE_BYTES_MAX)?.to_vec())),
            _ => Err(NfsError::Local("the server does not let the export be mounted")),
        }
    }

    /// GETATTR.
    ///
    /// # Errors
    /// [`NfsError::Status3`], [`NfsError::Call`], [`NfsError::Malformed`], here and below.
    pub fn getattr(&self, object: &Handle) -> Result<Attributes, NfsError> {
        let args = GetattrArgs { object: FileHandle(&object.0) };
        let results = self.call(Procedure::Getattr, &args)?;
        let ok: GetattrOk = decoded::<_, NoFailureBody>(Procedure::Getattr, &results)?;
        Ok(ok.attributes)
    }

    /// SETATTR.
    ///
    /// # Errors
    /// As [`Client3::getattr`].
    pub fn setattr(&self, object: &Handle, new: SetAttributes) -> Result<WccData, NfsError> {
        let args = SetattrArgs { object: FileHandle(&object.0), new, guard: None };
        let results = self.call(Procedure::Setattr, &args)?;
        let ok: WccResult = decoded::<_, WccResult>(Procedure::Setattr, &results)?;
        Ok(ok.wcc)
    }

    /// LOOKUP.
    ///
    /// # Errors
    /// As [`Client3::getattr`].
    pub fn lookup(&self, directory: &Handle, name: &[u8]) -> Result<Handle, NfsError> {
        let args = DirOpArgs { dir: FileHandle(&directory.0), name };
        let results = self.call(Procedure::Lookup, &args)?;
        let ok: LookupOk<'_> = decoded::<_, ObjectFailure>(Procedure::Lookup, &results)?;
        found(Some(ok.object))
    }

    /// READ: the data, and true at the end of the file.
    ///
    /// # Errors
    /// As [`Client3::getattr`].
    pub fn read(
        &self,
        file: &Handle,
        offset: u64,
        count: u32,
    ) -> Result<(Vec<u8>, bool), NfsError> {
        let args = ReadArgs { file: FileHandle(&file.0), offset, count };
        let results = self.call(Procedure::Read, &args)?;
        let ok: ReadOk<'_> = decoded::<_, ObjectFailure>(Procedure::Read, &results)?;
        let data = ok.data.here().ok_or(NfsError::Unexpected("data apart from the results"))?;
        Ok((data.to_vec(), ok.eof))
    }

    /// WRITE: the number of bytes written.
    ///
    /// # Errors
    /// As [`Client3::getattr`].
    pub fn write(
        &self,
        file: &Handle,
        offset: u64,
        data: &[u8],
        stable: Stability,
    ) -> Result<u32, NfsError> {
        let count =
            u32::try_from(data.len()).map_err(|_| NfsError::Local("too much data for one call"))?;
        let args =
            WriteArgs { file: FileHandle(&file.0), offset, count, stable, data: data.into() };
        let results = self.call(Procedure::Write, &args)?;
        let ok: WriteOk = decoded::<_, ChangeFailure>(Procedure::Write, &results)?;
        Ok(ok.count)
    }

    /// CREATE.
    ///
    /// # Errors
    /// As [`Client3::getattr`].
    pub fn create(
        &self,
        directory: &Handle,
        name: &[u8],
        how: CreateHow,
    ) -> Result<Handle, NfsError> {
        let args = CreateArgs { place: DirOpArgs { dir: FileHandle(&directory.0), name }, how };
        let results = self.call(Procedure::Create, &args)?;
        let ok: CreateOk<'_> = decoded::<_, ChangeFailure>(Procedure::Create, &results)?;
        found(ok.object)
    }

    /// MKDIR.
    ///
    /// # Errors
    /// As [`Client3::getattr`].
    pub fn mkdir(&self, directory: &Handle, name: &[u8]) -> Result<Handle, NfsError> {
        let attributes = SetAttributes { mode: Some(0o755), ..SetAttributes::default() };
        let place = DirOpArgs { dir: FileHandle(&directory.0), name };
        let results = self.call(Procedure::Mkdir, &MkdirArgs { place, attributes })?;
        let ok: CreateOk<'_> = decoded::<_, ChangeFailure>(Procedure::Mkdir, &results)?;
        found(ok.object)
    }

    /// REMOVE.
    ///
    /// # Errors
    /// As [`Client3::getattr`].
    pub fn remove(&self, directory: &Handle, name: &[u8]) -> Result<(), NfsError> {
        let args = DirOpArgs { dir: FileHandle(&directory.0), name };
        let results = self.call(Procedure::Remove, &args)?;
        decoded::<WccResult, WccResult>(Procedure::Remove, &results)?;
        Ok(())
    }

    /// RENAME.
    ///
    /// # Errors
    /// As [`Client3::getattr`].
    pub fn rename(
        &self,
        from: &Handle,
        old_name: &[u8],
        to: &Handle,
        new_name: &[u8],
    ) -> Result<(), NfsError> {
        let args = RenameArgs {
            from: DirOpArgs { dir: FileHandle(&from.0), name: old_name },
            to: DirOpArgs { dir: FileHandle(&to.0), name: new_name },
        };
        let results = self.call(Procedure::Rename, &args)?;
        decoded::<RenameResult, RenameResult>(Procedure::Rename, &results)?;
        Ok(())
    }

    /// READDIRPLUS, until the end of the directory.
    ///
    /// # Errors
    /// As [`Client3::getattr`].
    pub fn read_directory(
        &self,
        directory: &Handle,
        max_count: u32,
    ) -> Result<Vec<Entry3>, NfsError> {
        let mut entries: Vec<Entry3> = Vec::new();
        let mut verifier = [0; VERIFIER_BYTES];
        loop {
            let cookie = entries.last().map_or(0, |last| last.cookie);
            let dir = FileHandle(&directory.0);
            let args = ReaddirplusArgs { dir, cookie, verifier, dir_count: max_count, max_count };
            let results = self.call(Procedure::Readdirplus, &args)?;
            let ok: ReaddirplusOk<'_> =
                decoded::<_, ObjectFailure>(Procedure::Readdirplus, &results)?;
            let before = entries.len();
            entries.extend(ok.entries.iter().map(|entry| Entry3 {
                cookie: entry.cookie,
                name: entry.name.to_vec(),
                file_id: entry.file_id,
                attributes: entry.attributes,
                handle: entry.object.map(|object| Handle(object.0.to_vec())),
            }));
            if ok.eof {
                return Ok(entries);
            }
            if entries.len() == before {
                return Err(NfsError::Unexpected("an empty part of a directory"));
            }
            verifier = ok.verifier;
        }
    }

    /// COMMIT; `count` 0: to the end.
    ///
    /// # Errors
    /// As [`Client3::getattr`].
    pub fn commit(
        &self,
        file: &Handle,
        offset: u64,
        count: u32,
    ) -> Result<[u8; VERIFIER_BYTES], NfsError> {
        let args = CommitArgs { file: FileHandle(&file.0), offset, count };
        let results = self.call(Procedure::Commit, &args)?;
        let ok: CommitOk = decoded::<_, ChangeFailure>(Procedure::Commit, &results)?;
        Ok(ok.verifier)
    }
}

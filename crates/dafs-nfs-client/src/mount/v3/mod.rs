//! NFSv3 (RFC 1813).

mod call;
mod exports;
mod flight;
mod names;

use super::error::{MountError, Result};
use super::limits::TRANSFER_BYTES_MAX;
use super::link::Link;
use super::open::{Committed, Flight, Open, Transfer};
use super::pending::Parts;
use super::protocol::{Protocol, Sizes, Start, submit_pieces};
use super::security::SecurityFlavour;
use super::url::NfsVersion;
use crate::files::Handle;
use dafs_mem::Mutex;
use dafs_wire::nfs3::{
    ChangeFailure, CommitArgs, CommitOk, FsInfoOk, GetattrArgs, ObjectFailure, Procedure,
};
use dafs_wire::nfs4::{SeekWhat, Status};
use dafs_wire::rpc::AuthFlavor;
use exports::Mounter;
use flight::TransferFlight;
use std::sync::Arc;

/// A mount by NFSv3.
#[derive(Debug)]
pub(crate) struct V3 {
    link: Arc<Link>,
    mounter: Mounter,
    sizes: Sizes,
    /// The components of the paths that are exported.
    exports: Vec<Vec<Vec<u8>>>,
    /// The roots that have been mounted: their paths and handles.
    roots: Mutex<Vec<(Vec<Vec<u8>>, Handle)>>,
}

impl V3 {
    /// Finds the export that holds `path`.
    pub(crate) fn connect(link: Arc<Link>, path: &[&[u8]], wanted: Sizes) -> Result<Self> {
        let mounter = Mounter::find(&link)?;
        let exports = mounter.exports(&link)?.iter().map(|path| components(path)).collect();
        let mut this = Self { link, mounter, sizes: wanted, exports, roots: Mutex::default() };
        let root = this.start(path)?.handle;
        let args = GetattrArgs { object: root.wire() };
        let info: FsInfoOk =
            this.ask::<_, ObjectFailure, _>(Procedure::FsInfo, &args, |info: FsInfoOk| info)?;
        let least = |wanted: u32, server: u32| wanted.min(server).clamp(512, TRANSFER_BYTES_MAX);
        this.sizes = Sizes {
            read: least(wanted.read, info.read_max),
            write: least(wanted.write, info.write_max),
        };
        Ok(this)
    }

    /// Checks that the server takes the flavour of this mount, if it tells any that this client has.
    fn check_flavour(&self, flavors: &[u32]) -> Result<()> {
        let takes: Vec<_> =
            flavors.iter().filter_map(|&number| SecurityFlavour::from_number(number)).collect();
        // With AUTH_NONE in the list everybody has access.
        let fits = takes.is_empty()
            || takes.contains(&self.link.flavour())
            || flavors.contains(&AuthFlavor::NONE.0);
        if fits { Ok(()) } else { Err(self.link.wrong_flavour(&takes)) }
    }

    fn not_exported(&self, path: &[&[u8]]) -> MountError {
        let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        let all: Vec<String> = self.exports.iter().map(|export| text(&joined(export))).collect();
        let exports = if all.is_empty() { "nothing".to_owned() } else { all.join(", ") };
        MountError::NotExported { path: text(&joined(path)).into(), exports: exports.into() }
    }
}

fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|&byte| byte == b'/');
    names.filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
}

/// The path that the components form.
fn joined(components: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut path = Vec::new();
    for name in components {
        path.push(b'/');
        path.extend_from_slice(name.as_ref());
    }
    if path.is_empty() {
        path.push(b'/');
    }
    path
}

impl Protocol for V3 {
    fn version(&self) -> NfsVersion {
        NfsVersion::V3
    }

    fn link(&self) -> &Link {
        &self.link
    }

    fn sizes(&self) -> Sizes {
        self.sizes
    }

    fn start(&self, path: &[&[u8]]) -> Result<Start> {
        let holds = |root: &&Vec<Vec<u8>>| {
            root.len() <= path.len() && root.iter().zip(path).all(|(a, b)| a == b)
        };
        // Some servers have a root above all exports that leads to them.
        let root = self.exports.iter().filter(holds).max_by_key(|root| root.len());
        let root = root.cloned().unwrap_or_default();
        let mut roots = self.roots.lock();
        let known = roots.iter().find(|(path, _)| *path == root);
        let handle = match known {
            Some((_, handle)) => handle.clone(),
            None => match self.mounter.mount(&self.link, &joined(&root)) {
                Err(error) if root.is_empty() && error.status().is_some() => {
                    return Err(self.not_exported(path));
                }
                mounted => {
                    let (handle, flavors) = mounted?;
                    self.check_flavour(&flavors)?;
                    handle
                }
            },
        };
        if known.is_none() {
            roots.push((root.clone(), handle.clone()));
        }
        Ok(Start { handle, components: root.len() })
    }

    /// The server has no open to close.
    fn close(&self, _: &Open) -> Result<()> {
        Ok(())
    }

    fn submit(&self, transfer: Transfer) -> Result<Arc<dyn Flight>> {
        Ok(Arc::new(TransferFlight::begin(&self.link, transfer)))
    }

    fn begin(&self, transfer: Transfer) -> Result<Parts> {
        submit_pieces(self, &transfer)
    }

    fn commit(&self, file: &Handle, _: bool) -> Result<Committed> {
        let args = CommitArgs { file: file.wire(), offset: 0, count: 0 };
        self.ask::<_, ChangeFailure, _>(Procedure::Commit, &args, |ok: CommitOk| {
            Committed::by_server(ok.verifier)
        })
    }

    fn seek(&self, _: &Open, _: u64, _: SeekWhat) -> Result<Option<u64>> {
        Err(MountError::Refused { operation: "SEEK", status: Status::NotSupp })
    }

    fn unmount(&self) {
        // The answer to UMNT would be of no use (RFC 1813 5.2.3).
    }
}

/// A refusal that the client makes itself.
fn refused(operation: Procedure, status: Status) -> MountError {
    MountError::Refused { operation: operation.name(), status }
}

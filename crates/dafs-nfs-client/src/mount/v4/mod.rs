//! NFSv4.1 and 4.2 (RFC 8881, RFC 7862).
//!
//! | module | what it does |
//! |---|---|
//! | `client` | calls behind SEQUENCE; sessions, replaced when they are lost |
//! | `session` | slots |
//! | `exchange` | one request and its answer, over as many connections as it takes |
//! | `flight` | READs and WRITEs under way |
//! | `reclaim` | opens, reclaimed after a restart of the server |
//! | `renew` | the lease of an idle mount |
//! | `layouts` | files at data servers (pNFS) |
//! | `secinfo` | the flavours that a server takes |
//! | `names`, `files` | operations |
//! | `small` | small files, each in one compound |

mod client;
mod exchange;
mod files;
mod flight;
mod layouts;
mod names;
mod reclaim;
mod renew;
mod secinfo;
mod session;
mod small;

use super::attributes::Attributes;
use super::error::{MountError, Result};
use super::limits::{HEAD_BYTES, TRANSFER_BYTES_MAX};
use super::link::Link;
use super::open::{Committed, Flight, Open, Transfer};
use super::options::host_name;
use super::pending::Parts;
use super::protocol::{Protocol, Sizes, Start, submit_pieces};
use super::small::NewFile;
use super::url::NfsVersion;
use crate::compound::Results;
use crate::files::{Handle, handle};
use client::{Client, Role};
use dafs_wire::nfs4::{
    self, Attr, Bitmap, GetattrArgs, GetfhArgs, Op, OpNum, PutrootfhArgs, SeekWhat, Status,
};
use flight::{TransferFlight, Waiting};
use layouts::Layouts;
use renew::Renewer;
use secinfo::Guarded;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use client::random;
pub(crate) use small::{NewFlight, RemovalFlight, StartFlight};

/// A mount by NFSv4.
#[derive(Debug)]
pub(crate) struct V4 {
    client: Arc<Client>,
    version: NfsVersion,
    root: Handle,
    sizes: Sizes,
    _renewer: Renewer,
}

/// The attributes of the server that are read once.
const SERVER: Bitmap = Attr::set(&[Attr::LeaseTime, Attr::Maxread, Attr::Maxwrite]);

impl V4 {
    /// Makes a client at the server and finds the root of its name space.
    pub(crate) fn connect(link: Arc<Link>, version: NfsVersion, wanted: Sizes) -> Result<Self> {
        let minor_version = if version == NfsVersion::V41 { 1 } else { 2 };
        // Every mount is a client of its own: it shares no state with others of the process.
        let number = u64::from_ne_bytes(random());
        let name = format!("dafs {} {} {number:016x}", host_name(), std::process::id());
        let data_bytes_max = wanted.read.max(wanted.write);
        let options = link.options();
        let layouts = options.data_servers.then(|| Arc::new(Layouts::new(&options.layout_readers)));
        let role = Role::of_server(minor_version, name.as_bytes(), data_bytes_max, layouts);
        let client = Client::connect(link, role)?;
        let mut results = client.ask(&|compound| {
            compound.op(&Op::Putrootfh(PutrootfhArgs)).op(&Op::Getfh(GetfhArgs));
            compound.op(&Op::Getattr(GetattrArgs { request: SERVER }));
        })?;
        let root = results.skip(&[OpNum::Putrootfh]).and_then(handle).map_err(MountError::from);
        let root = root.map_err(|error| client.explained(error, Guarded::Root))?;
        let told = take_attributes(&mut results, |told| {
            (told.lease_time_seconds, told.maxread, told.maxwrite)
        })?;
        let (lease_seconds, read_max, write_max) = told;
        let fore = client.limits();
        let least = |wanted: u32, server: Option<u64>, message: u32| {
            let server = server.unwrap_or(u64::MAX).min(u64::from(TRANSFER_BYTES_MAX)) as u32;
            wanted.min(server).min(message.saturating_sub(HEAD_BYTES)).max(512)
        };
        let sizes = Sizes {
            read: least(wanted.read, read_max, fore.response_bytes_max),
            write: least(wanted.write, write_max, fore.request_bytes_max),
        };
        let lease = Duration::from_secs(u64::from(lease_seconds.unwrap_or(90).max(3)));
        let renewer = Renewer::start(&client, lease)
            .map_err(|error| MountError::Memory(error.to_string().into()))?;
        if let Some(layouts) = client.layouts() {
            let started = layouts.start(&client);
            started.map_err(|error| MountError::Memory(error.to_string().into()))?;
        }
        Ok(Self { client, version, root, sizes, _renewer: renewer })
    }

    /// Reports writes to a file with LAYOUTCOMMIT; true if there were any.
    fn tell_of(&self, object: &Handle) -> Result<bool> {
        match self.client.layouts() {
            Some(layouts) => layouts.tell_of(&self.client, object),
            None => Ok(false),
        }
    }
}

/// Passes the attributes in a result of GETATTR to `look`.
fn take_attributes<T>(
    results: &mut Results,
    look: impl FnOnce(&nfs4::Attributes<'_>) -> T,
) -> Result<T> {
    let result = results.take_getattr()?;
    let decoded = nfs4::Attributes::decode(&result.attributes);
    Ok(look(&decoded.map_err(MountError::protocol)?))
}

/// The usual attributes in a result of GETATTR.
fn usual_attributes(results: &mut Results) -> Result<Attributes> {
    take_attributes(results, Attributes::from_nfs4)?
        .ok_or_else(|| MountError::protocol("the type of an object is missing"))
}

const GETATTR: Op<'static> = Op::Getattr(GetattrArgs { request: Attributes::REQUEST });

impl Protocol for V4 {
    fn version(&self) -> NfsVersion {
        self.version
    }

    fn link(&self) -> &Link {
        &self.client.link
    }

    fn sizes(&self) -> Sizes {
        self.sizes
    }

    fn start(&self, _: &[&[u8]]) -> Result<Start> {
        Ok(Start { handle: self.root.clone(), components: 0 })
    }

    fn close(&self, open: &Open) -> Result<()> {
        self.client.close(open)
    }

    fn submit(&self, transfer: Transfer) -> Result<Arc<dyn Flight>> {
        Ok(Arc::new(Waiting(TransferFlight::begin(&self.client, transfer)?)))
    }

    fn begin(&self, transfer: Transfer) -> Result<Parts> {
        if let Some(layouts) = self.client.layouts()
            && let Some(parts) = layouts.begin(&self.client, &transfer, self.sizes)?
        {
            return Ok(parts);
        }
        submit_pieces(self, &transfer)
    }

    fn commit(&self, file: &Handle, at_server: bool) -> Result<Committed> {
        let Some(layouts) = self.client.layouts() else {
            return Ok(Committed::by_server(self.client.commit(file)?));
        };
        let data_servers = layouts.commit(&self.client, file)?;
        // LAYOUTCOMMIT has made the rest stable, unless the server has data of another open.
        let mark = layouts.mark_of(file);
        if !at_server && mark.is_none() {
            return Ok(Committed { server: [0; 8], data_servers });
        }
        let server = self.client.commit(file)?;
        if let Some(mark) = mark {
            layouts.committed_at_server(file, mark);
        }
        Ok(Committed { server, data_servers })
    }

    fn seek(&self, open: &Open, offset: u64, what: SeekWhat) -> Result<Option<u64>> {
        if self.version != NfsVersion::V42 {
            return Err(MountError::Refused { operation: "SEEK", status: Status::NotSupp });
        }
        self.tell_of(&open.handle)?;
        self.client.seek(open, offset, what)
    }

    fn unmount(&self) {
        if let Some(layouts) = self.client.layouts() {
            layouts.end();
        }
        self.client.end();
    }

    fn small_bytes_max(&self) -> usize {
        self.client.small_bytes_max()
    }

    fn small_under_way_max(&self) -> usize {
        self.client.limits().requests_max as usize / 2
    }

    fn begin_new_file(&self, new: &NewFile<'_>) -> Result<Option<NewFlight>> {
        self.client.begin_new_file(new)
    }

    fn begin_start(
        &self,
        dir: &Handle,
        name: &[u8],
        bytes_max: usize,
    ) -> Result<Option<StartFlight>> {
        self.client.begin_start(dir, name, bytes_max)
    }

    fn begin_remove(&self, dir: &Handle, name: &[u8]) -> Result<Option<RemovalFlight>> {
        self.client.begin_remove(dir, name)
    }
}

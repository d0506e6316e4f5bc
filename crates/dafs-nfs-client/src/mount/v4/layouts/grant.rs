//! Requests for layouts and devices (LAYOUTGET, GETDEVICEINFO; RFC 8881 18.43, 18.40).
//!
//! Invariants
//! * A granted layout is kept, or was given back when the call returns.
//! * The number of requests for one layout is bounded, whatever the server answers.

use super::Layouts;
use super::file::{FileLayout, Grant, Granted, Terms};
use super::nodes::Node;
use super::plan::plan;
use crate::compound::Results;
use crate::files::{Handle, putfh};
use crate::mount::error::MountError;
use crate::mount::layout::{LayoutReader, UnusableLayout};
use crate::mount::limits::{DEVICES_MAX, LAYOUT_BYTES_MAX};
use crate::mount::open::Open;
use crate::mount::v4::client::Client;
use dafs_wire::nfs4::{
    Attr, Attributes, Bitmap, DeviceId, Fsid, GetattrArgs, GetdeviceinfoArgs, LayoutReturn,
    LayoutgetArgs, LayoutgetResult, LayoutreturnArgs, NOTIFY_DEVICE_CHANGE, NOTIFY_DEVICE_DELETE,
    Op, OpNum, ReturnedLayout, Stateid, Status,
};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// `layoutiomode4`.
const IO_READ: u32 = 1;
const IO_READ_WRITE: u32 = 2;
pub(super) const IO_ANY: u32 = 3;

/// The shortest layout that is of use: the shortest stripe.
const LENGTH_MIN: u64 = 4096;

/// The attributes that are requested with a layout.
const ASKED: Bitmap = Attr::set(&[Attr::FsLayoutTypes, Attr::Fsid, Attr::Size]);

/// The device notifications. With both of them the client can cache a device.
const DEVICE_NEWS: Bitmap = Bitmap::of(&[NOTIFY_DEVICE_CHANGE, NOTIFY_DEVICE_DELETE]);

/// The answer to LAYOUTGET.
struct LayoutReply {
    about: About,
    layout: Result<Raw, Status>,
}

/// The attributes of the file in that answer.
struct About {
    size: Option<u64>,
    fsid: Option<Fsid>,
    /// The types of layouts that the file system has.
    types: Vec<u32>,
}

/// A layout as the server sent it.
struct Raw {
    stateid: Stateid,
    return_on_close: bool,
    /// The range of the layout and its body, if it is what was requested.
    part: Option<(Range<u64>, Vec<u8>)>,
}

impl Layouts {
    /// Asks for a layout of the whole file, by the state-id of the held layout or of an open. The
    /// server may grant a part from the start on.
    pub(super) fn ask(
        &self,
        client: &Client,
        file: &FileLayout,
        (open, held): (&Open, Option<Stateid>),
        write: bool,
    ) -> Result<Granted, UnusableLayout> {
        let file = &file.handle;
        let stateid = held.map_or_else(|| client.stateid(open), Ok)?;
        if self.is_wide() {
            // The client would have to give it back at once.
            return Err(UnusableLayout::Refused(Status::RecallConflict));
        }
        let preferred = self.reader.load(Ordering::Relaxed);
        // INVARIANT: it is the index of a reader.
        let mut reader = &self.readers[preferred];
        let mut told = layoutget(client, file, stateid, write, &**reader)?;
        if told.layout.is_err() {
            // The file system may have layouts of another type.
            let has = |reader: &dyn LayoutReader| told.about.types.contains(&reader.layout_type());
            let other = self.readers.iter().position(|other| has(&**other));
            if let Some(other) = other.filter(|_| !has(&**reader)) {
                reader = &self.readers[other];
                told = layoutget(client, file, stateid, write, &**reader)?;
                if told.layout.is_ok() {
                    self.reader.store(other, Ordering::Relaxed);
                }
            }
        }
        let LayoutReply { about: About { size, fsid, .. }, layout } = told;
        let raw = layout.map_err(UnusableLayout::Refused)?;
        match self.understand(client, file, &raw, (write, fsid), reader) {
            Ok(grant) => Ok(Granted { grant, name: raw.stateid, size }),
            Err(why) => {
                // The outcome does not matter, because no transfer uses this layout.
                let body = reader.returned(raw.stateid, &[]);
                let _ = layoutreturn(client, file, raw.stateid, &**reader, &body);
                Err(why)
            }
        }
    }

    fn understand(
        &self,
        client: &Client,
        file: &Handle,
        raw: &Raw,
        (write, fsid): (bool, Option<Fsid>),
        reader: &Arc<dyn LayoutReader>,
    ) -> Result<Arc<Grant>, UnusableLayout> {
        let (range, body) = raw.part.as_ref().ok_or(UnusableLayout::Range)?;
        let mut device = |device| self.device(client, &**reader, device);
        let plan = plan(&**reader, body, file, &mut device)?;
        let nodes = plan.places.iter().map(|place| self.nodes.node(&place.addresses, Node::new));
        let nodes = nodes.collect::<Option<Vec<_>>>().ok_or(UnusableLayout::Devices)?;
        let return_on_close = raw.return_on_close;
        let (reader, range) = (reader.clone(), range.clone());
        Ok(Grant::new(plan, nodes, write, Terms { range, fsid, return_on_close, reader }))
    }

    /// Returns the address of a device. It is cached if the server is going to report changes.
    fn device(
        &self,
        client: &Client,
        reader: &dyn LayoutReader,
        device: DeviceId,
    ) -> Result<Arc<[u8]>, UnusableLayout> {
        let key = (reader.layout_type(), device.0);
        if let Some(known) = self.devices.lock().get(&key) {
            return Ok(known.clone());
        }
        let args = GetdeviceinfoArgs {
            device_id: device,
            layout_type: reader.layout_type(),
            result_bytes_max: LAYOUT_BYTES_MAX,
            notifications: DEVICE_NEWS,
        };
        let news = self.device_news.load(Ordering::SeqCst);
        let mut results = client.ask_long(&|compound| {
            compound.op(&Op::Getdeviceinfo(args));
        })?;
        let told = results.take_getdeviceinfo().map_err(refusal)?;
        if told.address.layout_type != key.0 {
            return Err(MountError::protocol("a device of another layout type").into());
        }
        let lasts = told.notifications == DEVICE_NEWS;
        let told: Arc<[u8]> = told.address.body.into();
        let mut devices = self.devices.lock();
        // A notification may have overtaken the answer.
        if lasts && news == self.device_news.load(Ordering::SeqCst) {
            if devices.len() >= DEVICES_MAX {
                devices.clear();
            }
            devices.insert(key, told.clone());
        }
        Ok(told)
    }
}

fn refusal(error: crate::NfsError) -> UnusableLayout {
    match error.status() {
        Some(status) => UnusableLayout::Refused(status),
        None => UnusableLayout::Asking(error.into()),
    }
}

fn layoutget(
    client: &Client,
    file: &Handle,
    stateid: Stateid,
    write: bool,
    reader: &dyn LayoutReader,
) -> Result<LayoutReply, UnusableLayout> {
    let args = LayoutgetArgs {
        signal_available: false,
        layout_type: reader.layout_type(),
        io_mode: if write { IO_READ_WRITE } else { IO_READ },
        offset: 0,
        length: u64::MAX,
        length_min: LENGTH_MIN,
        stateid,
        result_bytes_max: LAYOUT_BYTES_MAX,
    };
    let mut results = client.ask_once(&|compound| {
        compound.op(&putfh(file)).op(&Op::Getattr(GetattrArgs { request: ASKED }));
        compound.op(&Op::Layoutget(args));
    })?;
    let about = attributes(&mut results)?;
    let layout = match results.take_layoutget() {
        Ok(granted) => Ok(raw(&granted, &args)),
        Err(error) => Err(error.status().ok_or_else(|| MountError::from(error))?),
    };
    Ok(LayoutReply { about, layout })
}

fn attributes(results: &mut Results) -> Result<About, UnusableLayout> {
    results.skip(&[OpNum::Putfh]).map_err(refusal)?;
    let told = results.take_getattr().map_err(refusal)?;
    let told = Attributes::decode(&told.attributes).map_err(MountError::protocol)?;
    let types = told.fs_layout_types.map(|types| types.numbers).unwrap_or_default();
    Ok(About { size: told.size, fsid: told.fsid, types })
}

/// Extracts the layout. A layout that begins behind the start of the file is not what was
/// requested. Bytes outside its range go through the server: a server that grants parts would have
/// to be asked again and again.
fn raw(granted: &LayoutgetResult<'_>, asked: &LayoutgetArgs) -> Raw {
    let part = granted.layouts.first().filter(|layout| {
        layout.offset == asked.offset
            && layout.length > 0
            && layout.content.layout_type == asked.layout_type
            && (layout.io_mode == asked.io_mode || layout.io_mode == IO_READ_WRITE)
    });
    Raw {
        stateid: granted.stateid,
        return_on_close: granted.return_on_close,
        // A length of u64::MAX reaches to the end of the file, wherever that is.
        part: part.map(|layout| (0..layout.length, layout.content.body.to_vec())),
    }
}

/// Gives the whole layout of a file back (LAYOUTRETURN).
pub(super) fn layoutreturn(
    client: &Client,
    file: &Handle,
    stateid: Stateid,
    reader: &dyn LayoutReader,
    body: &[u8],
) -> crate::mount::Result<()> {
    let returned = ReturnedLayout { offset: 0, length: u64::MAX, stateid, body };
    let args = LayoutreturnArgs {
        reclaim: false,
        layout_type: reader.layout_type(),
        io_mode: IO_ANY,
        returned: LayoutReturn::File(returned),
    };
    client.change_by(file, &Op::Layoutreturn(args))
}

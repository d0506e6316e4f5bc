//! Segments of exposed memory that a connection's peer may read.
//!
//! A client of this host maps them over the connection of its session. Any other client reads them by
//! RDMA over an optimistic channel, a connection of its own: a read with a key that is no good ends
//! that connection, and the session goes on. Any reactor may have accepted it, so the session's
//! connection sends it [`Showing`] by mail.
//!
//! Invariants
//! * A peer is shown segments of files alone that its session has a grant of, and the life page if it
//!   maps memory.
//! * The regions of a connection end with it, and those of a discarded segment soon after: one that is
//!   read by RDMA at the second tick, so that its peer finds entries without blocks first.
//! * The regions that a peer reads by RDMA end at the tick after the last of the opens for which they were
//!   shown. Those of an exposure that small files share are for no open: the end of the client's right ends
//!   the channel, or the exposure.
//! * A device finds no entry in a segment that is discarded: the device is noted before the grant.
//! * While the server has not looked for local changes for a while, no channel is bound and none of
//!   their reads is answered.
//! * The answer to a read leaves before blocks are filled: its client does not wait for copies that later
//!   reads may need.
//! * Blocks for which no request has asked are filled in turns without any other work alone, or beside a block
//!   that a request has asked for. Such a turn fills a few, and the next one looks for requests again.

use super::Engine;
use super::back::Mail;
use super::connection::{Channel, Phase};
use super::request::{Call, Context, Done};
use super::work::{JobResult, Report, Rest, Work};
use crate::exposed::{ExposedMemory, Segment};
use crate::limits::{
    PINNED_SEGMENTS_MAX, PINNED_SEGMENTS_PER_TICK_MAX, REMAINDERS_MAX, SHOWN_SEGMENTS_MAX,
};
use dafs_dat::confine::confined;
use dafs_dat::{Adapter, EndpointId, Instant, MemoryRegion};
use dafs_service::{ExposedFile, OpenState, StateId};
use dafs_store::OpenFile;
use dafs_wire::dafs::ExposedSegment;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};

/// The longest read that is worth frames, in bytes. Longer ones gain little.
const EXPOSED_READ_BYTES_MAX: usize = 64 << 10;

/// The way in which a client reads exposed memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShownBy {
    /// It maps the memory.
    Mapping,
    /// RDMA reads, over an optimistic channel.
    Reads,
}

impl ShownBy {
    /// True for clients of other hosts.
    pub(crate) fn is_remote(self) -> bool {
        self == Self::Reads
    }
}

/// The end of the region of a segment, before that of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lasts {
    /// The peer maps it: until it is discarded.
    Mapped,
    /// The peer reads it by RDMA: a tick later, so that the peer finds entries without blocks first.
    Read,
    /// The same, and until the last open ends for which this exposure was shown.
    Opens(u64),
}

/// A segment that a peer may read.
struct ShownSegment {
    segment: Arc<Segment>,
    region: MemoryRegion,
    lasts: Lasts,
    /// It was found discarded.
    is_doomed: bool,
}

/// Segments of an exposure that a session asks for, to be shown on its optimistic channel.
pub(crate) struct Showing {
    segments: Vec<Arc<Segment>>,
    exposure: u64,
    /// The open for which they are shown. `None` for those that small files share.
    open: Option<Weak<OpenState>>,
    /// Dropped without an answer, it reports a failure.
    answer: Report,
    then: ThenFn,
}

/// Goes on with the segments as the client is told of them, in the session's engine.
type ThenFn = Box<dyn FnOnce(&mut Context<'_>, &Call, &[ExposedSegment]) -> Done + Send>;

impl Showing {
    /// Answers that so many of the segments are shown.
    fn tell(self, shown: Vec<ExposedSegment>) {
        let then = self.then;
        let rest = move |cx: &mut Context<'_>, call: &Call| then(cx, call, &shown);
        self.answer.tell(JobResult::Call(Rest(Box::new(rest))));
    }

    /// Answers that nothing is shown, because the channel or the open is gone.
    pub(super) fn refuse(self) {
        self.tell(Vec::new());
    }
}

impl fmt::Debug for Showing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Showing").field("exposure", &self.exposure).finish_non_exhaustive()
    }
}

/// The segments that a peer may read, with their regions.
#[derive(Default)]
pub(super) struct Shown {
    /// By number.
    segments: FxHashMap<u16, ShownSegment>,
    /// The opens for which segments were shown, by exposure. A client may have thousands of one file.
    opens: FxHashMap<u64, FxHashMap<StateId, Weak<OpenState>>>,
    /// The number of segments that a device has pinned since the last tick.
    pinned: usize,
}

impl Shown {
    /// Shows a segment, unless it is shown already. `None` where the peer cannot read it.
    fn show(
        &mut self,
        segment: &Arc<Segment>,
        lasts: Lasts,
        endpoint: EndpointId,
        adapter: &mut dyn Adapter,
    ) -> Option<ExposedSegment> {
        let number = segment.number;
        let known = self.segments.get(&number).filter(|known| Arc::ptr_eq(&known.segment, segment));
        let region = match known.map(|known| known.region) {
            Some(region) => region,
            None => {
                if self.segments.len() >= SHOWN_SEGMENTS_MAX {
                    return None;
                }
                let has_device = adapter.keeps_granted_pages();
                if has_device {
                    if self.pinned >= PINNED_SEGMENTS_PER_TICK_MAX {
                        return None;
                    }
                    self.pinned += 1;
                    segment.note_device();
                }
                let region = adapter.grant(endpoint, &segment.buffer)?;
                if has_device && !segment.is_live() {
                    // Its entries may have been left to the device.
                    adapter.revoke(endpoint, region.id);
                    return None;
                }
                let (segment, is_doomed) = (segment.clone(), false);
                let shown = ShownSegment { segment, region, lasts, is_doomed };
                if let Some(former) = self.segments.insert(number, shown) {
                    // It was discarded, and its number names another one now.
                    adapter.revoke(endpoint, former.region.id);
                }
                region
            }
        };
        Some(ExposedSegment {
            address: region.address,
            number: number.into(),
            key: region.key,
            bytes: region.len as u32,
            kind: segment.kind,
        })
    }

    /// Notes an open for which segments of an exposure are shown.
    fn note(&mut self, exposure: u64, open: &Arc<OpenState>) {
        let opens = self.opens.entry(exposure).or_default();
        opens.entry(open.id()).or_insert_with(|| Arc::downgrade(open));
    }

    /// Ends the regions of discarded segments, and those without an open. A peer that reads by RDMA
    /// may have a read of a discarded one under way.
    pub(super) fn trim(&mut self, endpoint: EndpointId, adapter: &mut dyn Adapter) {
        let Self { segments, opens, pinned } = self;
        *pinned = 0;
        opens.retain(|exposure, opens| {
            opens.retain(|_, open| open.upgrade().is_some_and(|open| open.is_shown(*exposure)));
            !opens.is_empty()
        });
        segments.retain(|_, shown| {
            // Once: another thread may discard it meanwhile.
            let is_live = shown.segment.is_live();
            let is_spared = shown.lasts != Lasts::Mapped && !shown.is_doomed;
            let is_open = match shown.lasts {
                Lasts::Opens(exposure) => opens.contains_key(&exposure),
                Lasts::Mapped | Lasts::Read => true,
            };
            shown.is_doomed = !is_live;
            let stays = if is_live { is_open } else { is_spared };
            if !stays {
                adapter.revoke(endpoint, shown.region.id);
            }
            stays
        });
    }

    /// Ends all regions.
    pub(super) fn release(&mut self, endpoint: EndpointId, adapter: &mut dyn Adapter) {
        self.opens.clear();
        self.segments.drain().for_each(|(_, shown)| adapter.revoke(endpoint, shown.region.id));
    }
}

/// Files of which more blocks are to be filled, each as requests have it open.
#[derive(Default)]
pub(super) struct Remainders(VecDeque<(Arc<ExposedFile>, Weak<dyn OpenFile>)>);

impl Remainders {
    fn note(&mut self, exposed: &Arc<ExposedFile>, file: &Arc<dyn OpenFile>) {
        let is_known = self.0.iter().any(|(known, _)| Arc::ptr_eq(known, exposed));
        if !is_known && self.0.len() < REMAINDERS_MAX {
            self.0.push_back((exposed.clone(), Arc::downgrade(file)));
        }
    }
}

/// Fills some more blocks of a file. Returns false if none were left.
fn fill_more(memory: &ExposedMemory, exposed: &ExposedFile, file: &dyn OpenFile) -> bool {
    let Some(fills) = exposed.begin_remainder() else { return false };
    let mut is_over = false;
    for fill in exposed.begun(fills) {
        let read = || confined(|| memory.read_block(file, &fill)).flatten().unwrap_or(0);
        let is_shown = exposed.fill(fill, || if is_over { 0 } else { read() });
        if !is_shown && !is_over {
            is_over = true;
            exposed.end_remainder(&fill);
        }
    }
    true
}

impl Context<'_> {
    /// Returns the way in which the client of this session can read exposed memory. A session with
    /// checksums has none: nothing sums what is not sent.
    pub(crate) fn shown_by(&self) -> Option<ShownBy> {
        if self.connection.checksums() || self.shared.exposed.is_none() {
            return None;
        }
        let adapter = &self.link.adapter;
        if adapter.can_grant() {
            return Some(ShownBy::Mapping);
        }
        adapter.can_grant_reads().then_some(ShownBy::Reads)
    }

    /// Returns the memory in which files are exposed.
    pub(crate) fn exposed_memory(&self) -> Option<Arc<ExposedMemory>> {
        self.shared.exposed.clone()
    }

    /// Shows segments to a peer that maps them, as far as it can map more.
    pub(crate) fn show(&mut self, segments: &[Arc<Segment>]) -> Vec<ExposedSegment> {
        let (adapter, endpoint) = (&mut *self.link.adapter, self.connection.endpoint);
        let shown = &mut self.connection.shown;
        shown.trim(endpoint, adapter);
        let show = |segment| shown.show(segment, Lasts::Mapped, endpoint, adapter);
        segments.iter().map_while(show).collect()
    }

    /// True if this session has an optimistic channel.
    pub(crate) fn has_optimistic_channel(&self) -> bool {
        self.optimistic_channel().is_some()
    }

    fn optimistic_channel(&self) -> Option<super::back::Address> {
        let session = self.connection.session.as_ref()?;
        self.shared.registry.optimistic_channel(session.id)
    }

    /// Shows segments of an exposure on the optimistic channel of this session: for an open, or those that
    /// small files share. Then runs `then` here, with those that the peer can read.
    pub(crate) fn show_on_channel(
        &mut self,
        call: &Call,
        (segments, exposure): (Vec<Arc<Segment>>, u64),
        open: Option<&Arc<OpenState>>,
        then: impl FnOnce(&mut Context<'_>, &Call, &[ExposedSegment]) -> Done + Send + 'static,
    ) -> Done {
        let Some(channel) = self.optimistic_channel() else { return then(self, call, &[]) };
        let pending = self.defer(call, Work::Call);
        let (answer, open) = (Report::new(self.inbox, pending), open.map(Arc::downgrade));
        let showing = Showing { segments, exposure, open, answer, then: Box::new(then) };
        channel.post(Mail::Show(Box::new(showing)));
        Ok(())
    }

    /// Shows segments to the peer of this channel.
    pub(super) fn show_by_mail(&mut self, showing: Showing) {
        if self.connection.phase != Phase::Bound {
            return showing.refuse();
        }
        let (adapter, endpoint) = (&mut *self.link.adapter, self.connection.endpoint);
        let (shown, exposure) = (&mut self.connection.shown, showing.exposure);
        let lasts = match &showing.open {
            None => Lasts::Read,
            Some(open) => {
                // It may have ended since.
                let open = open.upgrade().filter(|open| open.is_shown(exposure));
                let Some(open) = open else { return showing.refuse() };
                shown.note(exposure, &open);
                Lasts::Opens(exposure)
            }
        };
        let most = if adapter.keeps_granted_pages() { PINNED_SEGMENTS_MAX } else { usize::MAX };
        let show = |segment| shown.show(segment, lasts, endpoint, adapter);
        let segments = showing.segments.iter().take(most).map_while(show).collect();
        showing.tell(segments);
    }

    /// True if the server has not looked for local changes for a while.
    pub(super) fn are_looks_late(&self) -> bool {
        self.shared.exposed.as_ref().is_none_or(|memory| memory.is_late(self.now))
    }

    /// Notes that a request has read `len` bytes of a file. Blocks that are read often and are in
    /// memory are exposed to clients with a grant.
    pub(crate) fn note_read(
        &mut self,
        file: &Arc<dyn OpenFile>,
        open: Option<&OpenState>,
        (offset, len): (u64, usize),
    ) {
        let (Some(open), Some(memory)) = (open, &self.shared.exposed) else { return };
        if !(1..=EXPOSED_READ_BYTES_MAX).contains(&len) {
            return;
        }
        let noted = self.shared.service.note_read(open, (offset, len as u64), self.now.0);
        let Some((exposed, fills)) = noted else { return };
        let fills = exposed.begun(fills);
        // Over iWARP the answer has not left yet, and over shared memory its reader may sleep.
        self.link.adapter.flush();
        // Behind a block that is not in memory, others are not worth a try.
        let mut is_cold = false;
        for fill in fills {
            let is_worth = !(fill.is_neighbour && is_cold);
            exposed.fill(fill, || {
                let bytes = is_worth.then(|| memory.read_block(&**file, &fill)).flatten();
                is_cold |= fill.is_neighbour && bytes.is_none();
                bytes.unwrap_or(0)
            });
        }
        if exposed.has_remainder() {
            self.link.remainders.note(&exposed, file);
        }
    }

    /// Makes room for a file that is to be exposed, for which there was no memory.
    pub(crate) fn make_room_for(&self, exposed: &ExposedFile) {
        self.shared.service.make_room_for_exposed(exposed);
    }
}

impl Engine {
    /// True while more blocks of files are to be filled.
    pub(super) fn has_remainders(&self) -> bool {
        self.ports.iter().any(|port| !port.link.remainders.0.is_empty())
    }

    /// Fills some more blocks of a file that requests have read here and there. Returns true if there was
    /// such a file.
    pub(super) fn fill_remainder(&mut self) -> bool {
        let Some(memory) = &self.shared.exposed else { return false };
        for port in &mut self.ports {
            let files = &mut port.link.remainders.0;
            let Some((exposed, file)) = files.pop_front() else { continue };
            // After the last close of the file nothing more is shown.
            if let Some(open) = file.upgrade()
                && confined(|| fill_more(memory, &exposed, &*open)) == Some(true)
            {
                files.push_back((exposed, file));
            }
            return true;
        }
        false
    }

    /// True while there are optimistic channels, bound or not yet. Then each turn needs the time as it is:
    /// an older one hides that the server was held up.
    pub(crate) fn has_optimistic_channels(&self) -> bool {
        self.ports.iter().any(|port| port.link.optimistic_channels > 0)
    }

    /// Ends the optimistic channels while the server has not looked for local changes for a while. A
    /// client that maps memory sees that in the life page.
    pub(super) fn check_looks(&mut self, now: Instant) {
        if !self.has_optimistic_channels() {
            return;
        }
        let is_late = |memory: &Arc<ExposedMemory>| memory.is_late(now);
        if !self.shared.exposed.as_ref().is_some_and(is_late) {
            return;
        }
        for port in &mut self.ports {
            let bound = port.connections.values_mut().filter(|connection| {
                connection.channel == Channel::Optimistic && connection.phase == Phase::Bound
            });
            for connection in bound {
                tracing::warn!(
                    peer = %connection.peer,
                    "optimistic channel ended: the server has not looked for local changes in time"
                );
                connection.phase = Phase::Closing;
                port.link.adapter.abort(connection.endpoint);
            }
        }
    }

    /// Counts the reads that peers have made since the last tick.
    pub(super) fn count_remote_reads(&mut self) {
        let Some(memory) = &self.shared.exposed else { return };
        for port in &mut self.ports {
            let reads = port.link.adapter.granted_reads();
            memory
                .count_remote_reads(reads - std::mem::replace(&mut port.link.granted_reads, reads));
        }
    }
}

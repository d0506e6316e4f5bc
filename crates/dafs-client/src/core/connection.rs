//! The state of one connection, which ends with it.

use super::call::{Flight, Purpose};
use super::messages::MessagePool;
use super::proofs::ProofChannel;
use super::streams::Streams;
use dafs_dat::{Adapter, EndpointId, Instant, ProtectionDomain};

/// One connection of a session, from its first attempt to its loss.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Memory that is registered here is out of reach when the connection is gone.
    pub(crate) domain: ProtectionDomain,
    /// `None` between two attempts to connect.
    pub(crate) endpoint: Option<EndpointId>,
    /// The peer has answered, and can reach the memory.
    pub(crate) established: bool,
    /// The protection of proofs on it, once it is established.
    pub(crate) channel: ProofChannel,
    pub(crate) streams: Streams,
    /// Requests outstanding, by stream.
    pub(crate) flights: Vec<Option<Flight>>,
    pub(crate) sends: MessagePool,
    pub(crate) receives: MessagePool,
    /// Receives posted and not consumed.
    pub(crate) posted: usize,
    pub(crate) expected_bytes: u64,
    pub(crate) auth_steps: u32,
    pub(crate) shrink_at: Option<Instant>,
}

impl Connection {
    /// A connection to be made, for up to `requests_max` requests at a time.
    pub(crate) fn new(
        adapter: &mut dyn Adapter,
        requests_max: u16,
        request_bytes: usize,
        response_bytes: usize,
    ) -> Self {
        let domain = adapter.protection_domain();
        let requests_max = requests_max.max(1);
        // A send slot is free again when its completion has been polled, which may be after the
        // reply; spare ones let the next request go ahead.
        let slots = usize::from(requests_max) + 16;
        Self {
            domain,
            endpoint: None,
            established: false,
            channel: ProofChannel::default(),
            streams: Streams::new(requests_max),
            flights: (0..requests_max).map(|_| None).collect(),
            sends: MessagePool::new(domain, request_bytes, slots),
            receives: MessagePool::new(domain, response_bytes, slots),
            posted: 0,
            expected_bytes: 0,
            auth_steps: 0,
            shrink_at: None,
        }
    }

    /// True when credits and message buffers allow a request.
    pub(crate) fn has_room(&self) -> bool {
        self.streams.available() && self.sends.available() && self.receives.available()
    }

    /// True when so many requests may be sent without a pause.
    pub(crate) fn has_room_for(&self, count: usize) -> bool {
        let outstanding = usize::from(self.streams.outstanding());
        // Receives may be left over from requests that were answered.
        let receives = self.receives.room() + self.posted.saturating_sub(outstanding);
        usize::from(self.streams.usable()).saturating_sub(outstanding) >= count
            && self.sends.room() >= count
            && receives >= count
    }

    /// Notes that an earlier sending of the request of a call may have been carried out.
    pub(crate) fn note_maybe_done(&mut self, tag: u64) {
        let mut flights = self.flights.iter_mut().flatten();
        if let Some(flight) = flights.find(|flight| flight.purpose == Purpose::Caller(tag)) {
            flight.maybe_done = true;
        }
    }

    /// Ends the connection at once and removes the unanswered requests from it, in the order in
    /// which they were sent. Afterwards no data of the peer reaches this process.
    pub(crate) fn cut(&mut self, adapter: &mut dyn Adapter) -> Vec<(u16, Flight)> {
        if let Some(endpoint) = self.endpoint.take() {
            adapter.abort(endpoint);
        }
        let flights = self.flights.iter_mut().enumerate();
        let mut lost: Vec<_> =
            flights.filter_map(|(stream, flight)| Some((stream as u16, flight.take()?))).collect();
        lost.sort_unstable_by_key(|(_, flight)| flight.analyzer);
        self.streams = Streams::new(1);
        self.expected_bytes = 0;
        self.shrink_at = None;
        lost
    }

    /// Frees its message buffers.
    pub(crate) fn release(&mut self, adapter: &mut dyn Adapter) {
        self.sends.release(adapter);
        self.receives.release(adapter);
    }
}

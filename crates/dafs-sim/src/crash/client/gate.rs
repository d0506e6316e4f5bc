//! The fenced file: clients exclude each other from it.

use super::Client;
use super::job::Job;
use crate::crash::Shared;
use crate::crash::model::vault::Holder;
use dafs_client::core::Refused;
use dafs_dat::Instant;
use dafs_wire::dafs::{
    FenceAccess, FenceObject, FenceUpdate, Request, Seq, SetFencingList, Status,
};

impl Client {
    /// The name of the fenced file.
    pub(crate) const GATE: &'static [u8] = b"gate";

    /// The name of a client in allow lists.
    pub(crate) fn fence_id(client: usize) -> Vec<u8> {
        format!("node {client}").into_bytes()
    }

    /// Excludes another client or admits it again.
    pub(super) fn draw_fence(&mut self, shared: &mut Shared) -> Option<Job> {
        let others = shared.gate.clients() as u64 - 1;
        if others == 0 {
            return None;
        }
        let other = (self.number + 1 + self.rng.below(others) as usize) % shared.gate.clients();
        let admit = self.rng.chance(500_000);
        let (by, size) = (Holder { client: self.number, run: self.run }, shared.gate_bytes());
        let number = shared.gate.asked(by, other, admit, size);
        Some(Job::Fence { client: other, admit, number })
    }

    pub(super) fn send_fence(
        &mut self,
        now: Instant,
        tag: u64,
        (client, admit): (usize, bool),
    ) -> Option<Result<(), Refused>> {
        let name = Self::fence_id(client);
        let list: [&[u8]; 1] = [&name];
        let (access, update) = match admit {
            true => (FenceAccess::Allow, FenceUpdate::Append),
            false => (FenceAccess::Deny, FenceUpdate::Remove),
        };
        let (fh, list) = (self.handles.gate?, Seq::new(&list));
        let request = SetFencingList { fh, object: FenceObject::File, access, update, list };
        self.call(now, tag, &Request::SetFencingList(request))
    }

    /// Handles the outcome of an update of the fence.
    pub(super) fn fenced(
        shared: &mut Shared,
        (client, number): (usize, u64),
        status: Status,
    ) -> Result<(), String> {
        if !matches!(status, Status::Ok | Status::Fenced) {
            return Err(format!("refused with {status}"));
        }
        let size = shared.gate_bytes();
        shared.lock_counts.fences += u64::from(status.is_ok());
        shared.gate.answered(client, number, status.is_ok(), size);
        Ok(())
    }
}

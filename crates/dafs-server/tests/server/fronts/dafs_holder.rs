//! A DAFS client that holds a delegation, one layer below its library, which keeps delegations
//! private.

use super::harness::{PATIENCE, Served};
use dafs_client::core::{BackEvent, BackStage, Completed, Done, SessionConfig, SessionCore, Stage};
use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_dat::{Adapter, Address, Instant};
use dafs_wire::dafs::{
    Attributes, DelegReturn, Delegation, DeleteDisposition, FileHandle, HintWord, Open, OpenClaim,
    Outcome, Path, Reply, Request, ShareAccess, ShareDeny, ShareKey, StateId, Verifier,
    WriteInline,
};

pub(crate) struct Holder {
    adapter: IwarpAdapter,
    core: SessionCore,
    last_tag: u64,
}

/// An open file with a write delegation.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    fh: FileHandle,
    open: StateId,
    delegation: StateId,
}

impl Holder {
    /// Makes a client that the server can call.
    pub(crate) fn new(served: &Served) -> Self {
        let mut adapter = IwarpAdapter::new(IwarpConfig::default()).unwrap();
        let config = SessionConfig::new(b"holder".to_vec(), Verifier([3; 8]));
        let address = Address::Tcp(served.dafs_address());
        let now = Instant::now();
        let core = SessionCore::connect(&mut adapter, config, &address, now).unwrap();
        let mut holder = Self { adapter, core, last_tag: 0 };
        holder.drive(|core| (core.stage() == Stage::Ready).then_some(()));
        holder.core.want_back(&mut holder.adapter, Instant::now());
        holder.drive(|core| (core.back_stage() == BackStage::Bound).then_some(()));
        holder
    }

    /// Handles events until `found` returns a value.
    pub(crate) fn drive<T>(&mut self, mut found: impl FnMut(&mut SessionCore) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            let now = Instant::now();
            let mut events = Vec::new();
            self.adapter.poll(now, &mut events);
            for event in events {
                self.core.handle(&mut self.adapter, event, now);
            }
            if self.core.next_timeout().is_some_and(|at| at <= now) {
                self.core.on_time(&mut self.adapter, now);
            }
            self.adapter.flush();
            if let Some(found) = found(&mut self.core) {
                return found;
            }
            assert!(now.since(start) < PATIENCE, "{:?}", self.core);
            std::thread::yield_now();
        }
    }

    fn ask<T>(&mut self, request: &Request<'_>, take: impl FnOnce(&Reply<'_>) -> T) -> T {
        self.last_tag += 1;
        let now = Instant::now();
        let sent = self.core.submit(&mut self.adapter, now, self.last_tag, request, None, None);
        sent.unwrap();
        let Completed { done, .. } = self.drive(SessionCore::take_completed);
        let Done::Answered(answer) = done else { panic!("{done:?}") };
        match answer.decode().unwrap() {
            Outcome::Ok(reply) => take(&reply),
            Outcome::Error { status, .. } => panic!("{}: {status}", request.procedure().name()),
        }
    }

    /// Opens an existing file until it gets a write delegation: the server may not know yet that it
    /// can call the client.
    pub(crate) fn hold(&mut self, name: &[u8]) -> Held {
        let (dir, path) = (self.core.info().root, [name]);
        loop {
            let request = Request::Open(Open {
                claim: OpenClaim::Null { dir, path: Path::new(&path) },
                create: None,
                delete_disposition: DeleteDisposition::DontCare,
                owner: name,
                share_access: ShareAccess::Both,
                share_deny: ShareDeny::None,
                share_key: ShareKey::None,
            });
            let held = self.ask(&request, |reply| match reply {
                Reply::Open(opened) => match opened.delegation {
                    Delegation::Write { state_id: delegation, .. } => {
                        Some(Held { fh: opened.fh, open: opened.state_id, delegation })
                    }
                    _ => None,
                },
                other => panic!("{other:?}"),
            });
            if let Some(held) = held {
                return held;
            }
        }
    }

    /// Waits for the recall. Then writes late data and returns the delegation.
    pub(crate) fn give_back(&mut self, held: &Held, late: &[u8]) {
        let told = self.drive(SessionCore::take_back_event);
        let BackEvent::Recall { delegation, .. } = told else { panic!("{told:?}") };
        assert_eq!(delegation, held.delegation);
        let write = Request::WriteInline(WriteInline {
            fh: held.fh,
            state_id: held.open,
            offset: 0,
            stable: dafs_wire::dafs::Stability::Unstable,
            padded_to: None,
            cache_hint: HintWord::NONE,
            data: late,
        });
        self.ask(&write, |_| ());
        self.ask(&Request::DelegReturn(DelegReturn { state_id: delegation }), |_| ());
    }

    /// Waits for the server's query about the file, and answers it.
    pub(crate) fn tell_size(&mut self, held: &Held, change: u64, size: u64) {
        let told = self.drive(SessionCore::take_back_event);
        let BackEvent::Question { question, delegation } = told else { panic!("{told:?}") };
        assert_eq!(delegation, held.delegation);
        let known =
            Attributes { change: Some(change), object_size: Some(size), ..Attributes::default() };
        self.core.answer_question(&mut self.adapter, question, Some(&known));
        self.adapter.flush();
    }
}

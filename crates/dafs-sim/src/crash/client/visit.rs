//! Visits to a vault: open, lock, read and write, unlock, close, one step after the other.

use super::Client;
use super::job::Job;
use crate::crash::model::log::Log;
use crate::crash::model::vault::{Answer, Ask, Content, Holder, VAULT_BYTES, VaultKind};
use crate::crash::{Danger, Shared};
use crate::pattern::WriteId;
use dafs_client::core::{Done, ReadCall, Refused, ReplyMessage, WriteCall};
use dafs_dat::Instant;
use dafs_mem::Site;
use dafs_wire::dafs::{
    Close, DeleteDisposition, FileHandle, HintWord, Lock, LockOptions, LockT, LockType, LockU,
    Open, OpenClaim, Path, Reply, Request, ShareAccess, ShareDeny, ShareKey, Stability, StateId,
    Status,
};

/// Steps after which a visit ends.
const STEPS_MAX: u32 = 25;

/// The whole file.
const WHOLE: (u64, u64) = (0, u64::MAX);

/// A visit under way; the client makes one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Visit {
    pub(super) vault: usize,
    handle: FileHandle,
    state: StateId,
    steps: u32,
}

impl Client {
    /// The name of a vault's file.
    pub(crate) fn vault_name(vault: usize) -> Vec<u8> {
        format!("vault{vault}").into_bytes()
    }

    fn holder(&self) -> Holder {
        Holder { client: self.number, run: self.run }
    }

    /// Begins a visit if none is under way.
    pub(super) fn draw_visit(&mut self, shared: &mut Shared) -> Option<Job> {
        if self.visiting || shared.vaults.is_empty() {
            return None;
        }
        self.visiting = true;
        let vault = self.rng.below(shared.vaults.len() as u64) as usize;
        // Only these have an undo log.
        let vault = if shared.danger == Danger::LyingUndo { vault | 2 } else { vault };
        Some(Job::OpenVault { vault })
    }

    pub(super) fn send_open_vault(
        &mut self,
        now: Instant,
        tag: u64,
        vault: usize,
    ) -> Option<Result<(), Refused>> {
        let dir = self.session.as_ref()?.info().root;
        let name = Self::vault_name(vault);
        let path: [&[u8]; 1] = [&name];
        let owner = format!("visitor {}", self.number);
        let request = Request::Open(Open {
            claim: OpenClaim::Null { dir, path: Path::new(&path) },
            create: None,
            delete_disposition: DeleteDisposition::DontCare,
            owner: owner.as_bytes(),
            share_access: ShareAccess::Both,
            share_deny: ShareDeny::None,
            share_key: ShareKey::None,
        });
        self.call(now, tag, &request)
    }

    /// Tells the model of a step, once, before it is sent.
    pub(super) fn ask_vault(&mut self, shared: &mut Shared, job: &mut Job) {
        if let Job::Guarded { visit, ask, number } = job
            && number.is_none()
        {
            let vault = &mut shared.vaults[visit.vault];
            *number = Some(vault.asked(self.holder(), *ask, &shared.leases));
        }
    }

    pub(super) fn send_guarded(
        &mut self,
        now: Instant,
        tag: u64,
        (visit, ask, kind): (Visit, Ask, VaultKind),
        piece: Option<usize>,
    ) -> Option<Result<(), Refused>> {
        let Visit { handle: fh, state: state_id, .. } = visit;
        let (offset, length) = WHOLE;
        let lock_type = LockType::Write;
        let request = match ask {
            Ask::Lock | Ask::LockWait | Ask::Repair => {
                let mut options = LockOptions::empty();
                options.set(LockOptions::PERSIST, kind.persists());
                options.set(LockOptions::AUTORECOVERY, kind.recovers());
                if ask == Ask::Repair {
                    options = LockOptions::REPAIR;
                }
                let waits = ask == Ask::LockWait;
                let lock_type = if waits { LockType::WriteWait } else { lock_type };
                Request::Lock(Lock { fh, lock_type, options, state_id, offset, length })
            }
            Ask::Test => Request::LockT(LockT { fh, lock_type, owner: b"tester", offset, length }),
            Ask::Unlock => Request::LockU(LockU { fh, lock_type, state_id, offset, length }),
            Ask::Abort => {
                let lock_type = LockType::Abort;
                Request::LockU(LockU { fh, lock_type, state_id, offset, length })
            }
            Ask::Close => Request::Close(Close { fh, state_id }),
            Ask::Read | Ask::Peek => {
                let into = self.piece(piece?, VAULT_BYTES)?;
                into.view().fill(0xdb);
                let state_id = if ask == Ask::Peek { StateId::ZERO } else { state_id };
                let call = ReadCall { handle: fh, state_id, offset: 0, into, hint: HintWord::NONE };
                let session = self.session.as_mut()?;
                return Some(session.submit_read(&mut self.adapter, now, tag, call, None));
            }
            Ask::Write(write) => {
                let from = self.piece(piece?, VAULT_BYTES)?;
                from.view().copy_from(&Log::record(write, VAULT_BYTES), Site::Inspect);
                let stability = Stability::FileSync;
                let (handle, offset, delegation) = (fh, 0, None);
                let call = WriteCall {
                    handle,
                    state_id,
                    offset,
                    stability,
                    from,
                    delegation,
                    hint: HintWord::NONE,
                };
                let session = self.session.as_mut()?;
                return Some(session.submit_write(&mut self.adapter, now, tag, call, None));
            }
        };
        self.call(now, tag, &request)
    }

    /// Handles the outcome of opening a vault.
    pub(super) fn opened_vault(
        &mut self,
        shared: &mut Shared,
        vault: usize,
        message: &ReplyMessage,
    ) -> Result<(), String> {
        let outcome = message.decode().map_err(|error| error.to_string())?;
        let Ok(Reply::Open(reply)) = outcome.into_result() else {
            return Err(format!("the vault was not opened: {}", message.status()));
        };
        shared.leases.visit(self.number);
        let visit = Visit { vault, handle: reply.fh, state: reply.state_id, steps: 0 };
        let ask = match self.rng.below(10) {
            0 => Ask::Test,
            1 => Ask::Peek,
            _ => Ask::Lock,
        };
        self.step(shared, visit, ask)
    }

    fn step(&mut self, shared: &mut Shared, visit: Visit, ask: Ask) -> Result<(), String> {
        shared.started += 1;
        let visit = Visit { steps: visit.steps + 1, ..visit };
        self.submit(shared, Job::Guarded { visit, ask, number: None })
    }

    /// Handles the outcome of a step.
    pub(super) fn guarded(
        &mut self,
        shared: &mut Shared,
        (visit, ask, number): (Visit, Ask, Option<u64>),
        piece: Option<usize>,
        done: &Done,
    ) -> Result<(), String> {
        let answer = match done {
            Done::Read { bytes, .. } => {
                let piece = piece.and_then(|piece| self.piece(piece, *bytes as usize));
                let data = piece.ok_or("more was read than there is memory for")?;
                Answer::Content(content(&data.view().to_vec(Site::Inspect))?)
            }
            Done::Written { bytes, .. } if *bytes as usize == VAULT_BYTES => Answer::Ok,
            Done::Written { bytes, .. } => return Err(format!("{bytes} bytes were written")),
            Done::Answered(message) => answer(ask, message.status())?,
            Done::Refused { status, .. } => answer(ask, *status)?,
            Done::Lost(_) | Done::InDoubt(_) => return Err("a step has no end".to_owned()),
        };
        shared.common.counts.succeeded += u64::from(answer != Answer::Gone);
        shared.common.note(|| format!("c{} is told {answer:?}", self.number));
        shared.lock_counts.count(ask, answer);
        let vault = &mut shared.vaults[visit.vault];
        let kind = vault.kind;
        vault.answered(number.unwrap_or_default(), answer, &shared.leases)?;
        let next = match self.next_step(shared, kind, visit, (ask, answer)) {
            Some(ask @ (Ask::Lock | Ask::LockWait))
                if matches!(answer, Answer::Denied | Answer::NothingBroken) =>
            {
                let visit = Visit { steps: visit.steps + 1, ..visit };
                self.again(shared.common.now, Job::Guarded { visit, ask, number: None });
                return Ok(());
            }
            next => next,
        };
        match next {
            Some(next) => self.step(shared, visit, next),
            None => {
                self.visiting = false;
                Ok(())
            }
        }
    }

    /// The visitor's next step; `None` after its last.
    fn next_step(
        &mut self,
        shared: &mut Shared,
        kind: VaultKind,
        visit: Visit,
        last: (Ask, Answer),
    ) -> Option<Ask> {
        let over = visit.steps >= STEPS_MAX;
        let draw = self.rng.below(100);
        let lock = if self.plan.waits { Ask::LockWait } else { Ask::Lock };
        Some(match last {
            (Ask::Close, _) => return None,
            (_, Answer::Gone) if last.0 != Ask::Peek => Ask::Close,
            (Ask::Test | Ask::Peek, _) => lock,
            (Ask::Lock | Ask::LockWait, Answer::Broken) if draw < 80 && !over => Ask::Repair,
            (_, Answer::Denied | Answer::NothingBroken | Answer::Broken) => {
                if draw < 90 && !over && last.1 != Answer::Broken { lock } else { Ask::Close }
            }
            (Ask::Unlock | Ask::Abort, _) if draw < 20 && !over => lock,
            (Ask::Unlock | Ask::Abort, _) => Ask::Close,
            _ if draw < 45 && !over => Ask::Write(shared.common.next_write()),
            _ if draw < 65 && !over => Ask::Read,
            _ if draw < 75 => Ask::Close,
            _ if draw < 85 && kind.recovers() => Ask::Abort,
            _ => Ask::Unlock,
        })
    }
}

/// The content that a vault's bytes encode.
pub(crate) fn content(bytes: &[u8]) -> Result<Content, String> {
    let mut bytes = bytes.to_vec();
    bytes.resize(VAULT_BYTES, 0);
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let number = u64::from_le_bytes(bytes[..8].try_into().map_err(|_| "no number")?);
    let write = WriteId(number);
    match Log::record(write, VAULT_BYTES) == bytes {
        true => Ok(Some(write)),
        false => Err(format!("the vault holds half of {write:?}")),
    }
}

fn answer(ask: Ask, status: Status) -> Result<Answer, String> {
    let locks = matches!(ask, Ask::Lock | Ask::LockWait | Ask::Repair | Ask::Test);
    Ok(match status {
        Status::Ok => Answer::Ok,
        Status::Denied if locks => Answer::Denied,
        Status::LockBroken if locks => Answer::Broken,
        Status::Inval if ask == Ask::Repair => Answer::NothingBroken,
        Status::Inval if ask == Ask::Abort => Answer::Gone,
        Status::StaleStateId | Status::BadStateId | Status::Expired | Status::Locked => {
            Answer::Gone
        }
        status => return Err(format!("refused with {status}")),
    })
}

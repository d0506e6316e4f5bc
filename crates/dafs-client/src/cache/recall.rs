//! How files enter and leave the cache, and their delegations with them.
//!
//! Invariants
//! * A delegation is returned only when no data under it is dirty or cached, or when the writer
//!   gets the error of its loss.
//! * Returning it needs no lock that a reader or writer holds, and nothing of the application.

use super::file::{CacheUse, CachedFile};
use super::state::{Held, HeldStage, Owner};
use super::{Cache, DirectUse};
use crate::client::Client;
use crate::delegation::{DelegationHolder, Granted, HeldAttributes};
use crate::error::{Error, Result};
use crate::file::File;
use crate::open::OpenOptions;
use dafs_wire::dafs::StateId;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

impl Cache {
    /// Adds an open file, with the delegation that came with it.
    pub(crate) fn enter(
        self: &Arc<Self>,
        file: &File,
        granted: Option<Granted>,
        options: &OpenOptions,
    ) -> CacheUse {
        if self.lock().has_left() {
            self.harvest();
        }
        let client = file.client();
        let cached = self.find_or_make(client, file);
        let hint = file.opened().hint.clone();
        let owner = Owner { state_id: file.state_id(), writes: file.writes().clone(), hint };
        let (reads, writes) = (options.access.reads(), options.access.writes());
        let kept = !options.direct;
        let used = CacheUse::new(cached.clone(), owner, reads && kept, writes && kept);
        if let Some(granted) = granted {
            cached.hold(granted, |holder| client.hold(&granted, holder));
        }
        used
    }

    fn find_or_make(self: &Arc<Self>, client: &Client, file: &File) -> Arc<CachedFile> {
        let handle = *file.handle();
        let mut state = self.lock();
        let known = state.by_handle.get(&handle).and_then(|(_, cached)| cached.upgrade());
        let cached = known.unwrap_or_else(|| {
            let id = state.add_file(handle);
            let (client, cache) = (client.clone(), self.clone());
            let cached = Arc::new(CachedFile { client, cache, handle, id });
            state.by_handle.insert(handle, (id, Arc::downgrade(&cached)));
            cached
        });
        if let Some(kept) = state.file(cached.id) {
            kept.opens += 1;
        }
        cached
    }
}

impl CacheUse {
    /// Removes an open file: its dirty data is written back, and the last one drops the cached
    /// content. Yields the error of its writes that is left to be reported.
    pub(crate) fn leave(self) -> Result<()> {
        self.file.client.shared().check_process()?;
        let written = self.write_back();
        let CachedFile { client, cache, handle, id } = &*self.file;
        let mut state = cache.lock();
        let Some(file) = state.file(*id) else { return written };
        file.opens -= 1;
        file.errors.retain(|(writer, _)| *writer != self.owner.state_id);
        if file.opens > 0 {
            return written;
        }
        let held = file.held.take();
        if state.by_handle.get(handle).is_some_and(|(known, _)| known == id) {
            state.by_handle.remove(handle);
        }
        state.content.forget(*id, 0..u64::MAX);
        // Read-ahead must not land in memory of another owner. If the caller's limit ends this
        // wait, others complete it, and the memory belongs to the file until then.
        while let Some(flight) = state.content.first_in_flight(*id, false) {
            drop(state);
            cache.wait_in_limit(flight);
            state = cache.lock();
            if state.is_in_flight(flight) {
                break;
            }
        }
        state.content.give_up(*id);
        state.files.remove(id);
        state.end_content(*id);
        drop(state);
        if let Some(held) = held {
            client.shared().leave_delegation(held.state_id);
        }
        written
    }
}

impl CachedFile {
    /// Takes a delegation, or returns it; `register` makes this file the holder that gets recalls,
    /// and tells whether the delegation still exists.
    pub(super) fn hold(
        self: &Arc<Self>,
        granted: Granted,
        register: impl FnOnce(Weak<Self>) -> Result<bool>,
    ) {
        let Granted { kind, state_id, recall } = granted;
        let mut state = self.cache.lock();
        let wanted = match state.file(self.id) {
            Some(file) if file.held.is_none() && !recall => {
                file.held = Some(Held { kind, state_id, stage: HeldStage::Coming });
                file.granted_change = None;
                true
            }
            _ => false,
        };
        drop(state);
        if !wanted {
            return self.client.shared().leave_delegation(state_id);
        }
        let is_held = register(Arc::downgrade(self));
        let mut state = self.cache.lock();
        if let Some(file) = state.file(self.id)
            && let Some(held) = file.held.as_mut().filter(|held| held.state_id == state_id)
        {
            match (&is_held, held.stage) {
                (Ok(true), HeldStage::Coming) => held.stage = HeldStage::There,
                // It has been recalled meanwhile, and the recall returns it.
                (Ok(true), _) => {}
                _ => file.held = None,
            }
        }
        drop(state);
        if let Err(error) = is_held {
            // The file can be used without.
            tracing::warn!(%error, "a file is not cached because nobody would hear of a recall");
            self.client.shared().leave_delegation(state_id);
        }
    }

    /// Stops caching under the delegation that is held, if there is one.
    fn begin_to_stop(&self) -> Option<StateId> {
        let mut state = self.cache.lock();
        let held = state.file(self.id)?.held.as_mut()?;
        held.stage = HeldStage::Leaving;
        Some(held.state_id)
    }

    /// Stops caching; yields the delegation, if it was held and no other thread returns it.
    fn stop(&self) -> Option<StateId> {
        let state_id = self.begin_to_stop()?;
        self.cache.write_back(&self.client, self.id);
        let mut state = self.cache.lock();
        state.unload(self.id);
        let file = state.file(self.id)?;
        file.held.take_if(|held| held.state_id == state_id).map(|held| held.state_id)
    }
}

impl DelegationHolder for CachedFile {
    fn recall(&self, _truncate: bool) {
        if let Some(state_id) = self.stop()
            && let Err(error) = self.client.return_delegation(state_id)
        {
            tracing::debug!(%error, "a delegation could not be given back");
        }
    }

    fn attributes(&self) -> Option<HeldAttributes> {
        let mut state = self.cache.lock();
        let unwritten = state.content.unwritten_of(self.id) > 0;
        let size = state.content.size(self.id);
        let file = state.file(self.id)?;
        if !file.is_loaded || file.lost.load(Ordering::Acquire) {
            return None;
        }
        let change = file.granted_change?;
        Some(HeldAttributes {
            change: if unwritten { change.wrapping_add(1) } else { change },
            size,
            modified: unwritten.then_some(file.modified),
        })
    }

    fn lost(&self) {
        let mut state = self.cache.lock();
        let Some(file) = state.file(self.id) else { return };
        file.held = None;
        // Others may have changed the file since, so dirty data must not be written back any more.
        let lost = state.content.give_up(self.id);
        state.unload(self.id);
        if lost > 0 {
            state.failed(self.id, Error::DelegationLost);
        }
    }
}

impl Client {
    /// Called before files are used bypassing the cache, if there is one.
    pub(crate) fn before(&self, what: impl FnOnce() -> super::Effect) -> Option<DirectUse> {
        let layouts = self.layouts().filter(|layouts| layouts.are_used());
        if self.cache().is_none() && layouts.is_none() {
            return None;
        }
        // The use itself detects a fork.
        self.shared().check_process().ok()?;
        let what = what();
        if let Some(layouts) = layouts {
            layouts.before(self.shared(), &what);
        }
        self.cache()?.before(self, &what)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::super::state::Readiness;
    use super::*;
    use crate::delegation::DelegationKind;
    use crate::served::{Served, Wire};
    use crate::{CacheOptions, Create, Stability, within};
    use std::time::Duration;

    /// A server with a file, and a client with a cache that has it open.
    fn served() -> (Served, Client, File) {
        let served = Served::new();
        let client = served.client_with(|options| options.cache = Some(CacheOptions::default()));
        let options = OpenOptions::read_write().create(Create::New).mode(0o600);
        let file = client.open(b"file", &options).unwrap();
        (served, client, file)
    }

    /// Takes the file's delegation, or makes one up, as if it had just come.
    fn granted(file: &CachedFile) -> Granted {
        let mut state = file.cache.lock();
        let held = state.file(file.id).unwrap().held.take();
        let state_id = held.map_or(StateId([7; 8]), |held| held.state_id);
        Granted { kind: DelegationKind::Write, state_id, recall: false }
    }

    fn readiness(file: &CachedFile) -> Readiness {
        file.cache.lock().file(file.id).unwrap().readiness(true)
    }

    #[test]
    fn a_recall_that_comes_with_the_delegation_is_not_overtaken() {
        let (mut served, client, file) = served();
        let cached = file.cached_file();
        let granted = granted(&cached);
        cached.hold(granted, |_| {
            assert_eq!(readiness(&cached), Readiness::No, "nobody hears of recalls yet");
            Ok(true)
        });
        assert_ne!(readiness(&cached), Readiness::No);
        cached.cache.lock().file(cached.id).unwrap().held = None;
        cached.hold(granted, |_| {
            // The server recalls it at once, and dirty data is being written back.
            assert_eq!(cached.begin_to_stop(), Some(granted.state_id));
            Ok(true)
        });
        assert_eq!(readiness(&cached), Readiness::No, "what came now would not be written back");
        assert_eq!(cached.stop(), Some(granted.state_id));
        drop(cached);
        file.close().unwrap();
        client.disconnect().unwrap();
        served.stop();
    }

    /// Unstable data may be lost with the server, or with one of its devices.
    #[test]
    fn how_long_a_file_is_after_a_loss_is_asked_anew() {
        let (mut served, client, file) = served();
        let cached = file.cached_file();
        let unstable = Stability::Unstable;
        for restarted in [true, false] {
            file.write_at(b"0123456789", 0, unstable).unwrap();
            file.commit(0, 0).unwrap();
            file.write_at(b"X", 0, unstable).unwrap();
            assert_eq!(served.content("file"), b"0123456789");
            // As if there had been more.
            cached.cache.lock().content.set_size(cached.id, 20);
            if restarted {
                cached.cache.lock().file(cached.id).unwrap().restarts += 1;
            } else {
                cached.forget();
            }
            let mut found = [0; 20];
            assert_eq!(file.read_at(&mut found, 0).unwrap(), 10);
            assert_eq!(&found[..10], b"X123456789", "what was not written is not lost");
            assert_ne!(readiness(&cached), Readiness::No);
        }
        drop(cached);
        file.close().unwrap();
        client.disconnect().unwrap();
        served.stop();
    }

    #[test]
    fn a_file_whose_recalls_nobody_would_hear_of_is_open_all_the_same() {
        let (mut served, client, file) = served();
        let cached = file.cached_file();
        let granted = granted(&cached);
        cached.hold(granted, |_| Err(Error::Memory("no thread".into())));
        assert_eq!(readiness(&cached), Readiness::No);
        file.write_at(b"through", 0, Stability::Unstable).unwrap();
        assert_eq!(served.content("file"), b"through");
        file.close().unwrap();
        assert!(cached.cache.lock().files.is_empty(), "nothing is left of it");
        drop(cached);
        client.disconnect().unwrap();
        served.stop();
    }

    #[test]
    fn nothing_is_written_back_by_right_of_a_lost_delegation() {
        let (mut served, client, file) = served();
        let unstable = Stability::Unstable;
        let second = client.open(b"file", &OpenOptions::read_write()).unwrap();
        file.write_at(b"committed", 0, unstable).unwrap();
        file.commit(0, 0).unwrap();
        file.write_at(b"kept", 0, unstable).unwrap();
        let cached = file.cached_file();
        cached.lost();
        cached.lost();
        let mut found = [0; 9];
        assert_eq!(file.read_at(&mut found, 0).unwrap(), 9);
        assert_eq!(&found, b"committed", "what was not written is given up");
        second.write_at(b"S", 8, unstable).unwrap();
        second.commit(0, 0).unwrap();
        assert!(matches!(file.write_at(b"?", 0, unstable), Err(Error::DelegationLost)));
        // The error is reported once; without a delegation a write goes to the server.
        file.write_at(b"C", 0, unstable).unwrap();
        assert_eq!(served.content("file"), b"CommitteS");
        // A late recall finds nothing to do.
        cached.recall(false);
        assert!(cached.attributes().is_none());
        drop(cached);
        file.close().unwrap();
        second.close().unwrap();
        client.disconnect().unwrap();
        served.stop();
    }

    #[test]
    fn a_late_answer_frees_the_memory_of_a_hurried_close() {
        let served = Served::new();
        std::fs::write(served.path().join("file"), vec![7; 3 << 20]).unwrap();
        let wire = Wire::new(served.address, || None);
        let options = CacheOptions::new(4 << 20);
        let client = wire.client_with(|connect| connect.cache = Some(options)).unwrap();
        let cache = client.cache().unwrap();
        let mut left = 0;
        for _ in 0..20 {
            let file = client.open(b"file", &OpenOptions::read()).unwrap();
            // Now its size is known.
            assert_eq!(file.read_at(&mut [0], 2 << 20).unwrap(), 1);
            let held = wire.held.lock().unwrap();
            within(Duration::from_millis(5), || {
                assert!(file.read_at(&mut [0; 4096], 0).is_err(), "nobody answers");
                drop(file);
            });
            left += usize::from(cache.lock().has_left());
            drop(held);
        }
        assert!(left > 0, "nothing was in flight");
        while cache.lock().has_left() {
            cache.harvest();
            client.ping().unwrap();
        }
        let mut state = cache.lock();
        assert!(state.content.is_empty(), "of a file that nobody has open");
        assert_eq!(state.content.pool().free_blocks(), state.blocks());
        drop(state);
        client.disconnect().unwrap();
    }
}

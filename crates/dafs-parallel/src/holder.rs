//! The holder of a file's layout, independent of the protocol. It asks for the layout, has data
//! servers commit, notifies the server (LAYOUTCOMMIT), and gives the layout back (LAYOUTRETURN).
//!
//! Invariants
//! * A layout is given back only after everything that was sent by it has been answered.
//! * Unstable data is committed before its layout is given back, or counted as lost.

use crate::file::NamedGrant;
use crate::{
    Act, Fault, FileLayout, Grant, Granted, LayoutState, Lock, Protocol, Refusal, Untold, Want,
};
use std::sync::Arc;

/// Attempts to send LAYOUTCOMMIT, by another layout each time.
const TELL_TRIES: u32 = 2;

/// The layout of one file, with the server that grants it.
#[derive(Debug)]
pub struct Holder<'a, P: Protocol> {
    /// The layouts of the client.
    pub client: &'a P,
    /// The server.
    pub server: &'a P::Server,
    /// The layout.
    pub file: &'a FileLayout<P>,
}

impl<P: Protocol> Holder<'_, P> {
    /// Returns the layout for a transfer of so many bytes, if there is one. `ask` asks for it, for
    /// writing as well if the open may `write`. A layout that is not `known` to the server any more
    /// is forgotten first.
    pub fn grant_for(
        &self,
        (writing, bytes): (bool, u64),
        known: impl Fn(&Grant<P>) -> bool,
        write: bool,
        ask: impl FnOnce(Option<P::Name>) -> Result<Granted<P>, P::Unusable>,
    ) -> Option<Arc<Grant<P>>> {
        let held = match self.file.want(writing, bytes, known) {
            Want::Have(grant) => return Some(grant),
            Want::None => return None,
            Want::Ask(held) => held,
        };
        let why = match ask(held) {
            Ok(granted) => {
                self.file.granted(&granted);
                return Some(granted.grant);
            }
            Err(why) => why,
        };
        let refusal = P::refusal(self, &why, false);
        match refusal {
            Some(_) => tracing::debug!(%why, "there is no layout of a file"),
            None => tracing::warn!(%why, "a layout cannot be used"),
        }
        let Refusal { kept, passing } = refusal.unwrap_or_default();
        self.file.refused(write, kept, passing);
        None
    }

    /// Waits until all transfers under the layout have been answered.
    pub fn settle_all(&self) {
        self.file.flights().iter().for_each(|flight| P::settle(flight));
    }

    /// Gives a layout back, if it is held, with the errors that are the reason. It is not held any
    /// more when this returns.
    pub fn give_back(&self, grant: &Arc<Grant<P>>, errors: &[P::Report]) {
        // The short deadline of this thread must not abort the transfers of others. A thread that
        // finds the layout given back relies on the server to know the writes.
        P::unhurried(|| {
            if self.file.begin_return(grant) {
                self.settle_all();
                let mut errors = errors.to_vec();
                errors.extend(self.commit_data(grant));
                self.give_back_settled(grant, &errors);
            }
        });
    }

    /// The same for a layout whose transfers have been answered and committed.
    fn give_back_settled(&self, grant: &Arc<Grant<P>>, errors: &[P::Report]) {
        let is_reported = errors.is_empty() || P::report_before(self, errors);
        // If the server does not know of the errors, LAYOUTCOMMIT uses another layout later, which the
        // server grants once it knows of them.
        let told = if is_reported { self.try_tell().map(drop) } else { Ok(()) };
        if let Some((_, name)) = self.file.held() {
            let returned = P::layout_return(self, grant, name, errors);
            if let Err(error) = returned.and(told) {
                tracing::debug!(%error, "a layout was given back");
            }
        }
        self.file.returned();
    }

    /// Gives the layout back if any failure requires it. The server learns of all failures: a copy
    /// that may be written late differs from the others.
    pub fn give_back_after(
        &self,
        grant: &Arc<Grant<P>>,
        failed: &[(usize, Fault<P::Error>)],
        act: Act,
    ) {
        let errors = failed.iter();
        let errors = errors.filter_map(|(at, fault)| P::report(self, grant, (*at, fault), act));
        let mut errors: Vec<_> = errors.collect();
        errors.dedup();
        if !errors.is_empty() {
            tracing::debug!(?errors, "a data server failed; the layout is given back");
            self.give_back(grant, &errors);
        }
    }

    /// Commits all unstable data and sends LAYOUTCOMMIT. Returns the verifier of all data servers.
    ///
    /// # Errors
    /// The server's.
    pub fn commit(&self) -> Result<[u8; 8], P::Error> {
        if let Some((grant, _)) = self.file.held() {
            let errors = P::unhurried(|| self.commit_data(&grant));
            if !errors.is_empty() {
                self.give_back(&grant, &errors);
            }
        }
        self.tell()?;
        Ok(self.file.verifier())
    }

    /// Commits unstable data at its data servers. Data that is not there any more counts as lost.
    /// Returns the errors of data servers that cannot commit.
    fn commit_data(&self, grant: &Arc<Grant<P>>) -> Vec<P::Report> {
        let file = self.file;
        // A thread that finds no unstable data has waited for the thread that took it.
        let _one_at_a_time = file.committing.hold();
        let unstable = file.with(|state| state.take_unstable_of(grant));
        let mut failed = Vec::new();
        if grant.plan.commits_at_server {
            let verifier = (!unstable.is_empty()).then(|| P::commit_at_server(self)).flatten();
            if unstable.values().any(|before| Some(*before) != verifier) {
                file.with(LayoutState::lose);
            }
            return failed;
        }
        // All data servers commit in parallel.
        let begin =
            |(component, before)| (component, before, P::begin_commit(self, grant, component));
        let begun: Vec<_> = unstable.into_iter().map(begin).collect();
        for (component, before, commit) in begun {
            let verifier = P::finish_commit(self, grant, component, commit);
            if verifier != Some(before) {
                file.with(LayoutState::lose);
            }
            if verifier.is_none() {
                let fault = (component, &Fault::Unreachable);
                failed.extend(P::report(self, grant, fault, Act::Commit));
            }
        }
        failed
    }

    /// Sends LAYOUTCOMMIT, if there are unreported writes.
    ///
    /// # Errors
    /// The server's; [`Protocol::WRITES_LOST`].
    pub fn tell(&self) -> Result<(), P::Error> {
        // If the layout is gone, the next attempt asks for another.
        for _ in 0..TELL_TRIES {
            if self.try_tell()? {
                return Ok(());
            }
            self.file.await_return();
        }
        // The thread that gave the layout back may have sent LAYOUTCOMMIT, and the server recovers
        // the size of the file at a return.
        let Some(written) = self.file.written() else { return Ok(()) };
        if P::is_known(self, written)? { Ok(()) } else { Err(P::delayed(self)) }
    }

    /// The same; false while no layout allows it, because one that does not is being given back.
    fn try_tell(&self) -> Result<bool, P::Error> {
        if self.file.written().is_none() {
            return Ok(true);
        }
        let _one_at_a_time = self.file.telling.hold();
        P::unstopped(|| self.tell_now())
    }

    /// The same, for one thread at a time.
    fn tell_now(&self) -> Result<bool, P::Error> {
        let file = self.file;
        let (mut tries, mut pause) = (TELL_TRIES, P::pauses(self, true));
        while tries > 0 {
            let Some(written) = file.written() else { return Ok(true) };
            let held = match file.held().filter(|(grant, _)| grant.write) {
                Some(held) => Some(held),
                None if file.is_returning() => return Ok(false),
                None => self.layout_to_tell()?,
            };
            let Some((grant, name)) = held else {
                // The server may have recovered the size of the file when the layout was given
                // back.
                if P::is_known(self, written)? {
                    return Ok(true);
                }
                if pause()? {
                    continue;
                }
                break;
            };
            let error = match P::layout_commit(self, &grant, name, written) {
                Ok(size) => {
                    file.with(|state| state.told(written, size));
                    return Ok(true);
                }
                Err(error) => error,
            };
            match P::untold(&error) {
                Untold::LayoutLost if file.is_returning() => return Ok(false),
                Untold::LayoutLost => {
                    file.change(|state| state.void_unless(|held| !std::ptr::eq(held, &*grant)));
                    tries -= 1;
                }
                Untold::WritesLost => break,
                Untold::Other => return Err(error),
            }
        }
        file.with(LayoutState::abandon_written);
        Err(P::WRITES_LOST)
    }

    /// Asks for a layout for writing, to report writes of one that is gone; `None` if there is
    /// none. Retries while the server delays the grant.
    fn layout_to_tell(&self) -> Result<Option<NamedGrant<P>>, P::Error> {
        let file = self.file;
        let mut pause = P::pauses(self, false);
        // Without an open for writing there is nothing to ask by. The server refuses nothing, so
        // there is no pause.
        while P::has_writer(self)
            && let Some(held) = file.must_ask()
        {
            match P::ask_to_tell(self, held) {
                Ok(granted) => file.granted(&granted),
                Err(why) => {
                    let refusal = P::refusal(self, &why, true).unwrap_or_default();
                    file.refused(true, refusal.kept, refusal.passing);
                    if !(refusal.passing && pause()?) {
                        return P::without_layout(why).map(|()| None);
                    }
                }
            }
        }
        Ok(file.held().filter(|(grant, _)| grant.write))
    }
}

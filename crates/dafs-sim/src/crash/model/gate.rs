//! A file with a fence, to which every admitted client appends.
//!
//! Invariants
//! * After the answer to an update that excludes a client, no operation of that client takes effect
//!   until an update to admit it is asked. Ends and restarts do not change that.
//! * A client is judged only by certain states of the fence: while updates overlap, no state is
//!   certain.

use super::log::Log;
use super::vault::Holder;
use crate::pattern::WriteId;
use std::collections::BTreeMap;

/// The certain state of a client's admission when it asks, and the epoch in which that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Watch {
    epoch: u64,
    admitted: Option<bool>,
}

#[derive(Debug)]
struct Update {
    number: u64,
    by: Holder,
    admit: bool,
    /// It overlapped no other update about the client.
    alone: bool,
}

/// The known state of one client.
#[derive(Debug)]
struct Target {
    /// True if it is admitted, false if it is excluded; `None` if uncertain.
    admitted: Option<bool>,
    epoch: u64,
    pending: Vec<Update>,
    /// The size of the file when the client was excluded.
    shut_from: Option<u64>,
    /// Ranges of the file that can hold none of its records.
    forbidden: Vec<(u64, u64)>,
}

/// The model of the file.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) log: Log,
    targets: Vec<Target>,
    authors: BTreeMap<WriteId, usize>,
    last: u64,
}

impl Gate {
    /// A model in which every client is admitted.
    pub(crate) fn new(clients: usize) -> Self {
        let target = || Target {
            admitted: Some(true),
            epoch: 0,
            pending: Vec::new(),
            shut_from: None,
            forbidden: Vec::new(),
        };
        let targets = (0..clients).map(|_| target()).collect();
        Self { log: Log::default(), targets, authors: BTreeMap::new(), last: 0 }
    }

    pub(crate) fn clients(&self) -> usize {
        self.targets.len()
    }

    /// Notes an update and returns its number. The file ends at `size`.
    pub(crate) fn asked(&mut self, by: Holder, client: usize, admit: bool, size: u64) -> u64 {
        self.last += 1;
        let target = &mut self.targets[client];
        let alone = target.pending.is_empty();
        target.pending.iter_mut().for_each(|other| other.alone = false);
        target.pending.push(Update { number: self.last, by, admit, alone });
        if target.admitted != Some(admit) {
            target.doubt(size);
        }
        self.last
    }

    /// Handles the answer to an update: done, or refused.
    pub(crate) fn answered(&mut self, client: usize, number: u64, done: bool, size: u64) {
        let target = &mut self.targets[client];
        let Some(place) = target.pending.iter().position(|update| update.number == number) else {
            return;
        };
        let update = target.pending.remove(place);
        if done && update.alone && target.admitted.is_none() {
            target.epoch += 1;
            target.admitted = Some(update.admit);
            target.shut_from = (!update.admit).then_some(size);
        }
    }

    /// A client has a new run; the updates of earlier runs are over.
    pub(crate) fn replaced(&mut self, now: Holder) {
        let older =
            |update: &mut Update| update.by.client == now.client && update.by.run != now.run;
        self.targets.iter_mut().for_each(|target| {
            target.pending.extract_if(.., older).for_each(drop);
        });
    }

    /// The file has become shorter when the server ended.
    pub(crate) fn shrunk(&mut self, size: u64) {
        for target in &mut self.targets {
            target.shut_from = target.shut_from.map(|from| from.min(size));
            target.forbidden.iter_mut().for_each(|(_, end)| *end = size.min(*end));
        }
    }

    /// A client is about to append a record.
    pub(crate) fn watch(&mut self, client: usize, record: WriteId) -> Watch {
        self.authors.insert(record, client);
        let Target { epoch, admitted, .. } = self.targets[client];
        Watch { epoch, admitted }
    }

    /// Judges the answer to an append.
    pub(crate) fn judge(&self, client: usize, watch: Watch, fenced: bool) -> Result<(), String> {
        let certain = watch.admitted.filter(|_| watch.epoch == self.targets[client].epoch);
        match certain {
            Some(true) if fenced => Err("it is told to be fenced, and nobody did that".to_owned()),
            Some(false) if !fenced => Err("it was done though the client is fenced".to_owned()),
            _ => Ok(()),
        }
    }

    /// Compares with the whole file.
    pub(crate) fn check(&self, file: &[u8]) -> Result<(), String> {
        for (record, at) in self.log.check(file)? {
            let at = at as u64;
            let Some(client) = self.authors.get(&record) else { continue };
            let target = &self.targets[*client];
            let now = target.shut_from.map(|from| (from, u64::MAX));
            let mut forbidden = target.forbidden.iter().copied().chain(now);
            if let Some((from, _)) = forbidden.find(|(from, end)| (*from..*end).contains(&at)) {
                return Err(format!("{record:?} of c{client} is at {at}, fenced from {from} on"));
            }
        }
        Ok(())
    }
}

impl Target {
    fn doubt(&mut self, size: u64) {
        self.epoch += 1;
        self.admitted = None;
        self.forbidden.extend(self.shut_from.take().map(|from| (from, size)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANAGER: Holder = Holder { client: 0, run: 1 };

    #[test]
    fn nothing_of_a_fenced_client_takes_effect() {
        let mut gate = Gate::new(2);
        let (one, two) = (WriteId(1), WriteId(2));
        let before = gate.watch(1, one);
        gate.log.begin(one, 30);
        gate.judge(1, before, false).unwrap();
        assert!(gate.judge(1, before, true).is_err());
        let update = gate.asked(MANAGER, 1, false, 30);
        gate.judge(1, before, true).unwrap();
        gate.answered(1, update, true, 30);
        let after = gate.watch(1, two);
        gate.log.begin(two, 40);
        gate.judge(1, after, true).unwrap();
        assert!(gate.judge(1, after, false).is_err());
        let (first, second) = (Log::record(one, 30), Log::record(two, 40));
        gate.check(&first).unwrap();
        assert!(gate.check(&[first.clone(), second.clone()].concat()).is_err());
        let update = gate.asked(MANAGER, 1, true, 30);
        gate.check(&[first, second].concat()).unwrap();
        gate.answered(1, update, true, 30);
        assert_eq!(gate.watch(1, two).admitted, Some(true));
    }

    #[test]
    fn updates_that_overlap_leave_it_open() {
        let mut gate = Gate::new(2);
        let first = gate.asked(MANAGER, 1, false, 0);
        let second = gate.asked(MANAGER, 1, true, 0);
        gate.answered(1, first, true, 0);
        gate.answered(1, second, true, 0);
        assert_eq!(gate.watch(1, WriteId(1)).admitted, None);
    }
}

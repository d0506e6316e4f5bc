//! Questions of administrators to the nodes of an export, and to exports: to all at once. Those to nodes have
//! a time limit.
//!
//! Invariants
//! * A node whose disk hangs delays the first report by `PROBE_TIME`, and later ones not at all. Questions that
//!   others begin meanwhile delay none.
//! * A node has one question at a time. A call that hangs keeps a thread here, and one at the data
//!   server.

use crate::limits::{EXPORTS_ASKED_AT_ONCE, PROBE_TIME};
use dafs_mem::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The questions to the nodes of an export. `T` is the type of an answer.
pub(super) struct NodeProbes<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Default for NodeProbes<T> {
    fn default() -> Self {
        let (nodes, ended) = (Mutex::new(BTreeMap::new()), Condvar::new());
        Self { shared: Arc::new(Shared { nodes, ended }) }
    }
}

struct Shared<T> {
    /// The questions by the numbers of the nodes.
    nodes: Mutex<BTreeMap<u32, Probe<T>>>,
    /// Notifies the end of a question.
    ended: Condvar,
}

/// The question to a node.
struct Probe<T> {
    /// When it was asked, if it is under way.
    since: Option<Instant>,
    /// The last answer.
    answer: Option<T>,
}

impl<T> Probe<T> {
    /// Returns the time for which a report still waits for the answer.
    fn left(&self) -> Option<Duration> {
        let left = PROBE_TIME.checked_sub(self.since?.elapsed())?;
        Some(left).filter(|left| !left.is_zero())
    }
}

/// The last answer of a node, and its silence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Probed<T> {
    /// The last answer. `None` without any.
    pub(super) answer: Option<T>,
    /// The age of the question, if the node has not answered in time.
    pub(super) silent_for: Option<Duration>,
}

impl<T: Clone + Send + 'static> NodeProbes<T> {
    /// Asks nodes, each by its number. A node with a question under way gets no other: that answer
    /// will do.
    pub(super) fn ask<Q: FnOnce() -> T + Send + 'static>(
        &self,
        questions: impl IntoIterator<Item = (u32, Q)>,
    ) -> BTreeMap<u32, Probed<T>> {
        let mut asked = Vec::new();
        for (number, question) in questions {
            asked.push(number);
            self.begin(number, question);
        }
        let mut nodes = self.shared.nodes.lock();
        let end = Instant::now() + PROBE_TIME;
        loop {
            let left = asked.iter().filter_map(|number| nodes.get(number)?.left()).max();
            let left = left.map(|left| left.min(end.saturating_duration_since(Instant::now())));
            let Some(left) = left.filter(|left| !left.is_zero()) else { break };
            nodes = self.shared.ended.wait_timeout(nodes, left).0;
        }
        let probed = |number: u32| {
            let probe = nodes.get(&number)?;
            // Another report may have asked again a moment ago.
            let silent_for = probe.since.map(|since| since.elapsed());
            let silent_for = silent_for.filter(|time| *time >= PROBE_TIME);
            Some((number, Probed { answer: probe.answer.clone(), silent_for }))
        };
        asked.into_iter().filter_map(probed).collect()
    }

    /// Asks a node, unless it is being asked.
    fn begin(&self, number: u32, question: impl FnOnce() -> T + Send + 'static) {
        let mut nodes = self.shared.nodes.lock();
        let probe = nodes.entry(number).or_insert(Probe { since: None, answer: None });
        if probe.since.is_some() {
            return;
        }
        probe.since = Some(Instant::now());
        drop(nodes);
        // Its drop ends the question, also when no thread can be started.
        let turn = Turn { shared: self.shared.clone(), number, answer: None };
        let thread = std::thread::Builder::new().name(format!("dafs-probe-{number}"));
        if let Err(error) = thread.spawn(move || turn.end(question())) {
            tracing::warn!(number, %error, "a node cannot be asked: no thread can be started");
        }
    }
}

/// A question under way.
struct Turn<T> {
    shared: Arc<Shared<T>>,
    number: u32,
    answer: Option<T>,
}

impl<T> Turn<T> {
    fn end(mut self, answer: T) {
        self.answer = Some(answer);
    }
}

impl<T> Drop for Turn<T> {
    fn drop(&mut self) {
        let answer = self.answer.take();
        self.shared.nodes.lock().insert(self.number, Probe { since: None, answer });
        self.shared.ended.notify_all();
    }
}

/// Asks so many at once, each in a thread of its own. Where the system has none left, it takes longer. Returns
/// the answers in the order of the asked ones.
pub(super) fn ask_at_once<A: Sync, T: Send>(asked: &[A], ask: impl Fn(&A) -> T + Sync) -> Vec<T> {
    let ask = &ask;
    let mut answers = Vec::new();
    for some in asked.chunks(EXPORTS_ASKED_AT_ONCE) {
        std::thread::scope(|scope| {
            let begun = some.iter().map(|one| {
                let thread = std::thread::Builder::new().name("dafs-report".to_owned());
                (one, thread.spawn_scoped(scope, move || ask(one)))
            });
            // All begin before the first one is waited for.
            let begun: Vec<_> = begun.collect();
            answers.extend(begun.into_iter().map(|(one, thread)| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                Err(_) => ask(one),
            }));
        });
    }
    answers
}

/// Returns the trouble of a node that has not answered for some time.
pub(super) fn silent_text(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("no answer for {seconds} seconds: its disk hangs, or its host is overloaded")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// The answers, and whether the node is silent.
    fn known(told: &BTreeMap<u32, Probed<u32>>) -> Vec<(Option<u32>, bool)> {
        told.values().map(|probed| (probed.answer, probed.silent_for.is_some())).collect()
    }

    #[test]
    fn a_node_that_hangs_is_shown_as_such_and_asked_once() {
        let probes = NodeProbes::default();
        let (gate, begun) = (Arc::new(Mutex::new(())), Arc::new(AtomicUsize::new(0)));
        let question = |number: u32| {
            let (gate, begun) = (gate.clone(), begun.clone());
            let answer = move || {
                if number == 2 {
                    begun.fetch_add(1, Ordering::Relaxed);
                    drop(gate.lock());
                }
                number * 10
            };
            (number, answer)
        };
        let closed = gate.lock();
        for _ in 0..3 {
            let told = probes.ask((1..=3).map(question));
            assert_eq!(known(&told), [(Some(10), false), (None, true), (Some(30), false)]);
        }
        assert!(begun.load(Ordering::Relaxed) <= 1, "a question under way is not asked again");
        drop(closed);
        while known(&probes.ask([question(2)])) != [(Some(20), false)] {
            std::thread::yield_now();
        }
        // The last answer is known while the node hangs again.
        let _closed = gate.lock();
        assert_eq!(known(&probes.ask([question(2)])), [(Some(20), true)]);
    }

    #[test]
    fn several_are_asked_at_once_and_answer_in_their_order() {
        assert!(ask_at_once(&[0_u8; 0], |_| 0).is_empty());
        let (all, meet) = (EXPORTS_ASKED_AT_ONCE, Barrier::new(EXPORTS_ASKED_AT_ONCE));
        let numbers: Vec<usize> = (0..2 * all).collect();
        let ask = |number: &usize| {
            // All of a group are here before the first one goes on.
            meet.wait();
            number * 10
        };
        let expected: Vec<usize> = numbers.iter().map(|number| number * 10).collect();
        assert_eq!(ask_at_once(&numbers, ask), expected);
    }

    #[test]
    fn a_question_that_fails_is_over() {
        let probes = NodeProbes::<u32>::default();
        let fail = || -> u32 { panic!("on purpose") };
        assert_eq!(known(&probes.ask([(1, fail)])), [(None, false)]);
        assert_eq!(known(&probes.ask([(1, || 7)])), [(Some(7), false)]);
    }
}

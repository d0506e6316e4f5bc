//! Shrinks a failing world: fewer faults, clients and operations, as long as it fails.

use super::plan::{CrashOptions, Plan};
use super::world::{CrashFailure, check};

/// Leading letters of a violation that identify its kind.
const KIND_LETTERS: usize = 16;

/// The smallest failing world that was found.
#[derive(Debug)]
pub struct Shrunk {
    /// Its failure.
    pub failure: CrashFailure,
    /// Its plan, in words.
    pub plan: String,
    /// Number of worlds tried.
    pub tried: u32,
}

/// The kind of a failure: the first letters of its text, which do not differ between worlds.
fn kind(failure: &CrashFailure) -> String {
    let letters = failure.violation.text.chars().filter(|letter| letter.is_alphabetic());
    letters.take(KIND_LETTERS).collect()
}

struct Search {
    best: CrashFailure,
    tried: u32,
}

impl Search {
    /// Takes smaller options if they fail too.
    fn take(&mut self, options: CrashOptions) -> bool {
        self.tried += 1;
        match check(&options) {
            // A failure of another kind may be another bug.
            Err(failure) if kind(&failure) == kind(&self.best) => {
                self.best = *failure;
                true
            }
            _ => false,
        }
    }

    fn plan(&self) -> Plan {
        Plan::draw(&self.best.options)
    }

    /// Leaves out faults: all at once, then one by one.
    fn fewer_faults(&mut self) {
        let numbers = |plan: &Plan| plan.faults.iter().map(|(number, _)| *number).collect();
        let mut kept: Vec<usize> = numbers(&self.plan());
        if !kept.is_empty() {
            let none = CrashOptions { faults: Some(Vec::new()), ..self.best.options.clone() };
            if self.take(none) {
                return;
            }
        }
        let mut index = 0;
        while index < kept.len() {
            let mut fewer = kept.clone();
            fewer.remove(index);
            let faults = Some(fewer.clone());
            if self.take(CrashOptions { faults, ..self.best.options.clone() }) {
                kept = fewer;
            } else {
                index += 1;
            }
        }
    }

    fn fewer_clients(&mut self) {
        for clients in 1..self.plan().clients.len() {
            let clients_max = Some(clients);
            if self.take(CrashOptions { clients_max, ..self.best.options.clone() }) {
                return;
            }
        }
    }

    fn fewer_operations(&mut self) {
        let most = |plan: &Plan| plan.clients.iter().map(|client| client.operations).max();
        let (mut fails, mut passes) = (most(&self.plan()).unwrap_or(0), 0);
        while fails > passes + 1 {
            let middle = passes + (fails - passes) / 2;
            let operations_max = Some(middle);
            if self.take(CrashOptions { operations_max, ..self.best.options.clone() }) {
                fails = middle;
            } else {
                passes = middle;
            }
        }
    }
}

/// Shrinks a failing world.
pub fn shrink(failure: CrashFailure) -> Shrunk {
    let mut search = Search { best: failure, tried: 0 };
    let calm = CrashOptions { calm_network: true, ..search.best.options.clone() };
    if !search.best.options.calm_network {
        search.take(calm);
    }
    // A step can enable another.
    loop {
        let before = search.best.options.clone();
        search.fewer_faults();
        search.fewer_clients();
        search.fewer_operations();
        if search.best.options == before {
            break;
        }
    }
    let plan = search.plan();
    let plan = format!(
        "{:?}, {} clients, {:?} operations, faults {:?}",
        plan.durability,
        plan.clients.len(),
        plan.clients.iter().map(|client| client.operations).collect::<Vec<_>>(),
        plan.faults
    );
    Shrunk { failure: search.best, plan, tried: search.tried }
}

//! Explores every reachable state of the locks of one file, for two clients and two ranges, against
//! a model. The model is the table of DAFS 9.3 and 9.4 word by word, and does not use the book.

use super::book::{LockBook, LockHolder, Verdict, Wish};
use super::ranges::Special;
use super::{LockKind, Range};
use crate::client::ClientKey;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

const CLIENTS: usize = 2;

/// Two ranges side by side, and both together.
const RANGES: [Range; 3] =
    [Range { first: 0, last: 9 }, Range { first: 10, last: 19 }, Range { first: 0, last: 19 }];

/// One of the two ranges in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Cell {
    Free,
    Normal(usize),
    /// Its holder, and true for a repair. Breakable while the holder's lease is over.
    Held(usize, bool),
    /// The holder's state has ended, but it may still come back.
    Orphan(usize, bool),
    /// Broken by the failure of this holder.
    Broken(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Model {
    cells: [Cell; 2],
    /// Both are one persistent lock, which is changed as a whole.
    joined: bool,
    lapsed: [bool; CLIENTS],
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Lock {
        client: usize,
        range: usize,
        persist: bool,
    },
    Repair {
        client: usize,
        range: usize,
    },
    Unlock {
        client: usize,
        range: usize,
    },
    /// The client is silent for a lease.
    Lapse(usize),
    /// The client sends a request.
    Renew(usize),
    /// The client's state ends although it may come back: an administrator has ended its lease.
    End(usize),
    /// The client connects with a new verifier.
    Restart(usize),
    /// The server crashes and restarts, and grace ends without a reclaim.
    ServerRestart,
}

/// The answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Told {
    Done,
    Denied,
    LockBroken,
    LockRange,
    Invalid,
}

fn events() -> Vec<Event> {
    let mut events = vec![Event::ServerRestart];
    for client in 0..CLIENTS {
        events.extend([Event::Lapse(client), Event::Renew(client)]);
        events.extend([Event::End(client), Event::Restart(client)]);
        for range in 0..RANGES.len() {
            for persist in [false, true] {
                events.push(Event::Lock { client, range, persist });
            }
            events.push(Event::Repair { client, range });
            events.push(Event::Unlock { client, range });
        }
    }
    events
}

/// The range that is both others.
const BOTH: usize = 2;

fn cells_of(range: usize) -> std::ops::Range<usize> {
    if range == BOTH { 0..2 } else { range..range + 1 }
}

impl Model {
    fn step(&mut self, event: Event) -> Told {
        match event {
            Event::Lapse(client) => self.lapsed[client] = true,
            Event::Renew(client) => self.lapsed[client] = false,
            Event::End(client) => self.leave(client),
            Event::Restart(client) => {
                self.leave(client);
                self.break_orphans((0..2).collect(), client);
            }
            Event::ServerRestart => (0..CLIENTS).for_each(|client| self.leave(client)),
            Event::Unlock { client, range } => return self.unlock(client, range),
            Event::Lock { client, range, persist } => {
                return self.lock(client, range, persist, false);
            }
            Event::Repair { client, range } => return self.lock(client, range, true, true),
        }
        Told::Done
    }

    fn unlock(&mut self, client: usize, range: usize) -> Told {
        if self.joined
            && range != BOTH
            && matches!(self.cells[0], Cell::Held(by, _) if by == client)
        {
            return Told::LockRange;
        }
        for cell in cells_of(range) {
            if matches!(self.cells[cell], Cell::Normal(by) | Cell::Held(by, _) if by == client) {
                self.cells[cell] = Cell::Free;
                self.joined = false;
            }
        }
        Told::Done
    }

    fn lock(&mut self, client: usize, range: usize, persist: bool, repair: bool) -> Told {
        let other = 1 - client;
        let any = |model: &Self, is: fn(Cell) -> Option<usize>, by: &[usize]| {
            let mut cells = cells_of(range).filter_map(|cell| is(model.cells[cell]));
            cells.any(|holder| by.contains(&holder))
        };
        let part = self.joined && range != BOTH;
        match (repair, any(self, broken, &[0, 1])) {
            (true, false) => return Told::Invalid,
            (false, true) => return Told::LockBroken,
            (true, true) if part => return Told::LockRange,
            _ => {}
        }
        if any(self, held, &[other]) {
            if !self.lapsed[other] {
                return Told::Denied;
            }
            self.leave(other);
        }
        if any(self, orphan, &[other]) {
            self.break_orphans(cells_of(range).collect(), other);
            return Told::LockBroken;
        }
        if part && any(self, kept, &[client]) {
            return Told::LockRange;
        }
        let inherits = any(self, kept, &[client]);
        let mends = cells_of(range)
            .any(|cell| matches!(self.cells[cell], Cell::Held(_, true) | Cell::Orphan(_, true)));
        let becomes = match persist || inherits {
            false => Cell::Normal(client),
            true => Cell::Held(client, repair || mends),
        };
        cells_of(range).for_each(|cell| self.cells[cell] = becomes);
        self.joined = range == BOTH && matches!(becomes, Cell::Held(..));
        Told::Done
    }

    /// Ends the state of a client: normal locks are released, persistent ones are orphaned.
    fn leave(&mut self, client: usize) {
        self.lapsed[client] = false;
        for cell in &mut self.cells {
            match *cell {
                Cell::Normal(by) if by == client => *cell = Cell::Free,
                Cell::Held(by, repair) if by == client => *cell = Cell::Orphan(client, repair),
                _ => {}
            }
        }
    }

    fn break_orphans(&mut self, mut cells: Vec<usize>, client: usize) {
        if self.joined {
            cells = vec![0, 1];
        }
        for cell in cells {
            if matches!(self.cells[cell], Cell::Orphan(by, _) if by == client) {
                self.cells[cell] = Cell::Broken(client);
            }
        }
    }
}

fn broken(cell: Cell) -> Option<usize> {
    if let Cell::Broken(by) = cell { Some(by) } else { None }
}

fn held(cell: Cell) -> Option<usize> {
    if let Cell::Normal(by) | Cell::Held(by, _) = cell { Some(by) } else { None }
}

fn orphan(cell: Cell) -> Option<usize> {
    if let Cell::Orphan(by, _) = cell { Some(by) } else { None }
}

fn kept(cell: Cell) -> Option<usize> {
    if let Cell::Held(by, _) | Cell::Orphan(by, _) = cell { Some(by) } else { None }
}

/// The book with the parts of the service around it.
#[derive(Clone)]
struct Real {
    book: LockBook<usize>,
    lapsed: [bool; CLIENTS],
    verifiers: [u8; CLIENTS],
}

fn holder(client: usize, verifier: u8) -> Arc<LockHolder> {
    Arc::new(LockHolder {
        client: ClientKey(client as u64 + 1),
        name: vec![client as u8],
        verifier: [verifier; 8],
        mechanism: "none".to_owned(),
        principal: Vec::new(),
        owner: b"owner".to_vec(),
    })
}

impl Real {
    fn step(&mut self, event: Event) -> Told {
        match event {
            Event::Lapse(client) => self.lapsed[client] = true,
            Event::Renew(client) => self.lapsed[client] = false,
            Event::End(client) => self.leave(client),
            Event::Restart(client) => {
                self.leave(client);
                let old = self.verifiers[client];
                // Two verifiers are enough: the locks of the instance before the last are broken
                // already.
                self.verifiers[client] = 1 - old;
                let new = [1 - old; 8];
                self.book.break_orphans(|orphan| {
                    orphan.holder.is_older(&[client as u8], new, "none", b"")
                });
            }
            Event::ServerRestart => (0..CLIENTS).for_each(|client| self.leave(client)),
            Event::Unlock { client, range } => match self.book.kept_in(RANGES[range], client) {
                Err(_) => return Told::LockRange,
                Ok(_) => drop(self.book.ranges.clear(RANGES[range], client)),
            },
            Event::Lock { client, range, persist } => {
                return self.lock(client, range, persist, false);
            }
            Event::Repair { client, range } => return self.lock(client, range, true, true),
        }
        Told::Done
    }

    fn lock(&mut self, client: usize, range: usize, persist: bool, repair: bool) -> Told {
        let me = holder(client, self.verifiers[client]);
        let (range, kind, own) = (RANGES[range], LockKind::Write, Some(client));
        let wish = Wish { range, kind, own, me: Some(&*me), repair };
        let lapsed = self.lapsed;
        match self.book.decide(&wish, |by| lapsed[by]) {
            Verdict::Free => {
                let inherited = self.book.inherited(&wish);
                let asked = Special { number: 0, persist, autorecover: false, repair };
                let special = match inherited {
                    Some(inherited) => Some(asked.join(inherited)),
                    None => persist.then_some(asked),
                };
                self.book.grant(&wish, client, special);
                Told::Done
            }
            Verdict::Denied(_) => Told::Denied,
            Verdict::Lapsed(holders) => {
                holders.into_iter().for_each(|by| self.leave(by));
                self.lock_again(client, wish.range, persist, repair)
            }
            Verdict::Broken(_) => Told::LockBroken,
            Verdict::Breaks(_) => {
                assert!(!self.book.break_orphans(|orphan| wish.breaks(orphan)).is_empty());
                Told::LockBroken
            }
            Verdict::Part => Told::LockRange,
            Verdict::NothingBroken => Told::Invalid,
        }
    }

    fn lock_again(&mut self, client: usize, range: Range, persist: bool, repair: bool) -> Told {
        let range = RANGES.iter().position(|other| *other == range).unwrap();
        self.lock(client, range, persist, repair)
    }

    fn leave(&mut self, client: usize) {
        self.book.withdraw(client, &holder(client, self.verifiers[client]));
        self.lapsed[client] = false;
    }

    /// The cell of the model for a range.
    fn cell(&self, cell: usize) -> Cell {
        let range = RANGES[cell];
        let at = |other: Range| other.overlaps(range);
        let client = |holder: &LockHolder| holder.client.0 as usize - 1;
        let broken = self.book.broken().iter().find(|orphan| at(orphan.range));
        let orphan = self.book.orphans().iter().find(|orphan| at(orphan.range));
        let held = self.book.ranges.iter().find(|held| at(held.range));
        let found = usize::from(broken.is_some())
            + usize::from(orphan.is_some())
            + usize::from(held.is_some());
        assert!(found <= 1, "a range is in one state at a time: {:?}", self.book);
        match (broken, orphan, held) {
            (Some(orphan), ..) => Cell::Broken(client(&orphan.holder)),
            (_, Some(orphan), _) => Cell::Orphan(client(&orphan.holder), orphan.special.repair),
            (.., Some(held)) => match held.special {
                Some(special) => Cell::Held(held.owner, special.repair),
                None => Cell::Normal(held.owner),
            },
            _ => Cell::Free,
        }
    }

    /// The whole state of the book, in a canonical order.
    fn canonical(&self) -> String {
        let mut lines: Vec<String> =
            [("left", self.book.orphans()), ("broken", self.book.broken())]
                .iter()
                .flat_map(|(name, all)| all.iter().map(move |orphan| format!("{name} {orphan:?}")))
                .chain(self.book.ranges.iter().map(|held| format!("held {held:?}")))
                .collect();
        lines.sort();
        format!("{lines:?} {:?} {:?}", self.lapsed, self.verifiers)
    }
}

#[test]
fn every_reachable_state_is_as_the_table_says() {
    let model = Model { cells: [Cell::Free; 2], joined: false, lapsed: [false; CLIENTS] };
    let real =
        Real { book: LockBook::default(), lapsed: [false; CLIENTS], verifiers: [0; CLIENTS] };
    let events = events();
    let mut seen = HashSet::from([(model, real.canonical())]);
    let mut open = VecDeque::from([(model, real)]);
    let mut told = HashSet::new();
    let mut steps = 0;
    while let Some((model, real)) = open.pop_front() {
        for &event in &events {
            let (mut next_model, mut next) = (model, real.clone());
            let (outcome, expected) = (next.step(event), next_model.step(event));
            let context = || format!("{event:?} {model:?} {:?}", real.book);
            assert_eq!(outcome, expected, "{}", context());
            steps += 1;
            told.insert(outcome);
            let cells = [next.cell(0), next.cell(1)];
            assert_eq!(cells, next_model.cells, "{}", context());
            assert_eq!(next.lapsed, next_model.lapsed, "{}", context());
            for (cell, state) in cells.into_iter().enumerate() {
                // Readers and writers are kept from broken ranges, and from no others.
                let is_broken = matches!(state, Cell::Broken(_));
                assert_eq!(next.book.is_broken_in(RANGES[cell]), is_broken, "{}", context());
            }
            if seen.insert((next_model, next.canonical())) {
                open.push_back((next_model, next));
            }
        }
    }
    // If this shrinks, the search misses a part of the states.
    assert!(seen.len() > 500 && steps > 10_000, "{} states, {steps} steps", seen.len());
    assert_eq!(told.len(), 5, "{told:?}");
}

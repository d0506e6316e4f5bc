//! A fair queue for clients that wait for the same few threads or the same memory: round robin
//! among hosts, and among the clients of each host.
//!
//! Invariants
//! * Origins take turns, and within an origin its clients do. So all others overtake a client with
//!   many items, or a host with many connections, again and again.
//! * An origin without items goes before those with many (the new flows of RFC 8290), once in each
//!   round of these. After some such origins one of the others has its turn, however many come.
//! * The items of one client keep their order.
//! * Push and take allocate nothing while one client after the other has an item.
//! * Push and take look at one origin and one client, however many wait. Take also looks at those
//!   that it passes over because they hold a share already.

use crate::hosts::network_of_host;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::hash::Hash;
use std::net::IpAddr;

/// The origin of a client that shares resources with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The server itself.
    Server,
    /// A host, by its network as [`network_of_host`] returns it.
    Host(IpAddr),
    /// A user of this host.
    User(u32),
    /// A host of the simulated network.
    Sim(u32),
}

impl Origin {
    /// The origin of an address.
    pub fn host(address: IpAddr) -> Self {
        Self::Host(network_of_host(address))
    }
}

/// The owner of an item: an origin, and a number that identifies the client within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The origin.
    pub origin: Origin,
    /// The client within the origin.
    pub number: u64,
}

impl Owner {
    /// The server itself.
    pub const SERVER: Self = Self { origin: Origin::Server, number: 0 };
}

/// Where a job that may wait is run, and for which owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The machines that it may wait for. See [`Namespace::lane`](crate::Namespace::lane).
    pub lane: u64,
    /// The owner of the turn that it takes.
    pub owner: Owner,
}

/// The verdict on the next item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// The item is taken.
    Take,
    /// Other clients of its origin go first.
    NextOwner,
    /// Other origins go first. The item stays the first of its own.
    NextOrigin,
    /// The item keeps its turn, and none is taken.
    Wait,
}

/// New origins that are served one after the other while others wait.
const NEW_IN_A_ROW_MAX: u32 = 4;

/// Places of an empty queue that is kept for the next items.
const SPARE_PLACES_MAX: usize = 64;

/// Waiting items, taken in turn.
#[derive(Debug)]
pub struct Turns<T> {
    /// Those in `new`, with items, and those in `old`, which may have none.
    origins: FxHashMap<Origin, Line<u64, VecDeque<T>>>,
    /// Origins that had no turn yet.
    new: VecDeque<Origin>,
    /// Origins that had one. One without items stays until its next turn, so it is not new before.
    old: VecDeque<Origin>,
    new_in_a_row: u32,
    len: usize,
    /// An emptied line, for the next origin.
    spare: Option<Line<u64, VecDeque<T>>>,
}

/// The result of a search for an item that may be taken.
enum Found<T> {
    Item(Owner, T),
    None,
    /// None may be taken now. See [`Turn::Wait`].
    Wait,
}

/// Keys in the order of their turns, each with its queue.
#[derive(Debug)]
struct Line<K, Q> {
    queues: FxHashMap<K, Q>,
    turns: VecDeque<K>,
    /// An emptied queue, for the next key.
    spare: Option<Q>,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        let (new, old) = (VecDeque::new(), VecDeque::new());
        Self { origins: FxHashMap::default(), new, old, new_in_a_row: 0, len: 0, spare: None }
    }
}

impl<K: Copy + Eq + Hash, T> Default for Line<K, VecDeque<T>> {
    fn default() -> Self {
        Self { queues: FxHashMap::default(), turns: VecDeque::new(), spare: None }
    }
}

impl<T> Turns<T> {
    /// The number of waiting items.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when no item waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The next item of each owner.
    pub fn firsts(&self) -> impl Iterator<Item = (Owner, &T)> {
        self.origins.iter().flat_map(|(&origin, line)| {
            let queues = line.queues.iter();
            queues.filter_map(move |(&number, queue)| {
                Some((Owner { origin, number }, queue.front()?))
            })
        })
    }

    /// Puts an item behind all others of its owner.
    pub fn push(&mut self, owner: Owner, item: T) {
        let Self { origins, new, len, spare, .. } = self;
        let line = origins.entry(owner.origin).or_insert_with(|| {
            new.push_back(owner.origin);
            spare.take().unwrap_or_default()
        });
        let queue = line.queues.entry(owner.number).or_insert_with(|| {
            line.turns.push_back(owner.number);
            line.spare.take().unwrap_or_default()
        });
        queue.push_back(item);
        *len += 1;
    }

    /// Removes the first item of an owner for which `is_it` is true. Looks at all items of that owner,
    /// and at no others.
    pub fn remove(&mut self, owner: Owner, is_it: impl Fn(&T) -> bool) -> Option<T> {
        let Self { origins, new, old, len, .. } = self;
        let line = origins.get_mut(&owner.origin)?;
        let queue = line.queues.get_mut(&owner.number)?;
        let item = queue.remove(queue.iter().position(is_it)?)?;
        *len -= 1;
        if queue.is_empty() {
            line.spare = line.queues.remove(&owner.number).filter(is_small);
            line.turns.retain(|number| *number != owner.number);
        }
        if *len == 0 {
            origins.clear();
            new.clear();
            old.clear();
        } else if line.turns.is_empty() && new.contains(&owner.origin) {
            // An origin without items stays only in `old`, until its next turn.
            new.retain(|origin| *origin != owner.origin);
            origins.remove(&owner.origin);
        }
        Some(item)
    }

    /// Takes the next item.
    pub fn pop(&mut self) -> Option<(Owner, T)> {
        self.take(|_, _| Turn::Take)
    }

    /// Takes the next item for which `judge` says [`Turn::Take`].
    pub fn take(&mut self, mut judge: impl FnMut(Owner, &T) -> Turn) -> Option<(Owner, T)> {
        let (new_first, others) = (self.new_in_a_row < NEW_IN_A_ROW_MAX, !self.old.is_empty());
        for from_new in [new_first, !new_first] {
            match self.take_from(from_new, &mut judge) {
                Found::Item(owner, item) => {
                    self.new_in_a_row = if from_new && others { self.new_in_a_row + 1 } else { 0 };
                    if self.len == 0 {
                        let line = self.origins.drain().map(|(_, line)| line).next();
                        self.spare = line.filter(Line::is_small);
                        self.old.clear();
                    }
                    return Some((owner, item));
                }
                Found::None => {}
                Found::Wait => return None,
            }
        }
        None
    }

    fn take_from(&mut self, from_new: bool, judge: &mut impl FnMut(Owner, &T) -> Turn) -> Found<T> {
        let Self { origins, new, old, len, .. } = self;
        for _ in 0..if from_new { new.len() } else { old.len() } {
            let turns = if from_new { &mut *new } else { &mut *old };
            let Some(origin) = turns.pop_front() else { break };
            // INVARIANT: every origin of `new` and `old` is in `origins`.
            let Some(line) = origins.get_mut(&origin) else { continue };
            match line.take(origin, judge) {
                Found::Item(owner, item) => {
                    *len -= 1;
                    old.push_back(origin);
                    return Found::Item(owner, item);
                }
                Found::Wait => {
                    turns.push_front(origin);
                    return Found::Wait;
                }
                Found::None if line.turns.is_empty() => drop(origins.remove(&origin)),
                Found::None => turns.push_back(origin),
            }
        }
        Found::None
    }
}

/// True if an empty queue is worth keeping for the next items.
fn is_small<T>(queue: &VecDeque<T>) -> bool {
    queue.capacity() <= SPARE_PLACES_MAX
}

impl<T> Line<u64, VecDeque<T>> {
    /// True if a line without items is worth keeping for the next origin.
    fn is_small(&self) -> bool {
        self.queues.capacity().max(self.turns.capacity()) <= SPARE_PLACES_MAX
    }

    /// Takes the next item of the origin for which `judge` says [`Turn::Take`].
    fn take(&mut self, origin: Origin, judge: &mut impl FnMut(Owner, &T) -> Turn) -> Found<T> {
        for _ in 0..self.turns.len() {
            let Some(&number) = self.turns.front() else { break };
            let Some(queue) = self.queues.get_mut(&number) else { break };
            let Some(first) = queue.front() else { break };
            let owner = Owner { origin, number };
            match judge(owner, first) {
                Turn::Take => {
                    let Some(item) = queue.pop_front() else { break };
                    if queue.is_empty() {
                        self.spare = self.queues.remove(&number).filter(is_small);
                        self.turns.pop_front();
                    } else {
                        self.turns.rotate_left(1);
                    }
                    return Found::Item(owner, item);
                }
                Turn::NextOwner => self.turns.rotate_left(1),
                Turn::NextOrigin => break,
                Turn::Wait => return Found::Wait,
            }
        }
        Found::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(user: u32, number: u64) -> Owner {
        Owner { origin: Origin::User(user), number }
    }

    fn all(turns: &mut Turns<u32>) -> Vec<(u32, u64, u32)> {
        std::iter::from_fn(|| turns.pop())
            .map(|(owner, item)| match owner.origin {
                Origin::User(user) => (user, owner.number, item),
                _ => unreachable!(),
            })
            .collect()
    }

    #[test]
    fn an_owner_with_a_long_queue_is_overtaken() {
        let mut turns = Turns::default();
        (0..4).for_each(|item| turns.push(owner(1, 1), item));
        turns.push(owner(1, 2), 10);
        turns.push(owner(2, 1), 20);
        turns.push(owner(2, 1), 21);
        assert_eq!(turns.len(), 7);
        let order =
            [(1, 1, 0), (2, 1, 20), (1, 2, 10), (2, 1, 21), (1, 1, 1), (1, 1, 2), (1, 1, 3)];
        assert_eq!(all(&mut turns), order);
        assert!(turns.is_empty() && turns.origins.is_empty());
        assert!(turns.new.is_empty() && turns.old.is_empty());
    }

    #[test]
    fn an_origin_without_items_goes_before_those_with_many() {
        let mut turns = Turns::default();
        for user in 1..=3 {
            (0..3).for_each(|item| turns.push(owner(user, 1), item));
        }
        let order: Vec<_> = (0..3).filter_map(|_| turns.pop()).map(|(at, _)| at).collect();
        assert_eq!(order, [owner(1, 1), owner(2, 1), owner(3, 1)]);
        turns.push(owner(9, 1), 0);
        assert_eq!(turns.pop(), Some((owner(9, 1), 0)));
        // In the same round it is not new again.
        turns.push(owner(9, 1), 1);
        let order = [(1, 1, 1), (2, 1, 1), (3, 1, 1), (9, 1, 1), (1, 1, 2), (2, 1, 2), (3, 1, 2)];
        assert_eq!(all(&mut turns), order);
        assert!(turns.origins.is_empty() && turns.new.is_empty() && turns.old.is_empty());
    }

    #[test]
    fn an_origin_that_comes_again_and_again_takes_turns_with_the_others() {
        let mut turns = Turns::default();
        (0..10).for_each(|item| turns.push(owner(1, 1), item));
        let mut order = Vec::new();
        for _ in 0..10 {
            if turns.origins.get(&Origin::User(2)).is_none_or(|line| line.turns.is_empty()) {
                turns.push(owner(2, 1), 0);
            }
            order.extend(turns.pop().map(|(at, _)| at));
        }
        let of_1 = order.iter().filter(|&&at| at == owner(1, 1)).count();
        assert_eq!(of_1, 5, "{order:?}");
    }

    #[test]
    fn ever_new_origins_do_not_starve_the_others() {
        let mut turns = Turns::default();
        (0..100).for_each(|item| turns.push(owner(0, 1), item));
        let mut served = 0;
        for user in 1..=500 {
            turns.push(owner(user, 1), 0);
            served += u32::from(turns.pop().is_some_and(|(at, _)| at == owner(0, 1)));
            assert!(turns.origins.len() < 200 && turns.old.len() < 10, "the emptied are forgotten");
        }
        assert_eq!(served, 500 / (NEW_IN_A_ROW_MAX + 1));
    }

    #[test]
    fn connections_of_one_host_have_one_turn_together() {
        let mut turns = Turns::default();
        (0..1000).for_each(|number| turns.push(owner(1, number), 0));
        turns.push(owner(2, 7), 0);
        assert!((0..2).filter_map(|_| turns.pop()).any(|(found, _)| found == owner(2, 7)));
        assert_eq!(turns.firsts().count(), 999);
    }

    #[test]
    fn a_removed_item_leaves_the_turns_of_the_others() {
        let mut turns = Turns::default();
        for (user, number, item) in [(1, 1, 10), (1, 1, 11), (1, 2, 12), (2, 1, 20), (3, 1, 30)] {
            turns.push(owner(user, number), item);
        }
        assert_eq!(turns.remove(owner(1, 1), |item| *item == 99), None);
        assert_eq!(turns.remove(owner(4, 1), |_| true), None);
        assert_eq!(turns.remove(owner(1, 1), |item| *item == 10), Some(10));
        // The last item of an origin that had no turn yet.
        assert_eq!(turns.remove(owner(2, 1), |_| true), Some(20));
        assert_eq!(turns.len(), 3);
        assert_eq!(turns.pop(), Some((owner(1, 1), 11)));
        turns.push(owner(2, 1), 21);
        // The last item of one that had a turn.
        assert_eq!(turns.remove(owner(1, 2), |_| true), Some(12));
        assert_eq!(all(&mut turns), [(3, 1, 30), (2, 1, 21)]);
        assert!(turns.origins.is_empty() && turns.new.is_empty() && turns.old.is_empty());
        turns.push(owner(1, 1), 1);
        assert_eq!(turns.remove(owner(1, 1), |_| true), Some(1));
        assert!(turns.is_empty() && turns.origins.is_empty() && turns.new.is_empty());
        turns.push(owner(1, 1), 2);
        assert_eq!(all(&mut turns), [(1, 1, 2)]);
    }

    #[test]
    fn an_overtaken_owner_keeps_its_queue() {
        let mut turns = Turns::default();
        for (user, number) in [(1, 1), (1, 2), (2, 1)] {
            turns.push(owner(user, number), number as u32);
        }
        let not =
            |owner: Owner, turn| move |at, _: &u32| if at == owner { turn } else { Turn::Take };
        assert_eq!(turns.take(not(owner(1, 1), Turn::Wait)), None);
        let passed = turns.take(not(owner(1, 1), Turn::NextOrigin)).map(|(owner, _)| owner);
        assert_eq!(passed, Some(owner(2, 1)));
        let passed = turns.take(not(owner(1, 1), Turn::NextOwner)).map(|(owner, _)| owner);
        assert_eq!(passed, Some(owner(1, 2)));
        assert_eq!(turns.firsts().next(), Some((owner(1, 1), &1)));
        assert_eq!(all(&mut turns), [(1, 1, 1)]);
    }

    #[test]
    fn a_host_is_one_whatever_it_calls_itself() {
        let host = |text: &str| Origin::host(text.parse().unwrap());
        assert_eq!(host("192.0.2.1"), host("::ffff:192.0.2.1"));
        assert_eq!(host("2001:db8::1"), host("2001:db8::ffff:1"));
        assert_ne!(host("2001:db8::1"), host("2001:db8:0:1::1"));
        assert_ne!(host("192.0.2.1"), host("192.0.2.2"));
        assert_ne!(host("fe80::1"), host("fe80::2"));
        assert_eq!(host("127.0.0.1"), host("::1"));
    }
}

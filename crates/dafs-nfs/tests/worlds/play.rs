//! Random numbers, and the random actions of a client.

use crate::actions::*;
use crate::client::Client;

/// A small generator (splitmix64), so that a seed gives the same world everywhere.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// Returns a look at a name with several possible objects.
pub(crate) fn look(client: &Client, slot: usize) -> Option<Action> {
    let doubtful = |at: &usize| client.slots[slot].sure(*at).is_none();
    (0..NAMES).find(doubtful).map(Action::Look)
}

/// Chooses an action that is possible for a slot now.
pub(crate) fn choose(random: &mut Random, client: &Client, slot: usize) -> Option<Action> {
    let at = random.index(NAMES);
    let state = &client.slots[slot];
    let Some(entry) = state.sure(at) else { return Some(Action::Look(at)) };
    let value = random.below(250) as u8;
    Some(match random.below(14) {
        0 => Action::MakeDirectory(at),
        1 | 2 => Action::MakeFile(at, value),
        3 | 4 if *entry != Entry::Directory => Action::Write(at, value),
        5 => Action::Remove(at),
        6 | 7 => {
            let to = (at + 1) % NAMES;
            let there = state.sure(to)?;
            let both = std::mem::discriminant(entry) == std::mem::discriminant(there);
            let fits = both || [entry, there].contains(&&Entry::Nothing);
            if fits { Action::Rename(at, to) } else { Action::Look(at) }
        }
        8..=11 => return Some(lock_or_unlock(random, client, slot)),
        _ => Action::Look(at),
    })
}

fn lock_or_unlock(random: &mut Random, client: &Client, slot: usize) -> Action {
    let owner = slot as u8;
    let file = random.index(SHARED_FILES);
    let held = client.holds.iter().find(|hold| (hold.owner, hold.file) == (owner, file));
    if let Some(hold) = held {
        return Action::Release(hold.clone());
    }
    let right = if file < LOCK_FILES {
        let (first, length) = (random.below(4), 1 + random.below(3));
        Right::Lock { first, length, writes: random.percent(60) }
    } else {
        let access = 1 + random.below(3) as u32;
        Right::Open { access, deny: random.below(4) as u32 }
    };
    Action::Take { owner, file, right, reclaim: false }
}

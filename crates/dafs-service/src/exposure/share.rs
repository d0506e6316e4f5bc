//! The shares of exposed files in the memory, and the file that gives some to another one.
//!
//! Hosts have equal shares, or users of this host. Those of its clients, and those of the files that a
//! client has exposed first, are equal parts of that. A file without memory counts only while it is the
//! one that wants some. A file with less than its share gets memory from files with more. Any other one
//! gets only segments that requests hardly ask for.
//!
//! Invariants
//! * A file that has no more than its share loses no segment of which requests have just asked for more
//!   than half.
//! * The search goes on behind the file that gave last, so all give in turn.

use crate::client::ClientKey;
use crate::hosts::Host;
use rustc_hash::FxHashMap;

/// The client that has exposed a file first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Payer {
    pub(super) host: Host,
    pub(super) client: ClientKey,
}

/// The memory of one exposed file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holding {
    /// The number of the exposure.
    pub(super) id: u64,
    pub(super) payer: Payer,
    pub(super) bytes: usize,
    /// It has segments of frames.
    pub(super) has_frames: bool,
    /// One of these can leave now.
    pub(super) may_leave: bool,
    /// No request has read it for a while.
    pub(super) is_idle: bool,
}

/// The equal shares of exposed files.
#[derive(Debug, Clone, Default)]
pub(super) struct Shares {
    bytes: usize,
    /// The number of files of each client, by host.
    files: FxHashMap<Host, FxHashMap<ClientKey, usize>>,
}

impl Shares {
    /// Divides what files have among them and the one that wants memory.
    pub(super) fn of(holdings: &[Holding], wanting: u64) -> Self {
        let mut shares = Self::default();
        let counted = holdings.iter().filter(|one| one.bytes > 0 || one.id == wanting);
        for Holding { payer, bytes, .. } in counted {
            shares.bytes += bytes;
            *shares.files.entry(payer.host).or_default().entry(payer.client).or_default() += 1;
        }
        shares
    }

    /// Returns the share in bytes of each file that a client has exposed.
    pub(super) fn share(&self, payer: Payer) -> usize {
        self.share_beside(payer, 0)
    }

    /// Returns that of one more file.
    pub(super) fn share_of_new(&self, payer: Payer) -> usize {
        self.share_beside(payer, 1)
    }

    fn share_beside(&self, payer: Payer, more: usize) -> usize {
        let clients = self.files.get(&payer.host);
        let files = clients.and_then(|clients| clients.get(&payer.client));
        let hosts = self.files.len() + usize::from(clients.is_none());
        let known = clients.map_or(0, FxHashMap::len) + usize::from(files.is_none());
        let files = (files.copied().unwrap_or(0) + more).max(1);
        self.bytes / hosts.max(1) / known.max(1) / files
    }
}

/// The part of its memory that a file gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gift {
    /// A segment, unless requests ask for its blocks.
    Segment,
    /// All. It has window pages alone.
    All,
}

/// Returns the place in the list of the file that gives memory to another one, in the order of their
/// ids behind `hand`. `is_entitled` is true if the other one has less than its share.
pub(super) fn giver(
    holdings: &[Holding],
    shares: &Shares,
    (wanting, is_entitled): (u64, bool),
    hand: u64,
) -> Option<(usize, Gift)> {
    let gift = |holding: &Holding| {
        let has_much = holding.bytes > shares.share(holding.payer);
        // A file without memory has nothing to give.
        if holding.id == wanting || holding.bytes == 0 || is_entitled && !has_much {
            return None;
        }
        match holding.has_frames {
            true => holding.may_leave.then_some(Gift::Segment),
            false => (is_entitled || holding.is_idle).then_some(Gift::All),
        }
    };
    let givers = holdings.iter().enumerate();
    let givers = givers
        .filter_map(|(at, holding)| Some((holding.id <= hand, holding.id, at, gift(holding)?)));
    let (_, _, at, gift) = givers.min_by_key(|(is_before, id, ..)| (*is_before, *id))?;
    Some((at, gift))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payer(user: u32, client: u64) -> Payer {
        Payer { host: Host::User(user), client: ClientKey(client) }
    }

    fn holding(id: u64, payer: Payer, bytes: usize) -> Holding {
        Holding { id, payer, bytes, has_frames: true, may_leave: true, is_idle: false }
    }

    #[test]
    fn users_then_clients_then_files_have_equal_shares() {
        let (one, two, other) = (payer(1, 10), payer(1, 11), payer(2, 12));
        let holdings: Vec<_> = [(one, 500), (one, 300), (two, 200), (other, 200)]
            .into_iter()
            .zip(1..)
            .map(|((payer, bytes), id)| holding(id, payer, bytes))
            .collect();
        let shares = Shares::of(&holdings, 1);
        assert_eq!([one, two, other].map(|payer| shares.share(payer)), [150, 300, 600]);
        assert_eq!([one, two, other].map(|payer| shares.share_of_new(payer)), [100, 150, 300]);
        let new = [payer(2, 13), payer(3, 14)].map(|payer| shares.share_of_new(payer));
        assert_eq!(new, [300, 400]);
        assert_eq!(Shares::default().share_of_new(one), 0);
    }

    #[test]
    fn of_the_files_without_memory_the_one_that_wants_some_has_a_share() {
        let (rich, poor) = (payer(1, 10), payer(2, 11));
        let mut holdings = vec![holding(1, rich, 1200)];
        holdings.extend((2..100).map(|id| holding(id, poor, 0)));
        let shares = Shares::of(&holdings, 50);
        assert_eq!([rich, poor].map(|payer| shares.share(payer)), [600, 600]);
        assert_eq!(giver(&holdings, &shares, (50, true), 0), Some((0, Gift::Segment)));
        assert_eq!(Shares::of(&holdings, 1).share(rich), 1200);
    }

    #[test]
    fn only_files_with_much_give_to_one_with_less_than_its_share() {
        let (rich, poor) = (payer(1, 10), payer(2, 11));
        let holdings = [holding(1, poor, 100), holding(2, rich, 900), holding(3, rich, 50)];
        let shares = Shares::of(&holdings, 1);
        let giver =
            |wanting, is_entitled, hand| giver(&holdings, &shares, (wanting, is_entitled), hand);
        for hand in [0, 2, 3] {
            assert_eq!(giver(1, true, hand), Some((1, Gift::Segment)));
        }
        assert_eq!(giver(2, true, 0), None);
        // Any file gets blocks that no request asks for.
        assert_eq!(giver(2, false, 0), Some((0, Gift::Segment)));
        assert_eq!(giver(2, false, 1), Some((2, Gift::Segment)));
        assert_eq!(giver(2, false, 3), Some((0, Gift::Segment)));
    }

    #[test]
    fn a_file_with_window_pages_alone_gives_them_when_it_has_much_or_is_idle() {
        let (rich, poor) = (payer(1, 10), payer(2, 11));
        let pages = Holding { has_frames: false, may_leave: false, ..holding(2, rich, 900) };
        let giver = |pages: Holding, is_entitled| {
            let holdings = [holding(1, poor, 100), pages];
            giver(&holdings, &Shares::of(&holdings, 1), (1, is_entitled), 0)
        };
        assert_eq!(giver(pages, true), Some((1, Gift::All)));
        assert_eq!(giver(pages, false), None);
        assert_eq!(giver(Holding { is_idle: true, ..pages }, false), Some((1, Gift::All)));
        assert_eq!(giver(Holding { is_idle: true, bytes: 0, ..pages }, false), None);
        let busy = Holding { has_frames: true, ..pages };
        assert_eq!(giver(busy, true), None, "all that may leave does so");
    }
}

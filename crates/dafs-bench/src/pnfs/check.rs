//! Checks that bytes took the path of an architecture.

use super::Architecture;
use super::engine::Counters;
use crate::link::Crossed;
use anyhow::{Result, ensure};

/// Values of the counters, in total or of a case.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) head: Crossed,
    pub(crate) storage: Vec<Crossed>,
    pub(crate) clients: Vec<Crossed>,
    pub(crate) counters: Counters,
}

impl Crossed {
    fn both(self) -> u64 {
        self.to_node + self.from_node
    }
}

impl Seen {
    pub(crate) fn since(&self, before: &Self) -> Self {
        let each = |now: &[Crossed], before: &[Crossed]| {
            now.iter().zip(before).map(|(now, before)| now.since(*before)).collect()
        };
        Self {
            head: self.head.since(before.head),
            storage: each(&self.storage, &before.storage),
            clients: each(&self.clients, &before.clients),
            counters: Counters {
                data: self.counters.data - before.counters.data,
                indirect: self.counters.indirect - before.counters.indirect,
            },
        }
    }

    /// Bytes that crossed the links of storage nodes, in total.
    pub(crate) fn crossed_storage(&self) -> u64 {
        self.storage.iter().map(|crossed| crossed.both()).sum()
    }

    /// Bytes that crossed the busiest link in one direction.
    pub(crate) fn busiest(&self) -> u64 {
        let links = self.storage.iter().chain(&self.clients).chain([&self.head]);
        links.map(|crossed| crossed.to_node.max(crossed.from_node)).max().unwrap_or(0)
    }

    /// Bytes that crossed the head's link.
    pub(crate) fn crossed_head(&self) -> u64 {
        self.head.both()
    }
}

/// The same for patterns of applications. `dafs-nfs-client` moves at most `bytes` of theirs past
/// the server. Some of these go to the server all the same: the first ones of a file, for which it
/// has no layout yet.
pub(crate) fn way_of_pattern(architecture: Architecture, bytes: u64, seen: &Seen) -> Result<()> {
    let Counters { data, indirect } = seen.counters;
    let passed = match architecture {
        Architecture::Direct => data >= bytes / 2 && indirect == 0,
        // No pattern runs by these layouts.
        Architecture::Native | Architecture::Own => true,
        Architecture::TwoTier => data >= bytes / 2 && indirect >= bytes / 6,
        Architecture::ThreeTier => data >= bytes / 2 && indirect >= bytes / 2,
        Architecture::Plain => data == 0 && seen.crossed_head() >= bytes,
    };
    ensure!(
        passed,
        "of {bytes} bytes {data} went to data servers, {indirect} of these a second way, which is not \
         the way of {}",
        architecture.name()
    );
    Ok(())
}

/// Checks the counters of a case that wrote or read `bytes`.
pub(crate) fn way(architecture: Architecture, bytes: u64, seen: &Seen) -> Result<()> {
    let (head, storage) = (seen.crossed_head(), seen.crossed_storage());
    let Counters { data, indirect } = seen.counters;
    // Allowance for headers, acknowledgements and metadata.
    let some = bytes / 4;
    let passed = match architecture {
        Architecture::Direct => {
            data >= bytes && indirect == 0 && storage < bytes + some && head < some
        }
        Architecture::Native | Architecture::Own => {
            storage >= bytes && storage < bytes + some && head < some
        }
        // Bytes that a data server fetches from or sends to another one cross both their links.
        Architecture::TwoTier => {
            data >= bytes && indirect >= bytes / 3 && storage >= bytes + 2 * indirect && head < some
        }
        Architecture::ThreeTier => {
            data >= bytes && indirect >= bytes && storage >= 3 * bytes && head < some
        }
        Architecture::Plain => data == 0 && head >= 2 * bytes && storage < bytes + some,
    };
    ensure!(
        passed,
        "of {bytes} bytes {data} went to data servers, {indirect} of these a second way; {head} \
         crossed the link of the head and {storage} those of storage nodes, which is not the way of {}",
        architecture.name()
    );
    Ok(())
}

//! Whether bytes went the way that an architecture says.

use super::Architecture;
use super::engine::Counters;
use super::network::Crossed;
use anyhow::{Result, ensure};

/// What counters say, of all time or of a case.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) head: Crossed,
    pub(crate) storage: Vec<Crossed>,
    pub(crate) clients: Vec<Crossed>,
    pub(crate) counters: Counters,
}

impl Crossed {
    fn since(self, before: Self) -> Self {
        Self {
            to_node: self.to_node - before.to_node,
            from_node: self.from_node - before.from_node,
        }
    }

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

    /// What crossed the links of storage nodes, in all.
    pub(crate) fn crossed_storage(&self) -> u64 {
        self.storage.iter().map(|crossed| crossed.both()).sum()
    }

    /// What crossed the busiest link of all in one direction.
    pub(crate) fn busiest(&self) -> u64 {
        let links = self.storage.iter().chain(&self.clients).chain([&self.head]);
        links.map(|crossed| crossed.to_node.max(crossed.from_node)).max().unwrap_or(0)
    }

    /// What crossed the head's.
    pub(crate) fn crossed_head(&self) -> u64 {
        self.head.both()
    }
}

/// The same for patterns of applications, of whose bytes `dafs-nfs-client` takes so many past the server.
/// Some of these go there all the same: the first of a file, for which it has not asked for a layout yet.
pub(crate) fn way_of_pattern(architecture: Architecture, bytes: u64, seen: &Seen) -> Result<()> {
    let Counters { data, indirect } = seen.counters;
    let passed = match architecture {
        Architecture::Direct => data >= bytes / 2 && indirect == 0,
        Architecture::Native => true,
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

/// Looks at what was counted while `bytes` were written or read.
pub(crate) fn way(architecture: Architecture, bytes: u64, seen: &Seen) -> Result<()> {
    let (head, storage) = (seen.crossed_head(), seen.crossed_storage());
    let Counters { data, indirect } = seen.counters;
    // What is not content: headers, acknowledgements, metadata.
    let some = bytes / 4;
    let passed = match architecture {
        Architecture::Direct => {
            data >= bytes && indirect == 0 && storage < bytes + some && head < some
        }
        Architecture::Native => storage >= bytes && storage < bytes + some && head < some,
        // What a data server has fetched from or brought to another one crosses both their links.
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

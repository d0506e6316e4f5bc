//! The plan that a seed decides: number of clients, faults of the network, speed of the store.

use crate::store::StoreFaults;
use dafs_dat::sim::{SimFaults, SimRng};
use dafs_wire::dafs::ByteOrder;
use std::str::FromStr;
use std::time::Duration;

/// The rate of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// Delays only.
    Calm,
    /// Drawn from the seed.
    #[default]
    Mixed,
    /// Nearly every connection breaks.
    Rough,
}

impl FromStr for Profile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "calm" => Ok(Self::Calm),
            "mixed" => Ok(Self::Mixed),
            "rough" => Ok(Self::Rough),
            _ => Err("use calm, mixed or rough".to_owned()),
        }
    }
}

impl std::fmt::Display for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Calm => "calm",
            Self::Mixed => "mixed",
            Self::Rough => "rough",
        })
    }
}

/// Deliberate bugs, to prove that the checks find them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Danger {
    /// The store forgets one write in this many. 0: none.
    pub forget_write_every: u32,
    /// The transport flips a bit in this many of a million pieces of RDMA payload.
    pub corrupt_ppm: u32,
    /// A bug of optimistic reads.
    pub exposure: ExposureDanger,
}

/// A deliberate bug of optimistic reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ExposureDanger {
    /// None.
    #[default]
    None,
    /// The server takes entries away long after it has changed the blocks.
    LateUnpublish,
    /// Clients check entries before they copy the blocks.
    EarlyCheck,
    /// The server goes on showing a file to a client that has closed it.
    GrantStays,
    /// The life page of a server that has ended says that it lives.
    UndyingLife,
}

impl ExposureDanger {
    /// All dangers but `None`, by name.
    pub const ALL: [(&'static str, Self); 4] = [
        ("late-unpublish", Self::LateUnpublish),
        ("early-check", Self::EarlyCheck),
        ("grant-stays", Self::GrantStays),
        ("undying-life", Self::UndyingLife),
    ];
}

impl std::fmt::Display for ExposureDanger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all = Self::ALL.iter().find(|(_, danger)| danger == self);
        f.write_str(all.map_or("none", |(name, _)| name))
    }
}

impl FromStr for ExposureDanger {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::None);
        }
        let known = Self::ALL.iter().find(|(name, _)| *name == text);
        known.map(|(_, danger)| *danger).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|(name, _)| *name).collect();
            format!("use one of {}", names.join(", "))
        })
    }
}

/// The options of a world.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorldOptions {
    /// The seed.
    pub seed: u64,
    /// The rate of faults.
    pub profile: Profile,
    /// Operations of each client; 0 draws the number from the seed.
    pub operations: u32,
    /// The clients are on the server's host and read from its memory, and the server ends now and
    /// then.
    pub optimistic: bool,
    /// With `optimistic`: the clients are on other hosts, and read by RDMA.
    pub remote: bool,
    /// With `optimistic`, not with `remote`: small files share memory of the server. Clients keep their
    /// places when they close them.
    pub small: bool,
    /// Prints every event.
    pub trace: bool,
    /// Deliberate bugs.
    pub danger: Danger,
}

impl WorldOptions {
    /// The command that runs this world with a trace.
    pub fn command(&self) -> String {
        let mut command = format!(
            "cargo run -q -p dafs-sim -- --trace --seed {} --faults {}",
            self.seed, self.profile
        );
        let numbers = [
            ("operations", self.operations),
            ("danger-forget-write-every", self.danger.forget_write_every),
            ("danger-corrupt-ppm", self.danger.corrupt_ppm),
        ];
        for (name, number) in numbers.into_iter().filter(|(_, number)| *number > 0) {
            command += &format!(" --{name} {number}");
        }
        if self.optimistic {
            command += " --optimistic";
        }
        if self.remote {
            command += " --remote";
        }
        if self.small {
            command += " --small";
        }
        if self.danger.exposure != ExposureDanger::None {
            command += &format!(" --danger-exposure {}", self.danger.exposure);
        }
        command
    }
}

/// One client.
#[derive(Debug, Clone)]
pub(crate) struct ActorPlan {
    pub(crate) operations: u32,
    /// Operations under way at a time.
    pub(crate) depth: usize,
    pub(crate) byte_order: ByteOrder,
    pub(crate) checksums: bool,
    pub(crate) requests: u16,
    pub(crate) requests_max: u16,
    pub(crate) inline_bytes: u32,
    pub(crate) inline_write_header_bytes: u32,
    pub(crate) always_direct: bool,
    pub(crate) deadline: Duration,
    pub(crate) uses_credential: bool,
    /// Steps of 10 microseconds between operations, at most.
    pub(crate) think_steps_max: u64,
    /// It reads from the server's memory.
    pub(crate) optimistic: bool,
    /// It does so by RDMA.
    pub(crate) remote: bool,
    /// It takes places of small files.
    pub(crate) small: bool,
    /// A bug of that.
    pub(crate) danger: ExposureDanger,
}

/// The decisions of a seed before the world starts.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) network: SimFaults,
    pub(crate) store: StoreFaults,
    pub(crate) actors: Vec<ActorPlan>,
    /// True if the transport maps memory, as shared memory does.
    pub(crate) maps_memory: bool,
    /// Mean time between faults of the whole world (partitions, pauses, ends of processes).
    pub(crate) trouble_every: Option<Duration>,
    /// Credits of the server for all sessions together. A small number makes it withdraw credits.
    pub(crate) credits_total_max: usize,
    pub(crate) credits_initial: u16,
}

impl Plan {
    pub(crate) fn draw(options: &WorldOptions, rng: &mut SimRng) -> Self {
        let network = network(options, rng);
        let some = |rng: &mut SimRng, ppm: u64| {
            if rng.chance(500_000) { rng.below(ppm) as u32 } else { 0 }
        };
        let store = StoreFaults {
            would_block_ppm: some(rng, 1_000_000),
            short_ppm: some(rng, 300_000),
            error_ppm: if options.profile == Profile::Calm { 0 } else { some(rng, 30_000) },
            danger_stale_every: 0,
            danger_forget_every: options.danger.forget_write_every,
        };
        let count = rng.between(1, 4);
        let maps_memory = rng.chance(300_000);
        let actors = (0..count).map(|_| actor(options, maps_memory, rng)).collect();
        let trouble = options.profile != Profile::Calm && rng.chance(600_000);
        let trouble_every = trouble.then(|| Duration::from_millis(rng.between(20, 2_000)));
        let tight = rng.chance(300_000);
        let mut plan = Self {
            network,
            store,
            actors,
            maps_memory,
            trouble_every,
            credits_total_max: if tight { rng.between(4, 24) as usize } else { 4096 },
            credits_initial: rng.between(1, 8) as u16,
        };
        if options.optimistic {
            plan.show_memory(options.remote);
        }
        plan
    }

    /// Leaves out what would leave little to optimistic reads.
    fn show_memory(&mut self, is_remote: bool) {
        self.store.would_block_ppm = self.store.would_block_ppm.min(200_000);
        // The server reads and writes memory of its clients on its host itself, as over shared memory.
        self.maps_memory |= !is_remote;
        // All clients are one user, who would soon have all of few credits.
        self.credits_total_max = 4096;
        // A session with checksums is shown nothing.
        self.actors.iter_mut().take(3).for_each(|actor| actor.checksums = false);
    }
}

fn network(options: &WorldOptions, rng: &mut SimRng) -> SimFaults {
    let rough = SimFaults::rough();
    let danger_corrupt_ppm = options.danger.corrupt_ppm;
    let mut part = |most: u32| rng.below(u64::from(most) + 1) as u32;
    let faults = match options.profile {
        Profile::Calm => SimFaults::none(),
        Profile::Rough => rough,
        Profile::Mixed => SimFaults {
            delay_steps_max: 1 + part(rough.delay_steps_max),
            slow_ppm: part(rough.slow_ppm),
            slow_steps_max: 1 + part(rough.slow_steps_max),
            piece_bytes_max: 512 << part(6),
            loss_ppm: part(1_000_000),
            loss_bytes_max: 1 << (10 + part(11)),
            notice_steps_max: 1 + part(rough.notice_steps_max),
            silent_ppm: part(rough.silent_ppm),
            silence: rough.silence / (1 + part(10)),
            refuse_ppm: part(rough.refuse_ppm),
            connect_loss_ppm: part(rough.connect_loss_ppm),
            danger_corrupt_ppm: 0,
        },
    };
    SimFaults { danger_corrupt_ppm, ..faults }
}

fn actor(options: &WorldOptions, maps_memory: bool, rng: &mut SimRng) -> ActorPlan {
    let drawn = rng.between(50, 600) as u32;
    let big = rng.chance(500_000);
    let padding = [0, 136, 256, 512][rng.below(4) as usize];
    ActorPlan {
        operations: if options.operations == 0 { drawn } else { options.operations },
        depth: rng.between(1, 8) as usize,
        byte_order: if big { ByteOrder::Big } else { ByteOrder::Little },
        checksums: rng.chance(400_000),
        requests: rng.between(1, 16) as u16,
        requests_max: rng.between(1, 16) as u16,
        inline_bytes: [0, 512, 4096, 8192][rng.below(4) as usize],
        inline_write_header_bytes: padding,
        always_direct: maps_memory && rng.chance(700_000),
        deadline: Duration::from_millis(rng.between(200, 8_000)),
        uses_credential: rng.chance(500_000),
        think_steps_max: [1, 50, 2_000][rng.below(3) as usize],
        optimistic: options.optimistic,
        remote: options.remote,
        small: options.small,
        danger: options.danger.exposure,
    }
}

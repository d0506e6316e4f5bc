//! The plan that a seed decides for a world of crashes: clients, their work, and a list of faults.
//!
//! Invariant: removing a client, operations or faults leaves the rest of the plan unchanged, so that
//! a failing world can be shrunk.

use dafs_dat::sim::{SimFaults, SimRng};
use dafs_service::durable::Durability;
use dafs_wire::dafs::ByteOrder;
use std::fmt;
use std::time::Duration;

/// Connections that are cut early, in millionths. A client that loses more has no connection in two
/// minutes on which its session recovers, and gives up as it promises.
const LOSS_PPM_MAX: u32 = 900_000;

/// Deliberate bugs, to prove that the checks find them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Danger {
    /// None.
    #[default]
    None,
    /// The disk reports names as stable before they are.
    LyingSync,
    /// The disk reports the journal as stable before it is.
    LyingJournal,
    /// The server keeps no durable replies, although its clients rely on them.
    Unkept,
    /// A restarted server has forgotten all persistent locks.
    ForgottenLock,
    /// A restarted server has forgotten all fences.
    ForgottenFence,
    /// The server ends leases long before their expiry, and grants their locks to others.
    ShortLease,
    /// Some appends go to the end of the file before the last append.
    StaleAppend,
    /// Only half of the data written in batches arrives.
    TornBatch,
    /// A client believes that it has cancelled a transfer which goes on.
    FalseCancel,
    /// A client goes on using its cache after it has returned the delegation.
    StaleCache,
    /// A client returns delegations before it has written back its cache.
    LostDirty,
    /// The disk reports undo logs as stable before they are.
    LyingUndo,
    /// A restarted server does not notice that the list of undo logs is missing.
    ForgottenList,
}

/// The options of a world.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CrashOptions {
    /// The seed.
    pub seed: u64,
    /// Most clients; `None` leaves the number to the seed.
    pub clients_max: Option<usize>,
    /// Most operations of each client.
    pub operations_max: Option<u32>,
    /// The faults of the plan that happen, by number; `None`: all.
    pub faults: Option<Vec<usize>>,
    /// The network delays and does nothing else.
    pub calm_network: bool,
    /// Prints every event.
    pub trace: bool,
    /// A deliberate bug.
    pub danger: Danger,
    /// One more end, at exactly this place.
    pub end: Option<EndAt>,
}

/// The place of an end, to try all places one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndAt {
    /// The server ends after this many persistent effects, counted from its start, with or without
    /// a power failure.
    Server(u64, bool),
    /// The first client ends after this many steps of the world.
    Client(u64),
}

impl CrashOptions {
    /// The command that runs this world with a trace.
    pub fn command(&self) -> String {
        let mut command =
            format!("cargo run -q -p dafs-sim -- --crashes --trace --seed {}", self.seed);
        if let Some(clients) = self.clients_max {
            command += &format!(" --clients {clients}");
        }
        if let Some(operations) = self.operations_max {
            command += &format!(" --operations {operations}");
        }
        if let Some(faults) = &self.faults {
            let numbers: Vec<String> = faults.iter().map(usize::to_string).collect();
            command += &format!(" --keep-faults '{}'", numbers.join(","));
        }
        if self.calm_network {
            command += " --calm-network";
        }
        match self.end {
            Some(EndAt::Server(effects, false)) => command += &format!(" --end-server {effects}"),
            Some(EndAt::Server(effects, true)) => command += &format!(" --cut-power {effects}"),
            Some(EndAt::Client(steps)) => command += &format!(" --end-client {steps}"),
            None => {}
        }
        if self.danger != Danger::None {
            command += &format!(" --danger {}", self.danger);
        }
        command
    }
}

impl fmt::Display for Danger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = Self::ALL.iter().find(|(_, danger)| danger == self);
        f.write_str(all.map_or("none", |(name, _)| name))
    }
}

impl Danger {
    /// All dangers but `None`, by name.
    pub const ALL: [(&'static str, Self); 13] = [
        ("lying-sync", Self::LyingSync),
        ("lying-journal", Self::LyingJournal),
        ("unkept", Self::Unkept),
        ("forgotten-lock", Self::ForgottenLock),
        ("forgotten-fence", Self::ForgottenFence),
        ("short-lease", Self::ShortLease),
        ("stale-append", Self::StaleAppend),
        ("torn-batch", Self::TornBatch),
        ("false-cancel", Self::FalseCancel),
        ("stale-cache", Self::StaleCache),
        ("lost-dirty", Self::LostDirty),
        ("lying-undo", Self::LyingUndo),
        ("forgotten-list", Self::ForgottenList),
    ];
}

impl std::str::FromStr for Danger {
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

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// The server ends after this many persistent effects, and restarts later, with or without a
    /// power failure.
    ServerEnds {
        after_effects: u64,
        power: bool,
        down: Duration,
        /// It ends again after this many effects of its new run, those of its start included.
        again: Option<u64>,
        /// A client loses its connection this long after the start.
        cut: Option<(usize, Duration)>,
        /// A client ends while the server is down.
        with: Option<usize>,
    },
    /// A client ends and starts again as a new instance.
    ClientEnds { client: usize },
    /// A partition between a client and the server.
    Partition { client: usize, lasts: Duration },
    /// The server pauses.
    ServerStalls { lasts: Duration },
    /// A client pauses.
    ClientStalls { client: usize, lasts: Duration },
    /// A client loses its connection.
    Cut { client: usize },
}

/// A fault, and the number of started operations at which it happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) at_operation: u64,
    pub(crate) kind: FaultKind,
}

#[derive(Debug, Clone)]
pub(crate) struct ClientPlan {
    pub(crate) operations: u32,
    pub(crate) depth: usize,
    pub(crate) byte_order: ByteOrder,
    pub(crate) checksums: bool,
    pub(crate) requests: u16,
    pub(crate) inline_bytes: u32,
    /// Steps of 10 microseconds between operations, at most.
    pub(crate) think_steps_max: u64,
    /// Names that it uses in each directory; few, so that they are used again.
    pub(crate) names: u8,
    pub(crate) seed: u64,
    /// It uses the fair variant of lock requests.
    pub(crate) waits: bool,
    /// Creates and closes files in chains.
    pub(crate) chains: bool,
    /// Reads and writes in batches.
    pub(crate) batches: bool,
    /// It shares files under delegations.
    pub(crate) boards: bool,
}

/// The decisions of a seed before the world starts.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) durability: Durability,
    pub(crate) network: SimFaults,
    pub(crate) would_block_ppm: u32,
    pub(crate) clients: Vec<ClientPlan>,
    /// With their numbers.
    pub(crate) faults: Vec<(usize, Fault)>,
    pub(crate) credits_initial: u16,
    pub(crate) network_seed: u64,
    pub(crate) server_seed: u64,
    pub(crate) store_seed: u64,
    pub(crate) order_seed: u64,
    pub(crate) disk_seed: u64,
}

impl Plan {
    pub(crate) fn draw(options: &CrashOptions) -> Self {
        let mut rng = SimRng::new(options.seed ^ 0x6372_6173);
        let mut part = rng.fork();
        let network = network(options, &mut part);
        let mut part = rng.fork();
        let durability = match part.below(10) {
            0..2 => Durability::Off,
            2..5 => Durability::Crash,
            _ => Durability::Power,
        };
        let would_block_ppm = if part.chance(500_000) { part.below(700_000) as u32 } else { 0 };
        let credits_initial = part.between(1, 8) as u16;
        let seeds = [(); 5].map(|()| part.bits());
        let mut part = rng.fork();
        let drawn = part.between(1, 3) as usize;
        let all: Vec<ClientPlan> = (0..drawn).map(|_| client(&mut part.fork())).collect();
        let total: u64 = all.iter().map(|client| u64::from(client.operations)).sum::<u64>() * 3 / 2;
        let mut part = rng.fork();
        let count = part.below(7) as usize;
        let faults = (0..count).map(|_| fault(&mut part.fork(), drawn, total, durability));
        let kept = |(number, fault): &(usize, Fault)| {
            let client = match fault.kind {
                FaultKind::ClientEnds { client }
                | FaultKind::Partition { client, .. }
                | FaultKind::ClientStalls { client, .. }
                | FaultKind::Cut { client }
                | FaultKind::ServerEnds { cut: Some((client, _)), .. }
                | FaultKind::ServerEnds { with: Some(client), .. } => client,
                _ => 0,
            };
            options.faults.as_ref().is_none_or(|kept| kept.contains(number))
                && client < options.clients_max.unwrap_or(usize::MAX)
        };
        let mut faults: Vec<_> = faults.enumerate().filter(kept).collect();
        faults.sort_by_key(|(number, fault)| (fault.at_operation, *number));
        let mut clients = all;
        clients.truncate(options.clients_max.unwrap_or(usize::MAX));
        for client in &mut clients {
            client.operations = client.operations.min(options.operations_max.unwrap_or(u32::MAX));
        }
        Self {
            durability,
            network,
            would_block_ppm,
            clients,
            faults,
            credits_initial,
            network_seed: seeds[0],
            server_seed: seeds[1],
            store_seed: seeds[2],
            order_seed: seeds[3],
            disk_seed: seeds[4],
        }
    }
}

fn network(options: &CrashOptions, rng: &mut SimRng) -> SimFaults {
    let rough = SimFaults::rough();
    let some = |rng: &mut SimRng, most: u32| {
        if rng.chance(400_000) { rng.below(u64::from(most) + 1) as u32 } else { 0 }
    };
    let faults = SimFaults {
        delay_steps_max: 1 + some(rng, rough.delay_steps_max),
        slow_ppm: some(rng, rough.slow_ppm),
        slow_steps_max: 1 + some(rng, rough.slow_steps_max),
        piece_bytes_max: 512 << rng.below(7),
        loss_ppm: some(rng, 1_000_000).min(LOSS_PPM_MAX),
        loss_bytes_max: 1 << rng.between(10, 18),
        notice_steps_max: 1 + some(rng, rough.notice_steps_max),
        silent_ppm: some(rng, rough.silent_ppm / 4),
        silence: rough.silence / 10,
        refuse_ppm: some(rng, rough.refuse_ppm),
        connect_loss_ppm: some(rng, rough.connect_loss_ppm / 2),
        danger_corrupt_ppm: 0,
    };
    if options.calm_network { SimFaults::none() } else { faults }
}

fn client(rng: &mut SimRng) -> ClientPlan {
    let big = rng.chance(500_000);
    ClientPlan {
        operations: rng.between(5, 40) as u32,
        depth: rng.between(1, 6) as usize,
        byte_order: if big { ByteOrder::Big } else { ByteOrder::Little },
        checksums: rng.chance(300_000),
        requests: rng.between(1, 8) as u16,
        inline_bytes: [0, 512, 4096][rng.below(3) as usize],
        think_steps_max: [1, 50, 2_000][rng.below(3) as usize],
        names: rng.between(2, 5) as u8,
        seed: rng.bits(),
        waits: rng.chance(300_000),
        chains: rng.chance(300_000),
        batches: rng.chance(400_000),
        boards: rng.chance(600_000),
    }
}

fn fault(rng: &mut SimRng, clients: usize, operations: u64, durability: Durability) -> Fault {
    let at_operation = rng.below(operations.max(1));
    let client = rng.below(clients as u64) as usize;
    let short = Duration::from_micros(10 * rng.log_below(20_000));
    let long = Duration::from_micros(10 * rng.log_below(1_200_000));
    let kind = match rng.below(100) {
        0..50 => FaultKind::ServerEnds {
            after_effects: rng.log_below(30),
            power: durability == Durability::Power && rng.chance(600_000),
            down: short + if rng.chance(100_000) { long } else { Duration::ZERO },
            again: rng.chance(300_000).then(|| rng.log_below(30)),
            cut: rng
                .chance(300_000)
                .then(|| (client, Duration::from_micros(10 * rng.log_below(3_000)))),
            with: rng.chance(250_000).then_some(client),
        },
        50..60 => FaultKind::ClientEnds { client },
        60..70 => FaultKind::Partition { client, lasts: long },
        70..77 => FaultKind::ServerStalls { lasts: short },
        77..85 => FaultKind::ClientStalls { client, lasts: short },
        _ => FaultKind::Cut { client },
    };
    Fault { at_operation, kind }
}

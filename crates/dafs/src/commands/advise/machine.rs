//! The constants of a machine: what a call and a byte cost, on local files and by each transport.
//!
//! Invariants
//! * A cost is a line: the time of a call, and of each byte. So a prediction never falls when calls,
//!   bytes, latency or the time of a byte grow.

use serde::{Deserialize, Serialize};

/// The sizes of the transfers through which the lines lead, in bytes.
pub(super) const SMALL_BYTES: usize = 4096;
/// See [`SMALL_BYTES`].
pub(super) const LARGE_BYTES: usize = 1 << 20;

/// The longest time of a constant, in seconds. A cache with a longer one is damaged.
const SECONDS_MAX: f64 = 1000.0;

/// The seconds of calls and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Line {
    pub(super) call_seconds: f64,
    pub(super) byte_seconds: f64,
}

impl Line {
    /// The line for transfers that take `small` and `large` seconds, of the two sizes.
    pub(super) fn through(small: f64, large: f64) -> Self {
        let byte_seconds = large / LARGE_BYTES as f64;
        Self { call_seconds: (small - byte_seconds * SMALL_BYTES as f64).max(0.0), byte_seconds }
    }

    pub(super) fn of(self, calls: f64, bytes: f64) -> f64 {
        calls * self.call_seconds + bytes * self.byte_seconds
    }
}

/// The cost of reads, or of writes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cost {
    pub(super) elapsed: Line,
    /// Processor time of the client.
    pub(super) cpu: Line,
}

/// A way to reach files, and its costs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Transport {
    /// As in URLs: tcp, iwarp, shm, verbs; "local" for files of this machine.
    pub(super) name: String,
    /// By NFS, not by DAFS.
    pub(super) nfs: bool,
    /// With `optimistic=yes`.
    pub(super) optimistic: bool,
    pub(super) read: Cost,
    pub(super) write: Cost,
    /// The time of a question about a name, and its processor time.
    pub(super) name_seconds: f64,
    pub(super) name_cpu_seconds: f64,
}

/// The machine and the link that constants belong to. Others must be measured anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Identity {
    pub(super) host: String,
    pub(super) kernel: String,
    pub(super) cpus: u32,
    /// The version of this command.
    pub(super) version: String,
    /// The URL of the server; empty for one on this machine that was started for the measurement.
    pub(super) server: String,
    /// The options of the command line that change costs.
    pub(super) options: String,
}

/// A transport that could not be measured, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Absent {
    pub(super) name: String,
    pub(super) why: String,
}

/// All constants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Machine {
    pub(super) identity: Identity,
    /// The time of the measurement, since 1970.
    pub(super) measured_unix_seconds: i64,
    /// Files of this machine whose data is in memory.
    pub(super) local: Transport,
    /// Making 4 KiB of a local file stable.
    pub(super) sync_seconds: f64,
    /// A byte that is copied in memory.
    pub(super) copy_byte_seconds: f64,
    /// Waking another thread, and being woken by it: what FUSE pays for a request.
    pub(super) crossing_seconds: f64,
    pub(super) transports: Vec<Transport>,
    pub(super) absent: Vec<Absent>,
}

impl Machine {
    /// True if every constant is a time. A cache may hold anything.
    pub(super) fn is_sound(&self) -> bool {
        let lines = [&self.local].into_iter().chain(&self.transports).flat_map(|transport| {
            let lines = [transport.read, transport.write].map(|cost| [cost.elapsed, cost.cpu]);
            let times = lines.as_flattened().iter().flat_map(|l| [l.call_seconds, l.byte_seconds]);
            let names = [transport.name_seconds, transport.name_cpu_seconds];
            times.chain(names).collect::<Vec<_>>()
        });
        let own = [self.sync_seconds, self.copy_byte_seconds, self.crossing_seconds];
        lines.chain(own).all(|time| (0.0..=SECONDS_MAX).contains(&time)) && self.identity.cpus > 0
    }
}

#[cfg(test)]
pub(super) mod recorded {
    //! The constants that docs/benchmarks.md records.

    use super::*;

    /// A transport by the microseconds of reads and writes, elapsed and of the processor: of 4 KiB
    /// and of 1 MiB. A question about a name is taken to cost what a small read does, and no row of
    /// the page whose work is known asks many.
    fn transport(name: &str, read: [[f64; 2]; 2], write: [[f64; 2]; 2]) -> Transport {
        let line = |[small, large]: [f64; 2]| Line::through(small / 1e6, large / 1e6);
        let cost = |[elapsed, cpu]: [[f64; 2]; 2]| Cost { elapsed: line(elapsed), cpu: line(cpu) };
        Transport {
            name: name.to_owned(),
            nfs: name == "tcp",
            optimistic: false,
            read: cost(read),
            write: cost(write),
            name_seconds: read[0][0] / 1e6,
            name_cpu_seconds: read[1][0] / 1e6,
        }
    }

    /// The table of fio at depth 1 with one CPU, and `memcpy` from that of the transports. A round trip of
    /// FUSE is the difference between the rows passthrough and local of 4 KiB direct reads.
    pub(in crate::commands::advise) fn machine() -> Machine {
        let write = [[15.9, 192.0], [10.5, 17.8]];
        let shm = transport("shm", [[9.2, 162.0], [4.5, 12.3]], write);
        let write = [[36.0, 540.0], [23.0, 260.0]];
        let iwarp = transport("iwarp", [[28.0, 545.0], [13.8, 236.0]], write);
        let write = [[45.0, 502.0], [12.1, 120.0]];
        let nfs = transport("tcp", [[38.0, 344.0], [13.1, 86.0]], write);
        let write = [[1.6, 180.0], [1.6, 178.0]];
        Machine {
            identity: Identity {
                host: "recorded".to_owned(),
                kernel: String::new(),
                cpus: 2,
                version: String::new(),
                server: String::new(),
                options: String::new(),
            },
            measured_unix_seconds: 0,
            local: transport("local", [[1.4, 167.0], [1.4, 163.0]], write),
            // None of the rows makes data stable.
            sync_seconds: 0.0,
            copy_byte_seconds: 34e-6 / LARGE_BYTES as f64,
            crossing_seconds: 21.5e-6,
            transports: vec![shm, iwarp, nfs],
            absent: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_leads_through_both_measurements_and_never_below_zero() {
        let line = Line::through(30e-6, 500e-6);
        let at = |bytes: usize| line.of(1.0, bytes as f64);
        assert!((at(SMALL_BYTES) - 30e-6).abs() < 1e-12 && at(LARGE_BYTES) >= 500e-6);
        let odd = Line::through(1e-6, 1.0);
        assert_eq!(odd.call_seconds, 0.0);
    }

    #[test]
    fn constants_that_are_no_times_are_not_sound() {
        let machine = recorded::machine();
        assert!(machine.is_sound());
        for wrong in [f64::NAN, -1.0, f64::INFINITY, 1e9] {
            let mut machine = machine.clone();
            machine.transports[1].write.cpu.byte_seconds = wrong;
            assert!(!machine.is_sound(), "{wrong}");
            let mut machine = recorded::machine();
            machine.crossing_seconds = wrong;
            assert!(!machine.is_sound(), "{wrong}");
        }
    }
}

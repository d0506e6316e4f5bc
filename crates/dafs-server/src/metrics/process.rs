//! The metrics of the process: the time of its threads on CPUs, its memory, its start.

use super::definition::Definition;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use rustix::time::{ClockId, clock_gettime};
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

const CPU: Definition = Definition::counter(
    "dafs_process_cpu_seconds_total",
    "Time that the threads of the server have used of CPUs",
);

const MEMORY: Definition = Definition::gauge(
    "dafs_process_resident_memory_bytes",
    "Memory of the server that is in RAM, shared memory included",
);

const START: Definition =
    Definition::gauge("dafs_process_start_time_seconds", "The start of the server, since 1970");

/// All of them.
#[cfg(test)]
pub(super) const ALL: [Definition; 3] = [CPU, MEMORY, START];

/// Writes the metrics of this process, which was started then.
pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, started: SystemTime) -> fmt::Result {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let cpu_seconds = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
    CPU.begin(encoder)?.encode_counter::<NoLabelSet, _, u64>(&cpu_seconds, None)?;
    let started = started.duration_since(UNIX_EPOCH).unwrap_or_default();
    START.begin(encoder)?.encode_gauge(&started.as_secs_f64())?;
    // A sandbox may hide the file. Then the metric is missing.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    match resident_bytes(&status) {
        Some(bytes) => MEMORY.begin(encoder)?.encode_gauge(&bytes),
        None => Ok(()),
    }
}

/// Returns the resident memory in the text of `/proc/self/status`, as proc_pid_status(5) describes it.
fn resident_bytes(status: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = value.strip_suffix(" kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_is_that_of_the_kernel() {
        let status = "Name:\tdafs\nVmHWM:\t    9000 kB\nVmRSS:\t    8192 kB\nThreads:\t3\n";
        assert_eq!(resident_bytes(status), Some(8 << 20));
        for other in ["", "VmRSS:\t8192", "VmRSS:\t18446744073709551615 kB"] {
            assert_eq!(resident_bytes(other), None, "{other}");
        }
        let own = std::fs::read_to_string("/proc/self/status").unwrap();
        assert!(resident_bytes(&own).is_some_and(|bytes| bytes > 1 << 20));
    }
}

//! Batches of small writes at random places, against the same writes one by one.
//!
//! The client's processor time counts: each write of a batch saves a message. Single writes are
//! measured both with one outstanding and with as many as the batch has; both are floors.

use super::{TRANSPORTS, folder};
use crate::files::{self, BATCH, Load};
use crate::report::{Case, Measure, Report};
use crate::targets::Target;
use crate::{Plan, cpu};
use anyhow::{Context, Result};

pub(super) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    for (wake, together) in [("adaptive", true), ("sleep", false)] {
        let mut rows = rows();
        rows.retain(|(case, ..)| case.name.contains(&plan.only) && wake.contains(&plan.wake));
        if rows.is_empty() {
            continue;
        }
        let folder = folder(plan)?;
        let export = files::prepare(folder.path())?;
        let server_cpu = if together || cpu::cpu_count() < 2 { 0 } else { 1 };
        cpu::pin(0)?;
        for _ in 0..plan.rounds {
            for (case, transport, load) in &mut rows {
                let sample = files::remote(plan, &export, server_cpu, wake, *transport, *load);
                case.samples.push(sample.with_context(|| case.name.clone())?);
            }
        }
        cpu::unpin()?;
        let place = if together { "both ends on one CPU" } else { "own CPUs" };
        let cases: Vec<Case> = rows.into_iter().map(|(case, ..)| case).collect();
        report.add(&format!("batches: {wake}, {place}; the ratio is client CPU"), &cases);
    }
    Ok(())
}

fn rows() -> Vec<(Case, dafs_client::TransportChoice, Load)> {
    let mut rows = Vec::new();
    for (medium, transport) in TRANSPORTS {
        let single = format!("{medium} write 4 KiB depth 1");
        let deep = format!("{medium} write 4 KiB depth {BATCH}");
        let batch = format!("{medium} write 4 KiB batch of {BATCH}");
        let measure = Measure::ClientCpu;
        let mut add = |name: &str, floor: Option<&str>, target, load| {
            let floor = floor.map(|floor| floor.to_owned().into());
            let case = Case { floor, measure, ..Case::new(name, None, target) };
            rows.push((case, transport, load));
        };
        add(&single, None, None, Load::Scattered { depth: 1, batch: false });
        add(&deep, Some(&single), None, Load::Scattered { depth: BATCH, batch: false });
        let load = Load::Scattered { depth: BATCH, batch: true };
        add(&batch, Some(&deep), Some(Target::ratio(0.50)), load);
    }
    rows
}

//! The verdict in words.

use super::machine::Machine;
use super::model::{Bound, Class, Prediction, Sign, Verdict, Way};
use super::observe::Observation;
use super::workload::{Transfers, Workload};
use indicatif::BinaryBytes;
use jiff::Timestamp;
use std::fmt::{self, Write};

/// Writes everything: the work, its class, the predictions and the advice.
pub(super) fn tell(
    name: &str,
    workload: &Workload,
    observed: Option<&Observation>,
    machine: &Machine,
    verdict: &Verdict,
) -> Result<String, fmt::Error> {
    let mut out = String::new();
    let to = &mut out;
    work(to, name, workload, observed)?;
    if let Some(class) = &verdict.class {
        class_of(to, workload, class)?;
    }
    constants(to, machine)?;
    predictions(to, &verdict.predictions)?;
    if !verdict.advice.is_empty() {
        writeln!(to, "\nadvice for dafs run and for programs of the library:")?;
    }
    for advice in &verdict.advice {
        let (mark, gain) = (if advice.set { "set" } else { "leave" }, advice.gain_seconds);
        writeln!(to, "  {mark:<6}{:<19}gains {gain:.3} s: {}", advice.option, advice.why)?;
        if advice.set {
            writeln!(to, "        {}", advice.setting)?;
        }
    }
    Ok(out)
}

fn work(
    to: &mut String,
    name: &str,
    workload: &Workload,
    observed: Option<&Observation>,
) -> fmt::Result {
    writeln!(to, "workload: {name}")?;
    if let Some(observed) = observed {
        let (seconds, cpu) = (observed.seconds, observed.cpu_seconds);
        writeln!(to, "  watched  {seconds:.3} s, {cpu:.3} s of processor time")?;
        writeln!(to, "  files    {}, processes {}", observed.files.len(), observed.processes)?;
    }
    moved(to, "reads", &workload.reads, true)?;
    moved(to, "writes", &workload.writes, false)?;
    writeln!(to, "  names    {}", workload.names)?;
    writeln!(to, "  syncs    {}", workload.syncs)?;
    let (outside, cpu) = (workload.outside_seconds.get(), workload.cpu_seconds.get());
    writeln!(to, "  outside  {outside:.3} s, {cpu:.3} s of processor time")?;
    writeln!(to, "  at once  {:.1}", workload.at_once.get())?;
    if workload.mapped_bytes > 0 {
        let bytes = BinaryBytes(workload.mapped_bytes);
        writeln!(to, "  mapped   {bytes}, whose reads and writes are not seen")?;
    }
    let Some(observed) = observed else { return Ok(()) };
    for file in observed.files.iter().take(FILES_SHOWN) {
        let (read, written) = (BinaryBytes(file.read_bytes), BinaryBytes(file.written_bytes));
        writeln!(
            to,
            "  file     {}: {} opens, {} reads ({read}), {} writes ({written}), {} syncs, {} at once",
            file.path, file.opens, file.reads, file.writes, file.syncs, file.most_at_once
        )?;
    }
    if observed.files.len() > FILES_SHOWN {
        writeln!(to, "  file     and {} others", observed.files.len() - FILES_SHOWN)?;
    }
    observed.remarks.iter().try_for_each(|remark| writeln!(to, "  note     {remark}"))
}

/// Files listed, those with the most bytes first.
const FILES_SHOWN: usize = 10;

fn moved(to: &mut String, name: &str, x: &Transfers, is_read: bool) -> fmt::Result {
    if x.calls == 0 {
        return writeln!(to, "  {name:<9}none");
    }
    let mean = BinaryBytes(x.mean_bytes() as u64);
    let per_cent = |share: f64| share * 100.0;
    let (in_order, aligned) = (per_cent(x.in_order.get()), per_cent(x.aligned.get()));
    write!(to, "  {name:<9}{} of {mean}, {in_order:.0} % in order, ", x.calls)?;
    if is_read {
        write!(to, "{:.0} % again, ", per_cent(x.again.get()))?;
    }
    writeln!(to, "{aligned:.0} % into aligned memory")
}

fn class_of(to: &mut String, workload: &Workload, class: &Class) -> fmt::Result {
    let (latency, bandwidth) = (class.latency_seconds, class.bandwidth_seconds);
    let by = &class.transport;
    let bound = match class.bound {
        Bound::Nothing => return writeln!(to, "\nit does nothing on files"),
        Bound::Own => "its own work: calls on files count little beside it",
        Bound::Latency => "latency: the number of its requests counts more than their bytes",
        Bound::Bandwidth => "bandwidth: its bytes count more than the number of its requests",
    };
    writeln!(to, "\nbound by {bound}")?;
    writeln!(
        to,
        "  one call at a time over {by}, answers take {latency:.3} s and bytes {bandwidth:.3} s"
    )?;
    let even = BinaryBytes(class.even_bytes as u64);
    writeln!(to, "  a read of {even} there takes as long for its answer as for its bytes")?;
    let waits = match class.waits_for_cpu {
        true => "the processor: it computes all the time outside of its calls",
        false => "something else than the processor, outside of its calls",
    };
    writeln!(to, "  it waits for {waits}")?;
    let structure = [
        ("in order", class.is_in_order, ["read-ahead gains little", "read-ahead can help"]),
        (
            "own cache",
            class.has_own_cache,
            ["it reads places again", "it seldom reads a place again"],
        ),
        ("own prefetch", class.has_own_prefetch, ["one call at a time", "several calls at once"]),
        ("aligned", class.is_aligned, ["memory at any place", "memory that begins at pages"]),
    ];
    for (name, yes, [without, with]) in structure {
        let (answer, why) = if yes { ("yes", with) } else { ("no", without) };
        writeln!(to, "  {name:<13}{answer:<4}{why}")?;
    }
    if workload.mapped_bytes > 0 {
        writeln!(
            to,
            "  mapped files are read by pages, which neither the counts nor the times have"
        )?;
    }
    Ok(())
}

fn constants(to: &mut String, machine: &Machine) -> fmt::Result {
    let when = Timestamp::from_second(machine.measured_unix_seconds).unwrap_or_default();
    let server = match machine.identity.server.as_str() {
        "" => "a server on this host",
        server => server,
    };
    writeln!(
        to,
        "\nconstants of this host and {server}, measured {when} (--measure does it again)"
    )?;
    writeln!(
        to,
        "  {:<18}{:>16}{:>16}{:>16}{:>16}",
        "", "read 4 KiB, us", "1 MiB, us", "write 4 KiB, us", "1 MiB, us"
    )?;
    for transport in [&machine.local].into_iter().chain(&machine.transports) {
        let name = label(&transport.name, transport.nfs, transport.optimistic);
        let [read, write] = [transport.read, transport.write]
            .map(|cost| [4096.0, 1_048_576.0].map(|bytes| cost.elapsed.of(1.0, bytes) * 1e6));
        writeln!(
            to,
            "  {name:<18}{:>16.1}{:>16.1}{:>16.1}{:>16.1}",
            read[0], read[1], write[0], write[1]
        )?;
    }
    for absent in &machine.absent {
        writeln!(to, "  {:<18}not measured: {}", absent.name, absent.why)?;
    }
    Ok(())
}

fn label(name: &str, is_nfs: bool, is_optimistic: bool) -> String {
    let protocol = if is_nfs { "nfs, " } else { "" };
    format!("{protocol}{name}{}", if is_optimistic { ", optimistic" } else { "" })
}

fn predictions(to: &mut String, predictions: &[Prediction]) -> fmt::Result {
    let local = predictions.first().map_or(0.0, |local| local.seconds);
    writeln!(to, "\npredictions{:>25}{:>12}{:>14}", "seconds", "x local", "CPU seconds")?;
    for prediction in predictions {
        let way = match prediction.way {
            Way::Local => "local files",
            Way::Nfs => "NFS mount",
            Way::Run => "dafs run",
            Way::Mount => "dafs mount",
            Way::Api => "library",
        };
        let name = match prediction.way {
            Way::Local => way.to_owned(),
            _ => format!("{way}, {}", label(&prediction.transport, false, prediction.optimistic)),
        };
        let ratio = if local > 0.0 { prediction.seconds / local } else { 1.0 };
        let sign = match prediction.against_local {
            Sign::Faster => "faster",
            Sign::Equal => "equal",
            Sign::Slower => "slower",
        };
        let (seconds, cpu) = (prediction.seconds, prediction.cpu_seconds);
        writeln!(to, "  {name:<26}{seconds:>8.3}{ratio:>12.2}{cpu:>14.3}  {sign}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::machine::recorded::machine;
    use super::super::model::Model;
    use super::*;

    fn told(text: &str) -> String {
        let (workload, machine) = (Workload::parse(text).unwrap(), machine());
        let verdict = Model { workload: &workload, machine: &machine }.judge();
        tell("test", &workload, None, &machine, &verdict).unwrap()
    }

    #[test]
    fn the_reasons_stand_beside_the_predictions() {
        let text = told(
            "outside_seconds = 1\ncpu_seconds = 1\n[reads]\ncalls = 100000\nbytes = 409600000\n",
        );
        for wanted in [
            "reads    100000 of 4.00 KiB, 0 % in order, 0 % again, 0 % into aligned memory",
            "writes   none",
            "bound by latency",
            "own cache    yes",
            "dafs run, shm",
            "dafs mount, iwarp",
            "NFS mount, tcp",
            "set   batch",
            "completion groups",
            "leave read-ahead",
        ] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
    }

    #[test]
    fn a_workload_without_files_gets_no_advice() {
        let text = told("outside_seconds = 1\n");
        assert!(
            text.contains("\nit does nothing on files") && !text.contains("bound by"),
            "{text}"
        );
        assert!(!text.contains("advice"), "{text}");
    }
}

//! Claims of the papers: each has a bound and the rows that it reads, from which its verdict follows.

use super::cells::{ALL_BLOCKS, Cell, Line, Network, Order, READ_AHEADS, Way};
use super::groups::Place;
use super::programs::trials::Series;
use super::results::{Quantity, Results};
use crate::targets::{Bound, Verdict};
use std::fmt;

/// A claim of a paper.
pub(crate) struct Claim {
    /// The paper and its figure, table or headline.
    pub(crate) id: &'static str,
    pub(crate) text: &'static str,
    /// The paper's value.
    pub(crate) paper: &'static str,
    pub(super) proof: Proof,
    /// The difference between the paper's systems and those of the rows, or the reason why there are
    /// no rows.
    pub(super) note: &'static str,
}

pub(super) enum Proof {
    Rows(Bound, Value),
    /// No experiment on such a machine can show it, or there is nothing to measure.
    NotHere,
}

/// The value of a claim. Along lines and series it is that of the block or step that is the furthest
/// from the bound.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value {
    Plain(Quantity, Line),
    /// A quantity of the first line relative to the second, block by block.
    Ratio(Quantity, Line, Line),
    /// The throughput relative to the link's rate.
    LinkShare(Line),
    /// The highest throughput of the first relative to that of the second.
    BestRatio(Best, Best),
    /// The block of the highest throughput, in KiB.
    BestBlock(Best),
    /// The number of reads under way at the highest throughput, relative to that of the second.
    BestDepthRatio(Best, Best),
    /// A quantity of programs.
    TrialPlain(Quantity, Series),
    /// A quantity of the programs of the first series relative to the second, step by step.
    TrialRatio(Quantity, Series, Series),
    /// A row of a group.
    GroupPlain(Place),
    /// The first row of a group relative to the second.
    GroupRatio(Place, Place),
}

/// The highest throughput of a way over blocks and read-aheads, in order.
#[derive(Debug, Clone, Copy)]
pub(super) struct Best {
    pub(super) network: Network,
    pub(super) way: Way,
}

/// A claim beside the results of a run.
pub(crate) struct Judged {
    pub(crate) value: Option<f64>,
    pub(crate) verdict: Verdict,
    pub(crate) reason: String,
}

/// From this share of a processor on, it and not the link may be the limit.
const BUSY_SHARE: f64 = 0.7;

impl Claim {
    pub(crate) fn judge(&self, results: &Results) -> Judged {
        let without = |verdict, reason: String| Judged { value: None, verdict, reason };
        let (bound, value) = match self.proof {
            Proof::Rows(bound, value) => (bound, value),
            Proof::NotHere => return without(Verdict::NotHere, self.note.to_owned()),
        };
        let values = match value.of(results) {
            Ok(values) => values,
            Err(reason) => return without(Verdict::NotHere, reason),
        };
        let further = |a: &f64, b: &f64| bound.excess(*a).total_cmp(&bound.excess(*b));
        let are_known = values.iter().all(|value| value.is_finite());
        let furthest = values.into_iter().max_by(further).filter(|_| are_known);
        let Some(furthest) = furthest else {
            return without(Verdict::NotHere, "nothing counts it".to_owned());
        };
        let verdict = bound.judge(furthest);
        let mut reason = value.to_string();
        let busy = value.busy_share(results).filter(|share| *share > BUSY_SHARE);
        if let Some(share) = busy {
            reason += &format!("; a processor is busy for {:.0} % of the time", share * 100.0);
        }
        if !self.note.is_empty() {
            reason += &format!("; {}", self.note);
        }
        Judged { value: Some(furthest), verdict, reason }
    }

    /// The bound in words.
    pub(crate) fn bound(&self) -> String {
        match self.proof {
            Proof::Rows(bound, _) => bound.to_string(),
            Proof::NotHere => String::new(),
        }
    }

    /// The cells that it reads.
    #[cfg(test)]
    pub(super) fn cells(&self) -> Vec<Cell> {
        let best = |best: Best| best.cells().collect::<Vec<_>>();
        match self.proof {
            Proof::NotHere => Vec::new(),
            Proof::Rows(_, value) => match value {
                Value::Plain(_, line) | Value::LinkShare(line) => line.cells().collect(),
                Value::Ratio(_, of, to) => of.cells().chain(to.cells()).collect(),
                Value::BestBlock(of) => best(of),
                Value::BestRatio(of, to) | Value::BestDepthRatio(of, to) => {
                    [best(of), best(to)].concat()
                }
                Value::TrialPlain(..) | Value::TrialRatio(..) => Vec::new(),
                Value::GroupPlain(..) | Value::GroupRatio(..) => Vec::new(),
            },
        }
    }
}

impl Best {
    fn cells(self) -> impl Iterator<Item = Cell> {
        let Self { network, way } = self;
        READ_AHEADS.into_iter().flat_map(move |depth| {
            Line { network, way, blocks: &ALL_BLOCKS, depth, order: Order::Sequential }.cells()
        })
    }

    /// The highest throughput in MB/s, and its cell.
    fn find(self, results: &Results) -> Result<(f64, Cell), String> {
        let each = self.cells().map(|cell| Ok((results.value(Quantity::Throughput, &cell)?, cell)));
        let all = each.collect::<Result<Vec<_>, String>>()?;
        let best = all.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
        best.ok_or_else(|| "there are no blocks".to_owned())
    }
}

impl fmt::Display for Best {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} at its best", self.network.name(), self.way.name())
    }
}

impl Value {
    fn of(self, results: &Results) -> Result<Vec<f64>, String> {
        match self {
            Self::Plain(quantity, line) => {
                line.cells().map(|cell| results.value(quantity, &cell)).collect()
            }
            Self::Ratio(quantity, of, to) => {
                let pairs = of.cells().zip(to.cells());
                pairs.map(|(of, to)| results.ratio(quantity, &of, &to)).collect()
            }
            Self::LinkShare(line) => {
                let rate = |cell| results.value(Quantity::Throughput, &cell);
                line.cells().map(|cell| Ok(rate(cell)? / results.link_megabytes())).collect()
            }
            Self::BestRatio(of, to) => Ok(vec![of.find(results)?.0 / to.find(results)?.0]),
            Self::BestBlock(of) => Ok(vec![of.find(results)?.1.block as f64 / 1024.0]),
            Self::BestDepthRatio(of, to) => {
                let depth = |best: Best| Ok::<_, String>(best.find(results)?.1.depth as f64);
                Ok(vec![depth(of)? / depth(to)?])
            }
            Self::TrialPlain(quantity, of) => {
                of.trials().map(|trial| results.programs.value(quantity, &trial)).collect()
            }
            Self::TrialRatio(quantity, of, to) => {
                let pairs = of.trials().zip(to.trials());
                pairs.map(|(of, to)| results.programs.ratio(quantity, &of, &to)).collect()
            }
            Self::GroupPlain(place) => Ok(vec![results.groups.value(place)?]),
            Self::GroupRatio(of, to) => {
                Ok(vec![results.groups.value(of)? / results.groups.value(to)?])
            }
        }
    }

    /// The greatest share of a processor, where a link should be the limit.
    fn busy_share(self, results: &Results) -> Option<f64> {
        let Self::LinkShare(line) = self else { return None };
        results.values(Quantity::BusierShare, line).into_iter().max_by(f64::total_cmp)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(quantity, line) => write!(f, "{}: {line}", quantity.unit()),
            Self::Ratio(quantity, of, to) => write!(f, "{}: {of} / {to}", quantity.unit()),
            Self::LinkShare(line) => write!(f, "MB/s: {line} / the link's rate"),
            Self::BestRatio(of, to) => write!(f, "MB/s: {of} / {to}"),
            Self::BestBlock(of) => write!(f, "KiB: {of}"),
            Self::BestDepthRatio(of, to) => write!(f, "reads under way: {of} / {to}"),
            Self::GroupPlain(place) => f.write_str(place.case),
            Self::GroupRatio(of, to) => write!(f, "{} / {}", of.case, to.case),
            Self::TrialPlain(quantity, of) => write!(f, "{}: {of}", quantity.unit()),
            Self::TrialRatio(quantity, of, to) => write!(f, "{}: {of} / {to}", quantity.unit()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::list;
    use super::super::programs::trials::{self, Door, Work};
    use super::super::results::{Skipped, tests::run};
    use super::*;

    const IWARP: Line = Line {
        network: Network::Link,
        way: Way::DafsIwarp,
        blocks: &[4 << 10, 16 << 10],
        depth: 1,
        order: Order::Random,
    };

    fn claim(bound: Bound, value: Value) -> Claim {
        let proof = Proof::Rows(bound, value);
        Claim { id: "P0-F4", text: "a claim", paper: "5", proof, note: "a difference" }
    }

    #[test]
    fn a_verdict_follows_from_the_block_that_is_the_furthest_from_the_bound() {
        let nfs = Line { way: Way::NfsTcp, ..IWARP };
        let results = run(|cell| match (cell.way, cell.block) {
            (Way::NfsTcp, 4096) => 600,
            (Way::NfsTcp, _) => 300,
            _ => 100,
        });
        let ratio = Value::Ratio(Quantity::ClientCpu, nfs, IWARP);
        let judge = |bound| claim(bound, ratio).judge(&results);
        for (bound, verdict, value) in [
            (Bound::AtLeast(5.0), Verdict::NotMet, 3.0),
            (Bound::AtLeast(2.5), Verdict::Met, 3.0),
            (Bound::AtMost(5.0), Verdict::NotMet, 6.0),
            (Bound::Within(2.7, 6.5), Verdict::Met, 3.0),
        ] {
            let judged = judge(bound);
            assert_eq!(judged.verdict, verdict, "{bound}");
            let found = judged.value.expect("a value");
            assert!((found - value).abs() < 1e-9, "{bound}: {found}");
            assert!(judged.reason.contains("link nfs-tcp 4 KiB to 16 KiB"), "{}", judged.reason);
            assert!(judged.reason.ends_with("a difference"), "{}", judged.reason);
        }
    }

    #[test]
    fn a_claim_without_rows_is_neither_met_nor_missed() {
        let mut results = run(|_| 100);
        results.rows.retain(|row| row.cell.network != Network::Link);
        let claim = claim(Bound::AtLeast(0.0), Value::LinkShare(IWARP));
        let judged = claim.judge(&results);
        assert_eq!((judged.verdict, judged.value), (Verdict::NotHere, None));
        let reason = "there is no tc; run: scripts/setup.sh bench".to_owned();
        results.skipped.push(Skipped {
            network: Some(Network::Link),
            way: None,
            cell: None,
            reason,
        });
        let judged = claim.judge(&results);
        assert_eq!(judged.verdict, Verdict::NotHere);
        assert!(judged.reason.starts_with("there is no tc"), "{}", judged.reason);
    }

    #[test]
    fn a_counter_that_is_unknown_proves_nothing() {
        let mut results = run(|_| 100);
        let samples = results.rows.iter_mut().flat_map(|row| &mut row.samples);
        samples.for_each(|sample| sample.copied_bytes = None);
        let value = Value::Plain(Quantity::Copies, IWARP);
        let claim = claim(Bound::AtMost(0.1), value);
        assert_eq!(claim.judge(&results).verdict, Verdict::NotHere);
        // Nor does a line of which one block is known.
        let row = results.rows.iter_mut().find(|row| IWARP.cells().next() == Some(row.cell));
        let samples = &mut row.expect("a row").samples;
        samples.iter_mut().for_each(|sample| sample.copied_bytes = Some(0));
        assert_eq!(claim.judge(&results).verdict, Verdict::NotHere);
    }

    #[test]
    fn the_best_is_found_over_blocks_and_read_aheads() {
        let results = run(|cell| {
            let best = if cell.way == Way::Prepost { (64 << 10, 5) } else { (256 << 10, 9) };
            let bytes = cell.block as u64;
            if (cell.block, cell.depth) == best { bytes } else { 3 * bytes }
        });
        let best = |way| Best { network: Network::Free, way };
        let (rdma, tcp) = (best(Way::NocopyIwarp), best(Way::Prepost));
        let value = |value: Value| value.of(&results).expect("rows")[0];
        assert!((value(Value::BestBlock(tcp)) - 64.0).abs() < 1e-9);
        assert!((value(Value::BestRatio(rdma, tcp)) - 1.0).abs() < 1e-9);
        assert!((value(Value::BestDepthRatio(rdma, tcp)) - 1.8).abs() < 1e-9);
    }

    #[test]
    fn programs_that_did_not_run_decide_nothing() {
        let series =
            |door| Series { work: Work::Sizes, steps: &[270], network: Network::Link, door };
        let value = Value::TrialRatio(Quantity::Elapsed, series(Door::Mount), series(Door::Run));
        let claim = claim(Bound::AtLeast(1.0), value);
        let mut results = run(|_| 100);
        assert_eq!(claim.judge(&results).verdict, Verdict::Met);
        results.programs.rows.retain(|row| row.trial.door != Door::Mount);
        let judged = claim.judge(&results);
        assert_eq!((judged.verdict, judged.value), (Verdict::NotHere, None));
        assert_eq!(judged.reason, "its programs did not run");
    }

    #[test]
    fn every_row_that_a_claim_reads_is_measured_for_its_experiment() {
        for claim in list::claims() {
            let measured = super::super::cells::wanted(&[claim.id.to_owned()], &[]);
            for cell in claim.cells() {
                assert!(measured.contains(&cell), "{}: {cell:?}", claim.id);
            }
            let Proof::Rows(bound, value) = claim.proof else {
                assert!(!claim.note.is_empty(), "{}: no reason", claim.id);
                continue;
            };
            match value {
                Value::Ratio(_, of, to) => {
                    assert_eq!(of.blocks.len(), to.blocks.len(), "{}: {value}", claim.id);
                }
                Value::GroupPlain(place) => {
                    assert!(place.group.has(claim.id), "{}: {value}", claim.id);
                }
                Value::GroupRatio(of, to) => {
                    let all_have = [of, to].iter().all(|place| place.group.has(claim.id));
                    assert!(all_have, "{}: {value}", claim.id);
                }
                Value::TrialPlain(_, of) => {
                    let run = trials::wanted(&[claim.id.to_owned()]);
                    assert!(of.trials().all(|trial| run.contains(&trial)), "{}: {value}", claim.id);
                }
                Value::TrialRatio(_, of, to) => {
                    assert_eq!(of.steps.len(), to.steps.len(), "{}: {value}", claim.id);
                    let run = trials::wanted(&[claim.id.to_owned()]);
                    let mut trials = of.trials().chain(to.trials());
                    assert!(trials.all(|trial| run.contains(&trial)), "{}: {value}", claim.id);
                }
                _ => {}
            }
            assert!(bound.excess(f64::INFINITY).max(bound.excess(f64::NEG_INFINITY)) > 0.0);
        }
    }

    #[test]
    fn every_experiment_has_a_claim() {
        const IDS: &str = "P0-F1 P0-F2 P0-F3 P0-F4 P0-F5 P0-F6 P0-F7 P0-F8 P0-H1 P0-H2 P0-H3 \
            P1-F1 P1-F2 P1-F3 P1-T1 P1-T2 P1-T3 P1-T4 P1-H1 P1-H2 \
            P2-T1 P2-F1 P2-F2 P2-F3 P2-F4 P2-F5 P2-F6 P2-F7 P2-F8 P2-F9 P2-F10 P2-F11 P2-F12 P2-S6 \
            P3-F1 P3-F2 P3-F3 P3-F4 P3-F5 P3-F6 P3-F7 P3-F8 P3-F9 P3-F10 P3-F11 P3-F12 P3-F13 \
            P3-F14 P3-F15 P3-F16 P3-F17 P3-F18 P3-H1 P3-H2 P3-H3 \
            P4-F1 P4-F2 P4-F3 P4-F4 P4-F5 P4-F6a P4-F6b P4-F6c P4-F6d P4-F6e P4-F7a P4-F7b P4-F7c \
            P4-F7d P4-F8a P4-F8b P4-F8c P4-F8d P4-H1";
        for id in IDS.split_whitespace() {
            assert!(list::claims().any(|claim| claim.id == id), "{id}");
        }
        let unknown = list::claims().find(|claim| !IDS.split(' ').any(|id| id == claim.id));
        assert_eq!(unknown.map(|claim| claim.id), None);
    }
}

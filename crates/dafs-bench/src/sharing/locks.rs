//! Pairs of LOCK and unlock, against NFSv4.1 through NFS-Ganesha.
//!
//! All clients of a case use one file, each a range of its own: this measures the cost of a lock,
//! not contention. Our NFS side is measured with the same client as Ganesha.
//!
//! Invariants
//! * Both servers run the whole time, on the same file system and on the same CPU.

use super::clients::together;
use super::{MANY, Site, TRANSPORTS, folder};
use crate::peer::{self, Ganesha};
use crate::report::{Case, Report, Sample};
use crate::targets::Target;
use crate::{Plan, cpu, nfs4};
use anyhow::{Context, Result, bail, ensure};
use dafs_client::{LockRange, OpenOptions, TransportChoice};
use dafs_nfs_client::{Locked, connect, patiently};
use dafs_wire::nfs4::LockType;
use std::net::SocketAddr;

/// Bytes of a client's range.
const RANGE_BYTES: u64 = 4096;

const FILE: &str = "locked";

#[derive(Debug, Clone, Copy)]
enum Side {
    Ganesha,
    /// Our own server by NFSv4.1.
    Nfs,
    Dafs {
        transport: TransportChoice,
        persist: bool,
    },
}

struct Row {
    case: Case,
    side: Side,
    clients: usize,
}

pub(super) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    if rows(plan).is_empty() {
        return Ok(());
    }
    if let Some(reason) = peer::missing(None) {
        report.skip("locks", &reason);
        return Ok(());
    }
    peer::in_own_network(|| {
        for (name, together) in [("both ends on one CPU", true), ("own CPUs", false)] {
            let server_cpu = if together || cpu::cpu_count() < 2 { 0 } else { 1 };
            let cases = inside(plan, server_cpu)?;
            report.add(&format!("locks, {name}"), &cases);
        }
        Ok(())
    })
}

fn rows(plan: &Plan) -> Vec<Row> {
    let mut rows = Vec::new();
    for clients in [1, MANY] {
        let mut add = |name: &str, floor: Option<&str>, target, side| {
            let name = format!("{name}, {clients}");
            let floor = floor.map(|floor| format!("{floor}, {clients}").into());
            let case = Case { floor, ..Case::new(name, None, target) };
            rows.push(Row { case, side, clients });
        };
        let peer = "ganesha NFSv4.1 lock pair";
        let target = Some(Target::ratio(0.33));
        add(peer, None, None, Side::Ganesha);
        add("dafs NFSv4.1 lock pair", Some(peer), None, Side::Nfs);
        for (medium, transport) in TRANSPORTS {
            let side = |persist| Side::Dafs { transport, persist };
            add(&format!("{medium} lock pair"), Some(peer), target, side(false));
            add(&format!("{medium} persistent lock pair"), Some(peer), None, side(true));
        }
    }
    rows.retain(|row| row.case.name.contains(&plan.only));
    rows
}

fn inside(plan: &Plan, server_cpu: usize) -> Result<Vec<Case>> {
    let folder = folder(plan)?;
    let site = Site::start(folder.path(), "export", "off", Some(server_cpu))?;
    let file = std::fs::File::create(site.export.join(FILE))?;
    file.set_len(RANGE_BYTES * MANY as u64)?;
    let ganesha = Ganesha::start(&site.export, folder.path(), server_cpu)?;
    cpu::pin(0)?;
    let nfs = site.server.nfs_address()?;
    let mut rows = rows(plan);
    for _ in 0..plan.rounds {
        for Row { case, side, clients } in &mut rows {
            let sample = match *side {
                Side::Ganesha => {
                    let address = (std::net::Ipv4Addr::LOCALHOST, Ganesha::PORT).into();
                    by_nfs(plan, address, ganesha.id(), "export", *clients)
                }
                Side::Nfs => by_nfs(plan, nfs, site.pid(), "", *clients),
                Side::Dafs { transport, persist } => {
                    by_dafs(plan, &site, transport, persist, *clients)
                }
            };
            case.samples.push(sample.with_context(|| case.name.clone())?);
        }
    }
    cpu::unpin()?;
    Ok(rows.into_iter().map(|row| row.case).collect())
}

fn by_dafs(
    plan: &Plan,
    site: &Site,
    transport: TransportChoice,
    persist: bool,
    clients: usize,
) -> Result<Sample> {
    together(plan, clients, Some(site.pid()), |number| {
        let client = site.connect(transport)?;
        let file = client.open(format!("/{FILE}").as_bytes(), &OpenOptions::read_write())?;
        let offset = number as u64 * RANGE_BYTES;
        let range = LockRange::exclusive().bytes(offset, RANGE_BYTES).persist(persist);
        Ok(move |_| {
            file.try_lock(&range)?;
            Ok(file.unlock(offset, RANGE_BYTES)?)
        })
    })
}

fn by_nfs(plan: &Plan, server: SocketAddr, pid: u32, path: &str, clients: usize) -> Result<Sample> {
    together(plan, clients, Some(pid), |number| {
        let session = patiently(|| connect(server, &nfs4::options(number)))?;
        let directory = session.lookup_path(path)?;
        let options = dafs_nfs_client::OpenOptions::default();
        let file = patiently(|| session.open(&directory, FILE.as_bytes(), &options))?;
        let range = dafs_nfs_client::LockRange {
            kind: LockType::Write,
            offset: number as u64 * RANGE_BYTES,
            length: RANGE_BYTES,
        };
        let held = |locked| match locked {
            Locked::Held(stateid) => Ok(stateid),
            Locked::Denied { .. } => bail!("somebody else holds the lock"),
        };
        // The first lock of an owner is a different request from later ones.
        let owner = format!("owner {number}");
        let mut stateid = held(session.lock(&file, owner.as_bytes(), range)?)?;
        stateid = session.unlock(&file.handle, stateid, range)?;
        Ok(move |_| {
            let locked = held(session.lock_more(&file.handle, stateid, range)?)?;
            stateid = session.unlock(&file.handle, locked, range)?;
            ensure!(stateid.other == locked.other, "the locks changed their name");
            Ok(())
        })
    })
}

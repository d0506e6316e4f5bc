//! The layouts of files, for administrators.

use super::administration::Administration;
use crate::admin::LayoutReport;
use dafs_service::{Export, Namespace};
use dafs_store::{
    CopyState, Cred, DeviceKey, FileId, Kind, Layouts, NfsAddresses, Packing, Placement, Spread,
    StoreError,
};
use std::sync::Arc;

impl Administration {
    /// Returns the layout of a file, by its path for clients. The text of an error says how to
    /// correct it.
    pub(super) fn layout(&self, path: &str) -> Result<LayoutReport, String> {
        let failed = |error: StoreError| format!("{path}: {error}");
        let names: Vec<_> = path.split('/').filter(|name| !name.is_empty()).collect();
        let (export, names) = export(&self.service.namespace(), &names)
            .ok_or_else(|| format!("{path}: no export is called so; begin with /EXPORT/"))?;
        let store = export.store();
        let file = lookup(&export, names).map_err(failed)?;
        let attr = store.getattr(&file).map_err(failed)?;
        if attr.kind != Kind::Regular {
            return Err(format!("{path} is no file with content"));
        }
        let mut report = LayoutReport { size_bytes: attr.size, ..LayoutReport::default() };
        let layouts = store.layouts();
        let copies = layouts.map(|layouts| layouts.copies(&file)).transpose().map_err(failed)?;
        let copies = copies.unwrap_or_default();
        if !copies.is_empty() {
            list(&copies, &mut report);
        } else if let Some(layouts) = layouts
            && let Some(placement) = layouts.placement(&file, false).map_err(failed)?
        {
            describe(layouts, &placement, &mut report);
        }
        Ok(report)
    }
}

/// Returns the export that a path leads to, and the names below it.
fn export<'a, 'n>(
    namespace: &Namespace,
    names: &'a [&'n str],
) -> Option<(Arc<Export>, &'a [&'n str])> {
    let named = |name: &str| namespace.exports().find(|export| export.name() == name).cloned();
    // A single export without a name is the root.
    if let Some(export) = named("") {
        return Some((export, names));
    }
    let (first, rest) = names.split_first()?;
    Some((named(first)?, rest))
}

fn lookup(export: &Export, names: &[&str]) -> Result<FileId, StoreError> {
    let (store, server) = (export.store(), Cred::new(0, 0));
    let root = store.root();
    names.iter().try_fold(root, |dir, name| match *name {
        "." | ".." => Err(StoreError::Invalid),
        name => store.lookup(&server, &dir, name.as_bytes()).map(|(id, _)| id),
    })
}

fn list(copies: &[CopyState], report: &mut LayoutReport) {
    report.form = "copies".to_owned();
    for (copy, number) in copies.iter().zip(0..) {
        let addresses = copy.addresses.iter().map(ToString::to_string).collect();
        report.servers.push(addresses);
        if !copy.fresh {
            report.stale.push(number);
        }
    }
}

fn describe(layouts: &dyn Layouts, placement: &Placement, report: &mut LayoutReport) {
    let servers = |key: &DeviceKey| {
        let device = layouts.device(key)?;
        let text = |server: &NfsAddresses| server.tcp.iter().map(ToString::to_string).collect();
        Some((device.servers.iter().map(text).collect::<Vec<_>>(), device.pattern))
    };
    match &placement.spread {
        Spread::Stripes(stripes) => {
            report.form = "stripes".to_owned();
            report.unit_bytes = stripes.unit_bytes.get();
            report.first_place = stripes.first_place;
            report.dense = stripes.packing == Packing::Dense;
            (report.servers, report.pattern) = servers(&stripes.device).unwrap_or_default();
        }
        Spread::Copies(copies) => {
            report.form = "copies".to_owned();
            let all = copies.iter().filter_map(|copy| servers(&copy.device));
            report.servers = all.flat_map(|(servers, _)| servers).collect();
        }
    }
}

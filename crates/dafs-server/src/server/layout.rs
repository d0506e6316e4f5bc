//! The layouts of files, for administrators, and the repair of their copies.

use super::administration::Administration;
use crate::admin::{LayoutReport, NodeReport};
use dafs_service::{Export, Namespace};
use dafs_store::{
    Attr, CopyState, Cred, DeviceKey, FileId, Kind, Layouts, NfsAddresses, Packing, Placement,
    Spread, StoreError,
};
use std::sync::Arc;

impl Administration {
    /// Returns the layout of a file, by its path for clients. The text of an error says how to
    /// correct it.
    pub(super) fn layout(&self, path: &str) -> Result<LayoutReport, String> {
        let failed = |error: StoreError| format!("{path}: {error}");
        let (export, file, attr) = self.find(path)?;
        let store = export.store();
        let mut report = LayoutReport { size_bytes: attr.size, ..LayoutReport::default() };
        let layouts = store.layouts();
        let nodes = layouts.map(|layouts| layouts.nodes(&file)).transpose().map_err(failed)?;
        report.nodes = nodes.unwrap_or_default();
        report.missing = self.missing(export.name(), &report.nodes);
        let copies = layouts.map(|layouts| layouts.copies(&file)).transpose().map_err(failed)?;
        let copies = copies.unwrap_or_default();
        if !copies.is_empty() {
            list(&copies, &mut report);
        } else if let Some(layouts) = layouts {
            match layouts.placement(&file, false) {
                Ok(Some(placement)) => describe(layouts, &placement, &mut report),
                Ok(None) => {}
                // The missing nodes are the reason.
                Err(_) if !report.missing.is_empty() => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(report)
    }

    /// Returns those of these nodes of an export that cannot be used now, in words.
    fn missing(&self, export: &str, numbers: &[u32]) -> Vec<String> {
        if numbers.is_empty() {
            return Vec::new();
        }
        let Ok((name, store)) = self.with_data_servers(Some(export)) else { return Vec::new() };
        let nodes = store.nodes(&name);
        let missing = |node: &&NodeReport| !node.connected && numbers.contains(&node.number);
        nodes.iter().filter(missing).map(in_words).collect()
    }

    /// Makes all copies of a file like the one on a node. Returns a text for the administrator.
    pub(super) fn repair(&self, path: &str, node: u32) -> Result<String, String> {
        let (export, file, _) = self.find(path)?;
        let (_, store) = self.with_data_servers(Some(export.name()))?;
        store.repair(&file, node).map_err(|error| format!("{path}: {error}"))?;
        Ok(format!("all copies of {path} are made like the one on node {node}"))
    }

    /// Finds a regular file by its path for clients. The text of an error says how to correct it.
    fn find(&self, path: &str) -> Result<(Arc<Export>, FileId, Attr), String> {
        let failed = |error: StoreError| format!("{path}: {error}");
        let names: Vec<_> = path.split('/').filter(|name| !name.is_empty()).collect();
        let (export, names) = export(&self.service.namespace(), &names)
            .ok_or_else(|| format!("{path}: no export is called so; begin with /EXPORT/"))?;
        let file = lookup(&export, names).map_err(failed)?;
        let attr = export.store().getattr(&file).map_err(failed)?;
        match attr.kind {
            Kind::Regular => Ok((export, file, attr)),
            _ => Err(format!("{path} is no file with content")),
        }
    }
}

/// Returns a node that cannot be used, with its place and the reason.
fn in_words(node: &NodeReport) -> String {
    let reason = if node.trouble.is_empty() { "it is missing" } else { &*node.trouble };
    format!("node {} at {}: {reason}", node.number, node.place)
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

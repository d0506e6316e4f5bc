//! Locks, for administrators.

use super::administration::Administration;
use crate::admin::LockReport;
use crate::limits::LOCKS_SHOWN_MAX;
use dafs_service::{LockInfo, LockKind, LockStatus};

impl Administration {
    /// Returns the locks of all clients, and those that they have left behind.
    pub(super) fn locks(&self) -> Vec<LockReport> {
        let infos = self.service.locks.info(LOCKS_SHOWN_MAX, dafs_dat::Instant::now().0);
        let report = |info: &LockInfo| {
            let state = match info.status {
                LockStatus::Held => "held",
                LockStatus::Breakable => "breakable",
                LockStatus::Broken => "broken",
                LockStatus::Undone => "undone",
            };
            let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
            LockReport {
                state: state.to_owned(),
                file: self.place(&info.handle),
                offset: info.offset,
                length: (info.length != u64::MAX).then_some(info.length),
                exclusive: info.kind == LockKind::Write,
                persist: info.persist,
                repair: info.repair,
                auto_recover: info.autorecover,
                trouble: info.trouble.clone(),
                client: info.holder.client.0,
                name: text(&info.holder.name),
                owner: text(&info.holder.owner),
            }
        };
        infos.iter().map(report).collect()
    }
}

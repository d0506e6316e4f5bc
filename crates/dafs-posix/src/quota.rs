//! The kernel's quotas of the export's file system (`quotactl(2)`).
//!
//! The kernel enforces quotas by itself, because threads work with the ids of their callers and
//! without CAP_SYS_RESOURCE. The server reads quotas only to tell users of them.
//!
//! Invariants
//! * A file system without quotas, and a server that may not read those of its callers, are no
//!   errors: the export has no quotas then.

use super::ident::Identity;
use super::sys::{self, QuotaOf};
use dafs_store::Quota;
use rustix::io::{Errno, Result as SysResult};
use std::os::fd::BorrowedFd;

/// The unit of the kernel's limits, in bytes (QIF_DQBLKSIZE).
const LIMIT_UNIT_BYTES: u64 = 1024;

/// An ordinary user. Only CAP_SYS_ADMIN lets root read its quota.
const ORDINARY_USER: u32 = 65_534;

/// The quotas that the server may read, found out when the export is opened.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quotas {
    users: bool,
    /// The project of the exported directory, if what is made below belongs to it.
    project: Option<u32>,
}

impl Quotas {
    /// Examines the exported directory. `root` is open for reading.
    pub(super) fn find_out(root: BorrowedFd<'_>, identity: Identity) -> Self {
        let user = acting_user(identity, ORDINARY_USER);
        let users = read(root, QuotaOf::User(user)).is_ok();
        let project = sys::project(root)
            .ok()
            .flatten()
            .filter(|project| read(root, QuotaOf::Project(*project)).is_ok());
        Self { users, project }
    }

    /// True if there is a quota to read.
    pub(super) fn can_be_read(&self) -> bool {
        self.users || self.project.is_some()
    }

    /// Returns the quota with the fewest bytes left: that of the user, or that of the project. A
    /// quota that was turned off since the start counts as none.
    pub(super) fn of(&self, root: BorrowedFd<'_>, identity: Identity, uid: u32) -> Quota {
        let user = self.users.then(|| QuotaOf::User(acting_user(identity, uid)));
        let project = self.project.map(QuotaOf::Project);
        let found = [user, project].into_iter().flatten().filter_map(|of| read(root, of).ok());
        tightest(found).unwrap_or_default()
    }
}

/// The user to whom the kernel charges what a caller writes.
fn acting_user(identity: Identity, uid: u32) -> u32 {
    if identity.switches() { uid } else { rustix::process::geteuid().as_raw() }
}

/// Reads one quota.
fn read(root: BorrowedFd<'_>, of: QuotaOf) -> SysResult<Quota> {
    let limit = |blocks: u64| (blocks != 0).then(|| blocks.saturating_mul(LIMIT_UNIT_BYTES));
    match sys::quota(root, of) {
        Ok(block) => Ok(Quota {
            used: block.dqb_curspace,
            soft: limit(block.dqb_bsoftlimit),
            hard: limit(block.dqb_bhardlimit),
        }),
        // This user has no file here yet, and no limit.
        Err(Errno::NOENT) => Ok(Quota::default()),
        Err(errno) => Err(errno),
    }
}

fn tightest(quotas: impl IntoIterator<Item = Quota>) -> Option<Quota> {
    quotas.into_iter().min_by_key(|quota| quota.left().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quota_that_is_used_up_first_counts() {
        let quota = |used, hard| Quota { used, soft: None, hard };
        let (user, project) = (quota(10, Some(100)), quota(70, Some(80)));
        assert_eq!(tightest([user, project]), Some(project));
        assert_eq!(tightest([quota(10, None), project]), Some(project));
        // Of two without a limit the user's counts.
        assert_eq!(tightest([quota(10, None), quota(70, None)]), Some(quota(10, None)));
        // Root may use more than the limit.
        assert_eq!(quota(90, Some(80)).left(), Some(0));
        assert_eq!(tightest([]), None);
    }
}

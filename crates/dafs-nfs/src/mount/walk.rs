//! Resolves a path to mount. It follows symbolic links, as mountd of other servers does, because
//! clients of NFSv3 cannot do so before they have a handle.
//!
//! Invariants
//! * A link is followed within its export. A link that leads out of it is refused, and the caller
//!   learns no name outside. An absolute text begins at the root of all exports.
//! * ".." leads up to the root of the export, which is its own parent.
//! * The number of steps and links is bounded.

use crate::limits::{MOUNT_LINKS_MAX, MOUNT_STEPS_MAX};
use dafs_service::{Caller, Resolved, Service, ServiceError, Unresolved};
use dafs_store::{FsId, Kind, StoreError};
use std::collections::VecDeque;

fn parts(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|part| !part.is_empty())
}

/// Resolves a path from the root of all exports.
pub(super) fn follow(
    service: &Service,
    caller: Caller<'_>,
    path: &[u8],
) -> Result<Resolved, Unresolved> {
    let root = service.root();
    let mut at = Resolved { handle: root, components: 0, attr: None };
    let mut left: VecDeque<Vec<u8>> = parts(path).map(<[u8]>::to_vec).collect();
    let (mut links, mut inside): (_, Option<FsId>) = (0, None);
    while let Some(name) = left.pop_front() {
        let Resolved { handle, components, .. } = at;
        let failed = |error| Unresolved { error, handle, components };
        if components >= MOUNT_STEPS_MAX {
            return Err(failed(StoreError::NameTooLong.into()));
        }
        let is_dots = matches!(&*name, b"." | b"..");
        if is_dots && at.attr.is_some_and(|attr| attr.kind != Kind::Directory) {
            return Err(failed(StoreError::NotDirectory.into()));
        }
        let next = match &*name {
            b"." => continue,
            b".." if handle == root => continue,
            b".." => {
                let handle = match service.lookup_parent(caller, &handle) {
                    Ok(above) if above.fs == inside.unwrap_or(handle.fs) => above,
                    Ok(_) | Err(ServiceError::Store(StoreError::NotFound)) => handle,
                    Err(error) => return Err(failed(error)),
                };
                let attr = service.delegations.attributes(caller, &handle).map_err(failed)?;
                Resolved { handle, components, attr: Some(attr) }
            }
            _ => service.lookup(caller, &handle, [&*name]).map_err(|step| failed(step.error))?,
        };
        if inside.is_some_and(|export| next.handle.fs != export) {
            return Err(failed(StoreError::Access.into()));
        }
        let next = Resolved { components: components + 1, ..next };
        if next.attr.is_none_or(|attr| attr.kind != Kind::Symlink) {
            at = next;
            continue;
        }
        links += 1;
        if links > MOUNT_LINKS_MAX {
            return Err(failed(StoreError::Symlink.into()));
        }
        let text = service.readlink(caller, &next.handle).map_err(failed)?;
        inside = Some(next.handle.fs);
        at.components = next.components;
        if text.first() == Some(&b'/') {
            (at.handle, at.attr) = (root, None);
        }
        parts(&text).rev().for_each(|part| left.push_front(part.to_vec()));
    }
    match inside {
        Some(export) if at.handle.fs != export => {
            let Resolved { handle, components, .. } = at;
            Err(Unresolved { error: StoreError::Access.into(), handle, components })
        }
        _ => Ok(at),
    }
}

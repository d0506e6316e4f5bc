//! Privileges that no server needs.
//!
//! Invariants
//! * A capability that is given up cannot come back: it leaves the bounding set where the process may
//!   do that, and `no_new_privs` holds in any case.

use crate::report::{Lack, Means, State};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// Capabilities of a server of root: to act as its callers, to open files by handle, to watch file
/// systems (`fanotify(7)`), and to use ports below 1024.
const KEPT: CapabilitySet = CapabilitySet::SETUID
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::SYS_RESOURCE);

/// Gives up core dumps, new privileges by programs, and capabilities. `devices` keeps the right to
/// lock memory, for RDMA.
pub(crate) fn give_up(devices: bool) -> State {
    let kept = if devices { KEPT | CapabilitySet::IPC_LOCK } else { KEPT };
    match give_up_all_but(kept) {
        Ok(()) => State::InForce(Means::Given),
        Err(error) => State::Missing(Lack::Privilege(error.to_string())),
    }
}

fn give_up_all_but(kept: CapabilitySet) -> rustix::io::Result<()> {
    // A core dump has keys and passwords.
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    set_no_new_privs(true)?;
    clear_ambient_capability_set()?;
    let mut sets = capabilities(None)?;
    if sets.effective.contains(CapabilitySet::SETPCAP) {
        for number in 0..u64::BITS {
            let one = CapabilitySet::from_bits_retain(1 << number);
            // An error means that the kernel has no more of them.
            let Ok(is_there) = capability_is_in_bounding_set(one) else { break };
            if is_there && !kept.contains(one) {
                remove_capability_from_bounding_set(one)?;
            }
        }
    }
    sets.effective &= kept;
    sets.permitted &= kept;
    sets.inheritable = CapabilitySet::empty();
    set_capabilities(None, sets)
}

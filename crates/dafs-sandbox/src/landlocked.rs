//! Landlock: files by path, TCP by port, signals and abstract sockets.
//!
//! Invariants
//! * A right that the kernel knows and no rule grants is denied.
//! * The rights are those of the ABI up to 7. A later right of the kernel is never handled, so a new
//!   kernel denies no more than the tests have shown.

use crate::limits::{DEVICES_ABI_MIN, FILES_ABI_MIN, NETWORK_ABI_MIN, SCOPES_ABI_MIN};
use crate::policy::{Access, FileRule, Part, Policy, Ports};
use crate::report::{Kernel, Lack, Means, State};
use crate::system::{self, Etc};
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, NetPort, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, Scope,
};
use rustix::fs::{FileType, fstat};
use std::io;
use std::path::PathBuf;

/// Confines files, if they are not confined by other means, and the network. Returns the state of
/// both. `files` is their state so far.
pub(crate) fn confine(policy: &Policy, kernel: &Kernel, files: State) -> (State, State) {
    let abi = kernel.landlock_abi;
    let mut files = files;
    let is_wanted = files == State::InForce(Means::Landlock);
    let rules = match &policy.files {
        Part::Confined(rules) if is_wanted => {
            let etc = if policy.is_root { Etc::Files } else { Etc::Whole };
            match too_old(abi, FILES_ABI_MIN, "5.19") {
                Some(lack) => {
                    files = State::Missing(lack);
                    None
                }
                None => {
                    let mut rules = system::with_own(rules, etc);
                    // Landlock itself denies the memory and the files of other processes there.
                    let (path, access) = (PathBuf::from("/proc"), Access::Read);
                    rules.push(FileRule { path, access, optional: false });
                    Some(rules)
                }
            }
        }
        _ => None,
    };
    let (mut network, ports) = match &policy.network {
        Part::Open(reason) => (State::Open(*reason), None),
        Part::Confined(ports) => match too_old(abi, NETWORK_ABI_MIN, "6.7") {
            Some(lack) => (State::Missing(lack), None),
            None => (State::InForce(Means::Landlock), Some(ports)),
        },
    };
    if let Err(lack) = restrict(rules.as_deref(), ports, abi) {
        if rules.is_some() {
            files = State::Missing(lack.clone());
        }
        if ports.is_some() {
            network = State::Missing(lack);
        }
    }
    (files, network)
}

fn too_old(abi: u32, needed: u32, linux: &'static str) -> Option<Lack> {
    match abi {
        0 => Some(Lack::NoLandlock),
        abi if abi < needed => Some(Lack::OldLandlock { abi, needed, linux }),
        _ => None,
    }
}

fn restrict(rules: Option<&[FileRule]>, ports: Option<&Ports>, abi: u32) -> Result<(), Lack> {
    let scopes = abi >= SCOPES_ABI_MIN;
    if rules.is_none() && ports.is_none() && !scopes {
        return Ok(());
    }
    let handled = handled(abi);
    let prepare = || {
        let mut ruleset = Ruleset::default();
        if rules.is_some() {
            ruleset = ruleset.handle_access(handled)?;
        }
        if let Some(ports) = ports {
            let net = match ports.clients {
                true => BitFlags::from(AccessNet::BindTcp),
                false => AccessNet::from_all(ABI::V4),
            };
            ruleset = ruleset.handle_access(net)?;
        }
        if scopes {
            ruleset = ruleset.scope(Scope::from_all(ABI::V6))?;
        }
        ruleset.create()
    };
    let refused = |error: landlock::RulesetError| Lack::Rules(error.to_string());
    let mut ruleset = prepare().map_err(refused)?;
    for rule in rules.into_iter().flatten() {
        ruleset = allow_file(ruleset, rule, handled)?;
    }
    if let Some(ports) = ports {
        let bind = ports.bind.iter().map(|&port| (port, AccessNet::BindTcp));
        let connect = ports.connect.iter().filter(|_| !ports.clients);
        let connect = connect.map(|&port| (port, AccessNet::ConnectTcp));
        for (port, access) in bind.chain(connect) {
            ruleset = ruleset.add_rule(NetPort::new(port, access)).map_err(refused)?;
        }
    }
    ruleset.restrict_self().map_err(refused)?;
    Ok(())
}

/// The rights that rules grant or deny, as far as the kernel knows them.
fn handled(abi: u32) -> BitFlags<AccessFs> {
    AccessFs::from_all(match abi {
        0 => ABI::Unsupported,
        1 => ABI::V1,
        2 => ABI::V2,
        3 | 4 => ABI::V3,
        DEVICES_ABI_MIN.. => ABI::V5,
    })
}

fn granted(access: Access, handled: BitFlags<AccessFs>) -> BitFlags<AccessFs> {
    let rights = match access {
        Access::Read => AccessFs::ReadFile | AccessFs::ReadDir,
        Access::Device => {
            AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::WriteFile | AccessFs::IoctlDev
        }
        // No server executes a file, or uses a device among the files that it serves.
        Access::Change => handled & !(AccessFs::Execute | AccessFs::IoctlDev),
    };
    rights & handled
}

fn allow_file(
    ruleset: RulesetCreated,
    rule: &FileRule,
    handled: BitFlags<AccessFs>,
) -> Result<RulesetCreated, Lack> {
    let failed = |error: String| Lack::File { path: rule.path.clone(), error };
    let file = match PathFd::new(&rule.path) {
        Ok(file) => file,
        Err(landlock::PathFdError::OpenCall { source, .. })
            if rule.optional && is_absent(&source) =>
        {
            return Ok(ruleset);
        }
        Err(error) => return Err(failed(error.to_string())),
    };
    let stat = fstat(&file).map_err(|error| failed(error.to_string()))?;
    let mut rights = granted(rule.access, handled);
    if !FileType::from_raw_mode(stat.st_mode).is_dir() {
        rights &= AccessFs::from_file(ABI::V5);
    }
    let rule = PathBeneath::new(file, rights);
    ruleset.add_rule(rule).map_err(|error| failed(error.to_string()))
}

/// True if there is no such file, or this user cannot reach it.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::NotADirectory
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rule_grants_execution_and_changes_grant_renames() {
        for abi in 0..12 {
            let handled = handled(abi);
            for access in [Access::Read, Access::Device, Access::Change] {
                let rights = granted(access, handled);
                assert!(!rights.contains(AccessFs::Execute) && handled.contains(rights));
            }
            if abi >= FILES_ABI_MIN {
                assert!(granted(Access::Change, handled).contains(AccessFs::Refer));
            }
            assert!(!granted(Access::Read, handled).contains(AccessFs::WriteFile));
        }
    }

    #[test]
    fn an_old_kernel_is_named_with_the_version_to_boot() {
        assert_eq!(too_old(0, 2, "5.19"), Some(Lack::NoLandlock));
        let lack = too_old(3, NETWORK_ABI_MIN, "6.7").unwrap().to_string();
        assert!(lack.contains("ABI 3") && lack.contains("6.7"), "{lack}");
        assert_eq!(too_old(4, NETWORK_ABI_MIN, "6.7"), None);
    }
}

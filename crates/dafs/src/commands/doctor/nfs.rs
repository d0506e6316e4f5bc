//! The needs of the kernel's own NFS client besides its modules.

use super::finding::Finding;
use super::host::Host;

pub(super) fn check(host: &Host) -> Vec<Finding> {
    const TOPIC: &str = "nfs client";
    let helpers = ["sbin/mount.nfs", "usr/sbin/mount.nfs"];
    let finding = match helpers.into_iter().find(|path| host.exists(path)) {
        Some(path) => Finding::ok(TOPIC, format!("mount finds its helper for NFS, /{path}")),
        None => Finding::note(
            TOPIC,
            "there is no mount.nfs, so mount cannot mount NFS",
            "if you need it: apt install nfs-common (Debian, Ubuntu), dnf install nfs-utils \
             (Fedora, RHEL)",
        ),
    };
    vec![finding]
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::host::fake::Fake;
    use super::*;

    #[test]
    fn the_helper_of_mount_is_looked_for() {
        let fake = Fake::new();
        assert_eq!(check(&fake.host())[0].level, Level::Note);
        fake.file("usr/sbin/mount.nfs", "");
        assert_eq!(check(&fake.host())[0].level, Level::Ok);
    }
}

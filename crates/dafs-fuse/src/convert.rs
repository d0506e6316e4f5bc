//! Conversion of the server's answers for the kernel.

use crate::kernel::{self, Change, Errno, NodeAttributes, NodeId, TimeChange};
use crate::limits::BLOCK_BYTES;
use dafs_client::{Attributes, Error, SetAttributes, SetTime, Time, posix};

/// The error number for an error of the client.
pub(crate) fn errno(error: &Error) -> Errno {
    Errno::from_i32(posix::errno(error))
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        errno(&error)
    }
}

pub(crate) fn attributes(node: NodeId, from: &Attributes) -> NodeAttributes {
    let times = posix::Times::of(from);
    NodeAttributes {
        node,
        size: from.size,
        blocks: posix::blocks(from),
        accessed: time(times.accessed),
        modified: time(times.modified),
        changed: time(times.changed),
        mode: posix::mode(from),
        links: from.links,
        uid: posix::number(&from.owner),
        gid: posix::number(&from.group),
        device: device(from.raw_device),
        block_bytes: BLOCK_BYTES,
    }
}

/// Attributes of no object.
pub(crate) fn no_attributes(mode: u32) -> NodeAttributes {
    let time = kernel::Time::default();
    NodeAttributes {
        node: 0,
        size: 0,
        blocks: 0,
        accessed: time,
        modified: time,
        changed: time,
        mode,
        links: 0,
        uid: 0,
        gid: 0,
        device: 0,
        block_bytes: BLOCK_BYTES,
    }
}

/// The kernel's 32 bits for a device: 12 of the major number between 20 of the minor.
fn device((major, minor): (u64, u64)) -> u32 {
    let (major, minor) = (major as u32 & 0xfff, minor as u32 & 0xf_ffff);
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// Major and minor number in the kernel's 32 bits.
pub(crate) fn device_numbers(device: u32) -> (u32, u32) {
    (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xf_ff00)
}

fn time(Time { seconds, nseconds }: Time) -> kernel::Time {
    // The kernel takes no more.
    kernel::Time { seconds, nanoseconds: nseconds.min(999_999_999) }
}

pub(crate) fn set_attributes(from: &Change) -> SetAttributes {
    SetAttributes {
        mode: from.mode.map(|mode| mode & 0o7777),
        owner: from.uid,
        group: from.gid,
        size: from.size,
        accessed: from.accessed.map(set_time),
        modified: from.modified.map(set_time),
    }
}

fn set_time(from: TimeChange) -> SetTime {
    match from {
        TimeChange::Now => SetTime::Server,
        TimeChange::To(kernel::Time { seconds, nanoseconds }) => {
            SetTime::Client(Time { seconds, nseconds: nanoseconds })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive() {
        for numbers in [(0, 0), (8, 1), (0xfff, 0xf_ffff), (259, 70_000)] {
            let packed = device((u64::from(numbers.0), u64::from(numbers.1)));
            assert_eq!(device_numbers(packed), numbers);
        }
        // As the C library packs them for small numbers.
        assert_eq!(device((1, 3)), 0x103);
    }

    #[test]
    fn times_survive_on_both_sides_of_1970() {
        for (seconds, nseconds) in [(0, 0), (5, 999_999_999), (-5, 0), (-5, 1), (1 << 40, 7)] {
            let wire = Time { seconds, nseconds };
            let back = set_time(TimeChange::To(time(wire)));
            assert_eq!(back, SetTime::Client(wire));
        }
    }
}

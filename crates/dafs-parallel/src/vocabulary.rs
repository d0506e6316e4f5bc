//! The words for files that mean the same in both clients.

/// The owner of an object, as the server names it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Owner {
    /// A number on the server.
    Id(u32),
    /// A name, for example `user@domain`.
    Name(Vec<u8>),
    /// The server did not say.
    #[default]
    Unknown,
}

impl Owner {
    /// The number, if it is one.
    pub fn id(&self) -> Option<u32> {
        match self {
            Self::Id(id) => Some(*id),
            _ => None,
        }
    }
}

/// Attributes to change; `None` leaves alone. Each protocol has its own form of a time `T`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetAttributes<T> {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner's number.
    pub owner: Option<u32>,
    /// Group's number.
    pub group: Option<u32>,
    /// Length in bytes; cuts or extends with zeros.
    pub size: Option<u64>,
    /// Last access.
    pub accessed: Option<T>,
    /// Last change of the content.
    pub modified: Option<T>,
}

impl<T> Default for SetAttributes<T> {
    fn default() -> Self {
        let (mode, owner, group, size) = (None, None, None, None);
        Self { mode, owner, group, size, accessed: None, modified: None }
    }
}

impl<T: PartialEq> SetAttributes<T> {
    /// Only the mode.
    pub fn mode(mode: u32) -> Self {
        Self { mode: Some(mode), ..Self::default() }
    }

    /// True when nothing would change.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A device, socket or pipe to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialFile {
    /// A block device.
    BlockDevice {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A character device.
    CharDevice {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// The rule for a path whose last component is a symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// Follow the link.
    Yes,
    /// Stop at the link itself.
    No,
}

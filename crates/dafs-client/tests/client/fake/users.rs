//! The credentials that the client has registered at the fake server.

use dafs_wire::dafs::Status;
use std::collections::BTreeMap;

/// They end with their connection.
pub struct Credentials {
    /// The users, by handle.
    pub uids: BTreeMap<u32, u32>,
    /// The most of them.
    pub max: usize,
    /// The number that the client is told at connect; 0 tells nothing.
    pub agreed: u32,
    /// Users that are not registered.
    pub refused: Vec<u32>,
    /// The users of all handles that were ever given.
    pub given: BTreeMap<u32, u32>,
    last: u32,
}

impl Default for Credentials {
    fn default() -> Self {
        let (uids, given, refused) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Self { uids, max: 64, agreed: 0, refused, given, last: 76 }
    }
}

impl Credentials {
    pub fn register(&mut self, uid: u32) -> Result<u32, Status> {
        if self.refused.contains(&uid) {
            return Err(Status::NotAuthorized);
        }
        if self.uids.len() >= self.max {
            return Err(Status::NoCreds);
        }
        self.last += 1;
        self.uids.insert(self.last, uid);
        self.given.insert(self.last, uid);
        Ok(self.last)
    }

    /// True when requests may name the handle.
    pub fn knows(&self, handle: u32) -> bool {
        handle == 0 || self.uids.contains_key(&handle)
    }
}

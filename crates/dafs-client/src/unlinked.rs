//! Files without a name, until they get one (DAFS 10.3).

use crate::attributes::FileHandle;
use crate::client::Client;
use crate::convert;
use crate::error::Result;
use crate::file::File;
use crate::open::OpenOptions;
use dafs_wire::dafs as wire;

impl Client {
    /// Makes and opens a file without a name, in the file system of a directory and with the
    /// attributes of a file created there. [`File::link`] gives it a name atomically, which
    /// publishes a file that others never see half written. Without a name it is gone when it is
    /// closed, or when this client or the server fails. The options to create are ignored.
    ///
    /// # Errors
    /// The server's answer; NOTSUPP where the file system has no such files.
    pub fn create_unlinked(&self, dir: &FileHandle, options: &OpenOptions) -> Result<File> {
        let text = convert::OwnerText::new(&options.attributes);
        let attributes = text.attributes(&options.attributes);
        let create = Some(wire::CreateMode::Guarded { attributes });
        self.open_claimed(wire::OpenClaim::CreateUnlinked { dir: *dir }, create, options)
    }
}

impl File {
    /// Gives the file another name, or its first.
    ///
    /// # Errors
    /// The server's answer.
    pub fn link(&self, dir: &FileHandle, name: &[u8]) -> Result<()> {
        self.client().link(self.handle(), dir, name)
    }
}

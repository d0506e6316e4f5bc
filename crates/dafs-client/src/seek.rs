//! SEEK: where files have data, and where they have holes; an extension (X_SEEK), as in NFSv4.2.

use crate::error::Result;
use crate::file::File;
use dafs_wire::dafs::{Request, SeekWhat, Status, XSeek};

impl File {
    /// The start of data at `offset` or behind it; `None` if there is none up to the end of the
    /// file. A server or file system that does not track holes reports all as data.
    ///
    /// # Errors
    /// The server's answer.
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        self.seek(offset, SeekWhat::Data)
    }

    /// The start of a hole at `offset` or behind it. The end of the file counts as one; `None` for
    /// an offset there or behind it.
    ///
    /// # Errors
    /// The server's answer.
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>> {
        self.seek(offset, SeekWhat::Hole)
    }

    fn seek(&self, offset: u64, what: SeekWhat) -> Result<Option<u64>> {
        let opened = self.opened();
        let request =
            Request::XSeek(XSeek { fh: opened.handle, state_id: opened.state_id, offset, what });
        let found = self.client().ask(&request, |reply| Some(*reply.x_seek()?));
        match found {
            Ok(found) => Ok((!found.eof || what == SeekWhat::Hole).then_some(found.offset)),
            Err(error) if error.status() == Some(Status::Nxio) => Ok(None),
            // The server does not know the extension.
            Err(error) if error.status() == Some(Status::NotSupp) => {
                let size = self.attributes()?.size;
                let found = if what == SeekWhat::Hole { size } else { offset };
                Ok((offset < size).then_some(found))
            }
            Err(error) => Err(error),
        }
    }
}

//! `dafs cat`: writes file contents to standard output, those of long files straight from transfer
//! memory.

use super::for_each;
use crate::failure::Failure;
use crate::limits::{CAT_PIECES, PIECE_BYTES, SMALL_BYTES};
use crate::remote::{Buffer, File, OpenOptions, Pending, Remote, RemoteUrl};
use crate::session::Sessions;
use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::AsFd;

/// Write the contents of files to standard output
#[derive(Debug, clap::Args)]
pub(crate) struct Cat {
    /// The files
    #[arg(required = true)]
    urls: Vec<RemoteUrl>,
}

impl Cat {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        for_each(&self.urls, |url| {
            let client = sessions.client(url)?;
            let failed = |error| Failure::remote(url, &error);
            if let Some(content) = client.read_small(url.path(), SMALL_BYTES).map_err(failed)? {
                let mut out = std::io::stdout().lock();
                let written = out.write_all(&content).and_then(|()| out.flush());
                return written.map_err(|error| Failure::local("standard output", &error));
            }
            let file = client.open(url.path(), &OpenOptions::read()).map_err(failed)?;
            print(&client, &file, url)
        })
    }
}

/// An outstanding read.
struct Piece {
    pending: Pending,
    buffer: Buffer,
    offset: u64,
}

/// Prints `file` to its end, even if it grows or shrinks meanwhile.
fn print(client: &Remote, file: &File, url: &RemoteUrl) -> Result<(), Failure> {
    let failed = |error| Failure::remote(url, &error);
    let bytes = PIECE_BYTES.min(client.read_bytes_max());
    let mut free = Vec::new();
    for _ in 0..CAT_PIECES {
        free.push(client.buffer(bytes).map_err(failed)?);
    }
    let mut flying: VecDeque<Piece> = VecDeque::new();
    let mut next = 0;
    loop {
        while let Some(buffer) = free.pop() {
            let pending = file.submit_read(&buffer, 0..bytes, next).map_err(failed)?;
            flying.push_back(Piece { pending, buffer, offset: next });
            next += bytes as u64;
        }
        let Some(piece) = flying.pop_front() else { return Ok(()) };
        let count = piece.pending.wait().map_err(failed)?;
        if count == 0 {
            return Ok(());
        }
        write_out(&piece.buffer, count)?;
        if count < bytes {
            // After a short read, the later pieces are read again from its end.
            next = piece.offset + count as u64;
            for piece in flying.drain(..) {
                piece.pending.wait().map_err(failed)?;
                free.push(piece.buffer);
            }
        }
        free.push(piece.buffer);
    }
}

fn write_out(buffer: &Buffer, count: usize) -> Result<(), Failure> {
    let stdout = std::io::stdout();
    let mut done = 0;
    while let Some(view) = buffer.slice(done, count - done).filter(|view| !view.is_empty()) {
        match dafs_mem::writev(stdout.as_fd(), &[view]) {
            Ok(written) => done += written,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::local("standard output", &error)),
        }
    }
    Ok(())
}

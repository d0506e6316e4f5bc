//! Reading of files so that their server has them in memory: `dafs warmup`.

use super::content::remote_digest;
use super::error::{CopyError, Outcome, remote};
use super::pieces::{Pieces, Worker};
use super::queue;
use super::report::{Copied, Report};
use super::supervise;
use super::view::{Opened, Tree, walk};
use crate::failure::Failure;
use crate::remote::{Error, Handle, ObjectType, OpenOptions, Remote};

/// A file to read.
struct Object {
    directory: Handle,
    name: Vec<u8>,
    path: Vec<u8>,
    size: u64,
}

/// Reads all files below the trees of servers, and throws their contents away.
pub(crate) fn run(
    trees: &[Tree],
    bytes_per_second: Option<u64>,
    json: bool,
) -> Result<(), Failure> {
    supervise(json, bytes_per_second, |report| {
        for tree in trees {
            if let Some(client) = &tree.remote {
                report.connected(client);
                warm(report, tree, client);
            }
        }
        Ok(())
    })
}

fn warm(report: &Report, tree: &Tree, client: &Remote) {
    let pieces = Pieces::new(client);
    queue::run(
        report,
        |queue| {
            let walked = walk(tree, |visited| {
                if report.is_stopped() {
                    return Err(Failure::Ended { code: 1, text: None });
                }
                if let (Opened::Remote(directory), Some(found)) =
                    (visited.directory, &visited.entry.attributes)
                    && found.kind == ObjectType::Regular
                {
                    queue.push(Object {
                        directory: *directory,
                        name: visited.entry.name.clone(),
                        path: visited.path.to_vec(),
                        size: found.size,
                    });
                }
                Ok(())
            });
            if let Err(failure) = walked {
                report.stop_after_walk(failure);
            }
        },
        |queue| {
            let mut worker = Worker::new(&pieces);
            while let Some(object) = queue.pop() {
                report.book(read(report, &mut worker, (tree, client), &object));
            }
        },
    );
}

fn read(
    report: &Report,
    worker: &mut Worker<'_>,
    (tree, client): (&Tree, &Remote),
    object: &Object,
) -> Outcome {
    let failed = |error: &Error| -> CopyError { remote(tree.top.join(&object.path), error) };
    let file = client.open_at(&object.directory, &object.name, &OpenOptions::read());
    let file = file.map_err(|error| failed(&error))?;
    let mut ring = worker.ring(object.size)?;
    let (_, length) = remote_digest(report, &mut ring, &file, object.size, failed)?;
    report.count_bytes(length);
    report.add(Copied::File);
    Ok(())
}

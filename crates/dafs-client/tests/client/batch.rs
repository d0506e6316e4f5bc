//! Batches, end to end over both transports.

use crate::served::{Served, TRANSPORTS, on_each_transport_with, pattern, status};
use dafs_client::{Create, Error, File, IoBuffer, OpenOptions, Status};
use dafs_mem::Site;
use std::ops::Range;

const BLOCK: usize = 4096;

fn at(buffer: &IoBuffer, range: Range<usize>) -> (&IoBuffer, Range<usize>) {
    (buffer, range)
}

#[test]
fn blocks_all_over_a_file_go_in_one_batch() {
    for checksums in [false, true] {
        for (served, client) in on_each_transport_with(|options| options.checksums = checksums) {
            let options = OpenOptions::read_write().create(Create::New).mode(0o640);
            let file = client.open(b"/file", &options).unwrap();
            // More than fit one message.
            let count = 300;
            let data = pattern(count * BLOCK);
            let buffer = client.buffer(data.len()).unwrap();
            buffer.view().copy_from(&data, Site::Inspect);
            let place = |index: usize| (index * 7 % count) * BLOCK;
            let mut batch = client.batch();
            for index in 0..count {
                let from = index * BLOCK..(index + 1) * BLOCK;
                let ranges = [(place(index) as u64, BLOCK)];
                assert_eq!(batch.write(&file, &ranges, &[at(&buffer, from)]).unwrap(), index);
            }
            let results = batch.run().unwrap();
            assert!(results.iter().all(|result| matches!(result, Ok(BLOCK))));
            file.commit(0, 0).unwrap();
            let content = served.content("file");
            for index in 0..count {
                let (to, from) = (place(index), index * BLOCK);
                assert!(content[to..to + BLOCK] == data[from..from + BLOCK], "block {index}");
            }
            // Read back in other pieces, scattered on both sides.
            let back = client.buffer(data.len()).unwrap();
            let mut batch = client.batch();
            for index in 0..count / 2 {
                let (one, two) = (place(2 * index), place(2 * index + 1));
                let ranges = [(one as u64, BLOCK), (two as u64, BLOCK)];
                let start = 2 * index * BLOCK;
                let pieces = [at(&back, start..start + 1), at(&back, start + 1..start + 2 * BLOCK)];
                batch.read(&file, &ranges, &pieces).unwrap();
            }
            let pending = batch.submit().unwrap();
            let results = pending.wait().unwrap();
            assert!(
                results.iter().all(|result| matches!(result, Ok(bytes) if *bytes == 2 * BLOCK))
            );
            assert!(back.view().to_vec(Site::Inspect) == data);
            file.close().unwrap();
        }
    }
}

#[test]
fn transfers_fail_one_by_one() {
    let served = Served::new();
    served.with_file("file", 100);
    let client = served.client(TRANSPORTS[0]);
    let file = client.open(b"/file", &OpenOptions::read()).unwrap();
    let buffer = client.buffer(1000).unwrap();
    let writer = client.open(b"/file", &OpenOptions::read_write()).unwrap();
    let mut batch = client.batch();
    batch.read(&file, &[(0, 10)], &[at(&buffer, 0..10)]).unwrap();
    // The range ends behind the end of the file.
    batch.read(&file, &[(90, 50)], &[at(&buffer, 10..60)]).unwrap();
    batch.write(&writer, &[(100, 3)], &[at(&buffer, 0..3)]).unwrap();
    let results = batch.run().unwrap();
    assert!(matches!(results[..], [Ok(10), Ok(10), Ok(3)]), "{results:?}");
    // An open that is closed.
    let mut batch = client.batch();
    batch.read(&file, &[(0, 10)], &[at(&buffer, 0..10)]).unwrap();
    batch.read(&writer, &[(0, 10)], &[at(&buffer, 0..10)]).unwrap();
    writer.close().unwrap();
    let results = batch.run().unwrap();
    assert_eq!(
        results.into_iter().map(status).collect::<Vec<_>>(),
        [Status::Ok, Status::StaleStateId]
    );
    file.close().unwrap();
}

#[test]
fn impossible_transfers_are_not_taken() {
    let served = Served::new();
    served.with_file("file", 100);
    let client = served.client(TRANSPORTS[0]);
    let file = client.open(b"/file", &OpenOptions::read()).unwrap();
    let buffer = client.buffer(1000).unwrap();
    let refused = |file: &File, ranges: &[(u64, usize)], range: Range<usize>| {
        let result = client.batch().read(file, ranges, &[at(&buffer, range)]);
        assert!(matches!(result, Err(Error::Argument(_))), "{result:?}");
    };
    refused(&file, &[(0, 10)], 0..11);
    refused(&file, &[(0, 10), (20, 10)], 0..10);
    refused(&file, &[(0, 10)], 995..1005);
    refused(&file, &[(u64::MAX - 3, 10)], 0..10);
    refused(&file, &[(0, 1); 65], 0..65);
    assert!(client.batch().is_empty());
    assert_eq!(client.batch().run().unwrap().len(), 0);
    file.close().unwrap();
}

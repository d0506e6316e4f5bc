//! The server counts the bytes of all ways to read and write, for the host and the user of a client.

use crate::served::{on_each_transport, open_file, pattern};
use dafs_client::Stability;
use dafs_service::{Class, UsageCounts};

const LARGE: usize = 1 << 20;

fn sum<K>(uses: Vec<(Option<K>, UsageCounts)>) -> UsageCounts {
    let mut sum = UsageCounts::default();
    uses.iter().for_each(|(_, counts)| sum.add(counts));
    sum
}

#[test]
fn bytes_of_all_ways_are_counted() {
    for (served, client) in on_each_transport() {
        let file = open_file(&client);
        let buffer = client.buffer(LARGE).unwrap();
        file.write_at(&pattern(100), 0, Stability::Unstable).unwrap();
        file.write_from(&buffer, 0..LARGE, 0, Stability::Unstable).unwrap();
        file.append(&[1; 50], Stability::DataSync).unwrap();
        file.read_into(&buffer, 0..10, 0).unwrap();
        file.read_into(&buffer, 0..LARGE, 0).unwrap();
        let mut batch = client.batch();
        batch.read(&file, &[(0, 4096)], &[(&buffer, 0..4096)]).unwrap();
        batch.write(&file, &[(0, 1000)], &[(&buffer, 5000..6000)]).unwrap();
        assert!(batch.run().unwrap().iter().all(Result::is_ok));
        let metrics = served.metrics();
        for counts in [sum(metrics.hosts().now()), sum(metrics.users().now())] {
            assert_eq!(counts.read_bytes, 10 + LARGE as u64 + 4096);
            assert_eq!(counts.written_bytes, 100 + LARGE as u64 + 50 + 1000);
            let classes = Class::ALL.map(|class| counts.latency[class as usize].count());
            assert!(classes.iter().all(|&count| count > 0), "{classes:?}");
            assert!(counts.operations() > 6);
        }
    }
}

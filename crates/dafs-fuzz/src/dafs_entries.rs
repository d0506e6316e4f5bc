//! Directory entries: byte 0 chooses the byte order; the counted array follows.

use dafs_wire::dafs::*;

pub fn run(input: &[u8]) {
    let Some((choice, array)) = input.split_first() else { return };
    let order = if choice & 1 == 0 { ByteOrder::Big } else { ByteOrder::Little };
    let Ok(entries) = decode_entries_direct(array, order) else { return };
    let mut again = vec![0; array.len() * 16 + 4096];
    let mut streamed = vec![0xa5; again.len()];
    let whole = encode_entries_direct(entries, &mut again, order);
    let mut writer = DirEntriesWriter::new(&mut streamed, order).unwrap();
    let all = entries.iter().all(|entry| writer.push(&entry));
    let (promised, count) = (writer.bytes(), writer.count());
    let length = writer.finish().unwrap();
    assert_eq!(length, DirEntriesLength { bytes: promised, count });
    let written = decode_entries_direct(&streamed[..length.bytes], order).unwrap();
    assert!(written.iter().eq(entries.iter().take(count)));
    if let Ok(bytes) = whole {
        assert!(all, "fits as a whole but not entry by entry");
        assert_eq!(decode_entries_direct(&again[..bytes], order).unwrap(), entries);
    }
}

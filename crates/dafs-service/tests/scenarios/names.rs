//! Names: the change information of directories.

use crate::common::*;

#[test]
fn a_rename_to_another_name_of_the_same_file_changes_nothing_and_says_so() {
    let world = World::new();
    let client = world.nfs("a");
    let opened = world.open(&client, "f", READ).unwrap();
    let (caller, root) = (world.caller(&client), &world.root);
    world.service.link(caller, opened.state.handle(), root, b"g").unwrap();
    for (from, to) in [(b"f", b"f"), (b"f", b"g"), (b"g", b"f")] {
        let (source, target) = world.service.rename(caller, root, from, root, to).unwrap();
        assert_eq!((source.before, target.before), (source.after, target.after));
    }
    for name in [b"f", b"g"] {
        assert!(world.service.lookup(caller, root, [&name[..]]).is_ok());
    }
    let (source, _) = world.service.rename(caller, root, b"f", root, b"h").unwrap();
    assert_ne!(source.before, source.after);
}

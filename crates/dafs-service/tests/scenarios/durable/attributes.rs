//! Conclusions of recovery from attributes of a logged change.

use super::*;

/// A step between the intent and the crash.
type Step = fn(&World);

fn file(world: &World) -> FileId {
    world.at("linked").unwrap().file
}

fn nothing(_: &World) {}

/// Moves the change attribute and the time of the last change, as any client may at any time.
fn write_unstable(world: &World) {
    let mode = OpenMode { read: true, write: true };
    let open = world.store.open(&world.cred, &file(world), mode).unwrap();
    let mut bytes = *b"BEFORE";
    let view = VolatileSlice::from_mut(&mut bytes);
    open.write_at(&[view], 0, Stability::Unstable, Wait::Allowed).unwrap();
}

fn set<const VALUE: u8>(world: &World) {
    let how = SetXattr::Either;
    world.store.set_xattr(&world.cred, &file(world), b"color", &[VALUE], how).unwrap();
}

fn remove(world: &World) {
    world.store.remove_xattr(&world.cred, &file(world), b"color").unwrap();
}

fn chmod<const MODE: u32>(world: &World) {
    let change = SetAttr { mode: Some(MODE), ..NONE };
    world.store.setattr(&world.cred, &file(world), &change, None).unwrap();
}

fn cut<const SIZE: u64>(world: &World) {
    let change = SetAttr { size: Some(SIZE), ..NONE };
    world.store.setattr(&world.cred, &file(world), &change, None).unwrap();
}

/// Logs a change after `before`, executes the steps, restarts the server, and compares its answer.
#[track_caller]
fn check(before: Step, change: &Change<'_>, steps: &[Step], answer: Option<Answer>) {
    for mode in [Durability::Crash, Durability::Power] {
        let world = World::new(mode);
        before(&world);
        std::mem::forget(world.op(0, change));
        steps.iter().for_each(|step| step(&world));
        let world = world.crash(mode == Durability::Power);
        assert_eq!(world.kept_answer(0), answer, "{change:?} {mode:?}");
        // A restart does not judge it a second time.
        let world = world.restart(false, new_store());
        assert_eq!(world.kept_answer(0), answer, "{change:?} {mode:?}");
    }
}

/// The file, which is the same one in all worlds, and the answer that its attributes were set.
fn target() -> (Handle, Option<Answer>) {
    let file = World::new(Durability::Crash).at("linked").unwrap();
    (file, Some(Answer::Happened(Effect::AttrSet { file })))
}

const FAILED: Option<Answer> = Some(Answer::Failed);

#[test]
fn an_extended_attribute_is_set_when_it_has_the_value() {
    let (file, happened) = target();
    let (file, name) = (&file, &b"color"[..]);
    let value = Some(digest(0, &[1]));
    let change = |how| Change::SetXattr { file, name, value, how };
    let either = change(SetXattr::Either);
    check(nothing, &either, &[], None);
    check(nothing, &either, &[write_unstable], None);
    check(nothing, &either, &[chmod::<0o777>], None);
    check(nothing, &either, &[set::<1>], happened.clone());
    check(set::<0>, &either, &[write_unstable], None);
    check(set::<0>, &either, &[set::<1>, write_unstable], happened.clone());
    // The result cannot be known, and a retry does no harm.
    check(set::<1>, &either, &[set::<1>], None);
    check(set::<1>, &either, &[write_unstable], None);
    // Another client's value came before or after.
    check(nothing, &either, &[set::<2>], FAILED);
    check(set::<0>, &either, &[set::<1>, remove], FAILED);
    let (create, replace) = (change(SetXattr::Create), change(SetXattr::Replace));
    check(nothing, &create, &[set::<1>], happened.clone());
    check(nothing, &create, &[set::<2>], FAILED);
    check(set::<0>, &create, &[set::<1>], None);
    check(set::<0>, &replace, &[set::<1>], happened);
    check(nothing, &replace, &[set::<1>], None);
}

#[test]
fn an_extended_attribute_is_removed_when_it_is_gone() {
    let (file, happened) = target();
    let change =
        Change::SetXattr { file: &file, name: b"color", value: None, how: SetXattr::Replace };
    check(set::<0>, &change, &[write_unstable], None);
    check(set::<0>, &change, &[remove, write_unstable], happened);
    check(set::<0>, &change, &[set::<1>], FAILED);
    check(nothing, &change, &[write_unstable], None);
}

fn own_again(world: &World) {
    let uid = Some(world.store.getattr(&file(world)).unwrap().uid);
    let change = SetAttr { uid, ..NONE };
    world.store.setattr(&world.cred, &file(world), &change, None).unwrap();
}

#[test]
fn a_change_to_the_present_owner_is_told_by_the_bits_that_it_ends() {
    let (file, happened) = target();
    let world = World::new(Durability::Crash);
    let uid = Some(world.store.getattr(&file.file).unwrap().uid);
    let owner = SetAttr { uid, ..NONE };
    let change = Change::SetAttr { file: &file, change: &owner, masked: None, acl: None };
    check(chmod::<0o4755>, &change, &[], None);
    check(chmod::<0o4755>, &change, &[own_again], happened);
    check(chmod::<0o4755>, &change, &[chmod::<0o644>], None);
    // The result cannot be known, and a retry does no harm.
    check(chmod::<0o755>, &change, &[own_again], None);
}

#[test]
fn bits_of_a_mode_are_set_when_they_are_there() {
    let (file, happened) = target();
    let masked = Some(MaskedMode { value: 0o020, mask: 0o070 });
    let change = Change::SetAttr { file: &file, change: &NONE, masked, acl: None };
    check(chmod::<0o644>, &change, &[write_unstable], None);
    check(chmod::<0o644>, &change, &[chmod::<0o624>], happened.clone());
    // The other bits do not matter.
    check(chmod::<0o644>, &change, &[chmod::<0o624>, chmod::<0o420>], happened);
    check(chmod::<0o644>, &change, &[chmod::<0o600>], FAILED);
    check(chmod::<0o624>, &change, &[chmod::<0o724>], None);
}

fn list(mode: u32) -> Acl {
    Acl::from_mode(mode, false)
}

#[test]
fn an_access_control_list_is_set_when_it_is_there() {
    let (file, happened) = target();
    let acl = &list(0o751);
    let change =
        |change, acl| Change::SetAttr { file: &file, change, masked: None, acl: Some(acl) };
    let only = change(&NONE, acl);
    check(chmod::<0o640>, &only, &[write_unstable], None);
    check(chmod::<0o640>, &only, &[chmod::<0o751>], happened.clone());
    check(chmod::<0o640>, &only, &[chmod::<0o700>], FAILED);
    // The list decides the permission bits, and the mode that is set with it only the others.
    let sticky = SetAttr { mode: Some(0o1700), ..NONE };
    let both = change(&sticky, acl);
    check(chmod::<0o640>, &both, &[chmod::<0o1700>, chmod::<0o1751>], happened);
    check(chmod::<0o640>, &both, &[chmod::<0o751>], None);
    // A list that no store accepts is refused, for any state of the file.
    let who = AceWho::Owner;
    let (kind, flags) = (AceKind::Allow, AceFlags::FILE_INHERIT);
    let bad = Acl { entries: vec![Ace { kind, flags, mask: AceMask::READ_DATA, who }] };
    assert!(bad.as_kept(false).is_err());
    check(chmod::<0o640>, &change(&NONE, &bad), &[chmod::<0o751>], None);
}

#[test]
fn attributes_are_set_when_all_are_there() {
    let (file, happened) = target();
    let set = |change| Change::SetAttr { file: &file, change, masked: None, acl: None };
    let plain = SetAttr { mode: Some(0o640), size: Some(2), ..NONE };
    let both = set(&plain);
    check(chmod::<0o600>, &both, &[write_unstable], None);
    check(chmod::<0o600>, &both, &[cut::<2>, chmod::<0o640>], happened.clone());
    // A partial change is executed again.
    check(chmod::<0o600>, &both, &[cut::<2>], None);
    // Later writes of others are not cut off again, and a file that is not cut is not reported as
    // cut.
    let short = SetAttr { size: Some(2), ..NONE };
    check(nothing, &set(&short), &[], None);
    check(nothing, &set(&short), &[write_unstable], FAILED);
    check(nothing, &set(&short), &[cut::<2>, write_unstable], FAILED);
    check(nothing, &set(&short), &[cut::<2>, cut::<4>], FAILED);
    check(nothing, &set(&short), &[cut::<2>], happened);
    let time = TimeSpec { seconds: 77, nanoseconds: 5 };
    let touch = SetAttr { mtime: Some(SetTime::To(time)), ..NONE };
    check(nothing, &set(&touch), &[chmod::<0o640>], None);
}

/// Changes of others before the intent can be lost with the power. Then the attribute has neither
/// the old nor the new value, and yet no change has happened.
#[test]
fn an_object_older_than_the_intent_was_not_changed_by_it() {
    let (file, _) = target();
    let (name, value, how) = (&b"color"[..], Some(digest(0, &[1])), SetXattr::Either);
    let attr = |change| Change::SetAttr { file: &file, change, masked: None, acl: None };
    let (cut_off, other) =
        (SetAttr { size: Some(2), ..NONE }, SetAttr { mode: Some(0o711), ..NONE });
    let world = World::new(Durability::Power);
    let dir = &world.root;
    for change in [
        attr(&cut_off),
        attr(&other),
        Change::SetXattr { file: &file, name, value, how },
        Change::Create { dir, name: b"linked", attr: &EMPTY },
        Change::Rename { from_dir: dir, from: b"latest", to_dir: dir, to: b"other" },
    ] {
        let world = World::new(Durability::Power);
        [cut::<3>, chmod::<0o600>, set::<0>].iter().for_each(|step: &Step| step(&world));
        world.store.make(&world.cred, &dir.file, b"latest", NewObject::Directory, &NONE).unwrap();
        std::mem::forget(world.op(0, &change));
        let key = world.key(0);
        let world = world.restart(true, new_store());
        assert_eq!(world.service.durable.kept_answer(&key), None, "{change:?}");
    }
}

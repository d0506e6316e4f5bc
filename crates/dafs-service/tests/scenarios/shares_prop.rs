//! Share reservations against a model that compares every open with every other.

use crate::common::*;
use dafs_service::{OpenRequest, ServiceError, Share, StateId};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy)]
enum Step {
    Open { client: usize, owner: usize, share: Share },
    Downgrade { client: usize, owner: usize, share: Share },
    Close { client: usize, owner: usize },
}

fn share() -> impl Strategy<Value = Share> {
    (1..4_u8, 0..4_u8).prop_map(|(access, deny)| Share {
        read: access & 1 != 0,
        write: access & 2 != 0,
        deny_read: deny & 1 != 0,
        deny_write: deny & 2 != 0,
    })
}

fn step() -> impl Strategy<Value = Step> {
    let who = || (0..3_usize, 0..2_usize);
    prop_oneof![
        3 => (who(), share())
            .prop_map(|((client, owner), share)| Step::Open { client, owner, share }),
        1 => (who(), share())
            .prop_map(|((client, owner), share)| Step::Downgrade { client, owner, share }),
        2 => who().prop_map(|(client, owner)| Step::Close { client, owner }),
    ]
}

/// The state of an owner: its state-id, and every open since the last close or downgrade.
type Model = BTreeMap<(usize, usize), (StateId, Vec<Share>)>;

fn union(shares: &[Share]) -> Share {
    shares.iter().fold(Share::default(), |sum, share| Share {
        read: sum.read || share.read,
        write: sum.write || share.write,
        deny_read: sum.deny_read || share.deny_read,
        deny_write: sum.deny_write || share.deny_write,
    })
}

fn part_of(part: Share, whole: Share) -> bool {
    union(&[part, whole]) == whole
}

fn conflict(one: Share, two: Share) -> bool {
    one.read && two.deny_read
        || one.write && two.deny_write
        || two.read && one.deny_read
        || two.write && one.deny_write
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn opens_are_what_the_model_says(steps in prop::collection::vec(step(), 1..40)) {
        let world = World::new();
        // Two of NFS and one of DAFS.
        let clients = [world.nfs("a"), world.nfs("b"), world.dafs("c")];
        let mut model = Model::new();
        let handle = *world.open(&clients[0], "f", READ).unwrap().state.handle();
        model.insert((0, 9), (StateId(0), vec![READ]));
        for step in steps {
            match step {
                Step::Open { client, owner, share } => {
                    let name = ["x", "y"][owner];
                    let request = OpenRequest { share, ..world.plain("f", name, share) };
                    let opened = world.service.opens.open(world.caller(&clients[client]), &request);
                    let denied = model.iter().any(|(who, (_, shares))| {
                        *who != (client, owner) && conflict(union(shares), share)
                    });
                    prop_assert_eq!(opened.is_err(), denied);
                    if let Ok(opened) = opened {
                        let id = opened.state.id();
                        let entry = model.entry((client, owner)).or_insert((id, Vec::new()));
                        prop_assert_eq!(entry.0, id);
                        entry.1.push(share);
                        prop_assert_eq!(opened.state.share(), union(&entry.1));
                    }
                }
                Step::Downgrade { client, owner, share } => {
                    let Some((id, shares)) = model.get_mut(&(client, owner)) else { continue };
                    let caller = world.caller(&clients[client]);
                    let done = world.service.opens.downgrade(caller, &handle, *id, share, None);
                    let within: Vec<_> =
                        shares.iter().copied().filter(|&part| part_of(part, share)).collect();
                    let allowed = match client {
                        2 => part_of(share, union(shares)),
                        _ => union(&within) == share,
                    };
                    prop_assert_eq!(done.is_ok(), allowed, "{:?} {:?}", shares, share);
                    if allowed {
                        *shares = if client == 2 { vec![share] } else { within };
                    }
                }
                Step::Close { client, owner } => {
                    let Some((id, _)) = model.remove(&(client, owner)) else { continue };
                    let caller = world.caller(&clients[client]);
                    world.service.opens.close(caller, &handle, id).unwrap();
                    let again = world.service.opens.close(caller, &handle, id);
                    prop_assert_eq!(again, Err(ServiceError::StaleStateId));
                }
            }
            prop_assert_eq!(world.service.counts().opens, model.len());
        }
    }
}

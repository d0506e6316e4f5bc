//! Callers that have proven their name.

mod calls;
mod machine;
mod sizes;

use crate::common::{World, unsquashed};
use dafs_nfs::NfsGss;
use dafs_rpc::gss::{ContextLimits, Contexts};
use dafs_service::{Flavour, Identities, LocalDirectory, Rule, Rules, UserOf};
use dafs_store::{MemoryOptions, MemoryStore, Store};
use dafs_testkit_rpc::gss as toy;
use std::sync::Arc;

const ALL: [Flavour; 4] = [Flavour::Sys, Flavour::Krb5, Flavour::Krb5i, Flavour::Krb5p];

/// A server that takes these flavours, and its contexts. Users root and anna are known.
fn world(flavours: &[Flavour]) -> (World, Arc<Contexts>) {
    world_over(Arc::new(MemoryStore::new(MemoryOptions::default())), flavours)
}

/// The same with this store.
fn world_over(store: Arc<dyn Store>, flavours: &[Flavour]) -> (World, Arc<Contexts>) {
    let mut options = unsquashed();
    options.admits.flavours = flavours.to_vec();
    let world = World::run_of(7, store, options, None);
    let rule = |name: &str, uid| Rule {
        pattern: name.parse().unwrap(),
        user: UserOf::Number(uid, uid),
        trusted: false,
    };
    let rules = Rules { rules: vec![rule("root@R", 0), rule("anna@R", 1000)], default_realm: None };
    let identities = Arc::new(Identities::new(rules, Box::new(LocalDirectory)));
    for name in ["root@R", "anna@R", "nfs/client@R"] {
        identities.resolve(name, world.now_ns).unwrap();
    }
    let contexts = Contexts::new(ContextLimits::default());
    let acceptor = Arc::new(toy::Inline(contexts.clone()));
    world.shared.accept_gss(Arc::new(NfsGss { acceptor, identities, owners: None }));
    (world, contexts)
}

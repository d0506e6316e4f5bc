//! Exports that demand TLS, from connections with more and with less protection: no way of either
//! version leads around the demand.

use crate::common::{Session, World, bytes};
use crate::ops::helper::{getattr, handle, lookup, putfh};
use dafs_rpc::{AuthStatus, Handled, RejectStatus, Rejection};
use dafs_service::TransportSecurity;
use dafs_wire::mount3::{self, Path};
use dafs_wire::nfs3::{self, FileHandle, Procedure};
use dafs_wire::nfs4::*;
use dafs_wire::xdr::Decoder;

const ROOT: Op<'static> = Op::Putrootfh(PutrootfhArgs);
const GETFH: Op<'static> = Op::Getfh(GetfhArgs);

/// The status ACCES of NFSv3 and MOUNT.
const ACCES: u32 = 13;

/// The root of an export, seen over a connection that it admits.
fn root(world: &mut World, session: &mut Session, name: &[u8]) -> Vec<u8> {
    let answer = world.next(session, &[ROOT, lookup(name), GETFH]);
    assert_eq!(answer.status(), Status::Ok, "{:?}", answer.results());
    handle(&answer, 3)
}

fn status(handled: Handled) -> u32 {
    let Handled::Reply(reply) = handled else { panic!("{handled:?}") };
    Decoder::new(&reply.to_bytes()).u32().unwrap()
}

#[test]
fn no_way_leads_around_the_demand() {
    use TransportSecurity::{Mtls, None as Clear, Tls};
    for (least, enough, less) in
        [(Tls, vec![Tls, Mtls], vec![Clear]), (Mtls, vec![Mtls], vec![Clear, Tls])]
    {
        let mut world = World::strict(&[TransportSecurity::None, least]);
        world.reactor.security = least;
        let mut session = world.client(b"client");
        let strict = root(&mut world, &mut session, b"strict");
        let open = root(&mut world, &mut session, b"open");
        let kind = || getattr(&[Attr::Type]);
        for security in enough {
            world.reactor.security = security;
            let answer = world.next(&mut session, &[putfh(&strict), kind()]);
            assert_eq!(answer.status(), Status::Ok, "{least} {security}");
            assert_eq!(getattr3(&mut world, &strict), 0);
            assert_eq!(mount(&mut world, b"/strict"), 0);
        }
        for security in less {
            world.reactor.security = security;
            let (save, restore) = (Op::Savefh(SavefhArgs), Op::Restorefh(RestorefhArgs));
            let up = Op::Lookupp(LookuppArgs);
            for ops in [
                vec![putfh(&strict), kind()],
                vec![ROOT, lookup(b"strict"), kind()],
                vec![putfh(&strict), lookup(b"x")],
                vec![putfh(&strict), up, lookup(b"strict"), kind()],
                vec![putfh(&strict), save, putfh(&open), restore, kind()],
                vec![putfh(&open), putfh(&strict), kind()],
            ] {
                let answer = world.next(&mut session, &ops);
                assert_eq!(answer.status(), Status::WrongSec, "{security}: {:?}", answer.results());
            }
            assert_eq!(getattr3(&mut world, &strict), ACCES);
            // Linux asks for the handle in the clear (RFC 9289 is silent on MOUNT).
            assert_eq!(mount(&mut world, b"/strict"), 0);
            // The other export is as open as before.
            let answer = world.next(&mut session, &[putfh(&open), kind()]);
            assert_eq!(answer.status(), Status::Ok);
            assert_eq!(getattr3(&mut world, &open), 0);
            assert_eq!(mount(&mut world, b"/open"), 0);
        }
    }
}

#[test]
fn a_server_whose_exports_all_demand_tls_keeps_nothing_of_the_clear() {
    let mut world = World::strict(&[TransportSecurity::Mtls; 2]);
    for security in [TransportSecurity::None, TransportSecurity::Tls] {
        world.reactor.security = security;
        let null = (limits::PROGRAM, limits::VERSION, limits::PROCEDURE_NULL);
        assert!(matches!(world.call(null, 1, 0, &[]), Handled::Reply(_)));
        let refused = world.start(1, 0, &[]);
        let weak = Rejection::Reject(RejectStatus::Auth(AuthStatus::TooWeak));
        assert!(matches!(refused, Handled::Reject(rejection) if rejection == weak), "{security}");
        assert_eq!(world.shared.counts().clients, 0);
    }
    // The same connection is admitted once it has begun TLS.
    world.reactor.security = TransportSecurity::Mtls;
    world.client(b"client");
    assert_eq!(world.shared.counts().clients, 1);
}

fn getattr3(world: &mut World, object: &[u8]) -> u32 {
    let program = (nfs3::PROGRAM, nfs3::VERSION, Procedure::Getattr.number());
    status(world.call(program, 1, 0, &bytes(&FileHandle(object))))
}

fn mount(world: &mut World, path: &[u8]) -> u32 {
    let program = (mount3::PROGRAM, mount3::VERSION, mount3::Procedure::Mnt.number());
    status(world.call(program, 1, 0, &bytes(&Path(path))))
}

//! Exports that demand a proof, and all ways into them with other flavours (RFC 8881 2.6.3.1).

use super::*;
use dafs_service::ExportOptions;

const GETATTR: Op<'static> = Op::Getattr(GetattrArgs { request: Attr::set(&[Attr::Mode]) });

fn secinfo(name: &[u8]) -> Op<'_> {
    Op::Secinfo(SecinfoArgs { name })
}

fn no_name(style: SecinfoStyle) -> Op<'static> {
    Op::SecinfoNoName(SecinfoNoNameArgs { style })
}

/// A server with an export for proofs that has a file, and one for claims.
struct Ways {
    world: World,
    session: Session,
    strict: Vec<u8>,
    hidden: Vec<u8>,
    lax: Vec<u8>,
}

fn strict(options: &mut ExportOptions) {
    options.admits.flavours = vec![Flavour::Krb5p, Flavour::Krb5i];
}

impl Ways {
    fn new(minor: u32) -> Self {
        let mut world = World::new(vec![export("strict", strict), export("lax", |_| {})]);
        world.minor = minor;
        world.shared.accept_gss(crate::gss::of_tests(None));
        let mut session = world.client(&claims(0), StateProtectArgs::None);
        let [strict, lax] = ["strict", "lax"].map(|name| world.root_of(name));
        let root = proves("root@R", 0, Flavour::Krb5i);
        let (hidden, _) = world.file(&root, &mut session, &strict, b"hidden");
        world.file(&claims(0), &mut session, &lax, b"open");
        Self { world, session, strict, hidden, lax }
    }

    /// Sends operations with a claim. Returns the number of results and the last status.
    fn end(&mut self, ops: &[Op<'_>]) -> (usize, Status) {
        // SEQUENCE is not counted.
        let answer = self.world.next(&claims(0), &mut self.session, ops);
        let (count, status) = answer.end();
        (count - 1, status)
    }

    fn names(&mut self, who: &CallerIdentity, dir: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let (dir, args) = (putfh(dir), readdir(&[Attr::RdattrError, Attr::Mode]));
        let answer = self.world.next(who, &mut self.session, &[dir, args]);
        let ResultBody::Readdir(found) = answer.body(2) else { panic!() };
        let entry =
            |entry: DirectoryEntry<'_>| (entry.name.to_vec(), entry.attributes.values.to_vec());
        found.entries().map(entry).collect()
    }
}

fn readdir(attrs: &[Attr]) -> Op<'static> {
    Op::Readdir(ReaddirArgs {
        cookie: 0,
        cookie_verifier: Verifier([0; 8]),
        directory_bytes: 4096,
        result_bytes_max: 4096,
        request: Attr::set(attrs),
    })
}

/// RFC 8881 2.6.3.1.1: which operation reports the flavour.
#[test]
fn the_operation_that_sets_a_handle_reports_the_flavour_unless_the_next_one_is_to() {
    let mut ways = Ways::new(1);
    let (strict, hidden) = (ways.strict.clone(), ways.hidden.clone());
    let wrong = |count| (count, Status::WrongSec);
    let mut check = |ops: &[Op<'_>], end| assert_eq!(ways.end(ops), end, "{ops:?}");
    let put = || putfh(&strict);
    // Nothing, or only another handle behind it.
    check(&[put()], (1, Status::Ok));
    check(&[put(), SAVEFH], (2, Status::Ok));
    check(&[put(), ROOT, GETATTR], (3, Status::Ok));
    check(&[put(), SAVEFH, ROOT, GETATTR], (4, Status::Ok));
    // Anything else.
    check(&[put(), GETATTR], wrong(1));
    check(&[put(), SAVEFH, GETATTR], wrong(1));
    check(&[put(), Op::Getfh(GetfhArgs)], wrong(1));
    check(&[ROOT, put(), put(), GETATTR], wrong(3));
    check(&[put(), open(OpenClaim::Handle)], wrong(1));
    check(&[put(), Op::Illegal(9999)], wrong(1));
    check(&[put(), readdir(&[])], wrong(1));
    check(&[put(), SAVEFH, ROOT, RESTOREFH, GETATTR], wrong(4));
    check(&[put(), SAVEFH, ROOT, RESTOREFH], (4, Status::Ok));
    // Names.
    for name in [&b"hidden"[..], b"missing"] {
        check(&[put(), lookup(name), GETATTR], wrong(2));
        check(&[put(), open(OpenClaim::Null(name))], wrong(2));
    }
    check(&[ROOT, lookup(b"strict"), GETATTR], wrong(2));
    check(&[ROOT, lookup(b"lax"), GETATTR], (3, Status::Ok));
    // Upwards, the parent decides.
    check(&[put(), Op::Lookupp(LookuppArgs), GETATTR], (3, Status::Ok));
    check(&[putfh(&hidden), Op::Lookupp(LookuppArgs), GETATTR], wrong(2));
}

#[test]
fn flavours_are_told_to_every_flavour_and_nothing_else_is() {
    let mut ways = Ways::new(1);
    let (strict, lax) = (ways.strict.clone(), ways.lax.clone());
    let gss = |service| Security::Gss {
        mechanism: &dafs_wire::rpc::gss::KERBEROS_OID,
        quality: 0,
        service,
    };
    let mut told = |ops: &[Op<'_>], expected: &[Security<'_>]| {
        let answer = ways.world.next(&claims(0), &mut ways.session, ops);
        let at = ops.len();
        match answer.body(at) {
            ResultBody::Secinfo(found) | ResultBody::SecinfoNoName(found) => {
                assert_eq!(found.flavors, expected, "{ops:?}");
            }
            other => panic!("{other:?}"),
        }
    };
    let (of_strict, of_lax) = ([gss(3), gss(2)], [Security::Sys]);
    told(&[ROOT, secinfo(b"strict")], &of_strict);
    told(&[ROOT, secinfo(b"lax")], &of_lax);
    told(&[putfh(&strict), no_name(SecinfoStyle::Current)], &of_strict);
    told(&[putfh(&strict), SAVEFH, no_name(SecinfoStyle::Current)], &of_strict);
    told(&[putfh(&lax), no_name(SecinfoStyle::Current)], &of_lax);
    // The handle is consumed.
    for op in [no_name(SecinfoStyle::Current), secinfo(b"hidden")] {
        assert_eq!(ways.end(&[putfh(&strict), op, GETATTR]), (3, Status::NoFileHandle));
    }
}

/// A client that does not know the flavours yet has no user (RFC 8881 2.6.3.1.1.5).
#[test]
fn a_client_without_a_user_asks_for_the_flavours_and_gets_nothing_else() {
    for minor in [1, 2] {
        let mut world = World::new(vec![export("data", |_| {}), export("more", |_| {})]);
        world.minor = minor;
        let nobody = CallerIdentity::unproven(Cred::new(NO_USER, NO_USER), Flavour::None);
        let mut session = world.client(&nobody, StateProtectArgs::None);
        let data = world.root_of("data");
        let asks = [
            [ROOT, secinfo(b"data")],
            [ROOT, no_name(SecinfoStyle::Current)],
            [putfh(&data), no_name(SecinfoStyle::Current)],
            [putfh(&data), no_name(SecinfoStyle::Parent)],
        ];
        for ops in asks {
            let answer = world.next(&nobody, &mut session, &ops);
            match answer.body(2) {
                ResultBody::Secinfo(found) | ResultBody::SecinfoNoName(found) => {
                    assert_eq!(found.flavors, [Security::Sys], "{ops:?}");
                }
                other => panic!("{other:?}"),
            }
        }
        // The operation before the refused one reports the flavour. SEQUENCE counts.
        let mut end = |ops: &[Op<'_>]| world.next(&nobody, &mut session, ops).end();
        assert_eq!(end(&[ROOT, GETATTR]), (2, Status::WrongSec));
        assert_eq!(end(&[ROOT, lookup(b"data"), GETATTR]), (3, Status::WrongSec));
        assert_eq!(end(&[putfh(&data), GETATTR]), (2, Status::WrongSec));
        // The client goes on in its session with what it was told.
        let ops = [ROOT, lookup(b"data"), GETATTR];
        assert_eq!(world.next(&claims(0), &mut session, &ops).status(), Status::Ok);
    }
}

/// Some clients mount with AUTH_NONE, and ask for no flavours.
#[test]
fn an_export_for_callers_without_a_user_is_mounted_without_a_question() {
    let open = |options: &mut ExportOptions| options.admits.flavours.push(Flavour::None);
    let world = World::new(vec![export("data", open), export("more", |_| {})]);
    let nobody = CallerIdentity::unproven(Cred::new(NO_USER, NO_USER), Flavour::None);
    let mut session = world.client(&nobody, StateProtectArgs::None);
    let mut mount = |name: &'static [u8]| {
        let ops = [ROOT, lookup(name), Op::Getfh(GetfhArgs), GETATTR];
        world.next(&nobody, &mut session, &ops).end()
    };
    assert_eq!(mount(b"data"), (5, Status::Ok));
    assert_eq!(mount(b"more"), (3, Status::WrongSec));
}

/// Every flavour in the answer works, and those that would not are not in it.
#[test]
fn secinfo_tells_what_is_accepted_from_the_callers_place() {
    let mixed = |options: &mut ExportOptions| {
        options.admits.flavours = vec![Flavour::Krb5p, Flavour::Sys];
        options.admits.unprivileged_ports = false;
    };
    let mut world = World::new(vec![export("mixed", mixed), export("lax", |_| {})]);
    let mut session = world.client(&claims(0), StateProtectArgs::None);
    let flavours = |world: &World, session: &mut Session| {
        let answer = world.next(&claims(0), session, &[ROOT, secinfo(b"mixed")]);
        if answer.status() != Status::Ok {
            return Err(answer.status());
        }
        let ResultBody::Secinfo(found) = answer.body(2) else { panic!() };
        let number = |flavor: &Security<'_>| match flavor {
            Security::None => 0,
            Security::Sys => 1,
            Security::Gss { service, .. } => 10 + *service,
            Security::Other(_) => panic!("no such flavour"),
        };
        Ok(found.flavors.iter().map(number).collect::<Vec<_>>())
    };
    assert_eq!(flavours(&world, &mut session), Ok(vec![1]), "nobody can prove anything here");
    world.shared.accept_gss(crate::gss::of_tests(None));
    assert_eq!(flavours(&world, &mut session), Ok(vec![13, 1]));
    world.origin = from("127.0.0.1:2000");
    assert_eq!(flavours(&world, &mut session), Ok(vec![13]), "a claim needs a port of root");
    world.origin = from("192.0.2.1:700");
    assert_eq!(flavours(&world, &mut session), Err(Status::Access));
}

/// Attempts to use what a claim may reach for what it may not.
#[test]
fn no_way_leads_through_another_export() {
    let mut ways = Ways::new(2);
    let (strict, hidden, lax) = (ways.strict.clone(), ways.hidden.clone(), ways.lax.clone());
    let (old_name, new_name) = (&b"hidden"[..], &b"stolen"[..]);
    let rename = || Op::Rename(RenameArgs { old_name, new_name });
    let link = || Op::Link(LinkArgs { name: b"stolen" });
    let clone = || {
        Op::Clone(CloneArgs {
            source_stateid: Stateid::ANONYMOUS,
            destination_stateid: Stateid::ANONYMOUS,
            source_offset: 0,
            destination_offset: 0,
            count: 0,
        })
    };
    let from_strict = |handle, op| [putfh(handle), SAVEFH, putfh(&lax), op];
    assert_eq!(ways.end(&from_strict(&strict, rename())), (4, Status::WrongSec));
    assert_eq!(ways.end(&from_strict(&hidden, link())), (4, Status::WrongSec));
    assert_eq!(ways.end(&from_strict(&hidden, clone())), (4, Status::Access));
    // Into the strict export, the last handle is refused at once.
    let into = [putfh(&lax), SAVEFH, putfh(&strict), rename()];
    assert_eq!(ways.end(&into), (3, Status::WrongSec));
    // A state-id of the strict export does not help, nor does a layout.
    assert_eq!(ways.end(&[putfh(&hidden), read(Stateid::ANONYMOUS)]), (1, Status::WrongSec));
    // The file of one export under the rules of the other.
    let moved = [&lax[..16], &hidden[16..]].concat();
    let fileid = |ways: &mut Ways, ops: &[Op<'_>]| {
        let answer = ways.world.next(&claims(0), &mut ways.session, ops);
        match answer.results().last().unwrap().body.clone() {
            ResultBody::Getattr(found) => {
                Some(Attributes::decode(&found.attributes).unwrap().fileid)
            }
            _ => None,
        }
    };
    let attrs = [Attr::Fileid];
    let other = fileid(&mut ways, &[putfh(&moved), getattr(&attrs)]);
    let own = fileid(&mut ways, &[putfh(&lax), lookup(b"open"), getattr(&attrs)]);
    assert!(own.is_some() && (other.is_none() || other == own), "{other:?} {own:?}");
    // Nothing has come or gone.
    let root = proves("root@R", 0, Flavour::Krb5i);
    let names = |list: Vec<(Vec<u8>, Vec<u8>)>| list.into_iter().map(|it| it.0).collect::<Vec<_>>();
    assert_eq!(names(ways.names(&root, &strict)), [b"hidden"]);
    assert_eq!(names(ways.names(&claims(0), &lax)), [b"open"]);
}

#[test]
fn a_listing_shows_no_attributes_of_exports_that_refuse_the_caller() {
    let mut ways = Ways::new(1);
    let top = wire_handle::encode(&ways.world.shared.service.root()).to_vec();
    let [claim, proof] = [claims(0), proves("root@R", 0, Flavour::Krb5i)];
    for (who, closed) in [(claim, "strict"), (proof, "lax")] {
        let wrong = Status::WrongSec.code().to_be_bytes();
        for (name, attributes) in ways.names(&who, &top) {
            assert_eq!(attributes == wrong, name == closed.as_bytes(), "{name:?} {attributes:?}");
        }
    }
    // A client that does not ask for the reason gets no list.
    let ops = [putfh(&top), readdir(&[Attr::Mode])];
    assert_eq!(ways.end(&ops), (2, Status::Access));
}

//! A client's machine that gives up layouts for its users, as Linux does with CLOSE.

use super::calls::{ROOT, Wire, open};
use super::world_over;
use crate::ops::layouts::{get, give, give_back, open_spread};
use dafs_service::Flavour;
use dafs_wire::nfs4::*;
use dafs_wire::rpc::gss::Service;

const ALL_LAYOUTS: LayoutReturn<'static> = LayoutReturn::Wider(3);

/// A layout of the file vouches for its attributes, the return of all layouts does not.
#[test]
fn attributes_come_beside_a_layout_of_the_file_alone() {
    let (_base, store) = open_spread();
    let allow = Bitmap::of(&[OpNum::Close as u32, OpNum::Layoutreturn as u32]);
    let ops = ProtectedOps { must_enforce: Bitmap::EMPTY, must_allow: allow };
    let protect = StateProtectArgs::MachineCredential(ops);
    let (world, _) = world_over(store, &[Flavour::Krb5p]);
    let mut wire = Wire::by(world, ("nfs/client@R", Service::Integrity), protect);
    let mut machine = wire.caller(2, "nfs/client@R");
    let mut root = wire.caller(3, "root@R");
    let ops = [ROOT, open(b"f", &[0, 0, 1, 0o200]), Op::Getfh(GetfhArgs)];
    let opened = wire.next(&mut root, Service::Privacy, &ops);
    let ResultBody::Getfh(found) = opened.body(3) else { panic!() };
    let ResultBody::Open(open) = opened.body(2) else { panic!() };
    let put = || Op::Putfh(PutfhArgs { handle: found.handle });
    let granted = wire.next(&mut root, Service::Privacy, &[put(), get(open.stateid, 2)]);
    let ResultBody::Layoutget(layout) = granted.body(2) else { panic!() };
    let size = || Op::Getattr(GetattrArgs { request: Attr::set(&[Attr::Size]) });
    let mut end = |ops: &[Op<'_>]| {
        let answer = wire.next(&mut machine, Service::Integrity, ops);
        (answer.results().len(), answer.status())
    };
    let close = Op::Close(CloseArgs { seqid: 0, stateid: open.stateid });
    assert_eq!(end(&[put(), size(), give(3, ALL_LAYOUTS)]), (2, Status::WrongSec));
    assert_eq!(end(&[put(), size(), give_back(layout.stateid), size()]), (5, Status::Ok));
    // It is gone.
    assert_eq!(end(&[put(), size(), give_back(layout.stateid)]), (3, Status::Access));
    assert_eq!(end(&[put(), give(3, ALL_LAYOUTS), size()]), (4, Status::Access));
    // The open behind it is state of the file.
    assert_eq!(end(&[put(), give(3, ALL_LAYOUTS), size(), close]), (5, Status::Ok));
}

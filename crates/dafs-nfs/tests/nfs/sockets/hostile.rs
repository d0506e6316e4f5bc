//! Malformed requests over real connections: the server answers or closes, and goes on serving
//! others.

use super::harness::Server;
use dafs_nfs_client::{CallError, Compound, NfsError};
use dafs_rpc::AcceptStatus;
use dafs_rpc::client::Procedure;
use dafs_wire::nfs4::limits::{PROGRAM, VERSION};
use dafs_wire::nfs4::*;

#[test]
fn ten_thousand_operations_are_too_many() {
    let server = Server::start();
    let session = server.session(b"greedy");
    let results = session.call(|compound| {
        for _ in 0..10_000 {
            compound.op(&Op::Putrootfh(PutrootfhArgs));
        }
    });
    assert_eq!(results.unwrap_err().status(), Some(Status::TooManyOps));
    session.renew().unwrap();
}

#[test]
fn operations_that_cannot_be_decoded_end_their_compound() {
    let server = Server::start();
    let session = server.session(b"garbled");
    // Bytes that are no arguments, a count beyond the operations, a number without operation.
    let status = |build: &dyn Fn(&mut Compound)| {
        let mut results = session.call(build).unwrap();
        let mut last = Status::Ok;
        while results.left() > 0 {
            last = results.next_result().unwrap().status;
        }
        last
    };
    let cut = status(&|compound| {
        compound.op(&Op::Putrootfh(PutrootfhArgs)).raw(OpNum::Lookup as u32, &[0xff; 4]);
    });
    assert_eq!(cut, Status::BadXdr);
    let missing = status(&|compound| {
        compound.op(&Op::Putrootfh(PutrootfhArgs)).lie_about_count(5);
    });
    assert_eq!(missing, Status::BadXdr);
    let unknown = status(&|compound| {
        compound.raw(9999, &[]);
    });
    assert_eq!(unknown, Status::OpIllegal);
    let enum_value = status(&|compound| {
        compound.raw(OpNum::SecinfoNoName as u32, &[0, 0, 0, 9]);
    });
    assert_eq!(enum_value, Status::BadXdr);
    session.renew().unwrap();
}

#[test]
fn bytes_that_are_no_compound_are_garbage() {
    let server = Server::start();
    let connection = server.connection();
    let call = |procedure, args: &[u8]| {
        let procedure = Procedure { program: PROGRAM, version: VERSION, procedure };
        connection.rpc().call(procedure, args).map(|_| ())
    };
    for args in [&[][..], &[0xff; 64], &[0, 0, 4, 1, 0, 0, 0, 0]] {
        let garbage = Err(CallError::NotDone(AcceptStatus::GarbageArgs));
        assert_eq!(call(1, args), garbage);
    }
    assert_eq!(call(2, &[]), Err(CallError::NotDone(AcceptStatus::ProcedureUnavailable)));
    connection.null().unwrap();
}

#[test]
fn operations_outside_of_sessions_are_refused() {
    let server = Server::start();
    let connection = server.connection();
    let first = |op: &Op<'_>, minor_version| {
        let mut compound = Compound::new(minor_version);
        compound.op(op);
        let results: Result<_, NfsError> = connection.compound(&compound);
        results.unwrap().status()
    };
    assert_eq!(first(&Op::Putrootfh(PutrootfhArgs), 1), Status::OpNotInSession);
    assert_eq!(first(&Op::Putrootfh(PutrootfhArgs), 0), Status::MinorVersMismatch);
    assert_eq!(first(&Op::Putrootfh(PutrootfhArgs), 3), Status::MinorVersMismatch);
    let session = server.session(b"position");
    let again = session.take_slot(false);
    let twice = session.call(|compound| {
        compound.op(&Op::Sequence(again));
    });
    let mut results = twice.unwrap();
    assert_eq!(results.next_result().unwrap().status, Status::SequencePos);
}

#[test]
fn foreign_state_ids_are_of_no_use() {
    let server = Server::start();
    let session = server.session(b"thief");
    let made_up = Stateid { seqid: 1, other: [0x77; 12] };
    let statuses = session.test_stateids(vec![made_up, Stateid::ANONYMOUS]).unwrap();
    assert_eq!(statuses[0], Status::BadStateId);
    assert_ne!(statuses[1], Status::Ok);
    let freed = session.free_stateid(made_up).unwrap_err();
    assert_eq!(freed.status(), Some(Status::BadStateId));
}

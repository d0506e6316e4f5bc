//! EXCHANGE_ID (RFC 8881 18.35): makes, finds or updates the record of a client.

use crate::principal::Principal;
use crate::v4::compound::context::OpContext;
use crate::v4::protect;
use crate::v4::status::OpResult;
use dafs_service::{ExchangeId, Protection};
use dafs_wire::nfs4::{
    ExchangeFlags, ExchangeIdArgs, ExchangeIdResult, ImplementationId, ServerOwner,
    StateProtectArgs, StateProtectResult, Status, Time,
};

/// The flags that a client may set. SUPP_FENCE_OPS of 4.2 is for servers that fence copies between
/// servers.
const KNOWN_FLAGS: ExchangeFlags = ExchangeFlags::SUPP_MOVED_REFER
    .union(ExchangeFlags::SUPP_MOVED_MIGR)
    .union(ExchangeFlags::BIND_PRINC_STATEID)
    .union(ExchangeFlags::USE_NON_PNFS)
    .union(ExchangeFlags::USE_PNFS_MDS)
    .union(ExchangeFlags::USE_PNFS_DS)
    .union(ExchangeFlags::UPD_CONFIRMED_REC_A);

/// Executes EXCHANGE_ID. The service decides the nine cases of RFC 8881 18.35.5. This function
/// handles flags, state protection and the server's identity.
pub(crate) fn exchange_id(cx: &mut OpContext<'_>, args: &ExchangeIdArgs<'_>) -> OpResult {
    if !KNOWN_FLAGS.contains(args.flags) {
        return Err(Status::Inval.into());
    }
    let is_integral = protect::is_integral(&cx.call().who);
    let asked = match &args.state_protect {
        StateProtectArgs::None => None,
        StateProtectArgs::MachineCredential(ops) if is_integral => Some(protect::grant(ops)),
        StateProtectArgs::MachineCredential(_) => return Err(Status::Inval.into()),
        // A client that gets this error can connect without protection.
        StateProtectArgs::Ssv(_) => return Err(Status::EncrAlgUnsupp.into()),
    };
    let protection = match &asked {
        Some(ops) if !ops.must_enforce.is_empty() => Protection::Demanded,
        _ if is_integral => Protection::Integral,
        _ => Protection::None,
    };
    // The record of another client may have to be removed first.
    cx.may_wait()?;
    let principal = Principal::of(&cx.call().who);
    let request = ExchangeId {
        owner: args.owner.owner_id,
        verifier: args.owner.verifier.0,
        identity: principal.identity(),
        host: cx.call().origin.host(),
        address: cx.call().origin.client_address(),
        update: args.flags.contains(ExchangeFlags::UPD_CONFIRMED_REC_A),
        protection,
    };
    let exchanged = cx.service().clients.exchange_id(&request, cx.call().now_ns)?;
    let key = exchanged.client.key();
    exchanged.client.set_peer(cx.call().peer.to_string());
    let owner = cx.shared().sessions.enter_client(&exchanged.client, principal, asked);
    let sequence_id = owner.next_sequence();
    let mut flags = match (cx.shared().data_role(), cx.service().layouts.exist()) {
        (Some(_), _) => ExchangeFlags::USE_PNFS_DS,
        (None, true) => ExchangeFlags::USE_PNFS_MDS,
        (None, false) => ExchangeFlags::USE_NON_PNFS,
    };
    flags.set(ExchangeFlags::CONFIRMED_R, exchanged.confirmed);
    let options = cx.shared().options();
    cx.answer(&ExchangeIdResult {
        client_id: key.0,
        sequence_id,
        flags,
        // That of the record, which does not change once it is confirmed.
        state_protect: owner
            .protected_ops()
            .map_or(StateProtectResult::None, StateProtectResult::MachineCredential),
        server_owner: ServerOwner { minor_id: 0, major_id: &options.server_owner },
        server_scope: &options.server_scope,
        implementation: Some(ImplementationId {
            domain: options.implementation_domain.as_bytes(),
            name: options.implementation_name.as_bytes(),
            date: Time::default(),
        }),
    })
}

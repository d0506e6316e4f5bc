//! BIND_CONN_TO_SESSION and BACKCHANNEL_CTL (RFC 8881 18.34, 18.33).

use super::channel;
use crate::v4::compound::context::OpContext;
use crate::v4::protect;
use crate::v4::status::OpResult;
use dafs_wire::nfs4::{
    BackchannelCtlArgs, BindConnToSessionArgs, BindConnToSessionResult, ChannelFromClient,
    ChannelFromServer, Status,
};

/// Lets this connection carry a session's requests, callbacks, or both. Any connection may, unless
/// the client's record is protected: then its principal has to ask for it.
pub(crate) fn bind_conn_to_session(
    cx: &mut OpContext<'_>,
    args: &BindConnToSessionArgs,
) -> OpResult {
    let session = cx.find_session(args.session_id)?;
    protect::check(session.client(), &cx.call().who)?;
    let direction = match args.direction {
        ChannelFromClient::Fore => ChannelFromServer::Fore,
        ChannelFromClient::Back => ChannelFromServer::Back,
        ChannelFromClient::ForeOrBoth | ChannelFromClient::BackOrBoth => ChannelFromServer::Both,
        ChannelFromClient::Other(_) => return Err(Status::Inval.into()),
    };
    let either = matches!(args.direction, ChannelFromClient::ForeOrBoth);
    let bound = direction == ChannelFromServer::Fore
        || cx.shared().bind_back(&session, &cx.call().connection, cx.call().now_ns);
    let direction = match (bound, either) {
        (true, _) => direction,
        // The session has no usable back channel, but accepts requests.
        (false, true) => ChannelFromServer::Fore,
        (false, false) => return Err(Status::Inval.into()),
    };
    session.client().renew(cx.call().now_ns);
    cx.answer(&BindConnToSessionResult { session_id: args.session_id, direction, use_rdma: false })
}

/// Changes program and credential of this session's callbacks.
pub(crate) fn backchannel_ctl(cx: &mut OpContext<'_>, args: &BackchannelCtlArgs<'_>) -> OpResult {
    let session = cx.session()?.clone();
    let credential = channel::credential(&args.security);
    if credential.is_none() {
        return Err(Status::Inval.into());
    }
    cx.shared().control_back(&session, args.callback_program, credential, cx.call().now_ns);
    Ok(())
}

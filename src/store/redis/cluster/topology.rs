//! The way of a call: to the only server, or to the node of a cluster that serves its slot.
//!
//! The first call of a script on a new connection contains its source (EVAL). An EVALSHA would be answered
//! with NOSCRIPT and need a second call. If two round trips take longer than the timeout, no check would ever
//! succeed on a cold start.
//!
//! MOVED and ASK are followed within the deadline. ASKING and the call go out in one pipeline, because on a
//! shared connection another call could come between them. → `tests/it/cluster.rs`

use std::sync::Arc;
use std::time::Instant;
use std::{fmt, mem, ptr};

use redis::{
    Cmd, ErrorKind as RedisErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value,
};

use smallvec::{SmallVec, smallvec};
use tokio::runtime::Handle;

use super::call::Call;
use super::discovery::Cluster;
use crate::store::redis::connection::{Connection, ConnectionSet, ConnectionSettings, Connector};
use crate::store::redis::no_reply::{no_runtime, shut_down, timed_out};
use crate::store::redis::script::Script;
use crate::store::redis::server_error::{ServerError, to_error};
use crate::{Error, ErrorKind, timer};

/// The most nodes that a call visits. A migrating slot takes two. More come from nodes that disagree.
const MAX_REDIRECTIONS: usize = 8;

#[derive(Clone)]
pub(crate) enum Topology {
    Server { connections: Arc<ConnectionSet>, connector: Arc<Connector> },
    Cluster(Arc<Cluster>),
}

/// Checks with the same destination share a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Destination {
    /// The only server.
    Server,
    /// The node of a cluster, by the address of its connections in memory.
    Node(usize),
}

/// The reason for which a call has no reply.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server does not know the script, so the call did not run.
    UnknownScript,
    /// The slot is elsewhere, so the call did not run.
    Redirected,
    /// The keys are in several slots, so the call did not run.
    SpansSlots(Error),
    /// The server replied with an error.
    Refused(Error),
    /// No reply arrived. The call may have run.
    Lost(Error),
}

/// The reply to each call of a batch.
pub(crate) type Replies = SmallVec<[Result<Value, Failure>; 1]>;

/// The server to which a call goes next.
struct CallTarget {
    connections: Arc<ConnectionSet>,
    /// The node is importing the slot, so the call has to follow an ASKING.
    asking: bool,
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server { connector, .. } => connector.fmt(f),
            Self::Cluster(cluster) => cluster.fmt(f),
        }
    }
}

impl Topology {
    pub(crate) fn new(connector: Connector) -> Self {
        let (connector, settings) = (Arc::new(connector), ConnectionSettings::default());
        let connections = Arc::new(ConnectionSet::new(connector.clone(), settings));
        Self::Server { connections, connector }
    }

    /// Returns the same servers with other settings, and new connections.
    pub(crate) fn with_settings(&self, settings: ConnectionSettings) -> Self {
        match self {
            Self::Server { connector, .. } => Self::Server {
                connections: Arc::new(ConnectionSet::new(connector.clone(), settings)),
                connector: connector.clone(),
            },
            Self::Cluster(cluster) => Self::Cluster(Arc::new(cluster.with_settings(settings))),
        }
    }

    /// The server of a slot, for logs and errors.
    pub(crate) fn server(&self, slot: u16) -> Arc<str> {
        self.route(slot, |connections| connections.server().clone())
    }

    /// The server, or the first of those that were named.
    pub(crate) fn first_server(&self) -> &str {
        match self {
            Self::Server { connector, .. } => connector.server(),
            Self::Cluster(cluster) => cluster.first_server(),
        }
    }

    /// Returns a text that two stores on the same servers have in common.
    pub(crate) fn identity(&self) -> String {
        match self {
            Self::Server { connector, .. } => connector.identity(),
            Self::Cluster(cluster) => cluster.identity(),
        }
    }

    /// True if each call to this server has a single key.
    pub(crate) fn has_one_key_per_call(&self, server: &ConnectionSet) -> bool {
        self.is_cluster() || server.has_one_key_per_call()
    }

    /// Returns true if a call can touch one slot only.
    pub(crate) fn is_cluster(&self) -> bool {
        !matches!(self, Self::Server { .. })
    }

    /// Returns the destination of the checks of a slot.
    pub(crate) fn destination(&self, slot: u16) -> Destination {
        self.route(slot, |connections| self.destination_of(connections))
    }

    /// Returns the destination to which these connections lead.
    pub(crate) fn destination_of(&self, connections: &Arc<ConnectionSet>) -> Destination {
        match self {
            Self::Server { .. } => Destination::Server,
            Self::Cluster(_) => Destination::Node(Arc::as_ptr(connections).addr()),
        }
    }

    pub(crate) fn connections(&self, slot: u16) -> Arc<ConnectionSet> {
        self.route(slot, Arc::clone)
    }

    fn route<T>(&self, slot: u16, read: impl FnOnce(&Arc<ConnectionSet>) -> T) -> T {
        match self {
            Self::Server { connections, .. } => read(connections),
            Self::Cluster(cluster) => cluster.route(slot, read),
        }
    }

    /// Sends the calls of one batch to this server, each once. Where the server may not know a
    /// script, the first call of it brings it along.
    pub(crate) async fn send(
        &self,
        calls: &mut [Call],
        server: &ConnectionSet,
        connection: &Arc<Connection>,
    ) -> Replies {
        let loading = loading(calls, connection);
        let replies = match (&mut *calls, loading.as_slice()) {
            ([call], []) => smallvec![connection.call(&call.command, false).await],
            ([_], [(_, eval)]) => smallvec![connection.call(&eval.command, false).await],
            // Boxed, so that the future of a single call, which is the most frequent one, is small.
            _ => Box::pin(call_all(calls, &loading, connection)).await,
        };
        if replies.len() != calls.len() {
            let error = Error::new(ErrorKind::Server, "unexpected reply: the number of replies");
            return calls.iter().map(|_| Err(Failure::Refused(error.clone()))).collect();
        }
        let replies: Replies = calls
            .iter()
            .zip(replies)
            .map(|(call, reply)| {
                self.read(call.slot, reply, server).map_err(|(failure, _)| failure)
            })
            .collect();
        for (index, eval) in &loading {
            if matches!(replies.get(*index), Some(Ok(_))) {
                connection.set_knows_script(&eval.script.sha, true);
            }
        }
        for (call, reply) in calls.iter().zip(&replies) {
            if matches!(reply, Err(Failure::UnknownScript)) {
                connection.set_knows_script(&call.script.sha, false);
            }
        }
        replies
    }

    /// Sends a call to the node that serves its slot, and again only after a redirection.
    pub(crate) async fn follow_redirects(
        &self,
        slot: u16,
        command: &Cmd,
    ) -> Result<Value, Failure> {
        let mut target = CallTarget { connections: self.connections(slot), asking: false };
        for _ in 0..MAX_REDIRECTIONS {
            let connection = target.connections.acquire().await.map_err(Failure::Lost)?;
            let reply = connection.call(command, target.asking).await;
            match self.read(slot, reply, &target.connections) {
                Ok(reply) => return Ok(reply),
                Err((Failure::Redirected, Some(next))) => target = next,
                Err((failure, _)) => return Err(failure),
            }
        }
        Err(Failure::Redirected)
    }

    /// Sends a command that no check waits for, and [follows redirections](Self::follow_redirects). The call runs in
    /// a task of its own, because its reply shows whether the connection works, even if it comes too late.
    ///
    /// # Errors
    ///
    /// The true reason: no runtime, no reply before the deadline, a runtime that has shut down, or a failure of the
    /// call.
    pub(crate) async fn call(
        &self,
        slot: u16,
        command: Cmd,
        deadline: Instant,
    ) -> Result<Value, Error> {
        let runtime = Handle::try_current().map_err(|_| no_runtime())?;
        let topology = self.clone();
        let reply = runtime.spawn(async move { topology.follow_redirects(slot, &command).await });
        let server = || self.server(slot);
        timer::timeout_at(deadline, reply)
            .await
            .ok_or_else(|| timed_out(&server()))?
            .map_err(|_| shut_down())?
            .map_err(|failure| Error::from(failure).with_server(&server()))
    }

    /// Returns the result of a call by its reply, and the server to which it goes next if it was redirected.
    fn read(
        &self,
        slot: u16,
        reply: Result<RedisResult<Value>, Error>,
        answered: &ConnectionSet,
    ) -> Result<Value, (Failure, Option<CallTarget>)> {
        let error = match reply {
            Ok(Ok(reply)) => return Ok(reply),
            Ok(Err(error)) => error,
            Err(error) => {
                self.failed(answered);
                return Err((Failure::Lost(error), None));
            }
        };
        if error.kind() == RedisErrorKind::Server(ServerErrorKind::NoScript) {
            answered.metrics.unknown_script();
            return Err((Failure::UnknownScript, None));
        }
        if let Some(target) = self.redirect(slot, &error, answered) {
            answered.metrics.redirected();
            return Err((Failure::Redirected, Some(target)));
        }
        if error.kind() == RedisErrorKind::Server(ServerErrorKind::CrossSlot) {
            answered.spans_slots();
            return Err((Failure::SpansSlots(to_error(error)), None));
        }
        let reply = ServerError::of_call(&error);
        if reply.is_none_or(ServerError::may_move_slot) {
            self.failed(answered);
        }
        let failure = if reply.is_some() { Failure::Refused } else { Failure::Lost };
        let error = match (self, reply) {
            (Self::Server { .. }, Some(ServerError::Redirection)) => to_error(error).with_message(
                "this server is one node of a cluster: use `RedisStore::open_cluster`",
            ),
            _ => to_error(error),
        };
        Err((failure(error), None))
    }

    fn redirect(
        &self,
        slot: u16,
        error: &RedisError,
        answered: &ConnectionSet,
    ) -> Option<CallTarget> {
        match self {
            Self::Server { .. } => None,
            Self::Cluster(cluster) => {
                let (address, _) = error.redirect_node()?;
                let moved = error.kind() == RedisErrorKind::Server(ServerErrorKind::Moved);
                let connections = if moved {
                    cluster.moved(slot, address, answered)
                } else {
                    cluster.asked(address, answered)?
                };
                Some(CallTarget { connections, asking: !moved })
            }
        }
    }

    /// Notes that a call has failed: the slot may have another owner by now.
    pub(crate) fn failed(&self, answered: &ConnectionSet) {
        match self {
            Self::Server { .. } => {}
            Self::Cluster(cluster) => cluster.failed(answered),
        }
    }
}

/// The calls that bring their script along, by their index: the first of each script that the
/// server may not know.
fn loading(calls: &[Call], connection: &Connection) -> SmallVec<[(usize, Call); 1]> {
    let mut scripts = SmallVec::<[&Script; 2]>::new();
    let mut loading = SmallVec::new();
    for (index, call) in calls.iter().enumerate() {
        if scripts.iter().any(|script| ptr::eq(*script, call.script)) {
            continue;
        }
        scripts.push(call.script);
        if !connection.knows_script(&call.script.sha) {
            loading.push((index, call.with_source()));
        }
    }
    loading
}

/// Sends several calls at once. Their commands are not copied, unless they have to be sent again.
async fn call_all(
    calls: &mut [Call],
    loading: &[(usize, Call)],
    connection: &Arc<Connection>,
) -> SmallVec<[Result<RedisResult<Value>, Error>; 1]> {
    let mut pipeline = Pipeline::with_capacity(calls.len());
    let mut loading = loading.iter().peekable();
    for (index, call) in calls.iter_mut().enumerate() {
        pipeline.add_command(match loading.next_if(|(loads, _)| *loads == index) {
            Some((_, eval)) => eval.command.clone(),
            None => mem::take(&mut call.command),
        });
    }
    let replies: SmallVec<_> = match connection.call_all(&pipeline).await {
        Ok(Ok(replies)) => replies.into_iter().map(|reply| Ok(reply.extract_error())).collect(),
        Ok(Err(error)) => calls.iter().map(|_| Ok(Err(error.clone()))).collect(),
        Err(error) => calls.iter().map(|_| Err(error.clone())).collect(),
    };
    for ((call, command), reply) in calls.iter_mut().zip(pipeline.cmd_iter()).zip(&replies) {
        if matches!(reply, Ok(Err(_))) && call.command.args_iter().next().is_none() {
            call.command = command.clone();
        }
    }
    replies
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            // After an EVAL, which loads the script.
            Failure::UnknownScript => Error::new(
                ErrorKind::Server,
                "Redis replied NOSCRIPT right after running the script",
            ),
            Failure::Redirected => {
                Error::new(ErrorKind::Unavailable, "too many redirections in the Redis cluster")
            }
            Failure::SpansSlots(error) | Failure::Refused(error) | Failure::Lost(error) => error,
        }
    }
}

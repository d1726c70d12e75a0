//! Where a call goes: to one server, or to the node of a cluster that serves its slot.

use std::fmt;
use std::sync::Arc;

use redis::{
    Cmd, ErrorKind as RedisErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value,
};

use smallvec::SmallVec;

use super::cluster::Cluster;
use super::connection::Connection;
use super::connector::{Connector, to_error};
use super::script::Script;
use super::server_error::ServerError;
use super::shared_connection::ConnectionSet;
use crate::{Error, ErrorKind, Key};

/// How many nodes a call visits at most. A migrating slot takes two. More come from nodes that
/// disagree.
const MAX_REDIRECTIONS: usize = 8;

#[derive(Clone)]
pub(super) enum Topology {
    /// One server, or a cluster as a pool sees it.
    Server {
        connections: Arc<ConnectionSet>,
        connector: Arc<Connector>,
    },
    Cluster(Arc<Cluster>),
}

/// Identifies a queue. Checks that go to the same server share one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum QueueKey {
    /// The node of a cluster, by the address of its connections in memory.
    Node(usize),
    /// A pool does not say which node a key goes to.
    Key(Key),
}

/// A command and the slot that it touches.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) slot: u16,
    /// The indices of the groups in its batch that it decides.
    pub(super) groups: SmallVec<[usize; 1]>,
    pub(super) command: Cmd,
}

/// Why a call has no reply.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server does not know the script, so the call did not run.
    UnknownScript,
    /// The slot is elsewhere, so the call did not run.
    Redirected,
    /// The server replied with an error.
    Refused(Error),
    /// No reply arrived. The call may have run.
    Lost(Error),
}

/// Where a call goes next.
struct Target {
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
    pub(super) fn new(connector: Connector) -> Self {
        let connector = Arc::new(connector);
        Self::Server { connections: Arc::new(ConnectionSet::new(connector.clone(), 1)), connector }
    }

    pub(super) fn with_connections(&self, count: usize) -> Self {
        match self {
            Self::Server { connector, .. } => Self::Server {
                connections: Arc::new(ConnectionSet::new(connector.clone(), count)),
                connector: connector.clone(),
            },
            Self::Cluster(cluster) => Self::Cluster(Arc::new(cluster.with_connections(count))),
        }
    }

    /// The server of a slot, for logs and errors.
    pub(super) fn server(&self, slot: u16) -> Arc<str> {
        match self {
            Self::Server { connector, .. } => connector.server().clone(),
            Self::Cluster(cluster) => cluster.connections(slot).server().clone(),
        }
    }

    /// Whether a call can touch one slot only.
    pub(super) fn is_cluster(&self) -> bool {
        match self {
            Self::Server { connector, .. } => connector.is_cluster(),
            Self::Cluster(_) => true,
        }
    }

    /// The connections to the only server there is.
    pub(super) fn single_server(&self) -> Option<Arc<ConnectionSet>> {
        match self {
            Self::Server { connections, connector } if !connector.is_cluster() => {
                Some(connections.clone())
            }
            _ => None,
        }
    }

    /// The node that serves a key whose bucket is in this slot.
    pub(super) fn node(&self, key: &Key, slot: u16) -> (QueueKey, Arc<ConnectionSet>) {
        match self {
            Self::Server { connections, .. } => (QueueKey::Key(key.clone()), connections.clone()),
            Self::Cluster(cluster) => {
                let connections = cluster.connections(slot);
                (QueueKey::Node(Arc::as_ptr(&connections).addr()), connections)
            }
        }
    }

    /// Sends the calls of one batch to this server, each once. Where the server may not know the
    /// script, the first of them brings it along.
    pub(super) async fn send(
        &self,
        calls: &[Call],
        script: &Script,
        server: &ConnectionSet,
        connection: &Arc<Connection>,
    ) -> Vec<Result<Value, Failure>> {
        let Some((first, rest)) = calls.split_first() else { return Vec::new() };
        let eval = (!connection.knows_script(script.sha())).then(|| script.eval(first));
        let first_command = &eval.as_ref().unwrap_or(first).command;
        let replies: Vec<_> = if rest.is_empty() {
            vec![connection.call(first_command, false).await]
        } else {
            let mut pipeline = Pipeline::with_capacity(calls.len());
            pipeline.add_command(first_command.clone());
            for call in rest {
                pipeline.add_command(call.command.clone());
            }
            match connection.call_all(&pipeline).await {
                Ok(Ok(replies)) => {
                    replies.into_iter().map(|reply| Ok(reply.extract_error())).collect()
                }
                Ok(Err(error)) => calls.iter().map(|_| Ok(Err(error.clone()))).collect(),
                Err(error) => calls.iter().map(|_| Err(error.clone())).collect(),
            }
        };
        if replies.len() != calls.len() {
            let error = Error::new(ErrorKind::Server, "unexpected reply: the number of replies");
            return calls.iter().map(|_| Err(Failure::Refused(error.clone()))).collect();
        }
        let replies: Vec<_> = calls
            .iter()
            .zip(replies)
            .map(|(call, reply)| {
                self.read(call.slot, reply, server).map_err(|(failure, _)| failure)
            })
            .collect();
        if replies.iter().any(|reply| matches!(reply, Err(Failure::UnknownScript))) {
            connection.set_knows_script(script.sha(), false);
        } else if eval.is_some() && matches!(replies.first(), Some(Ok(_))) {
            connection.set_knows_script(script.sha(), true);
        }
        replies
    }

    /// Sends a call to the node that serves its slot, and again only after a redirection.
    pub(super) async fn follow_redirects(&self, call: &Call) -> Result<Value, Failure> {
        let mut target = self.start(call.slot);
        for _ in 0..MAX_REDIRECTIONS {
            let connection = target.connections.acquire().await.map_err(Failure::Lost)?;
            let reply = connection.call(&call.command, target.asking).await;
            match self.read(call.slot, reply, &target.connections) {
                Ok(reply) => return Ok(reply),
                Err((Failure::Redirected, Some(next))) => target = next,
                Err((failure, _)) => return Err(failure),
            }
        }
        Err(Failure::Redirected)
    }

    fn start(&self, slot: u16) -> Target {
        let connections = match self {
            Self::Server { connections, .. } => connections.clone(),
            Self::Cluster(cluster) => cluster.connections(slot),
        };
        Target { connections, asking: false }
    }

    /// What a reply means, and where the call goes next if it was redirected.
    fn read(
        &self,
        slot: u16,
        reply: Result<RedisResult<Value>, Error>,
        answered: &ConnectionSet,
    ) -> Result<Value, (Failure, Option<Target>)> {
        let error = match reply {
            Ok(Ok(reply)) => return Ok(reply),
            Ok(Err(error)) => error,
            Err(error) => {
                self.failed(answered);
                return Err((Failure::Lost(error), None));
            }
        };
        if error.kind() == RedisErrorKind::Server(ServerErrorKind::NoScript) {
            return Err((Failure::UnknownScript, None));
        }
        if let Some(target) = self.redirect(slot, &error, answered) {
            return Err((Failure::Redirected, Some(target)));
        }
        let reply = ServerError::of_call(&error);
        if reply.is_none_or(ServerError::may_move_slot) {
            self.failed(answered);
        }
        let failure = if reply.is_some() { Failure::Refused } else { Failure::Lost };
        Err((failure(to_error(error)), None))
    }

    fn redirect(&self, slot: u16, error: &RedisError, answered: &ConnectionSet) -> Option<Target> {
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
                Some(Target { connections, asking: !moved })
            }
        }
    }

    /// After a failed call: the slot may have another owner by now.
    fn failed(&self, answered: &ConnectionSet) {
        if let Self::Cluster(cluster) = self {
            cluster.failed(answered);
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            // After an EVAL, which loads the script.
            Failure::UnknownScript => Self::new(
                ErrorKind::Server,
                "Redis replied NOSCRIPT right after running the script",
            ),
            Failure::Redirected => {
                Self::new(ErrorKind::Unavailable, "too many redirections in the Redis cluster")
            }
            Failure::Refused(error) | Failure::Lost(error) => error,
        }
    }
}

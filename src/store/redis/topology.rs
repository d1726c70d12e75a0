//! Where a call goes: to one server, or to the node of a cluster that serves its slot.

use std::fmt;
use std::sync::Arc;

use redis::{
    Cmd, ErrorKind as RedisErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value,
};

use super::cluster::Cluster;
use super::connection::ConnectionSet;
use super::connector::{Connector, to_error};
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
    All,
    /// The node of a cluster, by the address of its connections in memory.
    Node(usize),
    /// A pool does not say which node a key goes to.
    Key(Key),
}

/// A command and the slot that it touches.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) slot: u16,
    /// How many keys it decides.
    pub(super) keys: usize,
    pub(super) command: Cmd,
}

/// Why a call has no reply.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server does not know the script, so the call did not run.
    UnknownScript,
    /// The slot is elsewhere, so the call did not run.
    Redirected,
    Other(Error),
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

    /// The queue of a key whose bucket is in this slot.
    pub(super) fn queue_key(&self, key: &Key, slot: u16) -> QueueKey {
        match self {
            Self::Server { connector, .. } if connector.is_cluster() => QueueKey::Key(key.clone()),
            Self::Server { .. } => QueueKey::All,
            Self::Cluster(cluster) => {
                QueueKey::Node(Arc::as_ptr(&cluster.connections(slot)).addr())
            }
        }
    }

    /// Sends the calls of one queue, each once. If the future is dropped while it waits for the
    /// replies, the silent connection is closed.
    pub(super) async fn send(&self, calls: &[Call]) -> Vec<Result<Value, Failure>> {
        match calls {
            [] => Vec::new(),
            [call] => {
                let connections = self.start(call.slot).connections;
                let reply = connections.next().call(&call.command, false).await;
                let reply = self.read(call.slot, reply);
                vec![reply.map_err(|(failure, _)| failure)]
            }
            [first, ..] => {
                let mut pipeline = Pipeline::with_capacity(calls.len());
                for call in calls {
                    pipeline.add_command(call.command.clone());
                }
                let connections = self.start(first.slot).connections;
                let replies = connections.next().call_all(&pipeline).await;
                let reply = |index: usize| match &replies {
                    Ok(Ok(replies)) => {
                        Ok(replies.get(index).cloned().unwrap_or(Value::Nil).extract_error())
                    }
                    Ok(Err(error)) => Ok(Err(error.clone())),
                    Err(error) => Err(error.clone()),
                };
                let calls = calls.iter().enumerate();
                calls
                    .map(|(index, call)| {
                        self.read(call.slot, reply(index)).map_err(|(failure, _)| failure)
                    })
                    .collect()
            }
        }
    }

    /// Sends a call to the node that serves its slot, and again only after a redirection. If the
    /// future is dropped while it waits for a reply, the silent connection is closed.
    pub(super) async fn follow_redirects(&self, call: &Call) -> Result<Value, Failure> {
        let mut target = self.start(call.slot);
        for _ in 0..MAX_REDIRECTIONS {
            let reply = target.connections.next().call(&call.command, target.asking).await;
            match self.read(call.slot, reply) {
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
    ) -> Result<Value, (Failure, Option<Target>)> {
        let error = match reply {
            Ok(Ok(reply)) => return Ok(reply),
            Ok(Err(error)) => error,
            Err(error) => {
                self.schedule_refresh();
                return Err((Failure::Other(error), None));
            }
        };
        if error.kind() == RedisErrorKind::Server(ServerErrorKind::NoScript) {
            return Err((Failure::UnknownScript, None));
        }
        if let Some(target) = self.redirect(slot, &error) {
            return Err((Failure::Redirected, Some(target)));
        }
        self.schedule_refresh();
        Err((Failure::Other(to_error(error)), None))
    }

    fn redirect(&self, slot: u16, error: &RedisError) -> Option<Target> {
        match self {
            Self::Server { .. } => None,
            Self::Cluster(cluster) => {
                let (address, _) = error.redirect_node()?;
                let moved = error.kind() == RedisErrorKind::Server(ServerErrorKind::Moved);
                let connections = cluster.redirect(slot, address, moved)?;
                Some(Target { connections, asking: !moved })
            }
        }
    }

    /// After a failed call: the slot may have another owner by now.
    fn schedule_refresh(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.refresh_slots();
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
            Failure::Other(error) => error,
        }
    }
}

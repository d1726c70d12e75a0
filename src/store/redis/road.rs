//! Where a call goes: to one server, or to the node of a cluster that serves its slot.

use std::sync::Arc;

use redis::{
    Cmd, ErrorKind as RedisErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value,
};

use super::cluster::Cluster;
use super::connect::{Connector, fault};
use super::lane::Lanes;
use crate::{Error, ErrorKind, Key};

/// Nodes that a call visits. A migrating slot takes two; more come from nodes that disagree.
const MAX_HOPS: usize = 8;

#[derive(Clone, Debug)]
pub(super) enum Road {
    /// One server, or a pool's idea of a cluster.
    Lanes {
        lanes: Arc<Lanes>,
        connector: Arc<Connector>,
    },
    Cluster(Arc<Cluster>),
}

/// Checks that wait for each other stand in the same line: those that go to the same server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Line {
    All,
    /// The node of a cluster, by the address of its lanes in memory.
    Node(usize),
    /// A pool does not tell which node a key goes to.
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

/// Why a call has no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server does not know the script, so the call did not run.
    UnknownScript,
    /// The slot is elsewhere, so the call did not run.
    Redirected,
    Other(Error),
}

/// One stage of a call's way.
struct Hop {
    lanes: Arc<Lanes>,
    /// The node is taking the slot over, and has to be told that the caller knows.
    asking: bool,
}

impl Road {
    pub(super) fn new(connector: Connector) -> Self {
        let connector = Arc::new(connector);
        Self::Lanes { lanes: Arc::new(Lanes::new(connector.clone(), 1)), connector }
    }

    pub(super) fn with_lanes(&self, count: usize) -> Self {
        match self {
            Self::Lanes { connector, .. } => Self::Lanes {
                lanes: Arc::new(Lanes::new(connector.clone(), count)),
                connector: connector.clone(),
            },
            Self::Cluster(cluster) => Self::Cluster(Arc::new(cluster.with_lanes(count))),
        }
    }

    /// Whether a call can touch one slot only.
    pub(super) fn is_cluster(&self) -> bool {
        match self {
            Self::Lanes { connector, .. } => connector.is_cluster(),
            Self::Cluster(_) => true,
        }
    }

    /// The line of a key whose bucket is in this slot.
    pub(super) fn line(&self, key: &Key, slot: u16) -> Line {
        match self {
            Self::Lanes { connector, .. } if connector.is_cluster() => Line::Key(key.clone()),
            Self::Lanes { .. } => Line::All,
            Self::Cluster(cluster) => Line::Node(Arc::as_ptr(&cluster.lanes(slot)).addr()),
        }
    }

    /// Sends the calls of one line, each once. Dropped while it waits for the answers, it gives the
    /// silent connection up.
    pub(super) async fn send(&self, calls: &[Call]) -> Vec<Result<Value, Failure>> {
        match calls {
            [] => Vec::new(),
            [call] => {
                let reply = self.start(call.slot).lanes.next().call(&call.command, false).await;
                vec![self.read(call.slot, reply).map_err(|(failure, _)| failure)]
            }
            [first, ..] => {
                let mut pipeline = Pipeline::with_capacity(calls.len());
                for call in calls {
                    pipeline.add_command(call.command.clone());
                }
                let replies = self.start(first.slot).lanes.next().call_all(&pipeline).await;
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

    /// Sends a call to where its slot is served, and again only on a redirection. Dropped while it
    /// waits for an answer, it gives the silent connection up.
    pub(super) async fn follow(&self, call: &Call) -> Result<Value, Failure> {
        let mut hop = self.start(call.slot);
        for _ in 0..MAX_HOPS {
            let reply = hop.lanes.next().call(&call.command, hop.asking).await;
            match self.read(call.slot, reply) {
                Ok(reply) => return Ok(reply),
                Err((Failure::Redirected, Some(next))) => hop = next,
                Err((failure, _)) => return Err(failure),
            }
        }
        Err(Failure::Redirected)
    }

    fn start(&self, slot: u16) -> Hop {
        let lanes = match self {
            Self::Lanes { lanes, .. } => lanes.clone(),
            Self::Cluster(cluster) => cluster.lanes(slot),
        };
        Hop { lanes, asking: false }
    }

    /// What an answer means, and where the call goes next if it was redirected.
    fn read(
        &self,
        slot: u16,
        reply: Result<RedisResult<Value>, Error>,
    ) -> Result<Value, (Failure, Option<Hop>)> {
        let error = match reply {
            Ok(Ok(reply)) => return Ok(reply),
            Ok(Err(error)) => error,
            Err(error) => {
                self.suspect();
                return Err((Failure::Other(error), None));
            }
        };
        if error.kind() == RedisErrorKind::Server(ServerErrorKind::NoScript) {
            return Err((Failure::UnknownScript, None));
        }
        if let Some(hop) = self.redirect(slot, &error) {
            return Err((Failure::Redirected, Some(hop)));
        }
        self.suspect();
        Err((Failure::Other(fault(error)), None))
    }

    fn redirect(&self, slot: u16, error: &RedisError) -> Option<Hop> {
        match self {
            Self::Lanes { .. } => None,
            Self::Cluster(cluster) => {
                let (address, _) = error.redirect_node()?;
                let moved = error.kind() == RedisErrorKind::Server(ServerErrorKind::Moved);
                let lanes = cluster.redirect(slot, address, moved)?;
                Some(Hop { lanes, asking: !moved })
            }
        }
    }

    /// A call failed: the slot may have another owner by now.
    fn suspect(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.look();
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            // After a call with the script itself: a server that forgets it at once.
            Failure::UnknownScript => Self::new(ErrorKind::Store, "Redis does not keep scripts"),
            Failure::Redirected => {
                Self::new(ErrorKind::Unavailable, "the cluster sends the call from node to node")
            }
            Failure::Other(error) => error,
        }
    }
}

//! Where a call goes: to one server, or to the node of a cluster that serves its slot.

use std::sync::Arc;

use redis::{Cmd, ErrorKind as RedisErrorKind, RedisError, ServerErrorKind, Value};

use super::cluster::Cluster;
use super::connect::{Connector, fault};
use super::lane::Lanes;
use crate::{Error, ErrorKind};

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

/// Why a call has no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server does not know the script, so the call did not run.
    UnknownScript,
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

    /// Sends a call to where its slot is served, and again only on a redirection, which proves that
    /// it did not run. Dropped while it waits for an answer, it gives the silent connection up.
    pub(super) async fn call(&self, slot: u16, command: &Cmd) -> Result<Value, Failure> {
        let mut hop = self.start(slot);
        for _ in 0..MAX_HOPS {
            let Some(Hop { lanes, asking }) = hop else { break };
            let result = lanes.next().call(command, asking).await;
            let error = match result {
                Ok(Ok(reply)) => return Ok(reply),
                Ok(Err(error)) => error,
                Err(error) => {
                    self.suspect();
                    return Err(Failure::Other(error));
                }
            };
            if error.kind() == RedisErrorKind::Server(ServerErrorKind::NoScript) {
                return Err(Failure::UnknownScript);
            }
            hop = self.redirect(slot, &error);
            if hop.is_none() {
                self.suspect();
                return Err(Failure::Other(fault(error)));
            }
        }
        Err(Failure::Other(Error::new(
            ErrorKind::Unavailable,
            "no node of the cluster serves the slot",
        )))
    }

    fn start(&self, slot: u16) -> Option<Hop> {
        let lanes = match self {
            Self::Lanes { lanes, .. } => Some(lanes.clone()),
            Self::Cluster(cluster) => cluster.lanes(slot),
        };
        lanes.map(|lanes| Hop { lanes, asking: false })
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
            Failure::Other(error) => error,
        }
    }
}

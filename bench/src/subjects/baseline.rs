//! The baseline: the cheapest commands on a shared connection.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::cluster_async::ClusterConnection;
use redis::{Cmd, Value};

use super::{BoxError, Operation, address};
use crate::captured::load_script;
use crate::setup::{Place, Setup, connect};

const RETURN_ONE: &str = "return 1";

/// One command, which is built once.
#[derive(Clone)]
pub(crate) struct Baseline {
    connection: MultiplexedConnection,
    command: Arc<Cmd>,
    expected: Value,
}

impl Baseline {
    pub(crate) async fn ping(setup: &Setup) -> Result<Self, BoxError> {
        let expected = Value::SimpleString("PONG".into());
        Ok(Self {
            connection: connect(&setup.url(Place::Local)).await?,
            command: redis::cmd("PING").into(),
            expected,
        })
    }

    pub(crate) async fn return_one(setup: &Setup, place: Place) -> Result<Self, BoxError> {
        let sha = load_script(setup.server(place), RETURN_ONE).await;
        let mut command = redis::cmd("EVALSHA");
        command.arg(sha).arg(0);
        let expected = Value::Int(1);
        let connection = connect(&setup.url(place)).await?;
        Ok(Self { connection, command: command.into(), expected })
    }
}

impl Operation for Baseline {
    async fn execute(&mut self, _: u32) -> Result<bool, BoxError> {
        let reply: Value = self.command.query_async(&mut self.connection).await?;
        if reply == self.expected {
            Ok(true)
        } else {
            Err(format!("unexpected reply: {reply:?}").into())
        }
    }
}

/// `return 1` on a cluster. The command has a key, which selects the node.
#[derive(Clone)]
pub(crate) struct ClusterBaseline {
    connection: ClusterConnection,
    sha: Arc<str>,
}

impl ClusterBaseline {
    pub(crate) async fn new(setup: &Setup) -> Result<Self, BoxError> {
        let mut sha = String::new();
        for n in 0..3 {
            sha = load_script(setup.cluster.node(n), RETURN_ONE).await;
        }
        Ok(Self { connection: setup.connect_to_cluster().await?, sha: sha.into() })
    }
}

impl Operation for ClusterBaseline {
    async fn execute(&mut self, key: u32) -> Result<bool, BoxError> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&*self.sha).arg(1).arg(address(key).to_string());
        let reply: u8 = command.query_async(&mut self.connection).await?;
        if reply == 1 { Ok(true) } else { Err(format!("unexpected reply: {reply}").into()) }
    }
}

//! What a round trip costs at least.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::cluster_async::ClusterConnection;
use redis::{Cmd, Value};

use super::{Fault, Subject, address};
use crate::captured::load;
use crate::stage::Stage;

const RETURN_ONE: &str = "return 1";

/// One command, made once, on one connection.
#[derive(Clone)]
pub(crate) struct Floor {
    connection: MultiplexedConnection,
    command: Arc<Cmd>,
    answer: Value,
}

impl Floor {
    pub(crate) async fn ping(stage: &Stage) -> Result<Self, Fault> {
        let answer = Value::SimpleString("PONG".into());
        Ok(Self { connection: stage.connect().await?, command: redis::cmd("PING").into(), answer })
    }

    pub(crate) async fn return_one(stage: &Stage) -> Result<Self, Fault> {
        let sha = load(&stage.server, RETURN_ONE).await;
        let mut command = redis::cmd("EVALSHA");
        command.arg(sha).arg(0);
        let answer = Value::Int(1);
        Ok(Self { connection: stage.connect().await?, command: command.into(), answer })
    }
}

impl Subject for Floor {
    async fn decide(&mut self, _: u32) -> Result<bool, Fault> {
        let answer: Value = self.command.query_async(&mut self.connection).await?;
        if answer == self.answer { Ok(true) } else { Err(format!("answered {answer:?}").into()) }
    }
}

/// The same on a cluster, which needs a key to find the node by.
#[derive(Clone)]
pub(crate) struct ClusterReturnOne {
    connection: ClusterConnection,
    sha: Arc<str>,
}

impl ClusterReturnOne {
    pub(crate) async fn new(stage: &Stage) -> Result<Self, Fault> {
        let mut sha = String::new();
        for n in 0..3 {
            sha = load(stage.cluster.node(n), RETURN_ONE).await;
        }
        Ok(Self { connection: stage.connect_to_cluster().await?, sha: sha.into() })
    }
}

impl Subject for ClusterReturnOne {
    async fn decide(&mut self, caller: u32) -> Result<bool, Fault> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&*self.sha).arg(1).arg(address(caller).to_string());
        let answer: u8 = command.query_async(&mut self.connection).await?;
        if answer == 1 { Ok(true) } else { Err(format!("answered {answer}").into()) }
    }
}

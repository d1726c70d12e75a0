//! A call through a cluster: its redirections, followed here because the client's own retries
//! cannot be had without its sending again after a broken connection.

use std::time::Duration;

use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};

/// Redirections that one call follows. A migrating slot needs two; more come from nodes that
/// disagree.
const MAX_REDIRECTIONS: usize = 8;

/// How long a server that says TRYAGAIN is left alone.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(2);

pub(super) async fn call(mut connection: ClusterConnection, command: Cmd) -> RedisResult<Value> {
    let mut result = command.query_async(&mut connection).await;
    for _ in 0..MAX_REDIRECTIONS {
        let Err(error) = &result else { break };
        result = match (error.kind(), node(error)) {
            (ErrorKind::Server(ServerErrorKind::Moved), Some(node)) => {
                let routing = RoutingInfo::SingleNode(node);
                connection
                    .route_command(command.clone(), routing)
                    .await
                    .and_then(Value::extract_error)
            }
            (ErrorKind::Server(ServerErrorKind::Ask), Some(node)) => {
                ask(&mut connection, &command, node).await
            }
            (ErrorKind::Server(ServerErrorKind::TryAgain), _) => {
                tokio::time::sleep(TRY_AGAIN_AFTER).await;
                command.query_async(&mut connection).await
            }
            // Nothing was sent: the node that a redirection named is not connected yet.
            (ErrorKind::ClusterConnectionNotFound, _) => command.query_async(&mut connection).await,
            _ => break,
        };
    }
    result
}

/// ASKING and the command in one go: on a shared connection another command could come between.
async fn ask(
    connection: &mut ClusterConnection,
    command: &Cmd,
    node: SingleNodeRoutingInfo,
) -> RedisResult<Value> {
    let mut pipeline = Pipeline::with_capacity(2);
    pipeline.cmd("ASKING").add_command(command.clone());
    let mut replies = connection.route_pipeline(pipeline, 0, 2, node).await?;
    replies.pop().unwrap_or(Value::Nil).extract_error()
}

/// The node that a MOVED or ASK names, if it names one in full.
fn node(error: &RedisError) -> Option<SingleNodeRoutingInfo> {
    let (address, _slot) = error.redirect_node()?;
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() {
        return None;
    }
    Some(SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port: port.parse().ok()? })
}

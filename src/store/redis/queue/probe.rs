//! Probes of a server: calls that no check waits for. They do what a check does, on a key of their own in the
//! same slot, because a server can answer PING and refuse to write.
//!
//! While the server is silent, the first probe is late after half the timeout, so that the breaker opens soon
//! (`InFlightWindow::probe_timeout`). It is a task of the runtime that reads the replies, and is polled once more
//! after its time, so a stall of the process is not mistaken for one of the server. Each later probe may take a
//! timeout to connect and another for its call. One that is late because it had to connect is followed by the
//! next as soon as there is a connection. `sim/probe.rs` imitates this file.
//!
//! A prober is no `SoleTask`: each queue has its own, which the breaker starts under the lock of the queue, and
//! which has to run in the runtime of that queue.

use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use super::batch::Batch;
use super::bucket::{BucketRef, OwnedBucket};
use super::calls::calls_of;
use super::node_queue::NodeQueue;
use crate::store::Op;
use crate::store::redis::cluster::Failure;
use crate::store::redis::connection::{Connection, WAKE_INTERVAL};
use crate::store::redis::no_reply::{shut_down, timed_out};
use crate::store::redis::script::reply;
use crate::{Error, timer};

/// Probes a server until it works. It ends earlier if the queue is dropped, or its node leaves the
/// cluster.
pub(super) struct Prober {
    queue: Weak<NodeQueue>,
    /// The bucket of a probe. It is next to that of the check that the probe imitates, because on a cluster its
    /// slot leads to the node.
    target: OwnedBucket,
    is_done: bool,
}

impl Prober {
    /// Creates a prober that imitates a check of this bucket.
    pub(super) fn new(queue: &Arc<NodeQueue>, bucket: BucketRef<'_>) -> Self {
        let BucketRef { policy, key, slot } = bucket;
        let target = OwnedBucket { policy: policy.probe().into(), key: key.clone(), slot };
        Self { queue: Arc::downgrade(queue), target, is_done: false }
    }

    /// Probes until the server works. The first probe may take `first_timeout`, with connecting. Each later one may
    /// take a timeout to connect, and another for its call.
    pub(super) async fn run(mut self, first_timeout: Duration) {
        let mut first = Some(Instant::now() + first_timeout);
        let (mut connecting, mut connection) = (None, None::<Arc<Connection>>);
        while let Some(queue) = self.queue.upgrade() {
            let known = connection.take();
            let result = probe(&queue, &self.target, first.take(), known, &mut connecting).await;
            let Some(next) = queue.probed(result) else {
                self.is_done = true;
                return;
            };
            // On a cluster another node may serve the slot by now. If checks still come here, they are
            // sent, and the next fault starts another prober.
            if !queue.serves(self.target.slot) {
                self.is_done = true;
                queue.end_breaker();
                return;
            }
            drop(queue);
            connection = pause(next, &mut connecting).await;
        }
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        if !self.is_done
            && let Some(queue) = self.queue.upgrade()
        {
            queue.probe_abandoned();
        }
    }
}

/// An attempt to connect, which may take longer than a probe.
type Connecting = JoinHandle<Result<Arc<Connection>, Error>>;

/// `first` is when the first probe has to end. `None` for later ones.
async fn probe(
    queue: &Arc<NodeQueue>,
    target: &OwnedBucket,
    first: Option<Instant>,
    connection: Option<Arc<Connection>>,
    connecting: &mut Option<Connecting>,
) -> Result<(), Error> {
    let end = || first.unwrap_or_else(|| Instant::now() + queue.timeout());
    let late = || Err(timed_out(queue.connections.server()));
    let connection = match connection {
        Some(connection) => connection,
        None => {
            let attempt = connecting.take();
            let mut attempt = attempt.unwrap_or_else(|| tokio::spawn(connect(queue.clone())));
            match wait(&mut attempt, end()).await {
                Some(connection) => connection?,
                None => {
                    *connecting = Some(attempt);
                    return late();
                }
            }
        }
    };
    // In a task of its own, because the reply shows whether the connection works.
    let mut call = tokio::spawn(call(queue.clone(), connection, target.clone()));
    wait(&mut call, end()).await.unwrap_or_else(late)
}

/// The pause until the next probe, which begins as soon as there is a connection. Otherwise probes of a
/// server to which connecting takes longer than the timeout would begin long after that.
async fn pause(until: Instant, connecting: &mut Option<Connecting>) -> Option<Arc<Connection>> {
    if let Some(attempt) = connecting {
        let result = timer::timeout_at(until, attempt).await?;
        *connecting = None;
        if let Ok(Ok(connection)) = result {
            return Some(connection);
        }
    }
    timer::sleep_until(until).await;
    None
}

/// `None` if the task takes longer.
async fn wait<T>(
    task: &mut JoinHandle<Result<T, Error>>,
    until: Instant,
) -> Option<Result<T, Error>> {
    let result = match timer::timeout_at(until, &mut *task).await {
        Some(result) => result,
        // If all workers were blocked, it is polled again to read what has arrived meanwhile.
        None => timer::timeout_at(Instant::now() + WAKE_INTERVAL / 2, task).await?,
    };
    Some(result.unwrap_or_else(|_| Err(shut_down())))
}

async fn connect(queue: Arc<NodeQueue>) -> Result<Arc<Connection>, Error> {
    let connection = queue.acquire().await;
    connection.inspect_err(|_| queue.topology.failed(&queue.connections))
}

async fn call(
    queue: Arc<NodeQueue>,
    connection: Arc<Connection>,
    target: OwnedBucket,
) -> Result<(), Error> {
    let (batch, op, now) = (Batch::default(), Op::acquire(1), Instant::now());
    batch.push(target.as_ref(), &op, now, Waker::noop());
    let mut calls = batch.freeze(|_| false, shut_down, |groups, _| calls_of(groups, true, None));
    let replies = queue.topology.send(&mut calls, &queue.connections, &connection).await;
    let replies = replies.into_iter().map(|reply| match reply {
        Ok(reply) => reply::parse(reply, 1)?.into_iter().try_for_each(|found| found.map(|_| ())),
        // The server has replied.
        Err(Failure::UnknownScript | Failure::Redirected) => Ok(()),
        Err(failure) => Err(failure.into()),
    });
    replies.collect()
}

//! The primary of a service: sentinels are asked for it, and watched for the next one.
//!
//! After a planned failover the old primary keeps its role and accepts writes for about ten more seconds, and
//! closes no connection. Only the sentinels know that it was replaced. `SentinelClient` of `redis` asks them
//! only when it connects, uses the first reply, and blocks on a sentinel that hangs. Here all are asked at
//! once, and the report with the greatest configuration epoch counts (`primary_report`).
//!
//! The task that owns a connection also watches the sentinels, already while it connects: an attempt at a
//! primary that hangs goes on with the one that is promoted. It ends with the connection, the store or the
//! runtime, so nothing has to be stopped. With several connections or runtimes, a mutex lets one task watch
//! at a time, and another takes over when it ends. RESP3 allows replies and published messages on one
//! connection. With RESP2 each sentinel is only asked from time to time.

use std::convert::Infallible;
use std::fmt;
use std::pin::pin;
use std::sync::{self, Arc, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Pipeline, ProtocolVersion, PushInfo, Role};
use tokio::sync::{Mutex, MutexGuard, Notify, watch};

use super::endpoint::{CONNECT_TIMEOUT, Endpoint, plain_config};
use super::node::Node;
use super::primary_report::{Report, is_majority, newest};
use super::sentinel_service::SentinelService;
use super::server::RedisServer;
use crate::store::redis::server_error::to_error;
use crate::{ConfigError, Error, ErrorKind, timer};

/// The longest time that a sentinel may take to reply.
const REPLY_TIMEOUT: Duration = Duration::from_millis(500);

/// The longest time for which the first report waits for those of a majority.
const MAJORITY_TIMEOUT: Duration = Duration::from_millis(100);

/// The pause between two questions to a sentinel, if it publishes nothing meanwhile.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

const SWITCH_CHANNEL: &str = "+switch-master";

pub(super) struct Sentinels {
    sentinels: Vec<Endpoint>,
    service: String,
    /// The endpoint of the primary, except for its address.
    primary: Endpoint,
    /// The latest report of each sentinel that is watched.
    reports: watch::Sender<Vec<Option<Report>>>,
    /// The lock of the connection that watches the sentinels for all of them.
    watching: Mutex<()>,
    /// The primary that the log has named last. All other lines name the service.
    logged: sync::Mutex<Option<Node>>,
}

impl Sentinels {
    pub(super) fn new(
        sentinels: impl IntoIterator<Item = impl Into<RedisServer>>,
        service: SentinelService,
    ) -> Result<Self, ConfigError> {
        let (service, primary) = service.into_parts()?;
        let endpoints = sentinels.into_iter().map(|sentinel| sentinel.into().endpoint());
        let endpoints = endpoints.collect::<Result<Vec<_>, _>>()?;
        let first = endpoints.first().cloned();
        let first = first.ok_or(ConfigError::new("no sentinel given: name at least one"))?;
        let primary = primary.unwrap_or(first);
        let sentinels: Vec<_> = endpoints.into_iter().map(Endpoint::without_database).collect();
        let reports = watch::Sender::new(vec![None; sentinels.len()]);
        let (watching, logged) = Default::default();
        Ok(Self { sentinels, service, primary, reports, watching, logged })
    }

    /// Returns a text that two stores on the same service have in common.
    pub(super) fn identity(&self) -> String {
        let mut sentinels: Vec<_> = self.sentinels.iter().map(Endpoint::identity).collect();
        sentinels.sort_unstable();
        let database = self.primary.info.redis_settings().db();
        format!("{self:?} {database} {}", sentinels.join(" "))
    }

    pub(super) fn service(&self) -> &str {
        &self.service
    }

    /// Returns the endpoint of the primary, except for its address.
    pub(super) fn primary(&self) -> &Endpoint {
        &self.primary
    }

    /// Connects to the primary, and returns the report that named it. If it is replaced meanwhile, the
    /// attempt goes on with the next one: one that does not reply would use up its time.
    pub(super) async fn connect(
        &self,
        config: &AsyncConnectionConfig,
    ) -> Result<(MultiplexedConnection, Report), Error> {
        loop {
            let report = self.ask_all().await?;
            let connection = {
                let connecting = pin!(self.connect_to(&report.primary, config));
                match select(connecting, pin!(self.replaced(&report))).await {
                    Either::Left((connection, _)) => connection?,
                    Either::Right(_) => continue,
                }
            };
            return Ok((connection, report));
        }
    }

    async fn connect_to(
        &self,
        primary: &Node,
        config: &AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, Error> {
        let mut connection = self.primary.at(primary).connect(config).await?;
        let role = redis::cmd("ROLE");
        match timeout(REPLY_TIMEOUT, role.query_async::<Role>(&mut connection)).await {
            Some(Ok(Role::Primary { .. })) => {
                self.log(primary);
                Ok(connection)
            }
            Some(Ok(_)) => {
                Err(unavailable("the server that the sentinels report is not a primary"))
            }
            Some(Err(error)) => Err(to_error(error)),
            None => Err(unavailable("the primary did not reply")),
        }
    }

    /// Names the primary, unless it is the same as before.
    fn log(&self, primary: &Node) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let before = logged.replace(primary.clone());
        drop(logged);
        if before.as_ref() != Some(primary) {
            let (service, primary) = (self.service.as_str(), primary.to_string());
            tracing::info!(
                target: "fleetlimit", event = "primary_connected", service, primary,
                "connected to the primary of a service"
            );
        }
    }

    /// Waits until the sentinels report another primary. Of the connections that wait, one watches
    /// the sentinels, and another takes over when it ends.
    pub(super) async fn replaced(&self, current: &Report) {
        let mut reports = self.reports.subscribe();
        let replaced = async {
            let _ = reports.wait_for(|reports| current.is_outdated(reports)).await;
        };
        let watch = async {
            let _watching = Watching { sentinels: self, _lock: self.watching.lock().await };
            self.watch().await;
        };
        select(pin!(replaced), pin!(watch)).await;
    }

    /// Asks all sentinels which server is the primary. Waits for a majority, if it replies soon.
    async fn ask_all(&self) -> Result<Report, Error> {
        let mut asked: FuturesUnordered<_> =
            self.sentinels.iter().map(|sentinel| self.ask_once(sentinel)).collect();
        let mut reports = Vec::new();
        let mut failure = unavailable("no sentinel replied");
        let mut deadline = Instant::now() + 2 * REPLY_TIMEOUT;
        while let Some(Some(report)) = timer::timeout_at(deadline, asked.next()).await {
            match report {
                Ok(report) => reports.push(report),
                Err(error) => failure = error,
            }
            if is_majority(reports.len(), self.sentinels.len()) {
                break;
            }
            if reports.len() == 1 {
                deadline = deadline.min(Instant::now() + MAJORITY_TIMEOUT);
            }
        }
        newest(reports.iter()).cloned().ok_or(failure)
    }

    async fn ask_once(&self, sentinel: &Endpoint) -> Result<Report, Error> {
        self.ask(&mut sentinel.connect(&plain_config()).await?).await
    }

    async fn ask(&self, sentinel: &mut MultiplexedConnection) -> Result<Report, Error> {
        let mut questions = Pipeline::with_capacity(2);
        questions.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
        questions.cmd("SENTINEL").arg("MASTER").arg(&self.service);
        let replies = timeout(REPLY_TIMEOUT, sentinel.req_packed_commands(&questions, 0, 2)).await;
        let replies = replies.ok_or_else(|| unavailable("a sentinel did not reply"))?;
        let mut replies = replies.map_err(to_error)?.into_iter();
        let (Some(address), Some(service)) = (replies.next(), replies.next()) else {
            return Err(unavailable("a sentinel replied to something else"));
        };
        let address = address.extract_error().map_err(to_error)?;
        Report::parse(address, service)
            .ok_or_else(|| unavailable("the sentinels do not know this service"))
    }

    /// Watches all sentinels until the future is dropped.
    async fn watch(&self) {
        let sentinels = self.sentinels.iter().enumerate();
        let mut all: FuturesUnordered<_> =
            sentinels.map(|(index, sentinel)| self.watch_one(index, sentinel)).collect();
        all.next().await;
    }

    async fn watch_one(&self, index: usize, sentinel: &Endpoint) -> Infallible {
        loop {
            // An error ends the connection to the sentinel. The others are still watched.
            let _ = self.follow(index, sentinel).await;
            self.report(index, None);
            timer::sleep_until(Instant::now() + POLL_INTERVAL).await;
        }
    }

    /// Asks a sentinel whenever it publishes something, and at least once per interval: it does not
    /// publish what others decide while it is cut off, and with RESP2 the connection that asks cannot be
    /// subscribed.
    async fn follow(&self, index: usize, sentinel: &Endpoint) -> Result<Infallible, Error> {
        let published = Arc::new(Notify::new());
        let mut config = plain_config();
        let may_subscribe = sentinel.protocol() != ProtocolVersion::RESP2;
        if may_subscribe {
            let published = published.clone();
            config = config.set_push_sender(move |_: PushInfo| {
                published.notify_one();
                Ok::<_, Infallible>(())
            });
        }
        let connection = timeout(CONNECT_TIMEOUT, sentinel.connect(&config)).await;
        let mut connection =
            connection.ok_or_else(|| unavailable("a sentinel did not reply"))??;
        if may_subscribe {
            // Without the permission to subscribe it is still asked.
            let _ = timeout(REPLY_TIMEOUT, connection.subscribe(SWITCH_CHANNEL)).await;
        }
        loop {
            let report = self.ask(&mut connection).await?;
            self.report(index, Some(report));
            let _ = timeout(POLL_INTERVAL, published.notified()).await;
        }
    }

    fn report(&self, index: usize, report: Option<Report>) {
        self.reports.send_if_modified(|reports| match reports.get_mut(index) {
            Some(latest) if *latest != report => {
                *latest = report;
                true
            }
            _ => false,
        });
    }
}

/// The role of the connection that watches the sentinels. Dropping it clears their reports, which may be
/// older than the primary of a later connection.
struct Watching<'a> {
    sentinels: &'a Sentinels,
    _lock: MutexGuard<'a, ()>,
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.sentinels.reports.send_modify(|reports| reports.fill(None));
    }
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sentinel service {}", self.service)
    }
}

async fn timeout<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    timer::timeout_at(Instant::now() + limit, future).await
}

fn unavailable(message: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, message)
}

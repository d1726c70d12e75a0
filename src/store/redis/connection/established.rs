//! An established connection that many calls share, and its health.
//!
//! A connection is replaced when it breaks, or when it has been silent for a period of its own while a reply
//! was outstanding (`health`). Calls in flight fail with it.
//!
//! An idle connection is pinged. What lies between can forget a connection without a word to either side, and
//! then only a call that gets no reply shows it. TCP keepalive would do for NAT, but a proxy answers that
//! itself. → `a_connection_that_died_silently_while_idle_is_replaced_before_a_check_needs_it` in
//! `tests/it/connections.rs`

use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Instant;

use futures_util::future::{Either, select};
use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};
use tokio::sync::Notify;

use super::health::{Health, WAKE_INTERVAL};
use super::multiplexed::{Disconnection, Multiplexed};
use super::settings::ConnectionSettings;
use crate::store::redis::server_error::{self, ServerError, to_error};
use crate::timer::{self, Timer};
use crate::{Error, ErrorKind};

/// The key whose deletion shows whether a server accepts writes. No policy has it.
const NO_KEY: &str = "fleetlimit:{none}";

#[derive(Debug)]
pub(crate) struct Connection {
    multiplexed: Multiplexed,
    opened: Instant,
    disconnection: Arc<Disconnection>,
    state: Mutex<ConnectionState>,
    /// Notifies the calls in flight.
    closing: Notify,
}

#[derive(Debug, Default)]
struct ConnectionState {
    health: Health,
    /// The reason for which it was closed, if it was.
    closed: Option<Error>,
    /// The scripts that the server knows.
    scripts: Vec<String>,
    is_timer_armed: bool,
}

impl Connection {
    pub(super) fn new(multiplexed: Multiplexed, disconnection: Arc<Disconnection>) -> Self {
        let (opened, state, closing) = (Instant::now(), Mutex::default(), Notify::new());
        Self { multiplexed, opened, disconnection, state, closing }
    }

    /// Returns when it was made.
    pub(crate) fn opened(&self) -> Instant {
        self.opened
    }

    /// Sends a command. The inner error is the server's, or says that the connection broke. The
    /// outer error says that it was closed before a reply arrived.
    pub(crate) async fn call(
        self: &Arc<Self>,
        command: &Cmd,
        asking: bool,
    ) -> Result<RedisResult<Value>, Error> {
        let connection = self.multiplexed.clone();
        let reply = async move {
            if asking {
                connection.call_asking(command).await
            } else {
                connection.call(command).await
            }
        };
        self.run(reply, |reply| fault(reply.as_ref().map(slice::from_ref))).await
    }

    /// Sends commands together. Like [`call`](Self::call), with a reply or an error in each value.
    pub(crate) async fn call_all(
        self: &Arc<Self>,
        commands: &Pipeline,
    ) -> Result<RedisResult<Vec<Value>>, Error> {
        let replies = self.multiplexed.clone().call_all(commands);
        self.run(replies, |replies| fault(replies.as_ref().map(Vec::as_slice))).await
    }

    async fn run<T>(
        self: &Arc<Self>,
        reply: impl Future<Output = RedisResult<T>>,
        fault: impl FnOnce(&RedisResult<T>) -> Option<Error>,
    ) -> Result<RedisResult<T>, Error> {
        let mut closing = pin!(self.closing.notified());
        closing.as_mut().enable();
        let in_flight = InFlight::start(self)?;
        match select(pin!(reply), closing).await {
            Either::Left((reply, _)) => {
                in_flight.received(fault(&reply));
                Ok(reply)
            }
            Either::Right(_) => Err(self.closed().unwrap_or_else(disconnected)),
        }
    }

    /// Returns true if a good reply has ever arrived.
    pub(super) fn is_proven(&self) -> bool {
        self.state().health.is_proven()
    }

    /// Returns true if it worked long enough that losing it does not suggest a lasting fault.
    pub(super) fn was_stable(&self, now: Instant) -> bool {
        self.state().health.was_stable(now)
    }

    /// Returns the reason for which it was closed, if it was.
    pub(super) fn closed(&self) -> Option<Error> {
        let closed = self.state().closed.clone();
        closed.or_else(|| self.disconnection.has_happened().then(disconnected))
    }

    /// Ends the calls in flight with this error. The first error stays.
    pub(super) fn close(&self, error: Error) {
        let mut state = self.state();
        if state.closed.is_none() {
            state.closed = Some(error);
        }
        drop(state);
        self.closing.notify_waiters();
        self.disconnection.wake();
    }

    pub(crate) fn knows_script(&self, sha: &str) -> bool {
        self.state().scripts.iter().any(|script| script == sha)
    }

    /// A call of the script ran, or showed that the server does not know it.
    pub(crate) fn set_knows_script(&self, sha: &str, known: bool) {
        let mut state = self.state();
        let index = state.scripts.iter().position(|script| script == sha);
        match (index, known) {
            (None, true) => state.scripts.push(sha.to_owned()),
            (Some(index), false) => {
                state.scripts.swap_remove(index);
            }
            _ => {}
        }
    }

    /// Watches over the connection until it is closed. It runs in the runtime that polls the
    /// connection, so that a stall of that runtime is not taken for the server's silence.
    pub(super) async fn keep(self: &Arc<Self>, settings: ConnectionSettings) {
        select(pin!(self.watch()), pin!(self.ping_while_idle(settings))).await;
    }

    /// Returns when the connection is closed, and closes it if it is silent.
    ///
    /// A check that nobody polls does not read its reply. So a server that seems to be silent gets a
    /// call whose reply is read here. An error is a sign of life too, so it needs no permission.
    async fn watch(self: &Arc<Self>) {
        let mut asking = None;
        poll_fn(|cx| {
            self.disconnection.notify(cx.waker());
            if let Some(error) = self.closed() {
                self.close(error);
                return Poll::Ready(());
            }
            let (is_silent, is_doubtful) = {
                let health = &mut self.state().health;
                (health.is_silent(Instant::now()), health.is_doubtful())
            };
            if is_silent {
                self.close(Error::new(
                    ErrorKind::Unavailable,
                    "Redis sent nothing for half a second: the connection is replaced",
                ));
                return Poll::Ready(());
            }
            if is_doubtful && asking.is_none() {
                asking = Some(Box::pin(self.ask()));
            }
            if let Some(call) = &mut asking
                && call.as_mut().poll(cx).is_ready()
            {
                asking = None;
            }
            Poll::Pending
        })
        .await;
    }

    /// Keeps what lies between from dropping an idle connection, and finds out if it has: without a word,
    /// so that only a call that gets no reply shows it. That must not be a check.
    async fn ping_while_idle(self: &Arc<Self>, settings: ConnectionSettings) {
        while self.closed().is_none() {
            let idle_since = self.state().health.heard().unwrap_or(self.opened);
            match settings.ping_at(idle_since) {
                None => break,
                Some(at) if at <= Instant::now() => self.ask().await,
                Some(at) => timer::sleep_until(at).await,
            }
        }
        pending().await
    }

    /// The reply proves nothing but that one arrived.
    async fn ask(self: &Arc<Self>) {
        let Ok(in_flight) = InFlight::start(self) else { return };
        let reply = self.multiplexed.clone().call(&redis::cmd("PING")).await;
        in_flight.noticed();
        if let Some(error) = fault(reply.as_ref().map(slice::from_ref)) {
            self.close(error);
        }
    }

    /// Finds out whether a new connection can take the place of one that works. A replica cannot: it replies to
    /// a `PING`, but not to a write.
    pub(super) async fn try_out(self: &Arc<Self>) -> Result<(), Error> {
        match self.call(&redis::cmd("PING"), false).await? {
            // The user may not call it, or a proxy does not know it.
            Err(error) if !matches!(error.code(), Some("NOPERM" | "ERR")) => {
                return Err(to_error(error));
            }
            _ => {}
        }
        // Unlike `ROLE`, this needs no other permission than checks do, and every proxy knows it.
        match self.call(redis::cmd("DEL").arg(NO_KEY), false).await? {
            Err(error) => match ServerError::of_call(&error) {
                None | Some(ServerError::NotPrimary) => Err(to_error(error)),
                // Such as that another node of the cluster has the key.
                Some(_) => Ok(()),
            },
            Ok(_) => Ok(()),
        }
    }

    fn state(&self) -> MutexGuard<'_, ConnectionState> {
        // Nothing that panics runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Timer for Connection {
    fn fire(self: Arc<Self>, now: Instant) -> Option<Instant> {
        let mut state = self.state();
        let silence = state.health.silence(now);
        state.is_timer_armed = silence.is_some();
        drop(state);
        if silence? >= WAKE_INTERVAL {
            self.disconnection.wake();
        }
        Some(now + WAKE_INTERVAL)
    }
}

/// A call whose reply is outstanding.
struct InFlight<'a> {
    connection: &'a Arc<Connection>,
    is_done: bool,
}

impl<'a> InFlight<'a> {
    fn start(connection: &'a Arc<Connection>) -> Result<Self, Error> {
        let now = Instant::now();
        let mut state = connection.state();
        if let Some(error) = &state.closed {
            return Err(error.clone());
        }
        state.health.sent(now);
        let arms_timer = !std::mem::replace(&mut state.is_timer_armed, true);
        drop(state);
        if arms_timer {
            let timer: Arc<dyn Timer> = connection.clone();
            timer::arm(now + WAKE_INTERVAL, Arc::downgrade(&timer));
        }
        Ok(Self { connection, is_done: false })
    }

    /// A reply arrived, whatever it was.
    fn noticed(mut self) {
        self.is_done = true;
        self.connection.state().health.received(Instant::now(), false);
    }

    /// A reply arrived. A fault makes the connection useless.
    fn received(mut self, fault: Option<Error>) {
        self.is_done = true;
        let now = Instant::now();
        self.connection.state().health.received(now, fault.is_none());
        if let Some(error) = fault {
            self.connection.close(error);
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.connection.state().health.abandoned();
        }
    }
}

/// Returns the reason for which a connection with these replies is useless: it is closed, out of step, or
/// leads to a server that cannot decide checks.
fn fault(replies: Result<&[Value], &RedisError>) -> Option<Error> {
    match replies {
        Err(error) => {
            let is_fault = error.is_unrecoverable_error()
                || error.is_timeout()
                || ServerError::of_call(error) == Some(ServerError::NotPrimary);
            is_fault.then(|| to_error(error.clone()))
        }
        Ok(replies) => replies.iter().find_map(server_error::not_primary),
    }
}

fn disconnected() -> Error {
    Error::new(ErrorKind::Unavailable, "Redis unreachable: the connection was closed")
}

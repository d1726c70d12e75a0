//! A proxy in front of a server, with the network faults that a test asks for.

use std::mem;
use std::net::Ipv4Addr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

use super::ports::free_port;
use super::relay::{Faults, relay};

/// A TCP proxy in front of a server, which simulates network faults.
///
/// It runs on the runtime of the test. A test that blocks its thread can block the proxy too.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    faults: Arc<Faults>,
    connections: Connections,
    acceptor: Mutex<Option<JoinHandle<()>>>,
}

type Connections = Arc<Mutex<JoinSet<()>>>;

impl Proxy {
    /// Starts a proxy for the server on the port `target`. It has no faults yet.
    pub(crate) async fn start(target: u16) -> Self {
        let (listener, port) = loop {
            let port = free_port();
            if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
                break (listener, port);
            }
        };
        let faults = Faults { target: target.into(), ..Faults::default() };
        let proxy = Self {
            port,
            faults: Arc::new(faults),
            connections: Connections::default(),
            acceptor: Mutex::new(None),
        };
        proxy.listen(listener);
        proxy
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Forwards new connections to another server. Open connections are unaffected.
    pub(crate) fn retarget(&self, target: u16) {
        self.faults.target.store(target, SeqCst);
    }

    /// While on, discards the data of both sides, and still accepts connections. A connection that
    /// has lost data never forwards again: the client would match later replies to the wrong
    /// requests.
    pub(crate) fn swallow(&self, on: bool) {
        self.faults.swallow.store(on, SeqCst);
    }

    /// Discards all further data of the connections that are open, as a gateway does that has forgotten
    /// them while they were idle. New connections work.
    pub(crate) fn forget_connections(&self) {
        self.faults.forgotten.fetch_add(1, SeqCst);
    }

    /// The next `n` times that a reply arrives, closes its connection instead of forwarding it. The
    /// server has then run a command whose reply the client does not receive.
    pub(crate) fn disconnect_on_reply(&self, n: usize) {
        self.faults.disconnects.store(n, SeqCst);
    }

    /// Returns how many of these replies have not arrived yet.
    pub(crate) fn disconnects_left(&self) -> usize {
        self.faults.disconnects.load(SeqCst)
    }

    /// While on, forwards only the first half of a reply, and closes its connection.
    pub(crate) fn truncate(&self, on: bool) {
        self.faults.truncate.store(on, SeqCst);
    }

    /// While on, replaces the bytes of replies with others.
    pub(crate) fn garble(&self, on: bool) {
        self.faults.garble.store(on, SeqCst);
    }

    /// Delays each reply. Delays overlap.
    pub(crate) fn delay(&self, delay: Duration) {
        self.faults.delay_micros.store(delay.as_micros() as u64, SeqCst);
    }

    /// Simulates a network with this round trip time: each direction takes half of it, and a new
    /// connection a whole one before its first data. Data keeps its order and is not limited in
    /// rate. The proxy itself adds about 0.2 ms.
    pub(crate) fn round_trip(&self, time: Duration) {
        self.faults.round_trip_micros.store(time.as_micros() as u64, SeqCst);
    }

    /// Returns how many connections were accepted so far.
    pub(crate) fn accepted(&self) -> usize {
        self.faults.accepted.load(SeqCst)
    }

    /// Refuses new connections. Open connections are unaffected.
    pub(crate) async fn refuse(&self) {
        let acceptor = self.acceptor.lock().unwrap().take();
        if let Some(acceptor) = acceptor {
            acceptor.abort();
            let _ = acceptor.await;
        }
    }

    /// Accepts connections again.
    pub(crate) async fn accept(&self) {
        self.refuse().await;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port)).await;
        self.listen(listener.expect("nobody else took the port"));
    }

    /// Closes all connections, and returns when they are closed.
    pub(crate) async fn disconnect_all(&self) {
        let mut connections = mem::take(&mut *self.connections.lock().unwrap());
        connections.shutdown().await;
    }

    fn listen(&self, listener: TcpListener) {
        let (faults, connections) = (self.faults.clone(), self.connections.clone());
        let acceptor = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                faults.accepted.fetch_add(1, SeqCst);
                connections.lock().unwrap().spawn(relay(client, faults.clone()));
            }
        });
        *self.acceptor.lock().unwrap() = Some(acceptor);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(acceptor) = self.acceptor.lock().unwrap().take() {
            acceptor.abort();
        }
        self.connections.lock().unwrap().abort_all();
    }
}

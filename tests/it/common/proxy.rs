use std::mem;
use std::net::Ipv4Addr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

use super::place::free_port;
use super::relay::{Faults, relay};

/// A TCP proxy in front of a server, with the faults that a network has.
///
/// It runs on the runtime of the test: a test that blocks its thread blocks the proxy too.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    faults: Arc<Faults>,
    connections: Connections,
    acceptor: Mutex<Option<JoinHandle<()>>>,
}

type Connections = Arc<Mutex<JoinSet<()>>>;

impl Proxy {
    /// Starts in front of the server on `target`, forwarding all.
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

    /// Sends new connections to another server; those that are open stay where they are.
    pub(crate) fn retarget(&self, target: u16) {
        self.faults.target.store(target, SeqCst);
    }

    /// While on, whatever arrives from either side is read and dropped, and new connections are
    /// accepted. A connection that has lost bytes stays silent for good: what came after a gap
    /// would be taken for the answer to another request, which TCP never does.
    pub(crate) fn swallow(&self, on: bool) {
        self.faults.swallow.store(on, SeqCst);
    }

    /// The next `n` times that a reply arrives, its connection is closed instead: the server has
    /// run the request, and the client never hears of it.
    pub(crate) fn cut_replies(&self, n: usize) {
        self.faults.cuts.store(n, SeqCst);
    }

    /// How many of the cuts are still to come.
    pub(crate) fn cuts_left(&self) -> usize {
        self.faults.cuts.load(SeqCst)
    }

    /// Delivers every reply this much later. Replies do not wait for each other.
    pub(crate) fn delay(&self, delay: Duration) {
        self.faults.delay_micros.store(delay.as_micros() as u64, SeqCst);
    }

    /// How many connections were accepted so far.
    pub(crate) fn accepted(&self) -> usize {
        self.faults.accepted.load(SeqCst)
    }

    /// Refuses new connections; those that are open stay.
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
        self.listen(listener.expect("a port that was this proxy's a moment ago"));
    }

    /// Closes all connections, and comes back when they are closed.
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

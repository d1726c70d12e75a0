use std::future::pending;
use std::mem;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::place::free_port;

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

#[derive(Debug, Default)]
struct Faults {
    target: AtomicU16,
    swallow: AtomicBool,
    cuts: AtomicUsize,
    delay_micros: AtomicU64,
    accepted: AtomicUsize,
}

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

/// One connection: open until one of its ends closes it, or a fault does.
async fn relay(client: TcpStream, faults: Arc<Faults>) {
    let target = (Ipv4Addr::LOCALHOST, faults.target.load(SeqCst));
    let Ok(server) = TcpStream::connect(target).await else { return };
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let silent = AtomicBool::new(false);

    let requests = pump(from_client, to_server, || match faults.lost(&silent) {
        true => Fate::Lost,
        false => Fate::Due(Instant::now()),
    });
    let replies = pump(from_server, to_client, || match faults.lost(&silent) {
        true => Fate::Lost,
        false if faults.cut() => Fate::Cut,
        false => Fate::Due(Instant::now() + faults.delay()),
    });
    let replies = async {
        replies.await;
        if faults.lost(&silent) {
            // The end of the connection is one more thing that the client does not hear of.
            pending::<()>().await;
        }
    };
    tokio::select! {
        () = requests => {}
        () = replies => {}
    }
}

/// What becomes of the bytes that have just arrived.
enum Fate {
    Due(Instant),
    Lost,
    Cut,
}

impl Faults {
    /// Whether bytes that arrive now are lost, and with them all that follow.
    fn lost(&self, silent: &AtomicBool) -> bool {
        if self.swallow.load(SeqCst) {
            silent.store(true, SeqCst);
        }
        silent.load(SeqCst)
    }

    fn cut(&self) -> bool {
        self.cuts.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
    }

    fn delay(&self) -> Duration {
        Duration::from_micros(self.delay_micros.load(SeqCst))
    }
}

/// Forwards one direction until its source ends or is cut, and what is under way is delivered.
async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, fate: impl Fn() -> Fate) {
    let (sender, mut under_way) = mpsc::unbounded_channel();
    let read = async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            match fate() {
                Fate::Due(due) => sender.send((due, buffer[..length].to_vec())).unwrap_or(()),
                Fate::Lost => {}
                Fate::Cut => break,
            }
        }
    };
    let write = async move {
        while let Some((due, bytes)) = under_way.recv().await {
            sleep_until(due).await;
            if to.write_all(&bytes).await.is_err() {
                break;
            }
        }
    };
    tokio::join!(read, write);
}

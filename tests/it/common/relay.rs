//! One connection through a proxy, with its faults.

use std::future::pending;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

use super::sleep::sleep_until;

/// The faults of a proxy. Each connection reads them whenever data arrives.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) target: AtomicU16,
    pub(super) swallow: AtomicBool,
    /// How many times all open connections were forgotten.
    pub(super) forgotten: AtomicUsize,
    pub(super) disconnects: AtomicUsize,
    pub(super) truncate: AtomicBool,
    pub(super) garble: AtomicBool,
    pub(super) delay_micros: AtomicU64,
    pub(super) round_trip_micros: AtomicU64,
    pub(super) accepted: AtomicUsize,
}

/// Relays a connection until one side or a fault closes it.
pub(super) async fn relay(client: TcpStream, faults: Arc<Faults>) {
    // The client takes its connection for established a round trip too early: the kernel has
    // accepted it. Its first data arrives as if it had waited.
    let established = Instant::now() + faults.round_trip();
    let target = (Ipv4Addr::LOCALHOST, faults.target.load(SeqCst));
    let Ok(server) = TcpStream::connect(target).await else { return };
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let has_lost_data = AtomicBool::new(false);
    let forgotten = faults.forgotten.load(SeqCst);
    let swallow = || faults.swallow(&has_lost_data, forgotten);

    let requests = forward(from_client, to_server, || match swallow() {
        true => Action::Discard,
        false => Action::SendAt(established.max(Instant::now()) + faults.round_trip() / 2),
    });
    let replies = forward(from_server, to_client, || match swallow() {
        true => Action::Discard,
        false if faults.disconnect() => Action::Disconnect,
        false if faults.truncate.load(SeqCst) => Action::Truncate,
        false if faults.garble.load(SeqCst) => Action::Garble,
        false => Action::SendAt(Instant::now() + faults.delay() + faults.round_trip() / 2),
    });
    let replies = async {
        replies.await;
        if swallow() {
            // The client must not notice either that the server has closed the connection.
            pending::<()>().await;
        }
    };
    tokio::select! {
        () = requests => {}
        () = replies => {}
    }
}

/// What to do with data that has just arrived.
enum Action {
    SendAt(Instant),
    Discard,
    Disconnect,
    /// Sends the first half, and disconnects.
    Truncate,
    /// Sends as many other bytes.
    Garble,
}

impl Faults {
    /// Returns whether to discard data that arrives now. A connection that has lost data loses all
    /// that follows. `forgotten` is what it was when the connection was made.
    fn swallow(&self, has_lost_data: &AtomicBool, forgotten: usize) -> bool {
        if self.swallow.load(SeqCst) || self.forgotten.load(SeqCst) != forgotten {
            has_lost_data.store(true, SeqCst);
        }
        has_lost_data.load(SeqCst)
    }

    fn disconnect(&self) -> bool {
        self.disconnects.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
    }

    fn delay(&self) -> Duration {
        Duration::from_micros(self.delay_micros.load(SeqCst))
    }

    fn round_trip(&self) -> Duration {
        Duration::from_micros(self.round_trip_micros.load(SeqCst))
    }
}

/// Forwards one direction until its source is closed or a fault disconnects it. Delivers delayed
/// data before it returns.
async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, action: impl Fn() -> Action) {
    let (sender, mut delayed) = mpsc::unbounded_channel();
    let read = async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            match action() {
                Action::SendAt(time) => {
                    sender.send((time, buffer[..length].to_vec())).unwrap_or(())
                }
                Action::Discard => {}
                Action::Disconnect => break,
                Action::Truncate => {
                    let half = buffer[..length / 2].to_vec();
                    sender.send((Instant::now(), half)).unwrap_or(());
                    break;
                }
                Action::Garble => {
                    let garbage = buffer[..length].iter().map(|byte| byte ^ 0x55).collect();
                    sender.send((Instant::now(), garbage)).unwrap_or(());
                }
            }
        }
    };
    let write = async move {
        while let Some((time, bytes)) = delayed.recv().await {
            sleep_until(time).await;
            if to.write_all(&bytes).await.is_err() {
                break;
            }
        }
    };
    tokio::join!(read, write);
}

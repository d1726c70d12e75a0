use std::future::pending;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// What a proxy is told to do, read by each of its connections whenever bytes arrive.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) target: AtomicU16,
    pub(super) swallow: AtomicBool,
    pub(super) cuts: AtomicUsize,
    pub(super) delay_micros: AtomicU64,
    pub(super) accepted: AtomicUsize,
}

/// One connection: open until one of its ends closes it, or a fault does.
pub(super) async fn relay(client: TcpStream, faults: Arc<Faults>) {
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

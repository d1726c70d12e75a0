//! A proxy for the bus of a cluster, which cuts a node off from the others.

use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::ports::{BUS_PORT_OFFSET, free_port};

/// Where a message of the cluster bus has the ID of its sender.
const SENDER: std::ops::Range<usize> = 40..80;

/// The cluster bus: a TCP proxy in front of the bus port of each node. It can cut a node off from the
/// others, while clients still reach it.
///
/// It runs on the runtime of the test.
#[derive(Debug)]
pub(crate) struct Bus {
    isolated: watch::Sender<Option<Isolated>>,
    tasks: JoinSet<()>,
}

#[derive(Clone, Debug)]
struct Isolated {
    node: usize,
    id: String,
}

impl Bus {
    pub(crate) fn new() -> Self {
        Self { isolated: watch::Sender::new(None), tasks: JoinSet::new() }
    }

    /// Starts the proxy of a node that does not run yet. Returns its port, and where to send the
    /// client port of the node once it runs.
    pub(crate) async fn add(&mut self, node: usize) -> (u16, watch::Sender<Option<u16>>) {
        let (listener, port) = loop {
            let port = free_port();
            if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
                break (listener, port);
            }
        };
        let target = watch::Sender::new(None);
        let (isolated, mut client_port) = (self.isolated.subscribe(), target.subscribe());
        self.tasks.spawn(async move {
            let mut links = JoinSet::new();
            let Ok(port) = client_port.wait_for(Option::is_some).await.map(|port| *port) else {
                return;
            };
            let bus_port = port.unwrap_or_default() + BUS_PORT_OFFSET;
            while let Ok((link, _)) = listener.accept().await {
                links.spawn(relay(link, node, bus_port, isolated.clone()));
            }
        });
        (port, target)
    }

    /// Closes all links of this node to other nodes, and refuses new ones, in both directions.
    pub(crate) fn isolate(&self, node: usize, id: &str) {
        self.isolated.send_replace(Some(Isolated { node, id: id.to_owned() }));
    }
}

/// Relays a link to a node, until one side closes it or one of both is isolated.
async fn relay(
    mut from: TcpStream,
    node: usize,
    bus_port: u16,
    mut isolated: watch::Receiver<Option<Isolated>>,
) {
    let mut first = Vec::new();
    while first.len() < SENDER.end {
        if !matches!(from.read_buf(&mut first).await, Ok(1..)) {
            return;
        }
    }
    let sender = String::from_utf8_lossy(&first[SENDER]).into_owned();
    let forward = async {
        let Ok(mut to) = TcpStream::connect((Ipv4Addr::LOCALHOST, bus_port)).await else { return };
        if to.write_all(&first).await.is_ok() {
            let _ = copy_bidirectional(&mut from, &mut to).await;
        }
    };
    let is_cut = |isolated: &Option<Isolated>| {
        isolated.as_ref().is_some_and(|isolated| isolated.node == node || isolated.id == sender)
    };
    tokio::select! {
        biased;
        _ = isolated.wait_for(is_cut) => {}
        () = forward => {}
    }
}

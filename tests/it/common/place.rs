use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, io, process};

/// How far a cluster node's bus port is from its client port.
pub(crate) const BUS: u16 = 10_000;

/// All ports, and the bus ports above them, are below the range from which systems take the
/// ports of outgoing connections: a server that is down finds its port free when it comes back.
const FIRST: u32 = 10_100;
const COUNT: u32 = 12_000;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A port on which nobody listens, nor on the bus port that goes with it. Another process may
/// still be faster: who listens on it has to be ready to ask for the next.
pub(crate) fn free_port() -> u16 {
    let from = process::id().wrapping_mul(97);
    (0..COUNT)
        .map(|_| from.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT + FIRST)
        .map(|port| port as u16)
        .find(|&port| is_free(port) && is_free(port + BUS))
        .expect("a free port on the loopback interface")
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// A new and empty directory, removed with its contents on drop.
#[derive(Debug)]
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = env::temp_dir().join(format!("tollgate-{}-{number}", process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Self(path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

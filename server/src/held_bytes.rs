//! Limits the bytes that a connection holds, so that a client cannot fill the memory with requests that it does not
//! finish, requests that wait for the store, or responses that it does not read.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::{Body, Bytes, HttpBody};
use http_body_util::BodyExt as _;
use tonic::Status;

/// The first bytes of a request do not count, so that small requests do not fail because of large ones of
/// other clients of the same gateway.
const FREE: usize = 4 * 1_024;

/// The bytes that the requests and responses of a connection hold.
#[derive(Clone, Debug)]
pub(crate) struct HeldBytes {
    most: usize,
    held: Arc<AtomicUsize>,
}

/// The bytes that a request and its response hold. They count until this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    bytes: usize,
    connection: HeldBytes,
}

impl HeldBytes {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, held: Arc::default() }
    }

    pub(crate) fn charge(&self) -> Charge {
        Charge { bytes: 0, connection: self.clone() }
    }
}

impl Charge {
    /// Replaces the number of bytes.
    ///
    /// # Errors
    ///
    /// If the connection then holds too many. The number stays as it was.
    pub(crate) fn set(&mut self, bytes: usize) -> Result<(), Status> {
        let bytes = bytes.saturating_sub(FREE);
        let HeldBytes { most, held } = &self.connection;
        if let Some(more) = bytes.checked_sub(self.bytes).filter(|more| *more > 0) {
            let update = |held: usize| held.checked_add(more).filter(|held| held <= most);
            held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update).map_err(|_| {
                Status::resource_exhausted("the requests of this connection hold too many bytes")
            })?;
        } else {
            held.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Returns the same bytes, which keep the charge until they are written to the connection.
    pub(crate) fn keep(self, bytes: Bytes) -> Bytes {
        match self.bytes {
            0 => bytes,
            _ => Bytes::from_owner(Kept { bytes, _charge: Arc::new(self) }),
        }
    }

    /// Returns the same body, which keeps the charge, and so do its bytes.
    pub(crate) fn keep_body<B>(self, body: B) -> Body
    where
        B: HttpBody<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        let charge = Arc::new(self);
        Body::new(body.map_frame(move |frame| {
            frame.map_data(|bytes| Bytes::from_owner(Kept { bytes, _charge: charge.clone() }))
        }))
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.connection.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

struct Kept {
    bytes: Bytes,
    _charge: Arc<Charge>,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

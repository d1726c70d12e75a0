//! The protocols of the listeners: HTTP/1 or HTTP/2.

/// The protocol of a listener. Each has only one, because a slow client could stall its detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

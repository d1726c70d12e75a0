use super::{KeyResolver, Resolution};

/// Uses the same key, `global`, for all requests: a limit of the service as a whole. It works for
/// any request type.
///
/// A single client can exhaust a global limit. Put a limit per client outside of it.
///
/// # Examples
/// ```
/// use fleetlimit::resolve::Global;
/// use fleetlimit::{KeyResolver, Resolution};
///
/// struct Job;
/// assert_eq!(Global.resolve(&Job), Resolution::Key("global".into()));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Global;

impl<R> KeyResolver<R> for Global {
    fn resolve(&self, _: &R) -> Resolution {
        Resolution::Key("global".into())
    }
}

use super::{KeyResolver, Resolution};

/// Counts everything together, under the key `global`: the limit of the service as a whole.
///
/// Works over HTTP and over any other request.
///
/// One client can use all of such a limit up. Put one [by caller](super) outside of it.
///
/// # Examples
/// ```
/// use tollgate::resolve::Global;
/// use tollgate::{KeyResolver, Resolution};
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

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;

use http::StatusCode;
use http::request::Parts;

use super::{KeyResolver, Refusal, Resolution};
use crate::Key;

/// Counts by a value in the request's extensions: the caller, as a layer outside of this one, such
/// as authentication, has found it.
///
/// `Extension::<T>::new()` takes a `T` that becomes a [`Key`] itself. `Extension::map` takes a
/// closure over `&T`, which may return all that a closure resolver may: also an [`Option`] of a
/// key, or [`Resolution::Exempt`].
///
/// Where the request has no `T` there is no key, and the answer is 500: the layer that inserts it
/// is inside of this one, or is not there. If anonymous requests are to be expected, say what
/// counts for them with `or`, or let them pass with `or_exempt`.
///
/// # Examples
/// ```
/// use tollgate::resolve::{Extension, PeerIp};
/// use tollgate::{Key, KeyResolver, Resolution};
///
/// #[derive(Clone)]
/// struct User {
///     id: u64,
///     is_admin: bool,
/// }
///
/// let by_user = Extension::map(|user: &User| match user {
///     User { is_admin: true, .. } => Resolution::Exempt,
///     User { id, .. } => Resolution::from(*id),
/// });
/// let (mut parts, ()) = http::Request::new(()).into_parts();
/// parts.extensions.insert(User { id: 7, is_admin: false });
/// assert_eq!(by_user.resolve(&parts), Resolution::Key("7".into()));
///
/// // Or once and for all, by the type itself; anonymous requests count by their address.
/// impl From<&User> for Key {
///     fn from(user: &User) -> Self {
///         user.id.into()
///     }
/// }
/// let by_user = Extension::<User>::new().or(PeerIp::new());
/// assert_eq!(by_user.resolve(&parts), Resolution::Key("7".into()));
/// ```
#[must_use]
pub struct Extension<T, F = fn(&T) -> Key> {
    key: F,
    extension: PhantomData<fn(&T)>,
}

impl<T> Extension<T>
where
    for<'a> Key: From<&'a T>,
{
    /// Counts by a `T`, which knows its key.
    pub fn new() -> Self {
        Self { key: |extension| extension.into(), extension: PhantomData }
    }
}

impl<T> Default for Extension<T>
where
    for<'a> Key: From<&'a T>,
{
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Extension<T> {
    /// Counts by what a closure takes from a `T`.
    pub fn map<F, K>(key: F) -> Extension<T, F>
    where
        F: Fn(&T) -> K,
        K: Into<Resolution>,
    {
        Extension { key, extension: PhantomData }
    }
}

impl<T, F, K> KeyResolver for Extension<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> K + Send + Sync,
    K: Into<Resolution>,
{
    fn resolve(&self, parts: &Parts) -> Resolution {
        match parts.extensions.get::<T>() {
            Some(extension) => (self.key)(extension).into(),
            None => Resolution::Missing(Refusal::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "nothing says whom to count the request for: the layer that finds it out has to be \
                 outside of the rate limit",
            )),
        }
    }
}

impl<T, F: Clone> Clone for Extension<T, F> {
    fn clone(&self) -> Self {
        Self { key: self.key.clone(), extension: PhantomData }
    }
}

impl<T, F> fmt::Debug for Extension<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Extension").field(&format_args!("{}", type_name::<T>())).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct Tenant(String);

    impl From<&Tenant> for Key {
        fn from(tenant: &Tenant) -> Self {
            Self::from(&tenant.0)
        }
    }

    fn parts(tenant: Option<&str>) -> Parts {
        let mut parts = http::Request::new(()).into_parts().0;
        if let Some(tenant) = tenant {
            parts.extensions.insert(Tenant(tenant.into()));
        }
        parts
    }

    #[test]
    fn a_missing_auth_layer_is_a_clear_error_and_no_free_pass() {
        let Resolution::Missing(refusal) = Extension::<Tenant>::new().resolve(&parts(None)) else {
            panic!("there is no tenant");
        };
        assert_eq!(refusal.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let anonymous = Extension::<Tenant>::new().or_exempt();
        assert_eq!(anonymous.resolve(&parts(None)), Resolution::Exempt);
    }

    #[test]
    fn the_type_or_a_closure_says_the_key() {
        let parts = parts(Some("acme"));
        let expected = Resolution::Key("acme".into());
        assert_eq!(Extension::<Tenant>::new().resolve(&parts), expected);
        let mapped = Extension::<Tenant>::map(|tenant| tenant.0.clone());
        assert_eq!(mapped.clone().resolve(&parts), expected);
        assert!(format!("{mapped:?}").contains("Tenant"));
    }

    #[test]
    fn a_closure_may_exempt_and_refuse() {
        let by_plan = Extension::map(|Tenant(name): &Tenant| match name.as_str() {
            "staff" => Resolution::Exempt,
            "banned" => Resolution::refused(StatusCode::FORBIDDEN, "banned"),
            name => Resolution::Key(name.into()),
        });
        assert_eq!(by_plan.resolve(&parts(Some("staff"))), Resolution::Exempt);
        let banned = by_plan.or_exempt().resolve(&parts(Some("banned")));
        assert_eq!(banned, Resolution::refused(StatusCode::FORBIDDEN, "banned"));
    }
}

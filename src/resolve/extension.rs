use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;

use http::request::Parts;

use super::{KeyResolver, Rejection, Resolution};
use crate::Key;

/// Uses a value in the request's extensions as the key, such as the user that an authentication
/// layer has found.
///
/// Not to be confused with axum's `Extension`, which inserts the value.
///
/// `Extension::<T>::new()` takes a `T` that converts into a [`Key`]. `Extension::map` takes a
/// closure over `&T`, which may return anything that a closure resolver may, including an
/// [`Option`] of a key, a [`Rejection`], or [`Resolution::Skip`].
///
/// A request without a `T` has no key. The layer responds with 500, and the log says that the layer
/// which inserts `T` is missing, or runs inside of this one. If anonymous requests are expected,
/// give them another key with `or`, or let them pass with `or_skip`.
///
/// # Examples
///
/// ```
/// use fleetlimit::resolve::{Extension, PeerIp};
/// use fleetlimit::{Key, KeyResolver, Resolution};
///
/// #[derive(Clone)]
/// struct User {
///     id: u64,
///     is_admin: bool,
/// }
///
/// let by_user = Extension::map(|user: &User| match user {
///     User { is_admin: true, .. } => Resolution::Skip,
///     User { id, .. } => Resolution::from(*id),
/// });
/// let (mut parts, ()) = http::Request::new(()).into_parts();
/// parts.extensions.insert(User { id: 7, is_admin: false });
/// assert_eq!(by_user.resolve(&parts), Resolution::Key("7".into()));
///
/// // Or implement the conversion once. Anonymous requests are limited by address.
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
    /// Uses a `T` that converts into a key.
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
    /// Uses what a closure returns for a `T`.
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
            None => Resolution::Missing(Rejection::misconfigured(format!(
                "request extension `{}` is missing: run the layer that inserts it before the rate \
                 limit layer",
                type_name::<T>()
            ))),
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
    fn a_missing_auth_layer_is_reported_to_the_operator_and_lets_nobody_pass() {
        let Resolution::Missing(rejection) = Extension::<Tenant>::new().resolve(&parts(None))
        else {
            panic!("there is no tenant");
        };
        assert_eq!((rejection.status().as_u16(), rejection.message()), (500, ""));
        assert!(rejection.advice().unwrap().contains("Tenant"));
        let anonymous = Extension::<Tenant>::new().or_skip();
        assert_eq!(anonymous.resolve(&parts(None)), Resolution::Skip);
    }

    #[test]
    fn the_key_comes_from_the_type_or_a_closure() {
        let parts = parts(Some("acme"));
        let expected = Resolution::Key("acme".into());
        assert_eq!(Extension::<Tenant>::new().resolve(&parts), expected);
        let mapped = Extension::<Tenant>::map(|tenant| tenant.0.clone());
        assert_eq!(mapped.clone().resolve(&parts), expected);
        assert!(format!("{mapped:?}").contains("Tenant"));
    }

    #[test]
    fn a_closure_may_skip_and_reject() {
        let by_plan = Extension::map(|Tenant(name): &Tenant| match name.as_str() {
            "staff" => Resolution::Skip,
            "banned" => Rejection::forbidden("banned").into(),
            name => Resolution::Key(name.into()),
        });
        assert_eq!(by_plan.resolve(&parts(Some("staff"))), Resolution::Skip);
        let banned = by_plan.or_skip().resolve(&parts(Some("banned")));
        assert_eq!(banned, Resolution::Reject(Rejection::forbidden("banned")));
    }
}

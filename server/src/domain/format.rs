//! The format of envoyproxy/ratelimit's configuration files, and three fields of our own: `policy`,
//! `count_denied` and `negative_hits`.
//!
//! Source: the section "Configuration" of its README.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use serde_saphyr::Spanned;

use crate::settings::or_default;

/// A file: the limits of a domain.
#[derive(Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct DomainFile {
    pub(crate) domain: Spanned<String>,
    /// The name that a control plane has given to the file, such as Envoy Gateway. It means nothing here.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(super) name: Option<String>,
    /// The `count_denied` of descriptors that do not say it, and of the limits of requests.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) count_denied: Option<bool>,
    /// True if requests may give permits back.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub(crate) negative_hits: bool,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub(crate) descriptors: Vec<Descriptor>,
    /// True if it is not from a file: the protocol of control planes has no `count_denied`.
    #[serde(skip)]
    pub(crate) is_resource: bool,
}

#[derive(Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Descriptor {
    pub(crate) key: Spanned<String>,
    /// The value, or any if there is none. `*` in it stands for any characters.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) value: Option<Spanned<String>>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) rate_limit: Option<Spanned<RateLimit>>,
    /// A policy of the settings file, instead of `rate_limit`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) policy: Option<Spanned<String>>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub(crate) descriptors: Vec<Descriptor>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub(crate) shadow_mode: bool,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub(crate) quota_mode: bool,
    /// True if hits that are denied are counted, too: for hits that are reported afterwards.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) count_denied: Option<bool>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub(crate) detailed_metric: bool,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub(crate) value_to_metric: bool,
    /// All values that match the wildcard share one limit.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) share_threshold: Option<Spanned<bool>>,
    /// The metadata of responses, if the limit allows the request.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) metadata: Option<Spanned<Map<String, Value>>>,
}

#[derive(Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct RateLimit {
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) requests_per_unit: Option<u32>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) unit: Option<Spanned<String>>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub(crate) unlimited: bool,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub(crate) name: String,
    /// The names of limits that do not apply to a request if this one does.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub(crate) replaces: Vec<Replaces>,
}

#[derive(Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Replaces {
    pub(crate) name: Spanned<String>,
}

fn is_default<T: Default + PartialEq>(field: &T) -> bool {
    *field == T::default()
}

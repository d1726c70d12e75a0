//! The format of envoyproxy/ratelimit's configuration files, and two fields of our own: `policy`
//! and `count_denied`.
//!
//! Source: the section "Configuration" of its README.

use serde::Deserialize;
use serde_saphyr::Spanned;

/// A file: the limits of a domain.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DomainFile {
    pub(crate) domain: Spanned<String>,
    #[serde(default)]
    pub(crate) descriptors: Vec<Descriptor>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Descriptor {
    pub(crate) key: Spanned<String>,
    /// Any value if there is none. `*` in it stands for any characters.
    #[serde(default)]
    pub(crate) value: Option<Spanned<String>>,
    #[serde(default)]
    pub(crate) rate_limit: Option<Spanned<RateLimit>>,
    /// A policy of the settings file, instead of `rate_limit`.
    #[serde(default)]
    pub(crate) policy: Option<Spanned<String>>,
    #[serde(default)]
    pub(crate) descriptors: Vec<Descriptor>,
    #[serde(default)]
    pub(crate) shadow_mode: bool,
    #[serde(default)]
    pub(crate) quota_mode: bool,
    /// Whether hits that are denied are counted, too: for hits that are reported afterwards.
    #[serde(default)]
    pub(crate) count_denied: bool,
    #[serde(default)]
    pub(crate) detailed_metric: bool,
    #[serde(default)]
    pub(crate) value_to_metric: bool,
    /// All values that match the wildcard share one limit.
    #[serde(default)]
    pub(crate) share_threshold: Option<Spanned<bool>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RateLimit {
    #[serde(default)]
    pub(crate) requests_per_unit: Option<u32>,
    #[serde(default)]
    pub(crate) unit: Option<Spanned<String>>,
    #[serde(default)]
    pub(crate) unlimited: bool,
    #[serde(default)]
    pub(crate) name: String,
    /// The names of limits that do not apply to a request if this one does.
    #[serde(default)]
    pub(crate) replaces: Vec<Replaces>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Replaces {
    pub(crate) name: Spanned<String>,
}

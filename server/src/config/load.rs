//! Loads a configuration from its source.

use envoy_types::pb::google::protobuf::Any;

use super::files::Contents;
use super::reader::Reader;
use super::source::Source;
use super::{Config, Errors, Read, Service};
use crate::settings::Otlp;

impl Source {
    /// Reads the settings, and all files that they name, and adds the resources that have been received from the control
    /// plane, if it has sent any.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with any of them, as far as that can be found without connecting.
    pub(crate) fn load(&self, received: Option<&[Any]>) -> (Read, Result<Service, Errors>) {
        let mut reader = Reader::new(self, received, None);
        let service = reader.settings().and_then(|mut settings| {
            reader.check(&settings);
            // All of them, so that the errors of one do not hide those of another.
            let store = reader.store(&mut settings.store);
            let tls = reader.tls(settings.tls.as_ref());
            reader.control_plane(settings.xds.as_ref());
            let config = reader.limits(settings);
            Some(Service { config: config?, store: store?, tls: tls? })
        });
        reader.finish(service)
    }

    /// Reads only the settings of OpenTelemetry, which metrics need from the start. `None` if there are none, or they are
    /// wrong, which [`load`](Self::load) reports.
    pub(crate) fn otlp(&self) -> Option<Otlp> {
        Reader::new(self, None, None).settings()?.otlp
    }

    /// Reads only the limits: what else the settings say about the service may be incomplete, such as a
    /// token that is in an environment variable.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with the limits, or cannot be read.
    pub(crate) fn load_limits(&self) -> Result<Config, Errors> {
        Self::limits_of(Reader::new(self, None, None))
    }

    /// Reads only the limits, with these resources, and the files as they were read before: those of now may be half
    /// written.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with the resources.
    pub(crate) fn load_received(
        &self,
        received: &[Any],
        before: &Contents,
    ) -> Result<Config, Errors> {
        Self::limits_of(Reader::new(self, Some(received), Some(before)))
    }

    fn limits_of(mut reader: Reader<'_>) -> Result<Config, Errors> {
        let config = reader.settings().and_then(|settings| reader.limits(settings));
        reader.finish(config).1
    }
}

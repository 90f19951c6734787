//! The log, on standard error.

use std::io::{self, IsTerminal as _};

use swarmkeep_tracker::{Certificate, Tls};
use tracing::info;
use tracing_subscriber::{
    Layer, Registry, filter::LevelFilter, fmt, layer::SubscriberExt, reload, util::SubscriberInitExt,
};

use super::schema::LogFormat;

/// The log of a running tracker. Its level can change.
pub(super) struct Log(reload::Handle<LevelFilter, Registry>);

impl Log {
    pub(super) fn start(level: LevelFilter, format: LogFormat) -> Self {
        let (level, handle) = reload::Layer::new(level);
        let lines = fmt::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
        let lines = match format {
            LogFormat::Text => lines.boxed(),
            LogFormat::Json => lines.json().flatten_event(true).boxed(),
        };
        tracing_subscriber::registry().with(level).with(lines).init();
        Self(handle)
    }

    /// Logs the certificate in use, and its end.
    pub(super) fn certificate(tls: &Tls) {
        let Certificate { names, expires, .. } = tls.certificate();
        let expires = expires.map(|at| std::time::UNIX_EPOCH + std::time::Duration::from_secs(at.as_secs()));
        let expires = expires.map(|time| humantime::format_rfc3339_seconds(time).to_string());
        info!(names, expires, "the certificate for HTTPS");
    }

    pub(super) fn set_level(&self, level: LevelFilter) {
        self.0.reload(level).expect("the subscriber is there for as long as the program");
    }
}

//! The admin server, for the operator: metrics, health, an API and a dashboard. It is not at a public
//! address, and its requests cannot delay announces.
//!
//! Without a token, a client gets metrics, health and two static pages, at a limited rate and from the
//! gathered [`stats`]: it cannot make the store do anything.

mod api;
mod census;
mod dashboard;
mod events;
mod exposition;
mod health;
mod history;
mod pace;
mod problem;
mod process;
mod queries;
mod serve;
mod state;
mod stats;

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener},
    sync::Arc,
};

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderValue, header, uri::Authority},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::get,
};
use tokio::sync::watch;

use self::{problem::Problem, state::AdminState};
use crate::{Config, Control, Error, Tls, http};

/// The admin server.
#[derive(Debug)]
pub(crate) struct Admin {
    listener: TcpListener,
    tls: Option<Tls>,
    admin: Arc<AdminState>,
}

impl Admin {
    /// Takes the listener that is open already, or opens the address in `config`, if there is one.
    /// `listening` has all addresses over TCP.
    pub(crate) fn listen(
        config: &Config,
        open: Option<TcpListener>,
        listening: &[SocketAddr],
    ) -> Result<Option<TcpListener>, Error> {
        let protocol = "admin";
        let listener = match (open, config.admin) {
            (Some(open), _) => http::adopt(open).map_err(|source| Error::HandedOver { protocol, source })?,
            (None, Some(address)) => http::listen(address, listening).map_err(|source| Error::Bind {
                protocol,
                address,
                source,
            })?,
            (None, None) => return Ok(None),
        };
        if config.admin_tls && config.tls.is_none() {
            return Err(Error::NoCertificate);
        }
        Ok(Some(listener))
    }

    /// Answers at a listener about a tracker.
    pub(crate) fn over(listener: TcpListener, config: &Config, control: &Control) -> Result<Self, Error> {
        let tls = config
            .admin_tls
            .then(|| config.tls.as_ref().map(Tls::apart).ok_or(Error::NoCertificate))
            .transpose()?;
        let admin = Arc::new(AdminState::new(config, control)?);
        Ok(Self { listener, tls, admin })
    }

    /// Where it listens; a port that was given as 0 is the real one here.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until `stopped` changes or its sender is gone, and takes half a second at most to stop.
    pub(crate) async fn run(self, mut stopped: watch::Receiver<()>) {
        let Self { listener, tls, admin } = self;
        let stop = async {
            let _ = stopped.changed().await;
            admin.stopping.send_replace(true);
        };
        tokio::select! {
            () = serve::serve(listener, tls, router(&admin), stop) => {}
            never = admin.gather_for_ever() => match never {},
        }
    }
}

fn router(admin: &Arc<AdminState>) -> Router {
    let (api, document) = api::router(admin);
    let document: Arc<str> = document.into();
    let public = Router::new()
        .route("/", get(dashboard::page))
        .route("/metrics", get(exposition::metrics))
        .route("/health/live", get(health::live))
        .route("/health/ready", get(health::ready))
        .route(
            api::DOCUMENT,
            get(|| async move { ([(header::CONTENT_TYPE, "application/json")], document.to_string()) }),
        )
        .fallback(|| async { Problem::not_found("there is nothing at this path; see /api/v1/openapi.json") })
        .route_layer(middleware::from_fn_with_state(Arc::clone(admin), paced));
    public
        .merge(api)
        .method_not_allowed_fallback(|| async { Problem::method_not_allowed() })
        .layer(middleware::from_fn_with_state(Arc::clone(admin), known_by_name))
        .layer(middleware::map_response(guarded))
        .with_state(Arc::clone(admin))
}

/// Limits the rate of requests without a token.
async fn paced(State(admin): State<Arc<AdminState>>, request: Request, next: Next) -> Response {
    admin.pace.turn().await;
    next.run(request).await
}

/// Refuses requests for names of other hosts: a web page with such a name could read the answers.
async fn known_by_name(State(admin): State<Arc<AdminState>>, request: Request, next: Next) -> Response {
    let header = request.headers().get(header::HOST).map(|host| Authority::try_from(host.as_bytes()));
    let asked = request.uri().authority().cloned().map(Ok).or(header);
    let is_known = |host: &str| {
        let host = host.trim_end_matches('.');
        host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
            || host.eq_ignore_ascii_case("localhost")
            || admin.hosts.iter().any(|known| known.eq_ignore_ascii_case(host))
    };
    // Browsers always name a host.
    if asked.is_none_or(|asked| asked.is_ok_and(|asked| is_known(asked.host()))) {
        return next.run(request).await;
    }
    admin.pace.turn().await;
    Problem::misdirected().into_response()
}

/// Adds headers to every answer: browsers must not cache it, frame it or guess its type.
async fn guarded(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers
        .entry(header::CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"));
    response
}

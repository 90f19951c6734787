//! An address for those who run the tracker: metrics, health, an API and a dashboard. None of it is at a
//! public address, and nothing that is asked here can hold up those who announce.
//!
//! Who has no token gets metrics, health and two static pages, at a bounded pace and from what the [`stats`]
//! have gathered: a stranger never makes the store do anything.

mod api;
mod auth;
mod census;
mod dashboard;
mod events;
mod exposition;
mod health;
mod history;
mod process;
mod serve;
mod stats;

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::SystemTime,
};

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderValue, header},
    middleware::{self, Next},
    response::Response,
    routing::get,
};
use tokio::sync::{Mutex, Semaphore, watch};

pub use self::auth::{Scope, Token, TokenError};
use self::{
    api::Problem,
    auth::{Key, Tokens},
    census::Census,
    history::History,
    serve::Pace,
    stats::Sample,
};
use crate::{Config, Control, Error, Tls, http};

/// The admin address, and what is behind it.
#[derive(Debug)]
pub(crate) struct Admin {
    listener: TcpListener,
    tls: Option<Tls>,
    shared: Arc<Shared>,
}

impl Admin {
    /// Takes the listener that is open already, or opens the address that `config` names, if it does.
    pub(crate) fn listen(config: &Config, open: Option<TcpListener>) -> Result<Option<TcpListener>, Error> {
        let protocol = "admin";
        let listener = match (open, config.admin) {
            (Some(open), _) => http::adopt(open).map_err(|source| Error::HandedOver { protocol, source })?,
            (None, Some(address)) => {
                http::listen(address).map_err(|source| Error::Bind { protocol, address, source })?
            }
            (None, None) => return Ok(None),
        };
        if config.admin_tls && config.tls.is_none() {
            return Err(Error::NoCertificate);
        }
        Ok(Some(listener))
    }

    /// Answers at a listener about a tracker.
    pub(crate) fn over(listener: TcpListener, config: &Config, control: &Control) -> Result<Self, Error> {
        let tls = config.admin_tls.then(|| config.tls.clone().ok_or(Error::NoCertificate)).transpose()?;
        let key = Key::drawn().map_err(Error::NoEntropy)?;
        let shared = Shared {
            tokens: Tokens::new(config.admin_tokens.clone()),
            store_name: config.repository_name.clone(),
            node: config.node.clone(),
            latest: watch::Sender::new(Arc::new(Sample::before_any(control))),
            control: control.clone(),
            key,
            started: SystemTime::now(),
            pace: Pace::new(),
            history: History::default(),
            census: Census::default(),
            listeners: Arc::new(Semaphore::new(events::MOST_LISTENERS)),
            scrapes: Arc::new(Semaphore::new(api::MOST_FULL_SCRAPES)),
            threads: Arc::new(Semaphore::new(api::MOST_THREADS)),
            editing: Arc::default(),
            stopping: watch::Sender::new(false),
        };
        Ok(Self { listener, tls, shared: Arc::new(shared) })
    }

    /// Where it listens; a port that was given as 0 is the real one here.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until `stopped` changes or its sender is gone, and takes half a second at most to stop.
    pub(crate) async fn run(self, mut stopped: watch::Receiver<()>) {
        let Self { listener, tls, shared } = self;
        let background = async {
            tokio::join!(stats::sample_for_ever(&shared), census::walk_for_ever(&shared));
        };
        let stop = async {
            let _ = stopped.changed().await;
            shared.stopping.send_replace(true);
        };
        tokio::select! {
            () = serve::serve(listener, tls, router(&shared), stop) => {}
            () = background => unreachable!("both go on for ever"),
        }
    }
}

/// What all requests share.
#[derive(Debug)]
struct Shared {
    control: Control,
    store_name: Option<String>,
    node: Option<String>,
    tokens: Tokens,
    key: Key,
    started: SystemTime,
    pace: Pace,
    latest: watch::Sender<Arc<Sample>>,
    history: History,
    census: Census,
    /// One for each that may listen to events.
    listeners: Arc<Semaphore>,
    /// One for each full scrape that may be under way.
    scrapes: Arc<Semaphore>,
    /// One for each thread that may be at work in a store for the API.
    threads: Arc<Semaphore>,
    /// Whose turn it is to edit a list.
    editing: Arc<Mutex<()>>,
    stopping: watch::Sender<bool>,
}

impl Shared {
    fn latest(&self) -> Arc<Sample> {
        Arc::clone(&self.latest.borrow())
    }

    fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }
}

fn router(shared: &Arc<Shared>) -> Router {
    let (api, document) = api::router(shared);
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
        .route_layer(middleware::from_fn_with_state(Arc::clone(shared), paced));
    public
        .merge(api)
        .method_not_allowed_fallback(|| async { Problem::method_not_allowed() })
        .layer(middleware::map_response(guarded))
        .with_state(Arc::clone(shared))
}

/// Lets those without a token have their turn.
async fn paced(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    shared.pace.turn().await;
    next.run(request).await
}

/// Adds what holds for every answer: nothing here is to be kept, framed, or taken for what it does not say it
/// is.
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

//! The API under `/api/v1/`, and its OpenAPI document. Both are made from the same functions.

mod access;
mod authorize;
mod busiest;
mod cursor;
mod passkeys;
mod query;
mod scrape;
mod statistics;
mod torrents;

use std::sync::Arc;

use axum::{Router, middleware};
use utoipa::{
    Modify, OpenApi,
    openapi::{
        OpenApi as Document,
        security::{Http, HttpAuthScheme, SecurityScheme},
    },
};
use utoipa_axum::{router::OpenApiRouter, routes};

pub(super) use self::query::NoQuery;
use super::{events, problem::Problem, state::AdminState};

/// The path of the document, which needs no token.
pub(super) const DOCUMENT: &str = "/api/v1/openapi.json";

#[derive(OpenApi)]
#[openapi(
    info(
        title = "swarmkeep's tracker",
        description = "The counts of a tracker, the torrents and peers that it knows, and changes to them. \
            Every request takes a token (`Authorization: Bearer SECRET`) with a scope: `peers` for addresses of peers, \
            `members` for passkeys, `write` for other changes, `read` for everything else. Unknown query parameters are refused. \
            Peer ids are never shown.",
    ),
    modifiers(&Bearer),
    security(("token" = [])),
    tags(
        (name = "statistics", description = "The state of the tracker, now and in the last hours."),
        (name = "torrents", description = "The torrents and their peers."),
        (name = "access", description = "The list of torrents that are served or refused, and the passkeys of members."),
    ),
)]
struct Description;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut Document) {
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
    }
}

/// The API, and its document.
pub(super) fn router(admin: &Arc<AdminState>) -> (Router<Arc<AdminState>>, String) {
    let api = OpenApiRouter::new()
        .routes(routes!(statistics::stats))
        .routes(routes!(statistics::totals))
        .routes(routes!(statistics::history))
        .routes(routes!(statistics::token))
        .routes(routes!(events::events))
        .routes(routes!(busiest::busiest))
        .routes(routes!(scrape::scrape))
        .routes(routes!(torrents::list))
        .routes(routes!(torrents::show, torrents::remove))
        .routes(routes!(torrents::peers))
        .routes(routes!(access::rule))
        .routes(routes!(access::entry, access::add, access::remove))
        .routes(routes!(passkeys::list, passkeys::add))
        .routes(routes!(passkeys::set_date, passkeys::revoke))
        .fallback(|| async { Problem::not_found("there is nothing at this path; see /api/v1/openapi.json") })
        .layer(middleware::from_fn_with_state(Arc::clone(admin), authorize::authorize));
    let (router, document) =
        OpenApiRouter::with_openapi(Description::openapi()).nest("/api/v1", api).split_for_parts();
    (router, document.to_pretty_json().expect("a document is names and values"))
}

//! The dashboard: one page that brings everything with it, and asks the API for the rest.

use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use data_encoding::BASE64URL_NOPAD;
use rand::Rng;

const PAGE: &str = include_str!("dashboard.html");

/// Stands in the page where the number goes by which a browser knows its scripts and styles.
const NONCE: &str = "@nonce@";

pub(super) async fn page() -> Response {
    let mut bytes = [0; 16];
    rand::rng().fill_bytes(&mut bytes);
    let nonce = BASE64URL_NOPAD.encode(&bytes);
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8".to_owned()),
        (header::CONTENT_SECURITY_POLICY, policy),
    ];
    (headers, PAGE.replace(NONCE, &nonce)).into_response()
}

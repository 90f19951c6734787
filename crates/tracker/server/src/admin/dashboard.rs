//! The dashboard: one page with its styles and scripts, which reads the API.

use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use data_encoding::BASE64URL_NOPAD;
use rand::Rng;

const PAGE: &str = include_str!("dashboard.html");

/// The place in the page for the random number by which a browser recognises its scripts and styles.
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

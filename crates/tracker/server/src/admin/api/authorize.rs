//! Authorization of the requests to the API.

use std::{sync::Arc, time::Instant};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::{
    admin::{
        problem::Problem,
        serve::{AdminConnection, AuthorizedRequest},
        state::AdminState,
    },
    tokens::{Scope, TokenRefusal},
};

/// Admits a request if its token has the required scope.
pub(super) async fn authorize(
    State(admin): State<Arc<AdminState>>,
    mut request: Request,
    next: Next,
) -> Response {
    let scope = Scope::of(request.method(), request.uri().path());
    let problem = match admin.tokens.check(&admin.key, request.headers(), Instant::now()) {
        Ok(scopes) if scopes.has(scope) => {
            request.extensions_mut().insert(scopes);
            let Some(connection) = request.extensions().get::<Arc<AdminConnection>>() else {
                return next.run(request).await;
            };
            let authorized = AuthorizedRequest::new(connection);
            return authorized.until_sent(next.run(request).await);
        }
        Ok(_) => Problem::forbidden(scope),
        Err(TokenRefusal::None) => Problem::unauthorized("this takes a token: Authorization: Bearer SECRET"),
        Err(TokenRefusal::Wrong) => Problem::unauthorized(
            "this token is not known here: take one of --admin-tokens, or else the one that was shown at the start",
        ),
        Err(TokenRefusal::TooMany) => Problem::too_many_wrong_tokens(),
    };
    admin.pace.turn().await;
    problem.into_response()
}

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
        serve::{Asked, Visit},
        state::AdminState,
    },
    tokens::{Scope, Unknown},
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
            let Some(visit) = request.extensions().get::<Arc<Visit>>() else {
                return next.run(request).await;
            };
            let asked = Asked::new(visit);
            return asked.until_sent(next.run(request).await);
        }
        Ok(_) => Problem::forbidden(scope),
        Err(Unknown::None | Unknown::Wrong) => Problem::unauthorized(),
        Err(Unknown::TooMany) => Problem::too_many_wrong_tokens(),
    };
    admin.pace.turn().await;
    problem.into_response()
}

//! The passkeys of the members of a private tracker, and edits of their file.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State, rejection::PathRejection},
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    access::edit,
    query::{NoQuery, Query, limit},
};
use crate::{
    access::{Member, add_passkey, date, edit_passkey, fingerprint, list_passkeys, parse_date, parse_name},
    admin::{
        problem::{ListProblems, Problem, Problems},
        state::AdminState,
    },
    clock::today,
    tokens::draw_secret,
};

/// A passkey.
#[derive(Serialize, ToSchema)]
pub(super) struct Passkey {
    /// 16 hexadecimal digits that stand for the passkey and do not reveal it.
    #[schema(pattern = "^[0-9a-f]{16}$")]
    fingerprint: String,
    /// The name of the member; null if it has none.
    name: Option<String>,
    /// The time from which it is refused, in RFC 3339; null if it has none.
    until: Option<String>,
    /// Whether it is refused now.
    expired: bool,
    /// The passkey itself, only in the answer to the request that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    passkey: Option<String>,
}

impl Passkey {
    fn of(fingerprint: String, member: Member) -> Self {
        Self {
            fingerprint,
            name: member.name.map(Into::into),
            until: member.until.map(date),
            expired: member.until.is_some_and(|until| until <= today()),
            passkey: None,
        }
    }
}

/// Some passkeys.
#[derive(Serialize, ToSchema)]
pub(super) struct PasskeyPage {
    passkeys: Vec<Passkey>,
    /// The `after` of the next request; null at the end.
    next: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PasskeysQuery {
    /// Most entries; 100 unless given.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    /// Only passkeys after this fingerprint.
    after: Option<String>,
    /// Only passkeys of the members with this name.
    name: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct MemberQuery {
    /// The name of the member: 1 to 64 letters, digits, `_`, `-`, `.`, `@` and `+` (`%2B` in a URL).
    name: Option<String>,
    /// The date from which it is refused, or the time in UTC, such as `2027-12-31T18:00:00Z`. Without it, a
    /// new passkey does not expire, and another keeps its date. An empty one (`until=`) removes the date.
    until: Option<String>,
}

impl MemberQuery {
    /// Makes a member of another.
    fn read(self) -> Result<impl FnOnce(Member) -> Member + Send + 'static, Problem> {
        let name = self.name.as_deref().map(read_name).transpose()?;
        let keeps = self.until.is_none();
        let wrong = "until: expected a date or a time in UTC, such as 2027-12-31 or 2027-12-31T18:00:00Z";
        let date = |date: String| parse_date(&date).ok_or_else(|| Problem::bad_request(wrong));
        let until = self.until.filter(|date| !date.is_empty()).map(date).transpose()?;
        Ok(move |of: Member| Member { name: name.or(of.name), until: if keeps { of.until } else { until } })
    }
}

fn read_name(name: &str) -> Result<Box<str>, Problem> {
    let wrong = "name: expected 1 to 64 letters, digits, `_`, `-`, `.`, `@` and `+` (%2B in a URL)";
    parse_name(name).ok_or_else(|| Problem::bad_request(wrong))
}

/// All passkeys, some at a time
///
/// In the order of fingerprints. Each answer takes a look at the whole file.
#[utoipa::path(get, path = "/passkeys", tag = "access", params(PasskeysQuery), responses(
    (status = 200, description = "Some of them.", body = PasskeyPage),
    Problems,
    ListProblems,
))]
pub(super) async fn list(
    Query(PasskeysQuery { limit: most, after, name }): Query<PasskeysQuery>,
    State(admin): State<Arc<AdminState>>,
) -> Result<Json<PasskeyPage>, Problem> {
    let most = limit(most, 100, 1000)?;
    let name = name.as_deref().map(read_name).transpose()?;
    let found = edit(
        &admin,
        |rules| &mut rules.passkeys,
        move |path| list_passkeys(path, &after.unwrap_or_default(), name.as_deref(), most),
    )
    .await?;
    let next = found.keys().next_back().filter(|_| found.len() == most).cloned();
    let passkeys = found.into_iter().map(|(fingerprint, member)| Passkey::of(fingerprint, member));
    Ok(Json(PasskeyPage { passkeys: passkeys.collect(), next }))
}

/// Makes a passkey
///
/// It has 192 random bits. The answer alone shows it.
#[utoipa::path(post, path = "/passkeys", tag = "access", params(MemberQuery), responses(
    (status = 200, description = "It is admitted.", body = Passkey),
    Problems,
    ListProblems,
))]
pub(super) async fn add(
    Query(query): Query<MemberQuery>,
    State(admin): State<Arc<AdminState>>,
) -> Result<Json<Passkey>, Problem> {
    let member = query.read()?(Member::default());
    let passkey = draw_secret().map_err(|error| Problem::busy(format!("no randomness: {error}")))?;
    let added = Passkey::of(fingerprint(&passkey), member.clone());
    let shown = Some(passkey.clone());
    edit(&admin, |rules| &mut rules.passkeys, move |path| add_passkey(path, &passkey, &member)).await?;
    Ok(Json(Passkey { passkey: shown, ..added }))
}

/// Sets the name and the date of a passkey
///
/// A name or a date that is not given stays. `until=` removes the date.
#[utoipa::path(put, path = "/passkeys/{fingerprint}", tag = "access",
    params(("fingerprint" = String, Path, description = "16 hexadecimal digits."), MemberQuery),
    responses(
        (status = 200, description = "It has the name and the date.", body = Passkey),
        Problems,
        (status = 404, description = "It is not on the list.", body = Problem, content_type = "application/problem+json"),
        ListProblems,
    ))]
pub(super) async fn set_date(
    fingerprint: Result<Path<String>, PathRejection>,
    Query(query): Query<MemberQuery>,
    State(admin): State<Arc<AdminState>>,
) -> Result<Json<Passkey>, Problem> {
    let edit = query.read()?;
    change(&admin, fingerprint, |member| Some(edit(member))).await
}

/// Revokes a passkey
#[utoipa::path(delete, path = "/passkeys/{fingerprint}", tag = "access",
    params(("fingerprint" = String, Path, description = "16 hexadecimal digits.")),
    responses(
        (status = 200, description = "The removed passkey.", body = Passkey),
        Problems,
        (status = 404, description = "It is not on the list.", body = Problem, content_type = "application/problem+json"),
        ListProblems,
    ))]
pub(super) async fn revoke(
    fingerprint: Result<Path<String>, PathRejection>,
    _: NoQuery,
    State(admin): State<Arc<AdminState>>,
) -> Result<Json<Passkey>, Problem> {
    change(&admin, fingerprint, |_| None).await
}

async fn change(
    admin: &AdminState,
    fingerprint: Result<Path<String>, PathRejection>,
    new: impl FnOnce(Member) -> Option<Member> + Send + 'static,
) -> Result<Json<Passkey>, Problem> {
    let unknown = || Problem::not_found("no passkey on the list has this fingerprint");
    let Path(fingerprint) = fingerprint.map_err(|_| unknown())?;
    let of = fingerprint.clone();
    let member = edit(admin, |rules| &mut rules.passkeys, move |path| edit_passkey(path, &of, new)).await?;
    Ok(Json(Passkey::of(fingerprint, member.ok_or_else(unknown)?)))
}

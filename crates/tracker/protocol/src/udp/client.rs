//! The client's side of a conversation with a tracker.

use std::time::{Duration, Instant};

use swarmkeep_bittorrent::Family;

use super::{Action, ConnectionId, Header, Response};
use crate::Error;

/// A client of one tracker: its connection id, and the judgement of answers.
///
/// It sends nothing and keeps no request. The caller gives each request a transaction id that a forger of
/// answers cannot guess, and sends the same packet again until it is answered.
#[derive(Debug)]
pub struct Client {
    family: Family,
    connection: Option<(ConnectionId, Instant)>,
}

impl Client {
    /// The longest use of a connection id (BEP 15). Trackers accept it for a minute more: for requests that
    /// are sent again.
    const LIFETIME: Duration = Duration::from_secs(60);

    /// A client without a connection id, which reaches its tracker over `family`.
    pub const fn new(family: Family) -> Self {
        Self { family, connection: None }
    }

    /// The connection id for a request at `now`. Without one, a connect request comes first.
    pub fn connection_id(&self, now: Instant) -> Option<ConnectionId> {
        let (id, received) = self.connection?;
        (now.saturating_duration_since(received) < Self::LIFETIME).then_some(id)
    }

    /// Forgets `id`, because the tracker does not answer the requests that have it.
    pub fn forget(&mut self, id: ConnectionId) {
        self.connection.take_if(|(known, _)| *known == id);
    }

    /// Reads a packet that came from the tracker at `now`. Returns the response if it has the transaction and
    /// the action of `request`; an error answers any action. Keeps the connection id of the response, and
    /// forgets the one of the request if it is refused.
    ///
    /// # Errors
    /// Those of [`Response::parse`], or of [`Header::parse`] for the request.
    pub fn answer<'a>(
        &mut self,
        request: &[u8],
        packet: &'a [u8],
        now: Instant,
    ) -> Result<Option<Response<'a>>, Error> {
        let Header { connection_id, action, transaction_id } = Header::parse(request)?;
        let response = Response::parse(packet, self.family)?;
        match (response, action) {
            _ if response.transaction_id() != transaction_id => return Ok(None),
            (Response::Connect(connect), Action::Connect) => {
                self.connection = Some((connect.connection_id, now));
            }
            (Response::Error(error), _) if error.is_about_the_connection() => self.forget(connection_id),
            (Response::Announce(_), Action::Announce)
            | (Response::Scrape(_), Action::Scrape)
            | (Response::Error(_), _) => {}
            _ => return Ok(None),
        }
        Ok(Some(response))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::{ConnectRequest, ScrapeRequest, TransactionId};

    #[test]
    fn answers_are_of_a_request_and_a_connection_id_is_good_for_a_minute_or_until_it_is_refused() {
        let (mut client, now) = (Client::new(Family::V4), Instant::now());
        let id = ConnectionId(u64::from_be_bytes([9; 8]));
        let connect = ConnectRequest { transaction_id: TransactionId(7) }.to_bytes().to_vec();
        let [scrape, earlier] =
            [id, ConnectionId(1)].map(|id| ScrapeRequest::new(id, TransactionId(7), &[[0; 20]]).to_vec());
        // The words of opentracker.
        let (connected, refused) = (&[9; 8][..], b"Connection ID missmatch.");
        for (request, action, transaction, rest, is_answer, known) in [
            (&connect, 0, 8, connected, false, None),
            (&connect, 2, 7, &[], false, None),
            (&connect, 0, 7, connected, true, Some(id)),
            (&scrape, 0, 7, &[1; 8], false, Some(id)),
            (&scrape, 3, 7, b"too many requests", true, Some(id)),
            (&earlier, 3, 7, refused, true, Some(id)),
            (&scrape, 3, 7, refused, true, None),
        ] {
            let packet = [&[0, 0, 0, action, 0, 0, 0, transaction][..], rest].concat();
            let answer = client.answer(request, &packet, now).expect("a response");
            assert_eq!(answer.is_some(), is_answer, "{packet:?}");
            let ids = [0, 59, 60].map(|secs| client.connection_id(now + Duration::from_secs(secs)));
            assert_eq!(ids, [known, known, None], "{packet:?}");
        }
    }
}

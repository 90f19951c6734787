//! Announces to swarms of four sizes: the naive design, and ours by functions and by the module, in turns on
//! one server.

use swarmkeep_benches::tables::{significant, table, whole};

use crate::{
    Bench, Result,
    drive::{Design, Row, Sample, compare},
};

pub(crate) fn measure(bench: &Bench) -> Result<String> {
    // The number of all peers is the same, so that only the size of swarms differs.
    let peers: u64 = if bench.test { 2_000 } else { 200_000 };
    let sizes: &[u32] = if bench.test { &[1, 100] } else { &[1, 100, 1_000, 10_000] };
    let mut rows = Vec::new();
    for &size in sizes {
        let compared = compare(bench, &Design::ALL, peers / u64::from(size), size)?;
        // All designs select the same number of peers, or they do not do the same work.
        let peers = compared.iter().map(|row| row.median(|sample| sample.peers)).collect::<Vec<_>>();
        if peers.iter().any(|found| (found - peers[0]).abs() > 0.05 * found.max(1.0)) {
            return Err(format!("the designs do not do the same work: they return {peers:?} peers").into());
        }
        rows.extend(compared);
    }
    let rate = |row: &Row| row.median(|sample| sample.announces_per_second);
    let naive = |row: &Row| {
        let is_naive =
            |other: &&Row| (other.way, other.peers_per_swarm) == (Design::Naive, row.peers_per_swarm);
        rows.iter().find(is_naive).map_or(f64::NAN, rate)
    };
    let table = table(
        &rows,
        &[
            ("swarms × peers", &Row::population),
            ("", &|row| row.way.to_string()),
            ("a second", &|row| whole(rate(row))),
            ("× naive", &|row| significant(rate(row) / naive(row))),
            ("server µs", &|row| significant(row.median(|sample| sample.server_us))),
            ("if the server were alone", &|row| whole(row.median(Sample::bound))),
            ("client µs", &|row| significant(row.median(|sample| sample.client_us))),
            ("bytes there", &|row| whole(row.median(|sample| sample.bytes_to_server))),
            ("and back", &|row| whole(row.median(|sample| sample.bytes_from_server))),
            ("peers told", &|row| significant(row.median(|sample| sample.peers))),
        ],
    );
    Ok(format!("## Announces beside the naive design\n\n{ANNOUNCES}\n\n{table}"))
}

const ANNOUNCES: &str = "\
All stores are on the same server, filled with the same peers, over two connections each. Half
of the peers are seeders, all over IPv4. An announce wants 50 peers and gets the counts of the swarm. 64
callers make one announce after another, each of a random member, or 8 callers make batches of 32.

The **naive design** is the usual one of trackers on Redis, modelled on chihaya's: per swarm a hash of seeders
and a hash of leechers, peers as fields, `HKEYS` of all of them to select from, and separate counters. **As
published** sends the commands of chihaya's store one after another. The other variant is as cheap as the
design allows: one round trip for commands that can go together, no `MULTI`, the second hash read only if the
first has too few peers. With **`HRANDFIELD`**, it reads 51 random fields in place of a whole hash: in large
swarms the cheapest that plain commands can do, and done by no tracker that is known. All have shorter keys
and values than chihaya's, and nothing is swept. `benches/lab/benches/redis/naive.rs` has the details.";

//! Which encodings the server chooses for the hashes of both designs, and at what it changes its mind.

use serde::Serialize;
use swarmkeep::{Announce, AnnounceEvent, SplitMix64};
use swarmkeep_servers::Server;
use swarmkeep_workload::tables::grouped;
use swarmkeep_workload::{PeerIndex, Workload};

use crate::{
    Bench, Result,
    drive::{Design, Stores},
    naive::Swarm,
    report::{Section, table},
};

/// So much is added before a hash counts as one that stays a listpack.
const MOST: u64 = 2_000;

#[derive(Debug, Serialize)]
struct Row {
    way: Design,
    hash: &'static str,
    grown_by: &'static str,
    /// The last number of them at which it is a listpack.
    listpack_up_to: u64,
    fields_before: i64,
    longest_before: i64,
    fields_after: i64,
    longest_after: i64,
}

pub(crate) fn measure(bench: &Bench) -> Result<Section> {
    bench.say("encodings".to_owned());
    let v4 = |profile: &mut swarmkeep_workload::Profile| profile.ipv6 = 0.0;
    let one_swarm = Workload::uniform(4, 1, MOST as u32).with_profile(v4);
    let many = Workload::uniform(4, MOST, 1).with_profile(v4);
    let leecher = |workload: &Workload, swarm, peer| {
        workload.announce(PeerIndex { swarm, peer }).event(AnnounceEvent::Started).left(1)
    };
    let of_one = |nth: u64| leecher(&one_swarm, 0, nth as u32);
    let of_many = |nth: u64| leecher(&many, nth, 0);
    let swarm = Swarm::of(&of_one(0));
    let rows = [
        Row::find(bench, Design::Naive, "leechers of a swarm", "peers", Some(&swarm.leechers), of_one)?,
        Row::find(
            bench,
            Design::Naive,
            "swarms of a family",
            "swarms of one peer",
            Some(swarm.family.as_bytes()),
            of_many,
        )?,
        Row::find(bench, Design::One, "a shard", "peers of one swarm", None, of_one)?,
        Row::find(bench, Design::One, "a shard", "swarms of one peer", None, of_many)?,
    ];
    let mut limits = Vec::new();
    let server = Server::start()?;
    for directive in ["hash-max-listpack-entries", "hash-max-listpack-value"] {
        let (_, value): (String, String) = server.query(&["CONFIG", "GET", directive])?;
        limits.push(format!("`{directive} {value}`"));
    }
    Section::new("encodings", &rows, text(&rows, &limits.join(" and ")))
}

/// A hash as it is.
struct Hash {
    is_listpack: bool,
    fields: i64,
    longest: i64,
}

impl Row {
    fn find(
        bench: &Bench,
        way: Design,
        hash: &'static str,
        grown_by: &'static str,
        key: Option<&[u8]>,
        nth: impl Fn(u64) -> Announce,
    ) -> Result<Self> {
        // A shard of ours holds what falls into it: here all does.
        let stores = Stores::start(&bench.runtime, Some(1))?;
        let key = key.unwrap_or(b"b:{0}");
        let mut before: Option<Hash> = None;
        for grown in 0..MOST {
            let announce = nth(grown).want(0);
            bench.runtime.block_on(stores.announce(way, 0, &announce, &mut SplitMix64::new(1)))?;
            let now = Hash::of(&stores.server, key)?;
            if !now.is_listpack {
                let before = before.ok_or("a hash begins as a listpack")?;
                return Ok(Self {
                    way,
                    hash,
                    grown_by,
                    listpack_up_to: grown,
                    fields_before: before.fields,
                    longest_before: before.longest,
                    fields_after: now.fields,
                    longest_after: now.longest,
                });
            }
            before = Some(now);
        }
        Err(format!("{hash} is a listpack still after {MOST} {grown_by}").into())
    }
}

impl Hash {
    fn of(server: &Server, key: &[u8]) -> Result<Self> {
        const SCRIPT: &str = "\
local longest, all = 0, redis.call('HGETALL', KEYS[1])
for _, text in ipairs(all) do longest = math.max(longest, #text) end
return {redis.call('OBJECT', 'ENCODING', KEYS[1]), #all / 2, longest}";

        let (encoding, fields, longest): (String, _, _) =
            server.query(&[b"EVAL".as_slice(), SCRIPT.as_bytes(), b"1", key])?;
        Ok(Self { is_listpack: encoding == "listpack", fields, longest })
    }
}

fn text(rows: &[Row], limits: &str) -> String {
    let table = table(
        rows,
        &[
            ("hash", &|row| {
                format!("{}: {}", if row.way == Design::Naive { "naive" } else { "ours" }, row.hash)
            }),
            ("listpack up to", &|row| format!("{} {}", grouped(row.listpack_up_to), row.grown_by)),
            ("fields then", &|row| grouped(row.fields_before as u64)),
            ("longest, bytes", &|row| grouped(row.longest_before as u64)),
            ("fields of the hash table", &|row| grouped(row.fields_after as u64)),
            ("longest, bytes", &|row| grouped(row.longest_after as u64)),
        ],
    );
    format!(
        "## Encodings\n\n\
         A hash is a listpack (one string that is searched from its beginning) until it has too many fields or too\n\
         long a field or value. Then it is a hash table. The limits of the server are\n\
         {limits}.\n\
         The longest is a field or a value.\n\n{table}"
    )
}

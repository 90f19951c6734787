//! The commands: their arguments, and their replies.
//!
//! The arguments are a caller, and one or several keys, each with a request. So the server finds the keys.

use std::ffi::CStr;

use swarmkeep::{
    Changes, Cursor, InfoHash, Restored, Retention, SwarmStats, SwarmSummary, TorrentRepository as _,
    implement::CursorExt as _,
};

use crate::{
    request::{self, AnnounceCall, Caller, CallerBytes, Malformed, Reader, Terms},
    server::{Call, Key, Word, WrongType},
    shard::{Shard, ShardTime},
    stored::Unreadable,
};

/// A command of the module.
pub(crate) struct Command {
    pub(crate) name: &'static CStr,
    /// Its properties, for the server.
    pub(crate) flags: &'static CStr,
    pub(crate) run: fn(&Call<'_>) -> Result<Reply, Refused>,
}

impl Command {
    /// Whether it changes nothing.
    pub(crate) fn reads(&self) -> bool {
        self.flags.to_bytes().starts_with(b"readonly")
    }
}

/// Why a command was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("ERR wrong number of arguments")]
    Arguments,
    #[error("ERR {0}")]
    Malformed(#[from] Malformed),
    #[error("ERR {0}")]
    Unreadable(#[from] Unreadable),
    #[error("ERR no store has this lifetime or limit")]
    Terms,
    #[error("WRONGTYPE the key holds another type of value")]
    WrongType,
    #[error("MISSING the shard is not there")]
    Missing,
    #[error("ELSEWHERE the shard is of another layout")]
    Elsewhere,
}

impl From<WrongType> for Refused {
    fn from(_: WrongType) -> Self {
        Self::WrongType
    }
}

/// The reply of a command.
#[derive(Debug)]
pub(crate) enum Reply {
    Nothing,
    Done,
    Bytes(Vec<u8>),
}

macro_rules! commands {
    ($($name:literal, $flags:literal, $run:path;)*) => {
        &[$(Command { name: $name, flags: $flags, run: $run }),*]
    };
}

/// Commands that free memory are done when memory is full.
pub(crate) const COMMANDS: &[Command] = commands! {
    c"swarmkeep.announce", c"write deny-oom fast", announce;
    c"swarmkeep.leave", c"write fast", announce;
    c"swarmkeep.restore", c"write deny-oom", restore;
    c"swarmkeep.downloads", c"write deny-oom fast", add_downloads;
    c"swarmkeep.remove", c"write fast", remove;
    c"swarmkeep.sweep", c"write", sweep;
    c"swarmkeep.rebuild", c"write", rebuild;
    c"swarmkeep.load", c"write deny-oom", load;
    c"swarmkeep.meta", c"readonly fast", meta;
    c"swarmkeep.scrape", c"readonly fast", scrape;
    c"swarmkeep.walk", c"readonly", walk;
    c"swarmkeep.page", c"readonly", page;
    c"swarmkeep.peers", c"readonly", peers;
};

/// The shard of the caller's layout; `None` if there is none. A caller that has confirmed its layout takes
/// the place of another.
fn find<'a>(
    call: &Call<'_>,
    key: &'a mut Key<'_>,
    caller: &Caller,
    takes: bool,
) -> Result<Option<&'a mut Shard>, Refused> {
    let theirs = key.shard().map(|shard| shard.identity);
    match theirs {
        Some(identity) if identity == caller.identity => {}
        Some(_) if caller.confirmed => {
            if takes {
                key.delete();
                call.replicate(c"del", &[key.name()]);
            }
            return Ok(None);
        }
        Some(_) => return Err(Refused::Elsewhere),
        None if takes && !caller.confirmed => return Err(Refused::Missing),
        None => return Ok(None),
    }
    Ok(key.shard())
}

/// The shard of the caller's layout, which is created if there is none, and whether it was. Sets its time.
fn enter<'a>(
    call: &Call<'_>,
    key: &'a mut Key<'_>,
    caller: &Caller,
) -> Result<(&'a mut Shard, bool), Refused> {
    // Made first: a refused call has replaced no other shard.
    let is_new = key.shard().is_none_or(|shard| shard.identity != caller.identity);
    let made = is_new.then(|| Shard::new(caller.identity, caller.terms).ok_or(Refused::Terms)).transpose()?;
    find(call, key, caller, true)?;
    made.into_iter().for_each(|shard| key.put(shard));
    let name = key.name();
    let shard = key.shard().ok_or(Refused::WrongType)?;
    advance(call, name, shard, caller)?;
    Ok((shard, is_new))
}

/// Sets the time of a shard.
fn advance(call: &Call<'_>, key: Word<'_>, shard: &mut Shard, caller: &Caller) -> Result<(), Refused> {
    match shard.advance(caller.now, caller.bounded.then_some(|| call.clock())) {
        ShardTime::To(newest) => shard.newest = newest,
        ShardTime::BackTo(newest) => renew(call, key, shard, shard.terms, newest)?,
    }
    Ok(())
}

/// Builds a shard again, on replicas too.
fn renew(
    call: &Call<'_>,
    key: Word<'_>,
    shard: &mut Shard,
    terms: Terms,
    newest: u32,
) -> Result<(), Refused> {
    shard.rebuild(terms, newest).ok_or(Refused::Terms)?;
    call.replicate(c"swarmkeep.rebuild", &[Word::Bytes(&Caller::of(shard)), key, Word::Bytes(&[])]);
    Ok(())
}

/// The most announces of one command, and the most bytes that are reserved for their peers at once.
const MOST_ANNOUNCES: usize = 256;
const RESERVED: usize = 1 << 16;

const HEAD: usize = 22;
const MISSING: u8 = 128;
const ELSEWHERE: u8 = 129;
const NOT_DONE: u8 = 130;

/// Announces, in order. Each is answered with a head and its peers.
fn announce(call: &Call<'_>) -> Result<Reply, Refused> {
    let caller = Caller::read(call.argument(0)?)?;
    let count = call.arguments() / 2;
    if call.arguments().is_multiple_of(2) || !(1..=MOST_ANNOUNCES).contains(&count) {
        return Err(Refused::Arguments);
    }
    // All are read before the first is done.
    let asked: Result<Vec<_>, Refused> =
        (0..count).map(|nth| Ok(AnnounceCall::read(call.argument(2 + 2 * nth)?)?)).collect();
    let asked = asked?;
    let reserved: usize = asked.iter().map(|asked| HEAD + 18 * asked.announce.want).sum();
    let mut reply = Vec::with_capacity(reserved.min(RESERVED));
    let mut decided = ReplicaCommands { call, announces: Vec::new(), downloads: Vec::new() };
    for (nth, asked) in asked.iter().enumerate() {
        let head = reply.len();
        reply.resize(head + HEAD, 0);
        let refused = match announce_one(call.word(1 + 2 * nth), &caller, asked, &mut reply, &mut decided) {
            Ok(()) => continue,
            Err(Refused::Missing) => MISSING,
            Err(Refused::Elsewhere) => ELSEWHERE,
            Err(_) => NOT_DONE,
        };
        reply.truncate(head + HEAD);
        reply[head] = refused;
    }
    decided.replicate();
    Ok(Reply::Bytes(reply))
}

/// One announce. Its head is the end of `reply`.
fn announce_one<'a>(
    name: Word<'a>,
    caller: &Caller,
    asked: &AnnounceCall,
    reply: &mut Vec<u8>,
    decided: &mut ReplicaCommands<'a>,
) -> Result<(), Refused> {
    let head = reply.len() - HEAD;
    let call = decided.call;
    let mut key = call.key_at(name, true)?;
    let (shard, is_new) = enter(call, &mut key, caller)?;
    let (announced, v4, v6) = shard.announce(asked, reply);
    let (stats, changes) = (announced.stats, announced.changes);
    let mut out = &mut reply[head..head + HEAD];
    let mut put = |bytes: &[u8]| {
        let (place, rest) = std::mem::take(&mut out).split_at_mut(bytes.len());
        place.copy_from_slice(bytes);
        out = rest;
    };
    put(&[changes.bits(), u8::try_from(announced.evicted.peers).unwrap_or(u8::MAX)]);
    for number in [stats.complete, stats.incomplete, stats.downloaded, shard.newest] {
        put(&number.to_le_bytes());
    }
    for peers in [v4, v6] {
        put(&u16::try_from(peers).unwrap_or(u16::MAX).to_le_bytes());
    }
    // One that changes nothing may have created the shard.
    if is_new || !changes.is_empty() {
        decided.announces.push((Caller::of(shard), name, asked.decided()));
    }
    if changes.contains(Changes::COMPLETED) {
        decided.downloads.push((Caller::of(shard), name, asked.announce.info_hash));
    }
    Ok(())
}

/// A call with announces, and the commands for replicas that they make.
struct ReplicaCommands<'a> {
    call: &'a Call<'a>,
    announces: Vec<(CallerBytes, Word<'a>, Vec<u8>)>,
    /// Downloads to count.
    downloads: Vec<(CallerBytes, Word<'a>, InfoHash)>,
}

impl ReplicaCommands<'_> {
    fn replicate(&self) {
        let call = self.call;
        // Nearly always, all shards have the same time.
        for same in self.announces.chunk_by(|(one, ..), (other, ..)| one == other) {
            let mut words = Vec::with_capacity(1 + 2 * same.len());
            words.push(Word::Bytes(&same[0].0));
            for (_, key, request) in same {
                words.extend([*key, Word::Bytes(request)]);
            }
            call.replicate(call.name(), &words);
        }
        for (caller, key, info_hash) in &self.downloads {
            let mut request = [0; 24];
            request[..20].copy_from_slice(info_hash.as_bytes());
            request[20] = 1;
            call.replicate(c"swarmkeep.downloads", &[Word::Bytes(caller), *key, Word::Bytes(&request)]);
        }
    }
}

/// A command about one key: its caller, the key, and its request.
fn single<'a>(call: &'a Call<'_>) -> Result<(Caller, Word<'a>, Reader<'a>), Refused> {
    if call.arguments() != 3 {
        return Err(Refused::Arguments);
    }
    Ok((Caller::read(call.argument(0)?)?, call.word(1), Reader(call.argument(2)?)))
}

/// The same command on replicas, at the time that counted here.
fn repeat(call: &Call<'_>, shard: &Shard) -> Result<(), Refused> {
    let words = [Word::Bytes(&Caller::of(shard)), call.word(1), Word::Bytes(call.argument(2)?)];
    call.replicate(call.name(), &words);
    Ok(())
}

fn restore(call: &Call<'_>) -> Result<Reply, Refused> {
    let (caller, name, mut rest) = single(call)?;
    let (info_hash, downloaded) = (rest.info_hash()?, rest.u32()?);
    let mut peers = Vec::with_capacity(rest.0.len() / 11);
    while !rest.0.is_empty() {
        peers.push(request::peer(&mut rest)?);
    }
    let mut key = call.key_at(name, true)?;
    let (shard, _) = enter(call, &mut key, &caller)?;
    let stats = SwarmStats { downloaded, ..SwarmStats::default() };
    let Restored { added, known, expired, refused, .. } =
        shard.restore(&SwarmSummary { info_hash, stats }, &peers);
    repeat(call, shard)?;
    let mut reply = shard.newest.to_le_bytes().to_vec();
    for count in [added, known, expired, refused] {
        reply.extend((count as u32).to_le_bytes());
    }
    Ok(Reply::Bytes(reply))
}

fn add_downloads(call: &Call<'_>) -> Result<Reply, Refused> {
    let (caller, name, mut rest) = single(call)?;
    let (info_hash, earlier) = (rest.info_hash()?, rest.u32()?);
    rest.end(())?;
    let mut key = call.key_at(name, true)?;
    let Some(shard) = find(call, &mut key, &caller, false)? else { return Ok(Reply::Nothing) };
    if !shard.store.add_downloads(&info_hash, earlier) {
        return Ok(Reply::Nothing);
    }
    repeat(call, shard)?;
    Ok(Reply::Done)
}

fn remove(call: &Call<'_>) -> Result<Reply, Refused> {
    let (caller, name, mut rest) = single(call)?;
    let info_hash = rest.info_hash()?;
    rest.end(())?;
    let mut key = call.key_at(name, true)?;
    let Some(shard) = find(call, &mut key, &caller, false)? else { return Ok(Reply::Nothing) };
    let Some(stats) = shard.store.remove(&info_hash) else { return Ok(Reply::Nothing) };
    repeat(call, shard)?;
    let mut reply = Vec::with_capacity(12);
    write_stats(&stats, &mut reply);
    Ok(Reply::Bytes(reply))
}

/// A step of a pass. Replicas make the whole pass when it ends here.
fn sweep(call: &Call<'_>) -> Result<Reply, Refused> {
    let (caller, name, mut rest) = single(call)?;
    let (drops_empty, budget) = (rest.u8()? == 1, rest.u32()?);
    rest.end(())?;
    let policy = if drops_empty { Retention::DropEmpty } else { Retention::KeepDownloaded };
    let mut key = call.key_at(name, true)?;
    let mut reply = Vec::with_capacity(17);
    let Some(shard) = find(call, &mut key, &caller, true)? else {
        reply.extend(caller.now.to_le_bytes());
        reply.resize(17, 0);
        return Ok(Reply::Bytes(reply));
    };
    if shard.terms != caller.terms {
        renew(call, name, shard, caller.terms, shard.newest)?;
    }
    advance(call, name, shard, &caller)?;
    if call.is_of_master() {
        shard.sweep_all(policy);
        repeat(call, shard)?;
        return Ok(Reply::Done);
    }
    let (swept, has_changed) = shard.sweep(policy, budget);
    if has_changed {
        repeat(call, shard)?;
    }
    reply.extend(shard.newest.to_le_bytes());
    for count in [swept.visited, swept.expired, swept.swarms_removed] {
        reply.extend((count as u32).to_le_bytes());
    }
    reply.push((!swept.pass_complete).into());
    Ok(Reply::Bytes(reply))
}

/// Builds a shard with the caller's terms and time again, as its master has done.
fn rebuild(call: &Call<'_>) -> Result<Reply, Refused> {
    let (caller, name, _) = single(call)?;
    let mut key = call.key_at(name, true)?;
    let Some(shard) = find(call, &mut key, &caller, false)? else { return Ok(Reply::Nothing) };
    renew(call, name, shard, caller.terms, caller.now)?;
    Ok(Reply::Done)
}

/// A shard as a file of commands has it.
fn load(call: &Call<'_>) -> Result<Reply, Refused> {
    let (_, name, mut rest) = single(call)?;
    let shard = Shard::read(|| {
        if rest.0.is_empty() {
            return Ok(None);
        }
        let length = rest.u32()?;
        Ok(Some(rest.bytes(length as usize)?))
    })?;
    call.key_at(name, true)?.put(shard);
    call.replicate(call.name(), &[call.word(0), call.word(1), call.word(2)]);
    Ok(Reply::Done)
}

/// The numbers of a shard.
fn meta(call: &Call<'_>) -> Result<Reply, Refused> {
    if call.arguments() != 2 {
        return Err(Refused::Arguments);
    }
    let mut key = call.key_at(call.word(1), false)?;
    let Some(shard) = key.shard() else { return Ok(Reply::Nothing) };
    let totals = shard.store.totals();
    let mut reply = Vec::with_capacity(85);
    reply.extend(shard.identity);
    reply.extend(shard.newest.to_le_bytes());
    let peers = [totals.v4.seeders, totals.v4.leechers, totals.v6.seeders, totals.v6.leechers];
    let sums = [shard.evicted(), totals.downloaded, shard.bytes()];
    for number in [totals.swarms].into_iter().chain(peers).chain(sums) {
        reply.extend(number.to_le_bytes());
    }
    Ok(Reply::Bytes(reply))
}

fn scrape(call: &Call<'_>) -> Result<Reply, Refused> {
    let (caller, name, mut rest) = single(call)?;
    let info_hash = rest.info_hash()?;
    rest.end(())?;
    let mut key = call.key_at(name, false)?;
    let Some(shard) = find(call, &mut key, &caller, false)? else { return Ok(Reply::Nothing) };
    let mut reply = Vec::with_capacity(12);
    write_stats(&shard.store.scrape(&info_hash), &mut reply);
    Ok(Reply::Bytes(reply))
}

/// The most swarms or peers in one reply.
const LISTED: usize = 4096;

/// Swarms after one, in the order of the shard: whether there are more, and each with its counts.
fn walk(call: &Call<'_>) -> Result<Reply, Refused> {
    list(call, |shard, after, limit, out| {
        let from = after.map_or(Cursor::START, |after| Cursor::after(after.as_bytes()));
        !shard.store.walk(from, limit, out).is_end()
    })
}

/// The same, in the order of their info hashes.
fn page(call: &Call<'_>) -> Result<Reply, Refused> {
    list(call, |shard, after, limit, out| {
        shard.store.page(after, limit, out);
        out.len() == limit
    })
}

fn list(
    call: &Call<'_>,
    show: impl FnOnce(&Shard, Option<&InfoHash>, usize, &mut Vec<SwarmSummary>) -> bool,
) -> Result<Reply, Refused> {
    let (caller, name, mut rest) = single(call)?;
    let limit = (rest.u32()? as usize).min(LISTED);
    let after = if rest.0.is_empty() { None } else { Some(rest.info_hash()?) };
    rest.end(())?;
    let mut key = call.key_at(name, false)?;
    let (mut found, mut more) = (Vec::new(), false);
    if let Some(shard) = find(call, &mut key, &caller, false)? {
        more = show(shard, after.as_ref(), limit, &mut found);
    }
    let mut reply = Vec::with_capacity(1 + found.len() * 32);
    reply.push(more.into());
    for SwarmSummary { info_hash, stats } in &found {
        reply.extend(info_hash.as_bytes());
        write_stats(stats, &mut reply);
    }
    Ok(Reply::Bytes(reply))
}

/// Peers of a swarm: where to go on (a length and its bytes; 255 is the end), and each with kind and time.
fn peers(call: &Call<'_>) -> Result<Reply, Refused> {
    const END: u8 = u8::MAX;

    let (caller, name, mut rest) = single(call)?;
    let (info_hash, limit) = (rest.info_hash()?, (rest.u32()? as usize).min(LISTED));
    let from = match rest.0.len() {
        0 => Cursor::START,
        1..=24 => Cursor::after(rest.0),
        _ => return Err(Malformed.into()),
    };
    let mut key = call.key_at(name, false)?;
    let (mut found, mut next) = (Vec::new(), Cursor::END);
    if let Some(shard) = find(call, &mut key, &caller, false)? {
        next = shard.store.peers(&info_hash, from, limit, &mut found);
    }
    let mut reply = Vec::with_capacity(25 + found.len() * 11);
    if next.is_end() {
        reply.push(END);
    } else {
        let next = next.bytes().unwrap_or_default();
        reply.push(next.len() as u8);
        reply.extend(next);
    }
    found.iter().for_each(|peer| request::write_peer(peer, &mut reply));
    Ok(Reply::Bytes(reply))
}

fn write_stats(stats: &SwarmStats, out: &mut Vec<u8>) {
    for count in [stats.complete, stats.incomplete, stats.downloaded] {
        out.extend(count.to_le_bytes());
    }
}

#!lua name=swarmkeep_LIBRARY

-- The functions inside the server. Each call is one step, atomic and bounded, on the shards of its keys.
-- docs/formats/redis.md describes the format.
--
-- A key contains a shard, a hash with all its swarms:
--   m                     the newest time, counts of the whole shard, the number of pages of its directory,
--                         and the layout under which it was created
--   u                     for each page of the directory, the time when the first of its swarms is due
--   KIND PAGE             a page of the directory: info hashes, and in a second field when each is due
--   INFO-HASH             a swarm: its counts, and its peers without pages
--   INFO-HASH KIND PAGE   a page of its peers of a kind, if there are many: endpoints, and in a second field
--                         their times
--
-- The directory and the peers of a kind are tables. A table consists of pages: keys in one field, and a
-- number for each in another. Linear hashing (Litwin, VLDB 1980) gives the page of a key, so that tables grow
-- and shrink by one page at a time.
--
-- Bytes are the cost: Lua here hashes every byte of every string that it gets or makes. So times are apart
-- from endpoints, pages are small, strings are read in place if possible, and an answer consists of pieces.

local call, encode, decode, spread, sub, find, byte, char, floor, min, max, frexp, concat, band, sha1, raise, number_of

-- A library sees no globals while it is loaded.
local function bind()
  call, sha1, encode, decode, spread = redis.call, redis.sha1hex, struct.pack, struct.unpack, unpack
  sub, find, byte, char = string.sub, string.find, string.byte, string.char
  floor, min, max, frexp = math.floor, math.min, math.max, math.frexp
  concat, band = table.concat, bit.band
  raise, number_of = error, tonumber
end

-- The lengths of keys by kind: seeders and leechers over IPv4, over IPv6, and info hashes in the directory.
local WIDTH = { 6, 6, 18, 18, 20 }
local DIRECTORY = 5
-- If endpoints per address are limited, by kind: the lengths of the shared prefixes of its networks, from
-- narrow to wide, and their multiples of the limit.
local NETWORKS = { { 4 }, { 4 }, { 8, 7, 6 }, { 8, 7, 6 } }
local TIMES = { 1, 5, 25 }
-- The numbers of a page are in the field of its kind plus this.
local NUMBERS = 8
-- The most peers of a kind in the field of their swarm. More peers have pages, two at least.
local INLINE = 32
-- The keys per page, on average, are between these.
local LEAST, MOST = 32, 64
-- The due time of a swarm that is kept for its downloads.
local KEPT = 4294967295
local LARGEST = 4294967295
-- The due time of a swarm in which a sweep begins again.
local AGAIN = 0
-- One call of a sweep visits this many peers, and the rest of the last page.
local HOLD = 256

local JOINED, REFRESHED, COMPLETED, PROMOTED, DEMOTED, LEFT, CREATED = 1, 2, 4, 8, 16, 32, 64
local SEEDER, FINISHED, STOPPED, IPV6, WANTS_V4, WANTS_V6, SEEDERS_TOO = 1, 2, 4, 8, 16, 32, 64

-- The layout of the caller: the salt, and the rest of it. Whether the caller has just read that this is the
-- layout of the store, and whether the server's clock bounds the times of calls.
local identity, confirmed, bounded
local SALT, IDENTITY = 16, 17
local CONFIRMED, BOUNDED = 1, 2
-- An announce was not done, in place of its changes.
local MISSING, ELSEWHERE = 128, 129
-- The most seconds between the time of a call and the server's clock.
local APART = 60

-- The shard during one call: the fields that were read, and the fields to write when it ends.

-- The identity follows.
local META = '<I4I4I4I4I4I4I4I3I4I5I7'
local LAYOUT = 48

-- Returns nil and the reason for a shard of another layout, and for a missing shard that the call would
-- create. A caller that has confirmed its layout creates it, or replaces an abandoned layout, if the call may
-- (`takes`).
local function find_shard(key, info_hash, takes)
  local values = call('HMGET', key, 'm', info_hash or 'u')
  local raw, value = values[1], values[2]
  local theirs = raw and sub(raw, LAYOUT)
  if theirs ~= identity then
    if raw and #theirs < IDENTITY then
      raise({ err = 'OLDER the shard has an older layout (commit c279a9d reads it, or names the commit that does)' })
    elseif confirmed then
      if raw and takes then
        call('PEXPIRE', key, 0)
      end
      raw, value = false, false
    elseif raw or takes then
      return nil, raw and ELSEWHERE or MISSING
    end
  end
  return { key = key, raw = raw, read = {}, written = {} }, value
end

local function open(key, info_hash, takes)
  local shard, value = find_shard(key, info_hash, takes)
  if not shard then
    raise({ err = value == MISSING and 'MISSING the shard is not there' or 'ELSEWHERE the shard is of another layout' })
  end
  return shard, value
end

local function meta(shard)
  local m = shard.m
  if not m then
    if shard.raw then
      local newest, swarms, a, b, c, d, kept, pages, due, evicted, downloads = decode(META, shard.raw)
      m = { a, b, c, d, newest = newest, swarms = swarms, kept = kept, pages = pages, due = due, evicted = evicted,
        downloads = downloads }
    else
      m = { 0, 0, 0, 0, newest = 0, swarms = 0, kept = 0, pages = 1, due = LARGEST, evicted = 0, downloads = 0 }
    end
    shard.m = m
  end
  return m
end

local function get(shard, field)
  local value = shard.read[field]
  if value == nil then
    value = call('HGET', shard.key, field) or ''
    shard.read[field] = value
  end
  return value
end

-- An empty field is deleted.
local function put(shard, field, value)
  shard.read[field] = value
  shard.written[field] = value
end

local function commit(shard)
  local m, written = shard.m, shard.written
  if not m then
    local field, value = next(written)
    if field == nil then
      return
    end
    if value ~= '' and next(written, field) == nil then
      call('HSET', shard.key, field, value)
      return
    end
  end
  local set, gone = {}, {}
  for field, value in pairs(written) do
    if value == '' then
      gone[#gone + 1] = field
    else
      set[#set + 1] = field
      set[#set + 1] = value
    end
  end
  if m then
    local raw = encode(META, m.newest, m.swarms, m[1], m[2], m[3], m[4], m.kept, m.pages, m.due, m.evicted,
      m.downloads) .. identity
    if raw ~= shard.raw then
      set[#set + 1] = 'm'
      set[#set + 1] = raw
    end
  end
  -- The stack of Lua takes 8,000 arguments.
  for i = 1, #gone, 4000 do
    call('HDEL', shard.key, spread(gone, i, min(i + 3999, #gone)))
  end
  for i = 1, #set, 4000 do
    call('HSET', shard.key, spread(set, i, min(i + 3999, #set)))
  end
end

-- Selection of peers.

-- Numbers in [0, 1) from the caller's randomness (L'Ecuyer, CACM 1988).
local x, y

local function seed(a, b)
  x, y = a % 2147483562 + 1, b % 2147483398 + 1
end

local function draw()
  x, y = x * 40014 % 2147483563, y * 40692 % 2147483399
  return (x - y) % 2147483562 / 2147483562
end

-- The current announcer: its flags, its kind, the page for its endpoint, and its position in it.
local my_flags, my_kind, my_page, mine
-- The pieces of the answer, and their number.
local out, n

-- Appends `want` of the peers of the kinds `first` to `last` to the answer: those behind a random one in
-- their order, cyclically, without the announcer.
local function select(s, first, last, want, eligible)
  if want <= 0 then
    return
  end
  local kind, page, i = first, 0, 0
  if want < eligible then
    local rank = floor(draw() * eligible)
    local size = s.count[kind] - (kind == my_kind and 1 or 0)
    if rank >= size and kind < last then
      kind, rank = last, rank - size
    end
    if s.pages[kind] == 1 then
      i = rank
      if kind == my_kind and i >= mine then
        i = i + 1
      end
    else
      -- A random place of a random page, repeated while it is empty: the weight of a page is its number of
      -- peers.
      local slots, fullest, tries = s.pages[kind] * s.fullest[kind], s.fullest[kind], 0
      repeat
        local slot = floor(draw() * slots)
        i, page = slot % fullest, floor(slot / fullest)
        local _, _, count = keys_of(s, kind, page)
        tries = tries + 1
      until (i < count and not (kind == my_kind and page == my_page and i == mine)) or tries == 100
    end
  end
  while want > 0 do
    local width, text, from, count = WIDTH[kind], keys_of(s, kind, page)
    if kind == my_kind and page == my_page and i <= mine then
      local before = min(mine - i, want)
      if before > 0 then
        n = n + 1
        out[n] = sub(text, from + i * width, from + (i + before) * width - 1)
      end
      want, i = want - before, mine + 1
    end
    if i < count and want > 0 then
      local rest = min(count - i, want)
      n = n + 1
      out[n] = sub(text, from + i * width, from + (i + rest) * width - 1)
      want = want - rest
    end
    page, i = page + 1, 0
    if page >= s.pages[kind] then
      kind, page = kind < last and last or first, 0
    end
  end
end

-- Half of `want` for each family; the unused part of one goes to the other.
local function share(want, v4, v6)
  local six = min(v6, max(floor(want / 2), want - v4))
  return min(v4, want - six), six
end

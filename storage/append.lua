-- Append events to a job's log: order, fencing, "stored before visible" and "one terminal, last" in one atomic step.
--
-- KEYS[1]  the log, a stream; a channel of the same name carries what is appended
-- ARGV[1]  epoch of the writer
-- ARGV[2]  base: the seq this writer last had acknowledged in its epoch, 0 to open the epoch
-- ARGV[3]  milliseconds the log is kept from now on
-- ARGV[4]  1 if the last event is terminal
-- ARGV[5…] the events, each one JSON text
--
-- Answers OK, FENCED (a newer epoch has begun), LOST (entries this writer had acknowledged are gone) or
-- ENDED (this epoch has its terminal event).
local key = KEYS[1]
local epoch, base = tonumber(ARGV[1]), tonumber(ARGV[2])
local first = 5
local count = #ARGV - first + 1

local last_epoch, last_seq, previous = -1, 0, '0-0'
local terminal = false
local last = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
if last then
  previous = last[1]
  local dash = string.find(previous, '-', 1, true)
  last_epoch, last_seq = tonumber(string.sub(previous, 1, dash - 1)), tonumber(string.sub(previous, dash + 1))
  terminal = last[2][3] == 't'
end

if last_epoch > epoch then return 'FENCED' end
if last_epoch < epoch then last_seq, terminal = 0, false end
-- A repeat whose answer was lost, or a transition's event that somebody has appended already.
if last_seq == base + count or (base == 0 and last_seq >= 1) then return 'OK' end
if last_seq ~= base then return 'LOST' end
if terminal then return 'ENDED' end

for i = 1, count do
  local id = ARGV[1] .. '-' .. string.format('%d', base + i)
  local event = ARGV[first + i - 1]
  if i == count and ARGV[4] == '1' then
    redis.call('XADD', key, id, 'e', event, 't', '1')
  else
    redis.call('XADD', key, id, 'e', event)
  end
  redis.call('PUBLISH', key, id .. ' ' .. previous .. ' ' .. event)
  previous = id
end
redis.call('PEXPIRE', key, ARGV[3])
return 'OK'

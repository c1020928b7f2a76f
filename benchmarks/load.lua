-- wrk script: each request asks for one node id, drawn uniformly.
-- Arguments after "--": path, body before the id, body after the id, number of
-- ids, seed, method. Each wrk thread has a Lua state of its own (we use one thread);
-- a run has a seed of its own, so that a second run does not ask for the same nodes.

local heads = {}  -- request text up to the id, by number of digits
local tail, num_ids

function init(args)
  local path, before = args[1], args[2]
  tail, num_ids = args[3], tonumber(args[4])
  math.randomseed(tonumber(args[5]))
  -- wrk.format() per request costs the client a good part of its core at 15,000
  -- requests a second; only Content-Length changes, and only with the digits.
  for digits = 1, 12 do
    heads[digits] = string.format(
      "%s %s HTTP/1.1\r\nHost: %s:%s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
      args[6], path, wrk.host, wrk.port, #before + digits + #tail, before)
  end
end

function request()
  local id = string.format("%d", math.random(0, num_ids - 1))
  return heads[#id] .. id .. tail
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '{"requests": %d, "duration_us": %d, "p50_us": %d, "p99_us": %d, "max_us": %d, ' ..
    '"connect": %d, "read": %d, "write": %d, "status": %d, "timeout": %d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99), latency.max,
    errors.connect, errors.read, errors.write, errors.status, errors.timeout))
end

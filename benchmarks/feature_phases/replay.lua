-- wrk script: asks for the node ids of a file, one after the other, from the start again at its end.
-- Arguments after "--": path, body before the id, body after the id, method, file of little-endian int32.

local ffi = require("ffi")
local heads = {}  -- request text up to the id, by number of digits
local tail, ids, num_ids, text
local at = 0

function init(args)
  local path, before = args[1], args[2]
  tail = args[3]
  local file = assert(io.open(args[5], "rb"))
  text = file:read("*a")  -- kept: `ids` points into it
  file:close()
  ids, num_ids = ffi.cast("const int32_t *", text), #text / 4
  for digits = 1, 12 do
    heads[digits] = string.format(
      "%s %s HTTP/1.1\r\nHost: %s:%s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
      args[4], path, wrk.host, wrk.port, #before + digits + #tail, before)
  end
end

function request()
  local id = string.format("%d", ids[at])
  at = at + 1
  if at >= num_ids then at = 0 end
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

-- A flood at about a given rate: each connection waits a while after each answer.
-- Arguments: path, body, milliseconds to wait. Prints "answers refused" at the end.
local pause = 0

function init(args)
  wrk.method = "POST"
  wrk.path = args[1]
  wrk.body = args[2]
  wrk.headers["Content-Type"] = "application/json"
  pause = tonumber(args[3])
end

function delay()
  return pause
end

function done(summary)
  io.write(string.format("ANSWERS %d %d\n", summary.requests, summary.errors.status))
end

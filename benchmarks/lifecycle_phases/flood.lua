-- A flood at about a given rate: each connection waits a random while after each answer, so that they do not
-- come in step. Arguments: path, body, mean milliseconds to wait. Prints "answers refused" at the end.
local pause = 0

function init(args)
  wrk.method = "POST"
  wrk.path = args[1]
  wrk.body = args[2]
  wrk.headers["Content-Type"] = "application/json"
  pause = tonumber(args[3])
end

function delay()
  return math.floor(-pause * math.log(1 - math.random()))
end

function done(summary)
  io.write(string.format("ANSWERS %d %d\n", summary.requests, summary.errors.status))
end

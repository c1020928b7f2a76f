"""The steps that a Redis takes as a whole, in Lua, and the names of its keys.

Times are the server's own, in milliseconds: clocks of hosts differ.
"""

from __future__ import annotations

from dataclasses import dataclass

_NOW = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local function text(number) return string.format('%.0f', number) end
"""

#: KEYS: state, members, acks, leader, pulse. ARGV: member, its acknowledgement ('' before it has one),
#: lifetime of members in ms, time for which it wants to lead in ms, or 0.
#: Returns: generation, nonce, time, leader, number of members.
#: If no member was heard for a while, the store was away, not the members: they get a lifetime to report.
BEAT = (
    _NOW
    + """
local lifetime = tonumber(ARGV[3])
local pulse = redis.call('HMGET', KEYS[5], 'last', 'since')
local since = tonumber(pulse[2] or 0)
if now - tonumber(pulse[1] or 0) > lifetime / 2 then since = now end
redis.call('HSET', KEYS[5], 'last', text(now), 'since', text(since))
if ARGV[2] ~= '' then
  redis.call('ZADD', KEYS[2], text(now), ARGV[1])
  redis.call('HSET', KEYS[3], ARGV[1], ARGV[2])
end
if now - since > lifetime then
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', text(now - lifetime))) do
    redis.call('ZREM', KEYS[2], gone)
    redis.call('HDEL', KEYS[3], gone)
  end
end
local leader = redis.call('GET', KEYS[4])
if ARGV[4] ~= '0' and (not leader or leader == ARGV[1]) then
  leader = ARGV[1]
  redis.call('SET', KEYS[4], leader, 'PX', ARGV[4])
end
local state = redis.call('HMGET', KEYS[1], 'generation', 'nonce')
return {state[1] or '0', state[2] or '', text(now), leader or '', redis.call('ZCARD', KEYS[2])}
"""
)

#: KEYS: state. ARGV: generation and nonce that are expected, new generation, nonce and body, latest time.
#: Returns the nonce in force afterwards; 'late' where the command waited longer than its sender did.
REPLACE = (
    _NOW
    + """
if now > tonumber(ARGV[6]) then return 'late' end
local state = redis.call('HMGET', KEYS[1], 'generation', 'nonce')
if (state[1] or '0') ~= ARGV[1] or (state[2] or '') ~= ARGV[2] then return state[2] or '' end
redis.call('HSET', KEYS[1], 'generation', ARGV[3], 'nonce', ARGV[4], 'body', ARGV[5])
return ARGV[4]
"""
)

#: KEYS: state. ARGV: generation, nonce, body. Returns generation and nonce in force afterwards.
#: For a store that lost what it had been given: the newest state that a member knows is the state.
RESTORE = """
local state = redis.call('HMGET', KEYS[1], 'generation', 'nonce')
if tonumber(state[1] or 0) >= tonumber(ARGV[1]) then return {state[1], state[2]} end
redis.call('HSET', KEYS[1], 'generation', ARGV[1], 'nonce', ARGV[2], 'body', ARGV[3])
return {ARGV[1], ARGV[2]}
"""

#: KEYS: members, acks, leader. ARGV: member.
LEAVE = """
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
if redis.call('GET', KEYS[3]) == ARGV[1] then redis.call('DEL', KEYS[3]) end
"""


@dataclass(frozen=True, slots=True)
class Keys:
    """The names of a fleet's keys; all in one slot of a cluster.

    Args:
        prefix: of the fleet.
    """

    prefix: str

    @property
    def state(self) -> str:
        """Hash: generation, nonce, body."""
        return self._named("state")

    @property
    def members(self) -> str:
        """Sorted set: member -> time of its last beat."""
        return self._named("members")

    @property
    def acks(self) -> str:
        """Hash: member -> acknowledgement."""
        return self._named("acks")

    @property
    def leader(self) -> str:
        """The member that judges."""
        return self._named("leader")

    @property
    def pulse(self) -> str:
        """Hash: time of the last beat of any member; time since which there was no gap."""
        return self._named("pulse")

    def counts(self, step: str) -> str:
        """Hash: member -> counts of a step; and "doubted"."""
        return self._named(f"counts:{step}")

    def _named(self, name: str) -> str:
        return f"{self.prefix}{{fleet}}:{name}"

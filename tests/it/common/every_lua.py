"""A Redis server that runs each script under several versions of Lua, and replies with an error if they differ.

    every_lua.py REDIS_SERVER OPTIONS...

This process becomes the real server, on a socket in its `--dir`. A child listens on `--port`, and passes on all
commands except scripts. The first version of Lua calls the real server. The others must make the same calls, are
told what the first one was told, and must return the same.
"""

import os
import re
import signal
import socket
import struct
import sys
import threading
import time
from hashlib import sha1

from lupa import lua51, lua52, lua53, lua54

# Redis has Lua 5.1. In 5.3 and later numbers are integers or floats, and the servers differ in what
# `struct.unpack` returns for an integer.
LUAS = {
    "5.1": (lua51, float),
    "5.2": (lua52, float),
    "5.3": (lua53, float),
    "5.4": (lua54, float),
    "5.4 with integers": (lua54, int),
}

# What servers provide to scripts, and how they reply with what one returns. `...` is what Python provides.
PRELUDE = rb"""
local send, pack, read = ...
local is_float = math.type and function(number) return math.type(number) == 'float' end
local compile = loadstring or load

local function word(value)
  if type(value) ~= 'number' then return value end
  -- As text it would be 3.0, or have an exponent.
  if is_float and is_float(value) or value ~= math.floor(value) then error('a float is an argument') end
  return string.format('%.17g', value)
end
local function pcall_command(...)
  local words = { ... }
  for n = 1, select('#', ...) do words[n] = word(words[n]) end
  return send((table.unpack or unpack)(words))
end

redis = { pcall = pcall_command }
function redis.call(...)
  local reply = pcall_command(...)
  if type(reply) == 'table' and reply.err then error(reply, 0) end
  return reply
end
function redis.error_reply(text) return { err = text } end
function redis.status_reply(text) return { ok = text } end
-- Lua has its own in 5.3 and later, which servers do not offer to scripts.
string.pack, string.unpack, string.packsize = nil, nil, nil
struct = { pack = pack, unpack = read }

local function encode(value)
  local kind = type(value)
  if kind == 'string' then
    return '$' .. #value .. '\r\n' .. value .. '\r\n'
  elseif kind == 'number' then
    if value ~= math.floor(value) then error('the reply has the fraction ' .. value) end
    return string.format(':%.0f\r\n', value)
  elseif kind == 'table' and value.err then
    return '-' .. value.err .. '\r\n'
  elseif kind == 'table' and value.ok then
    return '+' .. value.ok .. '\r\n'
  elseif kind == 'table' then
    local all = {}
    while value[#all + 1] ~= nil do all[#all + 1] = encode(value[#all + 1]) end
    return '*' .. #all .. '\r\n' .. table.concat(all)
  end
  return value and ':1\r\n' or '$-1\r\n'
end

KEYS, ARGV = false, false
local scripts = {}
local function run(source, key_count, ...)
  local script = scripts[source] or assert(compile(source))
  scripts[source] = script
  KEYS, ARGV = {}, {}
  for n = 1, select('#', ...) do
    if n <= key_count then KEYS[n] = (select(n, ...)) else ARGV[n - key_count] = (select(n, ...)) end
  end
  local is_ok, value = pcall(script)
  if is_ok then return encode(value) end
  return encode({ err = type(value) == 'table' and value.err or 'ERR ' .. tostring(value) })
end
-- As on servers, a global that does not exist is an error, and so is one that a script creates.
local function refuse(_, name) error('the global ' .. tostring(name), 2) end
setmetatable(_G, { __index = refuse, __newindex = refuse })
return run
"""


def translated(layout):
    """A layout of the `struct` of Redis, as Python's, and the types of its fields."""
    assert layout[:1] == b">", layout
    fields = re.findall(rb"([IBdc])(\d*)", layout[1:])
    assert b">" + b"".join(kind + size for kind, size in fields) == layout, layout
    text = ">"
    for kind, size in fields:
        text += {
            (b"I", b"4"): "I",
            (b"I", b"2"): "H",
            (b"B", b""): "B",
            (b"d", b""): "d",
        }.get((kind, size)) or f"{int(size)}s"
    return text, [kind for kind, _ in fields]


def pack(layout, *values):
    text, kinds = translated(layout)
    whole = [int(value) if kind in b"IB" else value for kind, value in zip(kinds, values, strict=True)]
    assert all(whole[n] == values[n] for n in range(len(values))), "an integer has a fraction"
    for size, value in zip(re.findall(r"(\d+)s", text), (value for value in values if isinstance(value, bytes))):
        assert len(value) >= int(size), "the string is too short"
    return struct.pack(text, *whole)


def reader(of_integer):
    def read(layout, data, position=1):
        text, kinds = translated(layout)
        values = struct.unpack_from(text, data, int(position) - 1)
        end = of_integer(int(position) + struct.calcsize(text))
        typed = (of_integer(value) if kind in b"IB" else value for kind, value in zip(kinds, values))
        return (*typed, end)

    return read


class Upstream:
    """A connection to the real server."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        deadline = time.monotonic() + 10
        while True:
            try:
                self.socket.connect(path)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
        self.stream = self.socket.makefile("rb")

    def call(self, request):
        self.socket.sendall(request)
        return self.reply()

    def reply(self):
        """The bytes of a reply, and of the push messages before it."""
        head = self.stream.readline()
        if not head:
            raise EOFError
        kind, rest = head[:1], b""
        if kind in b"$=!" and int(head[1:]) >= 0:
            rest = self.stream.read(int(head[1:]) + 2)
        elif kind in b"*~>%|" and int(head[1:]) > 0:
            count = int(head[1:]) * (2 if kind in b"%|" else 1)
            rest = b"".join(self.reply() for _ in range(count))
        return head + rest + (self.reply() if kind in b">|" else b"")


def request(words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def parse(reply, at=0):
    """What a script sees of a reply, as nested Python values, and the position after it."""
    end = reply.index(b"\r\n", at)
    kind, text, after = reply[at : at + 1], reply[at + 1 : end], end + 2
    if kind == b"+":
        return {b"ok": text}, after
    if kind == b"-":
        return {b"err": text}, after
    if kind == b":":
        return int(text), after
    if int(text) < 0:
        return False, after
    if kind == b"$":
        return reply[after : after + int(text)], after + int(text) + 2
    values = []
    for _ in range(int(text)):
        value, after = parse(reply, after)
        values.append(value)
    return values, after


class Version:
    """A version of Lua with the scripts that it has compiled."""

    def __init__(self, name, module, of_integer):
        self.name = name
        self.lua = module.LuaRuntime(encoding=None, unpack_returned_tuples=True, register_eval=False)
        self.calls = None
        self.run = self.lua.execute(PRELUDE, self.send, pack, reader(of_integer))

    def send(self, *words):
        return self.to_lua(self.calls(words))

    def to_lua(self, value):
        if isinstance(value, (list, dict)):
            items = [self.to_lua(item) for item in value] if isinstance(value, list) else value
            return self.lua.table_from(items)
        return value


class Scripts:
    """Runs scripts one at a time, as a server does."""

    def __init__(self):
        self.lock = threading.Lock()
        self.sources = {}
        self.versions = [Version(name, *lua) for name, lua in LUAS.items()]

    def add(self, source):
        name = sha1(source).hexdigest().encode()
        self.sources[name] = source
        return name

    def run(self, upstream, source, count, words):
        with self.lock:
            made = []

            def call(words):
                made.append((words, parse(upstream.call(request(words)))[0]))
                return made[-1][1]

            first, *others = self.versions
            first.calls = call
            expected = first.run(source, count, *words)
            for version in others:
                calls = iter(made)

                def replay(words):
                    planned, reply = next(calls, (None, None))
                    if planned != words:
                        raise ValueError(f"{words} is called instead of {planned}")
                    return reply

                version.calls = replay
                reply = version.run(source, count, *words)
                missing = next(calls, None)
                if reply != expected or missing:
                    why = f"-ERR Lua {version.name}: {reply} instead of {expected}, without {missing}"
                    return why.encode() + b"\r\n"
            return expected


def serve(client, path, scripts):
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream, upstream, of_scripts = client.makefile("rb"), Upstream(path), Upstream(path)
    while head := stream.readline():
        words = []
        for _ in range(int(head[1:])):
            words.append(stream.read(int(stream.readline()[1:]) + 2)[:-2])
        name = words[0].upper()
        if name == b"SCRIPT" and words[1].upper() == b"LOAD":
            scripts.add(words[2])
        if name == b"SCRIPT" and words[1].upper() == b"FLUSH":
            scripts.sources.clear()
        if name == b"EVAL":
            scripts.add(words[1])
            words[1] = sha1(words[1]).hexdigest().encode()
        if name not in (b"EVAL", b"EVALSHA"):
            reply = upstream.call(request(words))
        elif source := scripts.sources.get(words[1]):
            reply = scripts.run(of_scripts, source, int(words[2]), words[3:])
        else:
            reply = b"-NOSCRIPT No matching script.\r\n"
        client.sendall(reply)


def ends_with(path):
    """Ends this process when the real server ends."""
    try:
        Upstream(path).reply()
    finally:
        os._exit(0)


def listen(port, path):
    scripts = Scripts()
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    threading.Thread(target=ends_with, args=(path,), daemon=True).start()
    while True:
        client, _ = listener.accept()
        threading.Thread(target=serve, args=(client, path, scripts), daemon=True).start()


def main():
    server, *options = sys.argv[1:]
    port = int(options[options.index("--port") + 1])
    path = options[options.index("--dir") + 1] + "/socket"
    if os.fork() == 0:
        try:
            listen(port, path)
        except BaseException:
            # The test finds that its server has exited.
            os.kill(os.getppid(), signal.SIGKILL)
            raise
    os.execvp(server, [server, *options, "--port", "0", "--unixsocket", path])


main()

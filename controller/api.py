"""The controller's API: HTTP/1.1 with JSON on a socket of its owner's alone.

Routes are a table; each turns a validated request into one call of `Service`. This module must not
read or change the host: what it serves is the Service's answer. A client, however slow or broken,
costs one task and a bounded number of bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from controller import diskroutes, execframes, execstream, imageroutes
from controller.apireply import Handler, Reply
from controller.apirequest import exec_request, text_body
from controller.httpconn import Gone, HttpConnection, Limits, Refused, Request
from controller.service import Service
from controller.socketfile import Listener, bind
from specs.errors import BoxError, HostError, InvalidBoxfile, NoSandbox, UsageError
from specs.names import check_name

log = logging.getLogger(__name__)

STATUS_OF = {
    "bad_name": 400,
    "bad_request": 400,
    "invalid": 400,
    "no_sandbox": 404,
    "not_up": 409,
    "running": 409,
    "conflict": 409,
    "refused_by_policy": 403,
}


async def _version(service: Service, request: Request, name: str) -> Reply:
    facts = service.version()
    return Reply({"api": "v1", **facts, "pid": int(facts["pid"])})


async def _list(service: Service, request: Request, name: str) -> Reply:
    reports = []
    for one in service.names():
        with contextlib.suppress(NoSandbox):  # deleted since
            reports.append(service.report(one).model_dump(mode="json"))
        await asyncio.sleep(0)  # hundreds of reports must not hold up a command's output
    return Reply({"sandboxes": reports})


async def _get(service: Service, request: Request, name: str) -> Reply:
    return Reply(service.report(name).model_dump(mode="json"))


async def _put(service: Service, request: Request, name: str) -> Reply:
    match = request.headers.get("if-match")
    result = await service.apply(name, text_body(request), match.strip('"') if match else None)
    service.poke(name)
    return Reply({"name": name, "result": result}, 201 if result == "created" else 200)


async def _delete(service: Service, request: Request, name: str) -> Reply:
    query = request.path.partition("?")[2]
    if query not in ("", "data=keep", "data=erase"):
        raise UsageError(f"the query {query!r} is not known", fix="data=keep or data=erase")
    await service.delete(name, erase_data=query == "data=erase")
    service.poke(name)
    return Reply({"name": name, "result": "deleted"})


async def _events(service: Service, request: Request, name: str) -> Reply:
    return Reply({"events": [asdict(event) for event in service.events(name)]})


async def _verify(service: Service, request: Request, name: str) -> Reply:
    readings = await service.verify(name)
    return Reply({"name": name, "readings": [asdict(reading) for reading in readings]})


async def _prune(service: Service, request: Request, name: str) -> Reply:
    held = await service.prune(confirm=request.method == "POST")
    return Reply({"held": dict(held)})


ROUTES: Mapping[tuple[str, str], Mapping[str, Handler]] = {
    ("version", ""): {"GET": _version},
    ("sandboxes", ""): {"GET": _list},
    ("prune", ""): {"GET": _prune, "POST": _prune},
    ("sandboxes", "{name}"): {"GET": _get, "PUT": _put, "DELETE": _delete},
    ("sandboxes", "events"): {"GET": _events},
    ("sandboxes", "verify"): {"POST": _verify},
    **diskroutes.ROUTES,
    **imageroutes.ROUTES,
}


STREAMS = ("exec", "run")
ACTIONS = frozenset({*STREAMS, *(action for _, action in ROUTES if action)} - {"{name}"})
"""What may follow the name of a sandbox in a path."""


class ApiServer:
    """Serves one Service at one path. `start` binds, `close` ends every connection and its
    command.
    """

    def __init__(self, service: Service, path: Path, *, limits: Limits | None = None) -> None:
        self._service = service
        self._path = path
        self._limits = limits or Limits()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: Listener | None = None
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Raises Conflict when another controller answers at the path, HostError when it cannot be
        made.
        """
        self._listener = await asyncio.to_thread(bind, self._path)
        self._server = await asyncio.start_unix_server(
            self._accept, sock=self._listener.socket, limit=execframes.PAYLOAD_MAX
        )

    async def keep(self) -> None:
        """Listen anew when somebody removed or replaced the socket's file; what is connected
        stays. Raises as `start`.
        """
        if self._listener is None or self._listener.in_place():
            return
        if self._server is not None:
            self._server.close()
        await self.start()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = HttpConnection(reader, writer, self._limits)
        try:
            await self._converse(connection)
        except Gone:
            pass
        except Exception:
            log.exception("a connection to the API failed")
        finally:
            await connection.close()

    async def _converse(self, connection: HttpConnection) -> None:
        refusal = self._refusal_of(connection.writer)
        if refusal is not None:
            await connection.reply(*refusal)
            return
        while True:
            try:
                request = await connection.next_request()
            except Refused as problem:
                await connection.reply(problem.status, _error("bad_request", problem.message, ""))
                return
            if request is None or not await self._answer(connection, request):
                return

    def _refusal_of(self, writer: asyncio.StreamWriter) -> tuple[int, bytes] | None:
        uid = peer_uid(writer.get_extra_info("socket"))
        if uid not in (0, os.geteuid()):
            return 403, _error(
                "forbidden",
                f"uid {uid} may not use this socket",
                f"run it as root, or as the user of the controller (uid {os.geteuid()})",
            )
        if len(self._tasks) > self._limits.connections:
            return 503, _error(
                "busy", f"{self._limits.connections} connections are open", "try again later"
            )
        return None

    async def _answer(self, connection: HttpConnection, request: Request) -> bool:
        """True when the connection may carry another request."""
        try:
            name, action = _target(request)
            if action in STREAMS:
                await self._stream(connection, request, name, action)
                return False
            answering = _handler(request, action)(self._service, request, name)
            if action in diskroutes.WHILE_THERE:
                answering = connection.while_there(answering)
            reply = await answering
        except BoxError as problem:
            return await connection.reply(_status_of(problem), _error_of(problem))
        except Gone:
            raise
        except OSError as problem:  # of this host's files: whoever asked can mend it
            log.warning("%s %s: %s", request.method, request.path, problem)
            told = _host_error(problem)
            return await connection.reply(_status_of(told), _error_of(told))
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            body = _error("internal", "the controller failed", "see the controller's log")
            return await connection.reply(500, body)
        return await connection.reply(reply.status, _json(reply.body))

    async def _stream(
        self, connection: HttpConnection, request: Request, name: str, action: str
    ) -> None:
        if request.method != "POST":
            raise MethodRefused(request.method)
        if request.upgrade() != execframes.PROTOCOL:
            raise UsageError(
                f"{action} needs a stream",
                fix=f"send Upgrade: {execframes.PROTOCOL} and Connection: Upgrade",
            )
        start = self._service.exec if action == "exec" else self._service.run
        command = await start(name, exec_request(request))
        try:
            received = await connection.switch(execframes.PROTOCOL)
        except Gone:
            received = b""  # the stream below finds the client gone and kills the command
        await execstream.serve(command, connection.reader, connection.writer, received=received)


class NoRoute(UsageError):
    """Nothing is served at this path."""

    def __init__(self) -> None:
        super().__init__("nothing is served at this path", fix="GET /v1/sandboxes is one that is")


class MethodRefused(UsageError):
    """Something is served at this path, but not for this method."""

    def __init__(self, method: str) -> None:
        super().__init__(f"{method} does not apply to this path")


def _status_of(problem: BoxError) -> int:
    match problem:
        case NoRoute():
            return 404
        case MethodRefused():
            return 405
    return STATUS_OF.get(problem.code, 500)


def _target(request: Request) -> tuple[str, str]:
    """(sandbox name or "", route key). Raises BadName, UsageError."""
    parts = request.path.partition("?")[0].split("/")
    match parts:
        case ["", "v1", "sandboxes", name]:
            return check_name(name), "{name}"
        case ["", "v1", "sandboxes", name, action] if action in ACTIONS:
            return check_name(name), action
        case ["", "v1", ("version" | "sandboxes" | "prune" | "images") as collection]:
            return "", collection
    raise NoRoute


def _handler(request: Request, action: str) -> Handler:
    is_collection = (action, "") in ROUTES
    methods = ROUTES[(action, "") if is_collection else ("sandboxes", action)]
    if request.method not in methods:
        raise MethodRefused(request.method)
    return methods[request.method]


def peer_uid(connection: socket.socket) -> int:
    """The effective uid of whoever connected, as the kernel saw it then (SO_PEERCRED, unix(7))."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _pid, uid, _gid = struct.unpack("3i", raw)
    return int(uid)


def _json(body: object) -> bytes:
    return json.dumps(body, ensure_ascii=True, default=str).encode() + b"\n"


def _error(code: str, message: str, fix: str, **more: object) -> bytes:
    return _json({"error": {"code": code, "message": message, "fix": fix, **more}})


def _host_error(problem: OSError) -> HostError:
    where = str(problem.filename or "")
    fix = f"ls -ld {where}" if where else "see the controller's log"
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        fix = "free some space where the home of box is: df -h"
    return HostError(problem.strerror or str(problem), where=where, fix=fix)


def _error_of(problem: BoxError) -> bytes:
    if isinstance(problem, InvalidBoxfile):
        return _error(
            problem.code, problem.message, problem.fix, problems=[str(p) for p in problem.problems]
        )
    where = {"where": problem.where} if problem.where else {}
    return _error(problem.code, problem.message, problem.fix, **where)

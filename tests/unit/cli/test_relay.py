"""The client's half of a running command, at the moments at which a person interrupts it."""

from __future__ import annotations

import json
import socket

import pytest

from controller import execframes as wire
from controller.cli import execrelay


def test_ctrl_c_just_after_a_write_does_not_show_it_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[bytes] = []

    def interrupted(_: int, data: memoryview) -> None:
        shown.append(bytes(data))
        if len(shown) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(execrelay, "_write", interrupted)
    end = json.dumps({"status": 3, "kind": "exit", "value": 3}).encode()
    frames = wire.frame(wire.STDOUT, b"one") + wire.frame(wire.STDOUT, b"two")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        received = frames + wire.frame(wire.EXIT, end)
        assert execrelay.Relay(ours, received, stdin=False).carry() == 3
    assert shown == [b"one", b"two"]

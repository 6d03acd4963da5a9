"""A command as the host holds it, when the guest does not keep its word."""

from __future__ import annotations

import asyncio

from agent.codec import Decoder, ToGuest
from agent.messages import Exit
from agent.process import Process


async def test_a_command_that_the_guest_does_not_end_is_called_timed_out_and_killed() -> None:
    sent = bytearray()

    async def send(frame: bytes) -> None:
        sent.extend(frame)

    process = Process(7, send, stdin=False)
    reading = asyncio.create_task(process.read())
    waiting = asyncio.create_task(process.wait())
    await asyncio.sleep(0)
    await process.overdue()
    assert await asyncio.wait_for(reading, 20) == ("end", b"")
    end = await asyncio.wait_for(waiting, 20)
    assert (end.kind, end.shell_status) == ("timeout", 124)
    assert [frame.type for frame in Decoder().feed(bytes(sent))] == [ToGuest.KILL]
    process.ended(Exit("exit", 0))  # a word that comes too late changes nothing
    assert (await process.wait()).kind == "timeout"


async def test_a_guest_whose_output_nobody_reads_is_not_called_late() -> None:
    async def send(frame: bytes) -> None:
        pass

    late, unread = (Process(number, send, stdin=False) for number in (7, 8))
    unread.received(0, b"y\n")
    for process in (late, unread):
        await process.overdue()
    assert (late.silent, unread.silent) == (True, False)
    assert "the guest did not" in (await late.wait()).message
    end = await unread.wait()
    assert (end.shell_status, end.message) == (
        124,
        "what it printed was not read, and the rest of it is lost",
    )


async def test_a_command_that_ended_in_time_is_left_as_it_ended() -> None:
    async def send(frame: bytes) -> None:
        raise AssertionError("nothing is sent")

    process = Process(7, send, stdin=False)
    process.ended(Exit("exit", 3))
    await process.overdue()
    assert (await process.wait()).value == 3

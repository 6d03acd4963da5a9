"""Building an image while everything else goes on, and giving it up when nobody wants it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from reconcilers.facts import Image
from reconcilers.images.progress import Progress
from reconcilers.images.store import Images
from reconcilers.mounts import Rules
from specs.errors import BoxError


async def build(
    images: Images,
    base: str,
    rules: Callable[[], Rules],
    progress: Progress,
    *,
    again: bool = False,
) -> Image:
    """The image of `base`, built in a thread. Cancelling this ends what is fetched or written, and
    waits for it to be cleared away. `again`: what the base stands for is looked up anew.
    `progress` is told all of it, and how it ended. Raises BoxError, OSError.
    """
    try:
        image = await _built(images, base, rules, progress, again)
    except BoxError as error:
        progress.failed(error.message, error.fix)
        raise
    except asyncio.CancelledError:
        progress.failed("it was given up: the sandbox, or its Boxfile, changed")
        raise
    except BaseException as error:
        progress.failed(str(error))
        raise
    progress.succeeded(image.digest)
    return image


async def for_start(
    images: Images, sandbox: str, base: str, rules: Callable[[], Rules], *, again: bool
) -> Image:
    """`build` for a VM that is about to start. With `again` (`pull: always`) what cannot be looked
    up is not started, as container engines do it; the reason says so.
    """
    try:
        return await build(images, base, rules, images.board.begin(sandbox), again=again)
    except BoxError as error:
        if again:
            other = "or write pull: missing, which starts the image that is here"
            error.fix = f"{error.fix}; {other}" if error.fix else other.removeprefix("or ")
        raise


async def _built(
    images: Images, base: str, rules: Callable[[], Rules], progress: Progress, again: bool
) -> Image:
    stop = threading.Event()

    def work() -> Image:
        return images.build(base, stop, rules(), progress=progress, again=again)

    working = asyncio.get_running_loop().run_in_executor(images.pool, work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait({working})
        if not working.cancelled():
            working.exception()  # seen, and of no interest any more
        raise

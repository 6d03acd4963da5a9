"""Building an image while everything else goes on, and giving it up when nobody wants it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

from reconcilers.facts import Image
from reconcilers.images.progress import Progress
from reconcilers.images.store import Images
from reconcilers.inthread import to_end
from reconcilers.mounts import Rules
from specs.errors import BoxError
from specs.imagename import Registry, moves, parse_image


async def told(progress: Progress, work: Awaitable[Image]) -> Image:
    """What `work` makes; `progress` is told how it ended. Raises as `work` does."""
    try:
        image = await work
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


async def of_base(
    images: Images, base: str, rules: Callable[[], Rules], progress: Progress, *, again: bool
) -> Image:
    """The image of `base`, built in a thread. Cancelling this ends what is fetched or written, and
    waits for it to be cleared away. `again`: what the base stands for is looked up anew. Raises
    BoxError, OSError.
    """
    stop, name = threading.Event(), parse_image(base)
    if not (again and moves(base)) and (found := images.observe(base)) is not None:
        return found  # whatever others wait for

    def work() -> Image:
        return images.build(base, stop, rules(), progress=progress, again=again)

    async with images.turns.place(name.host if isinstance(name, Registry) else "", progress):
        return await to_end(work, stop, images.pool)

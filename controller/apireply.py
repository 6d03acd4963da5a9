"""What a route of the API is: a validated request into one call of `Service`, and its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from controller.httpconn import Request
from controller.service import Service


@dataclass(frozen=True)
class Reply:
    """A finished answer; `body` is anything json can write."""

    body: object
    status: int = 200


Handler = Callable[[Service, Request, str], Awaitable[Reply]]

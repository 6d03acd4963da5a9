"""How long to wait before the next attempt: exponential with jitter and a cap, in seconds.

Delays are relative and the loop adds them to the monotonic clock, so a wall clock that jumps
changes nothing.
"""

from __future__ import annotations

from tenacity import RetryCallState, wait_exponential_jitter

FIRST = 1.0
CAP = 300.0

# `max` bounds the exponential part and the jitter together.
_wait = wait_exponential_jitter(initial=FIRST, max=CAP, exp_base=2, jitter=1.0)


def delay(attempt: int) -> float:
    """Seconds to wait after the `attempt`-th failure in a row (from 1)."""
    state = RetryCallState(None, None, (), {})  # type: ignore[arg-type]  # only the number is read
    state.attempt_number = min(attempt, 64)  # 2**64 s is past the cap, and past it floats overflow
    return float(_wait(state))

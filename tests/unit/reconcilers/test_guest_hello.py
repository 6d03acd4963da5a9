"""What a guest says of its root decides whether anything is done in it."""

from __future__ import annotations

import pytest

from agent.messages import Hello, parse_hello
from reconcilers import guest
from specs.errors import ChannelError


def hello(root: str) -> Hello:
    return parse_hello(
        f"protocol=1\nagent=a\nkernel=6\nboot_id=1\nroot={root}\ndata=none\n"
        "capabilities=exec build\n".encode()
    )


def test_a_root_on_the_disk_of_a_build_is_one_to_build_in() -> None:
    guest.require_build(hello("build"))


@pytest.mark.parametrize("root", ["overlay", "readonly", "failed: no disk to build on"])
def test_no_step_runs_where_what_it_writes_would_be_lost(root: str) -> None:
    with pytest.raises(ChannelError, match=root) as raised:
        guest.require_build(hello(root))
    assert raised.value.fix


def test_a_root_that_could_not_be_mounted_is_refused() -> None:
    with pytest.raises(ChannelError, match="root image"):
        guest.require_mounts(hello("failed: squashfs image"))

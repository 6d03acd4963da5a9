"""./dev refuses what it does not know, and installs over nothing that is not box."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Over a private /usr/local/bin, so that nothing of the host is touched whatever ./dev does.
INSTALL = """
mount -t tmpfs none /usr/local/bin || exit 99
{prepare}
sh ./dev install {target}
status=$?
ls -l /usr/local/bin
exit $status
"""


def install(prepare: str, target: Path) -> subprocess.CompletedProcess[str]:
    script = INSTALL.format(prepare=prepare, target=target)
    argv = ["unshare", "--mount", "sh", "-c", script]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)


def test_an_unknown_command_is_named() -> None:
    done = subprocess.run(
        ["sh", "./dev", "bogus"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, "there is no command bogus" in done.stderr) == (2, True)


@pytest.mark.needs_root
@pytest.mark.parametrize(
    "prepare", ["echo mine > /usr/local/bin/box", "ln -s /bin/true /usr/local/bin/box"]
)
def test_another_program_called_box_is_not_replaced(prepare: str, tmp_path: Path) -> None:
    done = install(prepare, tmp_path / "box")
    assert done.returncode == 1
    assert "is not a link made by ./dev install" in done.stderr
    assert str(tmp_path) not in done.stdout, "the link is as it was"
    assert not (tmp_path / "box").exists()


@pytest.mark.needs_root
def test_a_folder_that_holds_something_else_is_not_cleared(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    done = install("ln -s /opt/box-controller/bin/box /usr/local/bin/box", tmp_path)
    assert (done.returncode, "holds something else than box" in done.stderr) == (1, True)
    assert (tmp_path / "letter.txt").read_text() == "dear"

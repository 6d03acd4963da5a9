"""Somebody who begins with an example, as it stands: `box new --from`, `box apply`, and no more."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.vm.cases import CaseHome
from tests.vm.harness import until


class Newcomer:
    """Somebody in a folder of their own, with box."""

    def __init__(self, folder: Path, home: CaseHome) -> None:
        self.folder = folder
        self.home = home

    def begin(self, example: str, name: str) -> None:
        """The two lines that `box new` itself suggests."""
        for line in (
            ("new", name, "--from", example),
            ("apply", "-f", f"{name}.box.yaml", "--wait", "--timeout", "240"),
        ):
            done = subprocess.run(
                self.home.command(*line),
                env=self.home.env,
                cwd=self.folder,
                capture_output=True,
                timeout=280,
            )
            assert done.returncode == 0, f"{line}: {done.stderr!r}\n{self.home.log()}"

    def says(self, name: str, *command: str) -> str:
        return self.home.run(name, *command).stdout.decode()

    def shell(self, name: str, line: str) -> str:
        return self.says(name, "sh", "-c", line)

    def refused(self, name: str, *command: str) -> str:
        """What a command that fails says."""
        done = self.home.run(name, *command, check=False)
        assert done.returncode != 0, f"{command}: {done.stdout!r}"
        return done.stderr.decode()

    def end(self, name: str) -> None:
        """Its VM makes room for the next one; what is erased after a minute is not waited for."""
        self.home.box("delete", name)
        until(lambda: not self.home.vmms(name), 60, f"the VM of {name} ended; {self.home.log()}")

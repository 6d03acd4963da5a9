"""What one run of the lab is asked to do: from the words of a command line to the lab's settings.

Nothing here knows how the lab is booted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tests.kvm.image import VENV

SITE = f"{VENV}/lib/python3.11/site-packages"  # of bookworm, which image.py makes the lab of
# A factor on every limit of time out here and in there, for hosts that do other things meanwhile:
# the limits end what hangs, none of them is a measure.
PATIENCE = int(os.environ.get("BOX_LAB_PATIENCE", "1"))
WHOS = ("root", "user")
ISOLATIONS = ("strict", "standard")
# What else of the escape suite can be had in there; `load` cannot (docs/kvm-lab.md).
MORE_GROUPS = ("mounts", "network", "channel")
ESCAPE = "tests/kvm/inside/escape.py"


@dataclass(frozen=True)
class Job:
    """What to do inside. `arguments` are pytest's; empty runs what the lab is for. `groups` are
    those of the escape suite that are run instead of the usual ones, and of all tests they alone
    unless there are `arguments`."""

    user: str = "root"
    isolation: str = "strict"
    shell: bool = False
    arguments: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    @classmethod
    def named(cls, words: Iterable[str]) -> Job:
        """The job that these words of a command line ask for: see `main`."""
        job = cls()
        for word in words:
            if word == "--shell":
                job = replace(job, shell=True)
            elif word in WHOS:
                job = replace(job, user=word)
            elif word in ISOLATIONS:
                job = replace(job, isolation=word)
            elif word in MORE_GROUPS:
                job = replace(job, groups=(*job.groups, word))
            else:
                job = replace(job, arguments=(*job.arguments, word))
        return job

    def words(self) -> list[str]:
        """Words that ask for this job."""
        shell = ["--shell"] if self.shell else []
        return [*shell, self.user, self.isolation, *self.groups, *self.arguments]

    def settings(self) -> str:
        """Shell assignments; no value holds a quote."""
        arguments = self.arguments or ((ESCAPE,) if self.groups else ())
        return (
            f"LAB_WHAT={'shell' if self.shell else 'tests'}\nLAB_USER={self.user}\n"
            f"LAB_ISOLATION={self.isolation}\nLAB_ARGUMENTS='{' '.join(arguments)}'\n"
            f"LAB_GROUPS='{' '.join(self.groups)}'\n"
            f"LAB_PATIENCE={PATIENCE}\nLAB_SITE={SITE}\n"
        )

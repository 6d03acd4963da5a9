"""The one step that static metadata cannot say: compile the guest agent and put it into the wheel.

It must not decide how the agent is built (agent/build.py does), and must run with nothing but
setuptools installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


class BuildWithAgent(build_py):
    """Python files as usual, then agent/_bin/box-agent from agent/src."""

    def run(self) -> None:
        super().run()
        sys.path.insert(0, str(ROOT))
        from agent.build import build_agent

        # An editable install runs from the source tree, so the agent belongs there.
        build_agent((ROOT if self.editable_mode else Path(self.build_lib)) / "agent" / "_bin")

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        agent = str(Path(self.build_lib) / "agent" / "_bin" / "box-agent")
        return [*super().get_outputs(include_bytecode), agent]


class WithMachineCode(Distribution):
    """Says that the result fits one kind of machine, as it would with an extension module."""

    def has_ext_modules(self) -> bool:
        return True


class PlatformWheel(bdist_wheel):
    """The agent is machine code, but the Python is not tied to one interpreter version."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


setup(
    distclass=WithMachineCode,
    cmdclass={"build_py": BuildWithAgent, "bdist_wheel": PlatformWheel},
)

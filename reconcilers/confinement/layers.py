"""The layers of the confinement as a table: what each stops, when it is read, how it is mended.

One row per layer, in the order readings are listed. docs/confinement.md prints the same rows, and a
test compares the two. It must not read or change anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from specs.reading import Mend, When


@dataclass(frozen=True, slots=True)
class Layer:
    """`when` and `mend` hold for the layer's main values; a single reading may say otherwise."""

    name: str
    stops: str
    when: When
    mend: Mend


LAYERS: tuple[Layer, ...] = (
    Layer("identity", "acting as a user that owns something on the host or in another sandbox",
          "live", "replace"),
    Layer("capabilities", "every privileged operation, now and after any exec", "live", "replace"),
    Layer("securebits", "capabilities coming back through UID 0 or the ambient set",
          "at launch", "replace"),
    Layer("no_new_privs", "set-user-ID programs and file capabilities", "live", "replace"),
    Layer("seccomp", "system calls QEMU does not need: most of the kernel's attack surface",
          "live", "replace"),
    Layer("landlock", "opening or running files that were let in by mistake, TCP, signals outwards",
          "at launch", "replace"),
    Layer("namespaces", "seeing or reaching the processes, mounts, IPC and groups of the host",
          "live", "replace"),
    Layer("network", "reaching what `egress` does not name; without a network, having a device",
          "live", "replace"),
    Layer("root", "seeing any host file but the read-only ones QEMU needs", "live", "replace"),
    Layer("descriptors", "using what the controller had open", "live", "replace"),
    Layer("environment", "learning paths and secrets of the controller", "live", "replace"),
    Layer("session", "a terminal, signals from its session, a death tied to the controller's",
          "live", "replace"),
    Layer("exec", "running another program than the VMM that was checked", "live", "replace"),
    Layer("rlimits", "core dumps of guest memory, huge files, too many descriptors",
          "live", "in place"),
    Layer("scheduler", "keeping a CPU that the host's own programs wait for", "live", "in place"),
    Layer("cgroup", "taking the host's memory, processes or CPU time", "live", "in place"),
)  # fmt: skip


def layers() -> tuple[Layer, ...]:
    """Every layer with its mendability, in the order of the table."""
    return LAYERS

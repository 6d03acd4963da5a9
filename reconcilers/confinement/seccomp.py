"""The system call allowlist: compiled from the profile in security/profiles, read off a live VMM."""

from __future__ import annotations

from reconcilers.confinement.policy import Program


def load_profile(name: str, kvm: bool) -> Program:
    """The compiled program of `security/profiles/NAME.json`, cached for the process.

    Raises ConfinementError(layer="seccomp") when libseccomp is missing or refuses the profile.
    """
    raise NotImplementedError


def read_programs(pid: int) -> tuple[str, ...]:
    """SHA-256 of every seccomp program of this process's main thread, the one loaded first first.

    Needs root. Stops the thread for well under a millisecond (ptrace).
    """
    raise NotImplementedError

"""A private BOX_HOME with a controller of its own, driven by the `box` command and nothing else.

What it makes it removes: sandboxes by `box delete`, then the controller by SIGTERM. What is still
there afterwards is reported, and only then removed by force, by this home's instance alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import groups

KVM_PROBE_SECONDS, KVM_PROBE_MAX = 10, 300  # docs/configuration.md: the default, the most


class BoxError(Exception):
    """`box` did not do what it was asked to."""


class Home:
    """One BOX_HOME. `box` is the command as words; `scale` stretches every time limit, the
    controller's own one for the trial of KVM included."""

    def __init__(self, box: Sequence[str], folder: Path, scale: float = 1.0) -> None:
        self.box = list(box)
        self.path = folder / "home"
        self.files = folder / "boxfiles"
        self.scale = scale
        self.controller: subprocess.Popen[bytes] | None = None
        self.entering: Callable[[], None] | None = None
        """What the controller's process does before it becomes one: it may go elsewhere."""
        self.names: set[str] = set()
        self.settings: dict[str, str] = {}
        for made in (self.path, self.files):
            made.mkdir(mode=0o700)
        self.env = {**os.environ, "BOX_HOME": str(self.path), "NO_COLOR": "1"}
        self._configure({})

    # -- the command

    def run(
        self, *words: str, data: bytes | None = None, seconds: float = 60, check: bool = True
    ) -> subprocess.CompletedProcess[bytes]:
        """Run one `box` command. Raises BoxError when it fails (with `check`) or takes too long."""
        command = [*self.box, *words]
        try:
            # Its own session: an interruption is ours to handle, in order.
            done = subprocess.run(
                command,
                env=self.env,
                input=data if data is not None else b"",
                capture_output=True,
                timeout=seconds * self.scale,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            limit = seconds * self.scale
            raise BoxError(f"box {' '.join(words[:3])} took longer than {limit:g} s") from None
        if check and done.returncode != 0:
            said = (done.stderr or done.stdout).decode(errors="replace").strip()[-800:]
            raise BoxError(f"box {' '.join(words[:3])} answered {done.returncode}: {said}")
        return done

    def start(self, settings: Mapping[str, str] | None = None) -> None:
        """Start the controller with these lines in config.toml, and wait until it answers."""
        self.settings = dict(settings or {})
        self._configure(self.settings)
        log = open(self.path / "controller.log", "ab")  # noqa: SIM115  # the child keeps it
        self.controller = subprocess.Popen(
            [*self.box, "controller"],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=self.entering,
        )
        log.close()
        deadline = time.monotonic() + 30 * self.scale
        while not self._answers():
            if self.controller.poll() is not None or time.monotonic() > deadline:
                raise BoxError(f"the controller does not answer: {self.log()}")
            time.sleep(0.1)

    def _configure(self, settings: Mapping[str, str]) -> None:
        values: dict[str, object] = dict(settings)
        if self.scale > 1:
            seconds = min(KVM_PROBE_MAX, int(KVM_PROBE_SECONDS * self.scale))
            values.setdefault("kvm_probe_seconds", seconds)
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in values.items()]
        (self.path / "config.toml").write_text("".join(lines))

    def _answers(self) -> bool:
        if not (self.path / "box.sock").exists():
            return False
        return b"controller" in self.run("version", check=False).stdout

    def stop(self) -> None:
        """End the controller; its VMMs live on."""
        controller, self.controller = self.controller, None
        if controller is None:
            return
        controller.terminate()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                controller.wait(20 * self.scale)
        finally:
            controller.kill()
            controller.wait()

    def log(self) -> str:
        """The last lines the controller wrote."""
        with contextlib.suppress(OSError):
            return (self.path / "controller.log").read_text(errors="replace")[-1500:]
        return ""

    # -- sandboxes

    def declare(self, boxes: Mapping[str, str], *more: str) -> None:
        """Apply these Boxfiles (name to YAML text) with one command, and `more` of its options."""
        folder = self.files / secrets.token_hex(4)
        folder.mkdir()
        for name, text in boxes.items():
            self.names.add(name)
            (folder / f"{name}.box.yaml").write_text(text)
        self.run("apply", "-f", str(folder), *more)
        shutil.rmtree(folder)

    def wait(self, name: str, condition: str = "Ready", seconds: float = 90) -> None:
        limit = f"{seconds * self.scale:.0f}s"
        try:
            self.run("wait", name, "--for", condition, "--timeout", limit, seconds=seconds + 10)
        except BoxError as error:
            raise BoxError(f"{error}; the controller said: {self.log()[-600:]}") from None

    def remove(self, *names: str, seconds: float = 60) -> None:
        """Delete sandboxes and wait until nothing of them is left."""
        self.run("delete", *names, seconds=seconds)
        for name in names:
            self.wait(name, "deleted", seconds)
            self.names.discard(name)

    def exec(
        self, name: str, script: str, *words: str, seconds: float = 60, check: bool = True
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a shell script in the guest, as root, with `words` as its arguments."""
        command = ("exec", "-i", name, "--", "sh", "-s", "--", *words)
        return self.run(*command, data=script.encode(), seconds=seconds, check=check)

    def put(self, name: str, path: str, content: bytes, mode: str = "0600") -> None:
        """Write a file in the guest through standard input."""
        script = f'umask 077; cat > "{path}" && chmod {mode} "{path}"'
        self.run("exec", "-i", name, "--", "sh", "-c", script, data=content)

    def get(self, name: str) -> dict[str, Any]:
        """What `box get NAME -o json` says."""
        found = json.loads(self.run("get", name, "-o", "json").stdout)
        if isinstance(found, list):
            found = found[0] if found else {}
        return dict(found)

    def condition(self, name: str, kind: str) -> tuple[str, str]:
        """(status, reason) of one condition."""
        for one in self.get(name).get("conditions", []):
            if one.get("type") == kind:
                return str(one.get("status")), str(one.get("reason"))
        return "", ""

    def pid(self, name: str) -> int:
        """The VMM's PID, as `box get` tells it; whether that is true is for a check to find out."""
        return int((self.get(name).get("vmm") or {}).get("pid") or 0)

    # -- what is documented of the disk (docs/on-disk.md)

    @property
    def instance(self) -> str:
        with contextlib.suppress(OSError):
            return (self.path / "instance").read_text().strip()
        return ""

    @property
    def runtime(self) -> Path:
        """The folder of this home's sockets and launch records."""
        roots = [Path("/run/box")]
        if os.geteuid() != 0:
            user = os.environ.get("XDG_RUNTIME_DIR")
            roots = [Path(user) / "box"] if user else []
            roots += [self.path / "run", self.path / "run" / "box"]
        for root in roots:
            if self.instance and (root / self.instance).is_dir():
                return root / self.instance
        return roots[0] / (self.instance or "none")

    def launch(self, name: str) -> dict[str, Any]:
        """The launch record; its owner may read it, the token is in it."""
        return dict(json.loads((self.runtime / name / "launch.json").read_text()))

    def observed(self, name: str, file: str) -> bytes:
        """A report file of a sandbox, empty while there is none."""
        with contextlib.suppress(OSError):
            return (self.path / "observed" / name / file).read_bytes()
        return b""

    # -- the end

    def close(self) -> list[str]:
        """Delete everything; what the product itself left behind on the host, in words."""
        left: list[str] = []
        if self.names and self.controller is None:  # interrupted between two controllers
            with contextlib.suppress(BoxError, OSError):
                self.start(self.settings)
        if self.names and self.controller is not None and self.controller.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.controller.pid, signal.SIGCONT)
            try:
                self.remove(*sorted(self.names))
            except BoxError as error:
                left.append(f"deleting failed: {error}")
        self.stop()
        left += self._leftovers()
        self._force()
        return left

    def _leftovers(self) -> list[str]:
        found = []
        for folder in groups.of_instance(self.instance):
            if members := groups.members(folder):
                found.append(f"processes {members} in {folder}")
            elif folder.name != self.instance:
                found.append(f"the control group {folder}")
        if self.instance and self.runtime.is_dir():
            found += [str(path) for path in self.runtime.iterdir()]
        mounts = Path("/proc/self/mounts").read_text()
        if str(self.path) in mounts or (self.instance and self.instance in mounts):
            found.append("a mount")
        return found

    def _force(self) -> None:
        if not self.instance:
            return
        for _ in range(100):
            holding = [p for f in groups.of_instance(self.instance) for p in groups.members(f)]
            for pid in holding:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not holding:
                break
            time.sleep(0.05)
        for folder in groups.of_instance(self.instance):
            with contextlib.suppress(OSError):
                folder.rmdir()
        shutil.rmtree(self.runtime, ignore_errors=True)

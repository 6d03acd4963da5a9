"""A real registry on loopback, and images for it: layers put into an OCI layout, pushed by skopeo.

Everything is below one temporary folder, and everything is spoken over the registry's own protocol,
with a password. Nothing leaves the host.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

USER, PASSWORD = "tester", "s3cret-for-tests"
# crypt(3) of PASSWORD with the least cost that bcrypt has; htpasswd -B would make the same.
_HTPASSWD = f"{USER}:$2b$04$abcdefghijklmnopqrstuunB1GY0OQltJ/RnralrWsObxSKZ7z0ES\n"
_OCI = "application/vnd.oci.image"
needs_registry = pytest.mark.skipif(
    not (shutil.which("docker-registry") and shutil.which("skopeo")),
    reason="docker-registry or skopeo is missing",
)


class Layout:
    """An OCI layout in a folder that images are added to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._manifests: list[dict[str, Any]] = []
        (folder / "blobs/sha256").mkdir(parents=True)
        (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def blob(self, data: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (self.folder / "blobs/sha256" / digest).write_bytes(data)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    def image(
        self,
        tag: str,
        *layers: bytes,
        architecture: str = "amd64",
        of_layer: Mapping[str, Any] | None = None,
        **config: Any,
    ) -> dict[str, Any]:
        """Add an image of uncompressed `layers`; its descriptor. An empty tag names it nothing.
        `of_layer` is said of each layer besides.
        """
        described = {
            "architecture": architecture,
            "os": "linux",
            "config": config,
            "rootfs": {
                "type": "layers",
                "diff_ids": [f"sha256:{hashlib.sha256(each).hexdigest()}" for each in layers],
            },
        }
        document = {
            "schemaVersion": 2,
            "mediaType": f"{_OCI}.manifest.v1+json",
            "config": self.blob(json.dumps(described).encode(), f"{_OCI}.config.v1+json"),
            "layers": [
                {
                    **self.blob(gzip.compress(each, 1, mtime=0), f"{_OCI}.layer.v1.tar+gzip"),
                    **(of_layer or {}),
                }
                for each in layers
            ],
        }
        return self._add(tag, self.blob(json.dumps(document).encode(), document["mediaType"]))  # type: ignore[arg-type]

    def index(self, tag: str, entries: Sequence[tuple[Mapping[str, Any], str]]) -> dict[str, Any]:
        """Add an index of images, each with its platform as `os/architecture`."""
        manifests = []
        for descriptor, platform in entries:
            system, architecture = platform.split("/")
            named = {"os": system, "architecture": architecture}
            manifests.append({**descriptor, "platform": named})
        kind = f"{_OCI}.index.v1+json"
        document = {"schemaVersion": 2, "mediaType": kind, "manifests": manifests}
        return self._add(tag, self.blob(json.dumps(document).encode(), kind))

    def _add(self, tag: str, descriptor: dict[str, Any]) -> dict[str, Any]:
        if tag:
            named = {"annotations": {"org.opencontainers.image.ref.name": tag}}
            self._manifests.append({**descriptor, **named})
            index = {"schemaVersion": 2, "manifests": self._manifests}
            (self.folder / "index.json").write_text(json.dumps(index))
        return descriptor


class Registry:
    """A running registry. `home` is that of a user who may use it, `stranger`'s may not."""

    def __init__(self, folder: Path, port: int, enter: Sequence[str] = ()) -> None:
        self._enter = enter
        self.host = f"127.0.0.1:{port}"
        self.home = self._user(folder / "user", auth=True)
        self.stranger = self._user(folder / "stranger", auth=False)
        self.blobs = folder / "data"
        self.layout = Layout(folder / "layout")

    def _user(self, home: Path, *, auth: bool) -> Path:
        containers = home / ".config/containers"
        containers.mkdir(parents=True)
        # Without encryption only because the user says so; the other name leads to a closed port.
        (containers / "registries.conf").write_text(
            f'[[registry]]\nlocation = "{self.host}"\ninsecure = true\n'
            '[[registry]]\nprefix = "registry.invalid"\nlocation = "127.0.0.1:1"\n'
            # What an example names is looked for here, under the very same name.
            f'[[registry]]\nprefix = "docker.io"\nlocation = "{self.host}"\ninsecure = true\n'
        )
        if auth:
            secret = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            (home / ".docker").mkdir()
            auths = {"auths": {self.host: {"auth": secret}}}
            (home / ".docker/config.json").write_text(json.dumps(auths))
        return home

    def admit(self, own: Path, uid: int, gid: int) -> None:
        """Let a user of this host have in `own`, a folder, what `home` has."""
        shutil.copytree(self.home, own, dirs_exist_ok=True)
        for path in (own, *own.rglob("*")):
            os.chown(path, uid, gid)

    def push(self, tag: str, name: str, *options: str) -> str:
        """Push the image `tag` of the layout as `name`; the name in full."""
        full = f"{self.host}/{name}"
        source = f"oci:{self.layout.folder}:{tag}"
        subprocess.run(
            [
                *self._enter,
                "skopeo",
                "copy",
                "-q",
                "--preserve-digests",
                *options,
                source,
                f"docker://{full}",
            ],
            env={"PATH": os.environ["PATH"], "HOME": str(self.home)},
            check=True,
            timeout=120,
        )
        return full


@contextlib.contextmanager
def registry(folder: Path, enter: Sequence[str] = ()) -> Iterator[Registry]:
    """A registry with its data in `folder`, ended afterwards.

    `enter` begins the command lines of what listens and what pushes: a network namespace's.
    """
    (folder / "htpasswd").write_text(_HTPASSWD)
    settings = {
        "version": "0.1",
        "log": {"level": "info", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        # A port that it chooses itself: one chosen for it might be another's by then.
        "http": {"addr": "127.0.0.1:0"},
        "auth": {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}},
    }
    (folder / "config.yml").write_text(json.dumps(settings))  # JSON is YAML
    with open(folder / "registry.log", "wb") as log:
        server = subprocess.Popen(
            [*enter, "docker-registry", "serve", str(folder / "config.yml")], stdout=log, stderr=log
        )
    try:
        port = _port(server, folder / "registry.log")
        _wait([*enter, *_ask(port)], server, folder / "registry.log")
        yield Registry(folder, port, enter)
    finally:
        server.kill()
        server.wait()


def _port(server: subprocess.Popen[bytes], log: Path) -> int:
    """The one that it says it listens on."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit and server.poll() is None:
        if told := re.search(r"listening on 127\.0\.0\.1:(\d+)\D", log.read_text()):
            return int(told[1])
        time.sleep(0.05)
    raise AssertionError(f"the registry does not listen: {log.read_text()}")


def _ask(port: int) -> list[str]:
    """A command that succeeds once the registry asks for a password."""
    code = (
        "import http.client, sys\n"
        f"asked = http.client.HTTPConnection('127.0.0.1', {port}, timeout=5)\n"
        "asked.request('GET', '/v2/')\n"
        "sys.exit(asked.getresponse().status != 401)\n"
    )
    return [sys.executable, "-I", "-S", "-c", code]


def _wait(ask: Sequence[str], server: subprocess.Popen[bytes], log: Path) -> None:
    limit = time.monotonic() + 60
    while time.monotonic() < limit and server.poll() is None:
        if subprocess.run(ask, stderr=subprocess.DEVNULL, timeout=30).returncode == 0:
            return
        time.sleep(0.05)
    raise AssertionError(f"the registry does not answer: {log.read_text()}")

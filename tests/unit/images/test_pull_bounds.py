"""A registry that sends too much, or hardly anything: it holds nobody up, and no disk is filled."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from reconcilers.images import fetch, pullwatch
from reconcilers.images.manifest import LAYERS_MAX
from reconcilers.images.progress import Progress
from reconcilers.images.pullwatch import FILES_MAX, PullWatch
from reconcilers.images.tree import BadImage
from reconcilers.process import run
from specs.errors import BoxError, CommandError, HostError
from specs.imagename import Registry, parse_image

needs_skopeo = pytest.mark.skipif(not shutil.which("skopeo"), reason="skopeo is missing")
pytestmark = pytest.mark.timeout(120)
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


class Dripping(ThreadingHTTPServer):
    """It says what any registry says, and then sends each layer byte by byte. `layers` are the
    sizes that its manifest names.
    """

    daemon_threads = True

    def __init__(self, *layers: int) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.asked: list[str] = []
        self.over = threading.Event()
        self.config = json.dumps({"os": "linux", "architecture": "amd64"}).encode()
        digest = f"sha256:{hashlib.sha256(self.config).hexdigest()}"
        named = [
            {"mediaType": LAYER, "digest": f"sha256:{number:064x}", "size": size}
            for number, size in enumerate(layers)
        ]
        self.manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": {
                    "mediaType": "application/vnd.oci.image.config.v1+json",
                    "digest": digest,
                    "size": len(self.config),
                },
                "layers": named,
            }
        ).encode()

    @property
    def name(self) -> Registry:
        found = parse_image(f"127.0.0.1:{self.server_port}/team/tar-pit:1")
        assert isinstance(found, Registry)
        return found


class _Answering(BaseHTTPRequestHandler):
    server: Dripping

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if "/manifests/" in self.path:
            kind = json.loads(self.server.manifest)["mediaType"]
            self._send(self.server.manifest, kind)
        elif "/blobs/" not in self.path:
            self._send(b"{}", "application/json")
        elif hashlib.sha256(self.server.config).hexdigest() in self.path:
            self._send(self.server.config, "application/octet-stream")
        else:
            self._drip()

    def _send(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _drip(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(1 << 30))
        self.end_headers()
        while not self.server.over.wait(0.05):
            self.wfile.write(b"\x1f")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "REGISTRY_AUTH_FILE", "DOCKER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def serving(home: Path, *layers: int) -> Iterator[Dripping]:
    with Dripping(*layers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        folder = home / ".config/containers"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "registries.conf").write_text(
            f'[[registry]]\nlocation = "127.0.0.1:{server.server_port}"\ninsecure = true\n'
        )
        yield server
        server.over.set()
        server.shutdown()


@pytest.fixture
def tar_pit(home: Path) -> Iterator[Dripping]:
    yield from serving(home, 1 << 30)


@pytest.fixture
def crowded(home: Path) -> Iterator[Dripping]:
    yield from serving(home, *[100] * (LAYERS_MAX + 1))


@pytest.fixture
def huge(home: Path) -> Iterator[Dripping]:
    yield from serving(home, 40 << 30, 40 << 30)


@needs_skopeo
def test_a_registry_that_drips_is_given_up(
    tar_pit: Dripping, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pullwatch, "STALL_SECONDS", 2.0)
    stop = threading.Event()
    meant = fetch.resolve(tar_pit.name, stop)
    (home / "scratch").mkdir()
    began = time.monotonic()
    with pytest.raises(HostError, match="sends less than 1024 KiB in 2 s") as caught:
        fetch.pull(tar_pit.name, meant, home / "scratch/layers", stop, Progress())
    assert caught.value.fix and time.monotonic() - began < 60
    assert not isinstance(caught.value, CommandError)


@needs_skopeo
@pytest.mark.parametrize(
    ("kind", "said"), [("crowded", "it has 128 layers"), ("huge", "larger than 64 GiB together")]
)
def test_a_manifest_that_names_too_much_is_refused_before_anything_is_fetched(
    kind: str, said: str, request: pytest.FixtureRequest
) -> None:
    server: Dripping = request.getfixturevalue(kind)
    with pytest.raises(BadImage, match=said) as caught:
        fetch.resolve(server.name, threading.Event())
    assert caught.value.fix
    assert not any("/blobs/" in path for path in server.asked)


def test_what_is_written_is_bounded_whatever_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers unpack to any size, and one whose digest is known is fetched by that alone."""
    folder = tmp_path / "scratch/layers"
    folder.mkdir(parents=True)
    watch = PullWatch(folder, stalls=False)
    watch.look(os.getpid())
    monkeypatch.setattr(pullwatch, "LAYERS_BYTES_MAX", 1 << 20)
    for number in range(4):
        watch.look(os.getpid())
        (folder / str(number)).write_bytes(os.urandom(300 << 10))
    with pytest.raises(BadImage, match="together") as caught:
        watch.look(os.getpid())
    assert caught.value.fix
    monkeypatch.undo()
    watch.look(os.getpid())
    for number in range(FILES_MAX):
        (folder / str(number)).write_bytes(b"")
    with pytest.raises(BadImage, match=f"{LAYERS_MAX} are the most"):
        watch.look(os.getpid())


def test_only_what_gets_on_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved, now = [0], [1000.0]
    monkeypatch.setattr(pullwatch, "_moved", lambda pid: moved[0])
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    slow, local = (PullWatch(tmp_path / "x", stalls=each) for each in (True, False))
    for _ in range(10):  # just enough
        now[0] += pullwatch.STALL_SECONDS
        moved[0] += pullwatch.STALL_BYTES
        slow.look(1)
    now[0] += pullwatch.STALL_SECONDS
    moved[0] += pullwatch.STALL_BYTES - 1
    slow.look(1)
    now[0] += 1
    local.look(1)
    with pytest.raises(HostError):
        slow.look(1)


def test_who_watches_a_program_may_end_it() -> None:
    seen = list[int]()

    def watch(pid: int) -> None:
        seen.append(pid)
        raise BadImage("enough")

    with pytest.raises(BoxError, match="enough"):
        run(["sleep", "60"], watch=watch)
    assert not Path(f"/proc/{seen[0]}").exists()

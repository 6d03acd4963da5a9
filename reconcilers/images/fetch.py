"""Gets an OCI image out of a registry or an archive, as uncompressed layers in a folder, by skopeo.

skopeo finds the user's registries.conf, certificates and auth.json by itself, compares every blob
with its digest, and dies with this process. It must not be given a name to interpret: by the time
layers are fetched, the digest of the manifest is known. Nor may an image send it anywhere: a
manifest that says where else a layer is to be had is refused, and an archive is read without a
network.
"""

from __future__ import annotations

import os
import pwd
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from reconcilers.images import manifest
from reconcilers.images.manifest import Settings
from reconcilers.images.progress import Progress
from reconcilers.images.pullwatch import PullWatch
from reconcilers.images.tree import BadImage
from reconcilers.process import output, run
from specs.errors import BoxError, CommandError, HostError
from specs.imagename import Archive, Registry
from specs.text import visible

PROGRAM = "skopeo"
ASK_SECONDS = 120.0
PULL_SECONDS = 3600.0
# A few kilobytes can be made to unpack to any size; no file that skopeo writes gets larger.
LAYER_MAX = 16 << 30
_INDEXES_MAX = 3  # an index may name an index
# Where a user says how to reach registries. Nothing else of the environment is passed on.
_FROM_USER = (
    "HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "REGISTRY_AUTH_FILE", "DOCKER_CONFIG",
    "CONTAINERS_REGISTRIES_CONF", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
_MESSAGE = re.compile(r'level=(?:fatal|error) msg="((?:[^"\\]|\\.)*)"')
_CONTEXT = re.compile(
    r'^(?:(?:Error parsing image name|initializing source|parsing image name) (?:"[^"]*"|\S+): )+'
)


@dataclass(frozen=True)
class Fetched:
    """The uncompressed layers, lowest first, and what the image says of itself."""

    layers: tuple[Path, ...]
    settings: Settings


@dataclass(frozen=True)
class Meant:
    """The digest of a manifest, and how many bytes its layers are said to have (0: unknown)."""

    digest: str
    size: int = 0


def resolve(name: Registry, stop: threading.Event) -> Meant:
    """The manifest for this machine that `name` means now.

    Raises CommandError with the registry's reason, BadImage, HostError, GivenUp.
    """
    chosen = name.digest or name.tag
    for _ in range(_INDEXES_MAX):
        source = f"docker://{name.repository_name}{'@' if ':' in chosen else ':'}{chosen}"
        argv = _skopeo("inspect", "--raw", source)
        try:
            document = output(argv, timeout=ASK_SECONDS, env=environment(), stop=stop)
        except CommandError as error:
            raise _explained(str(name), name.host, error) from None
        digest = manifest.digest_of(document)
        if ":" in chosen and digest != chosen:
            raise BadImage(f"{name}: the registry sent {digest} for {chosen}")
        further = manifest.for_this_machine(document)
        if further is None:
            manifest.require_harmless(document)
            manifest.require_bounded(document)
            return Meant(digest, manifest.transferred(document))
        chosen = further
    raise BadImage(f"{name}: its index names an index, which names another")


def pull(
    name: Registry, meant: Meant, folder: Path, stop: threading.Event, progress: Progress
) -> Fetched:
    """Fetch the image with this manifest into `folder`, which must not exist. Raises as above."""
    source = f"docker://{name.repository_name}@{meant.digest}"

    def watch(pid: int) -> None:
        progress.bytes(_received(pid, meant.size), meant.size)

    return _copied(source, str(name), name.host, folder, stop, watch)


def unpack(name: Archive, layout: Path, folder: Path, stop: threading.Event) -> Fetched:
    """The same of the OCI layout at `layout`, which `ocilayout` has made of an archive."""
    # From where it is, since skopeo takes what stands after a colon of a path for a tag.
    source = f"oci:{layout.name}" + (f":{name.tag}" if name.tag else "")
    return _copied(source, str(name), "", folder, stop, cwd=layout.parent)


def _received(pid: int, size: int) -> int:
    """What skopeo has read so far. It reads little else than the layers, but the way of speaking of
    a registry adds to them; so never more than there is.
    """
    try:
        first = Path(f"/proc/{pid}/io").read_text().partition("\n")[0]
        read = int(first.removeprefix("rchar: "))
    except (OSError, ValueError):
        return 0  # it has just ended
    return min(read, size) if size else read


def _copied(
    source: str,
    name: str,
    host: str,
    folder: Path,
    stop: threading.Event,
    watch: Callable[[int], None] | None = None,
    cwd: Path | None = None,
) -> Fetched:
    copying = ("copy", "--quiet", "--dest-decompress", source, f"dir:{folder}")
    argv = _skopeo(*copying, alone=not host)
    env = environment() | {"TMPDIR": str(folder.parent)}
    guard = PullWatch(folder, stalls=bool(host))

    def look(pid: int) -> None:
        guard.look(pid)
        if watch is not None:
            watch(pid)

    try:
        run(argv, timeout=PULL_SECONDS, cwd=cwd, env=env, stop=stop, watch=look)
    except CommandError as error:
        raise _explained(name, host, error) from None
    config, layers = manifest.layers_of(_document(folder / "manifest.json"))
    paths = tuple(folder / digest.removeprefix("sha256:") for digest in layers)
    config_path = folder / config.removeprefix("sha256:")
    return Fetched(paths, manifest.settings_of(_document(config_path), layers))


def _document(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(manifest.DOCUMENT_MAX + 1)


def _skopeo(*arguments: str, alone: bool = False) -> list[str]:
    """`alone`: without a network."""
    limit = ["prlimit", f"--fsize={LAYER_MAX}", "--"]
    if alone:
        own = [] if os.geteuid() == 0 else ["--user", "--map-current-user"]
        limit += ["unshare", *own, "--net", "--"]
    limit += ["setpriv", "--pdeathsig", "KILL", "--"]  # last: unshare(2) may take it away again
    system = ["--override-os", manifest.OS, "--override-arch", manifest.ARCHITECTURE]
    return [*limit, PROGRAM, *system, *arguments]


def environment() -> dict[str, str]:
    """What skopeo is told of the user that this process runs as."""
    found = {key: os.environ[key] for key in _FROM_USER if os.environ.get(key)}
    if "HOME" not in found:
        try:
            found["HOME"] = pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError:
            found["HOME"] = "/nonexistent"
    return found


# What a registry, or the way to it, answers; and what helps.
_FIXES: Mapping[str, str] = {
    "unauthorized": "skopeo login {host}, as the user that the controller runs as",
    "denied": "skopeo login {host}, as the user that the controller runs as",
    "manifest unknown": "look at its tags: skopeo list-tags docker://{repository}",
    "name unknown": "look at the name of the repository",
    "HTTP response to HTTPS client": 'say "insecure = true" of it in registries.conf, '
    "if it is to be reached without encryption",
    "certificate": "put the certificate of its authority into /etc/containers/certs.d/{host}/",
    "no such host": "look at the name of the registry, and whether this host can resolve "
    "names (DNS) and reach it",
    "connection refused": "look whether the registry runs",
    "no space left": "free space where the home of box is: df -h",
    "file too large": "choose an image with smaller layers",
}


def _explained(name: str, host: str, error: CommandError) -> BoxError:
    """skopeo's own reason, without what it repeats of the name."""
    if f"setpriv: failed to execute {PROGRAM}" in error.last_lines:
        return HostError(f"{name}: skopeo is not installed", fix="apt-get install skopeo")
    found = _MESSAGE.findall(error.last_lines)
    said = found[-1].replace('\\"', '"') if found else error.message.replace(error.argv[0], PROGRAM)
    cause = _CONTEXT.sub("", said)
    fixes = (fix for words, fix in _FIXES.items() if words in cause)
    repository = name.partition("@")[0].rpartition(":")[0] or name
    fix = next(fixes, "").format(host=host or "the registry", repository=repository)
    return CommandError(
        f"{name}: {visible(cause, 500)}",
        argv=error.argv,
        status=error.status,
        last_lines=error.last_lines,
        fix=fix,
    )

"""Attacks from inside a guest, as its root. Each answer carries a nonce that only this guest was
given, so that an answer from anywhere else is noticed; what a guest says of the host is never
believed alone.
"""

from __future__ import annotations

import hashlib
import platform
import secrets
from pathlib import Path

from . import proc
from .arena import HERE, Arena
from .report import Failed, Unproved, check

MASK = 0xA5


def _answers(arena: Arena) -> dict[str, str]:
    """What guest.sh said in sandbox a, once per run."""

    def ask() -> dict[str, str]:
        arena.sandbox("a", "b")
        script = (HERE / "guest.sh").read_text()
        words = (str(arena.canary_file), str(arena.home.path), str(arena.home.runtime))
        done = arena.home.exec("a", script, *words, check=False)
        found = arena.answers("a", done.stdout)
        if found.get("finished") != "yes":
            tail = done.stdout[-200:].decode(errors="replace")
            raise Failed(f"the guest that was given the nonce did not answer to the end: {tail!r}")
        return found

    return arena.once("inside", ask)


def _refused(found: dict[str, str], prefix: str) -> int:
    """How many attempts whose key begins so were made; Failed when one was not refused."""
    tried = {key: value for key, value in found.items() if key.startswith(prefix)}
    for key, value in tried.items():
        if not value.startswith("refused"):
            raise Failed(f"{key} succeeded inside the guest: {value}")
    if not tried:
        raise Failed(f"no attempt {prefix}* was reported")
    return len(tried)


@check("inside.kernel", "the guest runs on a kernel of its own, which lies in its VMM's memory")
def kernel(arena: Arena) -> str:
    found = _answers(arena)
    ours = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    if found["kernel.boot_id"] == ours:
        raise Failed(f"the guest has the host's boot id {ours}")
    if found["kernel.version"] == Path("/proc/version").read_text().strip():
        raise Failed(f"the guest has the host's kernel: {found['kernel.version']}")
    _prove_from_outside(arena, found["kernel.version"])
    release = found["kernel.release"]
    return (
        f"{release}, the host's is {platform.release()}; its banner and a secret made from its "
        "nonce lie in the memory of the VMM"
    )


def _prove_from_outside(arena: Arena, banner: str) -> None:
    """The kernel's banner, and what only this guest could compute, are in the VMM's own memory."""
    secret = hashlib.sha256(arena.nonces["a"].encode()).hexdigest()
    script = """
        sha256sum </run/nonce | cut -c1-64 >/run/proof
        echo "$(cat /run/nonce) proof $(wc -c </run/proof)"
    """
    done = arena.home.exec("a", script)
    if arena.answers("a", done.stdout).get("proof") != "65":
        raise Failed("the guest that was given the nonce did not answer")
    pid = arena.vmm("a")
    wanted = {"banner": banner.split(" (")[0].encode(), "secret": secret.encode()}
    seen = proc.find_in_memory(pid, wanted)
    if "secret" not in seen:
        raise Failed(
            f"what the guest computed is not in the memory of process {pid}: it ran elsewhere"
        )
    if "banner" not in seen:
        raise Failed(f"the kernel {banner[:60]!r} is not in the memory of process {pid}")


@check("inside.paths", "no path of the host is visible in the guest, whichever way it is reached")
def paths(arena: Arena) -> str:
    found = _answers(arena)
    count = sum(_refused(found, prefix) for prefix in ("paths.", "through."))
    seen = [value for key, value in _search(arena).items() if key.startswith("found canary")]
    if seen:
        raise Failed(f"the content of the canary was found in the guest: {', '.join(seen)}")
    return (
        f"{count} attempts refused; the canary's content is in no file, disk or memory of the guest"
    )


@check("inside.traversal", "no ../ and no symbolic link leads out of the guest")
def traversal(arena: Arena) -> str:
    found = _answers(arena)
    count = _refused(found, "up.") + _refused(found, "link.")
    return f"{count} paths through ../ and a link to {arena.canary_file} lead to nothing"


@check("inside.readonly_root", "a read-only root refuses writes, and so does the file behind it")
def readonly_root(arena: Arena) -> str:
    images = sorted((arena.home.path / "images").glob("*/*"))
    arena.sandbox("ro", readonly=True)
    images = images or sorted((arena.home.path / "images").glob("*/*"))
    before = {path: _digest(path) for path in images}
    done = arena.home.exec("ro", (HERE / "readonly.sh").read_text(), check=False)
    found = arena.answers("ro", done.stdout)
    if found.get("finished") != "yes":
        raise Failed(f"the guest did not answer: {done.stdout[-200:]!r}")
    count = sum(
        _refused(found, prefix) for prefix in ("plain.", "remounted.", "unlocked.", "device.write")
    )
    if not found["tmp.write"].startswith("done"):
        raise Failed("nothing at all can be written in the guest: the refusals prove nothing")
    after = {path: _digest(path) for path in before}
    if before != after or not before:
        raise Failed(f"the image file of the host was changed: {before} {after}")
    return f"{count} writes refused, also after remounting; the host's image file is unchanged"


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@check("inside.token", "the secret of the agent's channel is nowhere the guest's root can look")
def token(arena: Arena) -> str:
    found = _search(arena)
    places = {key.split()[2]: key.split()[1] for key in found if key.startswith("found token")}
    for place in places:
        if place != "/proc/kcore":
            raise Failed(f"the token is in {place} of the guest")
    looked = ", ".join(
        f"{value} in {key.split()[1]}" for key, value in found.items() if key.startswith("looked")
    )
    if places:
        raise Unproved(
            "not in any file, environment, command line or process; but the guest's own kernel"
            f" memory (/proc/kcore, root only) still holds it. Looked at {looked}"
        )
    return f"looked at {looked}; two decoys were found, the token was not"


def _search(arena: Arena) -> dict[str, str]:
    """What search.c found in sandbox a: "found NAME PLACE" and "looked KIND" -> "N (B MiB)"."""
    return arena.once("search", lambda: _look(arena))


def _look(arena: Arena) -> dict[str, str]:
    arena.sandbox("a", "b")
    record = str(arena.home.launch("a")["token"])
    decoys = {f"decoy-{kind}": secrets.token_hex(16).encode() for kind in ("environ", "file")}
    needles = {
        "token-hex": record.encode(),
        "token-bytes": bytes.fromhex(record),
        "canary": arena.canary.encode(),
        **decoys,
    }
    arena.home.put("a", "/run/search", arena.compiled("search.c").read_bytes(), "0700")
    # The decoys are where a token would be: a search that misses them is blind.
    arena.home.put("a", "/run/decoy", decoys["decoy-file"])
    masked = "".join(
        f"{name} {bytes(b ^ MASK for b in needle).hex()}\n" for name, needle in needles.items()
    )
    arena.home.put("a", "/run/needles", masked.encode())
    script = f"""
        DECOY={decoys["decoy-environ"].decode()} sleep 300 &
        decoy=$!
        unset DECOY
        mknod /vda b 254 0; mknod /vdb b 254 16
        /run/search "$(cat /run/nonce)" /vda /vdb </run/needles
        kill $decoy
        rm -f /vda /vdb /run/needles /run/decoy
        echo "$(cat /run/nonce) finished yes"
    """
    done = arena.home.exec("a", script, seconds=120, check=False)
    found: dict[str, str] = {}
    for line in done.stdout.decode(errors="replace").splitlines():
        words = line.split()
        if len(words) > 3 and words[0] == arena.nonces["a"]:
            if words[1] == "found":
                found[" ".join(words[1:4])] = words[3]
            elif words[1] == "looked":
                found[f"looked {words[2]}"] = f"{words[3]} ({int(words[4]) / (1 << 20):.0f} MiB)"
    blind = [name for name in decoys if not any(key.startswith(f"found {name} ") for key in found)]
    if blind or "finished yes" not in done.stdout.decode(errors="replace"):
        raise Failed(
            f"the search missed {', '.join(blind)}: it proves nothing ({done.stderr[-200:]!r})"
        )
    return found


@check("inside.agent", "root of the guest cannot overwrite the agent or take its port")
def agent(arena: Arena) -> str:
    found = _answers(arena)
    count = (
        _refused(found, "agent.append.")
        + _refused(found, "agent.copy.")
        + _refused(found, "agent.file")
    )
    if found.get("agent.same") != "yes":
        raise Failed("the program of the guest's first process was changed")
    for number in range(1, int(found["ports"]) + 1):
        if not found[f"port.{number}.open"].startswith("refused"):
            raise Failed(f"a workload opened the agent's port {found[f'port.{number}.name']}")
    nonce = arena.answers("a", arena.home.exec("a", 'echo "$(cat /run/nonce) alive yes"').stdout)
    if nonce.get("alive") != "yes":
        raise Failed("the agent does not answer any more")
    return (
        f"{count} attempts to write to its program refused, its port is busy, and it still answers"
    )


@check("inside.api", "neither the controller's API nor a VMM's socket is reachable from the guest")
def api(arena: Arena) -> str:
    found = _answers(arena)
    _refused(found, "api.find")
    if found["sockets"] != "0":
        raise Failed(f"{found['sockets']} sockets of box are open in the guest")
    names = [found[f"port.{number}.name"] for number in range(1, int(found["ports"]) + 1)]
    if names != ["box.agent.0"]:
        raise Failed(f"the guest has the ports {names}")
    if "0x0013" in found["virtio.devices"]:
        raise Failed("the guest has a vsock device, through which the host can be reached")
    return "no such socket in the guest; its only port is box.agent.0; no vsock device"


@check("inside.kvm", "the guest gets no /dev/kvm")
def kvm(arena: Arena) -> str:
    found = _answers(arena)
    _refused(found, "kvm.node")
    _refused(found, "kvm.open")
    if found["kvm.misc"] != "0":
        raise Failed("the guest's kernel offers /dev/kvm")
    why = found["kvm.open"].removeprefix("refused ")
    return f"no node, and one made by hand does not open ({why})"


@check("inside.network_none", "with network: none the guest has no network device at all")
def network_none(arena: Arena) -> str:
    found = _answers(arena)
    if found["net.devices"].split() != ["lo"]:
        raise Failed(f"the guest has the network devices {found['net.devices']}")
    if "0x0001" in found["virtio.devices"]:
        raise Failed("the guest has a virtio network card")
    if found["pci.devices"] != "0":
        raise Failed(f"the guest has {found['pci.devices']} PCI devices")
    return f"lo only; its virtio devices are {found['virtio.devices']}"

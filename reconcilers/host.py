"""The host as the reconcilers use it: the long-lived parts that all sandboxes of a home share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from reconcilers import virtiofsd
from reconcilers.accel import Choice, KvmProbe, Verdict, choose, needs_probe
from reconcilers.backend import Backend, HostFacts
from reconcilers.boot import Boot, BootFiles
from reconcilers.builds.queue import Queue
from reconcilers.confinement import ordinary
from reconcilers.confinement.cgroup import Cgroup
from reconcilers.confinement.identity import IdentityRegistry, ranges_of, standard_uid
from reconcilers.confinement.policy import Confinement, confinement_for
from reconcilers.confinement.seccomp import load_profile
from reconcilers.confinement.wirepolicy import with_wire
from reconcilers.hostfacts import read_host
from reconcilers.images.store import Images
from reconcilers.kernel import find_kernel
from reconcilers.layout import Layout
from reconcilers.network.networks import Networks
from reconcilers.network.taps import devices
from reconcilers.network.usernetworks import UserNetworks
from specs.boxfile import Boxfile, Isolation, Network
from specs.config import Config
from specs.errors import Conflict, HostError
from specs.names import HostNames


@dataclass
class Host:
    """Shared parts. `kvm` is set by whoever wires them, because the probe itself boots a VM, and so
    is `no_emulation`: why policy.toml forbids to emulate a machine of this Boxfile now, empty where
    it does not; and `build_network`: whether it allows the steps of builds one.
    """

    layout: Layout
    config: Config
    facts: HostFacts
    images: Images
    boot_files: BootFiles
    identities: IdentityRegistry
    backends: Mapping[str, Backend]
    kvm: KvmProbe | None = None
    no_emulation: Callable[[Boxfile], str] = lambda box: ""
    build_network: Callable[[], bool] = lambda: True
    queue: Queue = field(default_factory=Queue)
    networks: Networks | UserNetworks = field(default_factory=lambda: Networks(Config()))
    _policies: dict[tuple[object, ...], Confinement] = field(default_factory=dict)
    # The registry is one locked file for the whole host; reading it for every pass over every
    # sandbox would dominate an idle controller, so our own claims are remembered and read again on
    # each full scan.
    _claims: dict[str, int] = field(default_factory=dict)

    def steps_have_network(self) -> bool:
        """Whether the steps of a build would have one now, as far as that is known."""
        return self.build_network() and not self.queue.lacks_network

    def names(self, sandbox: str) -> HostNames:
        return HostNames(self.layout.instance, sandbox)

    def cgroup(self, names: HostNames) -> Cgroup:
        return Cgroup(names)

    def problems(self, box: Boxfile) -> tuple[str, ...]:
        """Why this host cannot run `box`; looks for the VMM again before it says so (blocking)."""
        backend = self.backend_for(box)
        if lacking := _lacking_for_mounts(box):
            return (lacking,)
        if not backend.check(box, self.facts):
            return ()
        self.facts = read_host(self.config)
        named = self.config.qemu
        if self.facts.binary is None and named is not None:
            return (f"{named}, named as `qemu` in config.toml, does not exist",)
        return backend.check(box, self.facts)

    def backend_for(self, box: Boxfile) -> Backend:
        """The backend the Boxfile names, else the only one there is so far. Raises HostError."""
        name = str(box.backend) if box.backend else "qemu"
        try:
            return self.backends[name]
        except KeyError:
            raise HostError(f"backend {name} is not supported yet") from None

    def boot(self, features: frozenset[str] = frozenset()) -> Boot:
        """Kernel and initramfs, found again each time so that a changed configuration is seen
        (blocking). `features` are what the guest needs modules for beyond its disks.
        """
        return self.boot_files.current(find_kernel(self.config, self.layout.kernels), features)

    async def choose_accel(self, box: Boxfile, boot: Boot) -> Choice:
        """KVM or emulation for this Boxfile; may boot the probe's guest once."""
        verdict: Verdict | None = None
        if needs_probe(box) and self.kvm is not None and self.facts.binary is not None:
            verdict = await self.kvm.verdict(boot.kernel.sha256, self.facts.binary)
        return choose(box, verdict)

    def claimed_uid(self, sandbox: str, isolation: str) -> int | None:
        """The host UID a sandbox's VMM has to have; None when a strict one has none yet."""
        if isolation == Isolation.standard:
            return self.standard_uid()
        held, user = self._claims.get(sandbox), ordinary.current()
        if user is not None and not any(held in each for each in user.ranges):
            return None  # what the user may not map any more is no identity: another is claimed
        return held

    def standard_uid(self) -> int:
        """The user's own UID; root's standard sandboxes share an unprivileged one."""
        user = ordinary.current()
        return standard_uid(self.config) if user is None else user.uid

    def claims(self) -> dict[str, int]:
        """Read our claims from the registry again (blocking). Raises HostError."""
        self._claims = self.identities.claimed(self.layout.instance)
        return self._claims

    def restore_claims(self) -> list[str]:
        """Enter again what the registry lost of our claims; returns those names (blocking)."""
        known = self.identities.claimed(self.layout.instance)
        # A copy in one step: another thread may be claiming.
        lost = {name: uid for name, uid in self._claims.copy().items() if name not in known}
        for name, uid in lost.items():
            try:
                self.adopt_claim(name, uid)
            except Conflict:
                # Another sandbox was given it while nobody knew of ours, which needs a new one.
                self._claims.pop(name, None)
        return [name for name in lost if name in self._claims]

    def claim(self, sandbox: str) -> int:
        """Claim a UID for a strict sandbox, or find the one it has (blocking). Raises HostError."""
        roots = (self.layout.home, self.layout.runtime)
        user = ordinary.current()
        ranges = ranges_of(self.config) if user is None else ordinary.ranges_for_strict(user)
        owners = () if user is None else (user.name, str(user.uid))
        uid, _ = self.identities.claim(
            self.layout.instance, sandbox, ranges, roots=roots, owners=owners
        )
        self._claims[sandbox] = uid
        return uid

    def adopt_claim(self, sandbox: str, uid: int) -> None:
        """Enter a claim that a record or a live VMM proves (blocking). Raises Conflict.

        A VMM that ran as a standard one proves none: what all those share is no sandbox's own.
        """
        if uid == self.standard_uid():
            return
        self.identities.adopt(self.layout.instance, sandbox, uid)
        self._claims[sandbox] = uid

    def release(self, sandbox: str) -> None:
        """Give a sandbox's UID up (blocking)."""
        held = self._claims.pop(sandbox, None)  # first, else a scan would enter it again as lost
        try:
            self.identities.release(self.layout.instance, sandbox)
        except BaseException:
            if held is not None:
                self._claims[sandbox] = held
            raise

    def confinement(self, box: Boxfile, uid: int, *, kvm: bool, disk_bytes: int) -> Confinement:
        """The policy for a Boxfile's VMM, computed once for each Boxfile, UID, accelerator and disk
        size.
        """
        user = ordinary.current()
        key = (box.digest(), uid, kvm, disk_bytes, user)
        if key not in self._policies:
            if len(self._policies) > 4096:
                self._policies.clear()
            program = load_profile("qemu", kvm, features_of(box))
            strict = box.isolation is Isolation.strict
            gid = uid if user is None or strict else user.gid
            policy = confinement_for(
                box, uid=uid, gid=gid, kvm=kvm, program=program, disk_bytes=disk_bytes
            )
            if box.network is Network.bridge:
                policy = replace(policy, devices=devices(self.names(box.name)))
            if user is not None:
                maps, groups = ordinary.user_namespace_for(
                    user, strict=strict, uid=uid, gid=gid, kvm=kvm
                )
                policy = replace(policy, user_namespace=maps, groups=groups)
                if box.network is Network.bridge:
                    policy = replace(policy, limits=with_wire(policy.limits))
            self._policies[key] = policy
        return self._policies[key]


def _lacking_for_mounts(box: Boxfile) -> str:
    if not box.mounts:
        return ""
    if virtiofsd.find() is None:
        return f"mounts need virtiofsd, which is not installed: {virtiofsd.FIX}"
    return ""


def features_of(box: Boxfile) -> frozenset[str]:
    """What this guest needs kernel modules for beyond its disks and its channel."""
    wanted = {"mounts": bool(box.mounts), "network": box.network is not Network.none}
    return frozenset(name for name, needed in wanted.items() if needed)


def launch_key(box: Boxfile, choice: Choice, image_digest: str) -> str:
    """Names everything that can only change by starting another VMM."""
    settings: dict[str, object] = {
        "image": image_digest,
        "backend": str(box.backend or "qemu"),
        "accel": choice.accel,
        "cpus": box.cpus,
        "ram_mib": box.ram_mib,
        "isolation": str(box.isolation),
        "network": str(box.network),
        "readonly": box.readonly,
    }
    if box.mounts:
        # where a path leads now is compared with what its helper serves, on each pass
        settings["mounts"] = [(each.host, each.guest, str(each.mode)) for each in box.mounts]
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

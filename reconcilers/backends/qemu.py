"""QEMU's microvm machine, 7.2 and later: a Boxfile as a QEMU command line.

Every device the guest gets is on that line; `-nodefaults` leaves nothing else. QEMU opens no path
of the host but the kernel and the initramfs bound into its jail: sockets and disks are descriptors.
"""

from __future__ import annotations

from reconcilers import backend
from reconcilers.backend import HostFacts, VmmCommand
from reconcilers.network.addresses import mac
from specs.boxfile import Boxfile, Network
from specs.names import parse_marker

OLDEST = (7, 2)
# Under emulation QEMU would reserve 1 GiB for translated code whatever the guest's size; MiB.
TB_SIZE_MIB = 128
FIRST_LAYER_SET = 3  # of descriptors; 1 and 2 are the root image and the layer that is written
ARCHIVE_SET = 127  # as its descriptor
# For each overlay, enough for 8 GiB of it; QEMU's own 32 MiB would not fit the memory limit when
# there are many. Bytes.
L2_CACHE = 1 << 20


class Qemu:
    """Translates Boxfiles for qemu-system-x86_64."""

    name = "qemu"

    def check(self, box: Boxfile, host: HostFacts) -> tuple[str, ...]:
        if host.binary is None:
            return ("qemu-system-x86_64 is not installed; ./dev setup installs it",)
        if host.version is None:
            return (f"{host.binary} does not tell its version; is it QEMU?",)
        if host.version < OLDEST:
            have = ".".join(map(str, host.version))
            return (f"QEMU {have} is too old: 7.2 or later is needed; upgrade qemu-system-x86",)
        return ()

    def command(
        self,
        box: Boxfile,
        accel: str,
        marker: str,
        host: HostFacts,
        layers: tuple[str, ...] = ("raw",),
        archive: str = "",
        base: tuple[str, ...] = (),
        building: bool = False,
    ) -> VmmCommand:
        argv = _start(host, marker)
        machine = "microvm,rtc=on,pit=off,pic=off,isa-serial=on,dump-guest-core=off"
        argv += ["-M", machine + (",memory-backend=ram" if box.mounts else "")]
        argv += _accelerator(accel)
        argv += ["-smp", str(box.cpus), "-m", f"{box.ram_mib}M"]
        argv += ["-kernel", backend.KERNEL_PATH, "-initrd", backend.INITRD_PATH]
        argv += ["-append", kernel_command_line(box, accel, host, building=building)]
        argv += _monitor()
        argv += _socket("console", backend.CONSOLE_FD) + ["-serial", "chardev:console"]
        argv += _socket("agent", backend.AGENT_FD)
        argv += ["-device", "virtio-serial-device"]
        argv += ["-device", "virtserialport,chardev=agent,name=box.agent.0"]
        argv += _layer("root", backend.ROOT_FD, 1, "raw")
        argv += _device("root")
        told = bool(archive)
        # What a step has written may be lost by then, with nobody who notices: the next build would
        # go on from it.
        argv += _data(layers) + _device("data", told=told and not building)
        if base:
            first = backend.BASE_FD + 1
            argv += _disk("base", base, first, first, (backend.BASE_FD, backend.BASE_FD))
            argv += _device("base", told=told)
        if archive:
            argv += _layer(
                "transfer", backend.ARCHIVE_FD, ARCHIVE_SET, "raw", written=archive == "written"
            )
            argv += _device("transfer", told=True)
        if box.network is Network.bridge:
            argv += _network_card(marker)
        argv += _mounts(box)
        return VmmCommand(tuple(argv))

    def merging(
        self, marker: str, host: HostFacts, layers: tuple[str, ...], into: int
    ) -> VmmCommand:
        argv = [*_start(host, marker), "-M", "none", "-S", *_monitor()]
        return VmmCommand((*argv, *_data(layers, into)))


def _start(host: HostFacts, marker: str) -> list[str]:
    argv = [str(host.binary), "-nodefaults", "-no-user-config", "-display", "none"]
    argv += ["-no-reboot", "-name", marker]
    # QEMU's own filter in front of ours: two independent lists have to be wrong at once.
    return argv + [
        "-sandbox",
        "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
    ]


def _monitor() -> list[str]:
    return _socket("qmp", backend.QMP_FD) + ["-mon", "chardev=qmp,mode=control"]


def kernel_command_line(
    box: Boxfile, accel: str, host: HostFacts, *, building: bool = False
) -> str:
    """What the guest kernel is told; nothing secret, the guest can read it."""
    words = ["console=ttyS0", "quiet", "loglevel=4", "reboot=t", "panic=-1"]
    # The crypto self-tests cost 0.4 s under emulation and tell nothing about this build.
    words += ["cryptomgr.notests"]
    if accel == "tcg" and host.tsc_khz is not None:
        # Calibrating an emulated TSC against an emulated timer hangs at random.
        words += [f"tsc_early_khz={host.tsc_khz}"]
    if box.cpus == 1:
        words += ["noreplace-smp"]
    words += [f"box.hostname={box.name}"]
    if box.readonly:
        words += ["box.readonly=1"]
    if box.network is Network.bridge:
        words += ["box.network=1"]
    if building:
        words += ["box.build=1"]
    return " ".join(words)


def _accelerator(accel: str) -> list[str]:
    if accel == "kvm":
        return ["-accel", "kvm", "-cpu", "host"]
    return ["-accel", f"tcg,thread=multi,tb-size={TB_SIZE_MIB}", "-cpu", "max"]


def _socket(name: str, descriptor: int) -> list[str]:
    return ["-chardev", f"socket,id={name},fd={descriptor},server=on,wait=off"]


def _network_card(marker: str) -> list[str]:
    names = parse_marker(marker)
    if names is None:
        raise ValueError(f"not a marker: {marker!r}")
    device = f"virtio-net-device,netdev=network,mac={mac(names, 'guest')}"
    return ["-netdev", f"tap,id=network,fd={backend.TAP_FD}", "-device", device]


def _mounts(box: Boxfile) -> list[str]:
    """virtiofs: each helper maps the guest's RAM, which is shared memory only when there is one.

    vhost-user needs modern virtio, which virtio-mmio offers only when it is not forced to legacy.
    """
    if not box.mounts:
        return []
    argv = ["-object", f"memory-backend-memfd,id=ram,size={box.ram_mib}M,share=on"]
    argv += ["-global", "virtio-mmio.force-legacy=false"]
    for index in range(len(box.mounts)):
        tag = backend.mount_tag(index)
        argv += ["-chardev", f"socket,id={tag},fd={backend.MOUNT_FD + index}"]
        argv += ["-device", f"vhost-user-fs-device,chardev={tag},tag={tag},queue-size=1024"]
    return argv


def _data(layers: tuple[str, ...], written: int = -1) -> list[str]:
    """The data disk: the nodes `layer0`, `layer1`, ... and `data`."""
    top = (backend.DATA_FD, 2)
    return _disk("data", layers, backend.LAYER_FD, FIRST_LAYER_SET, top, written)


def _disk(
    name: str,
    layers: tuple[str, ...],
    first_fd: int,
    first_set: int,
    top: tuple[int, int],
    written: int = -1,
) -> list[str]:
    """A disk, each layer with its format and what lies beneath it, lowest first. `top` has the
    descriptor and the set of the last. The layer with the number `written` is, else the last.

    What the header of a layer says of these counts for nothing: a VMM has written it.
    """
    argv: list[str] = []
    beneath, last = "", len(layers) - 1
    written = last if written < 0 else written
    for index, layer in enumerate(layers):
        node = f"layer{index}" if name == "data" else f"{name}{index}"
        place = (first_fd + index, first_set + index)
        if index == last:
            node, place = name, top
        argv += _layer(node, *place, layer, beneath=beneath, written=index == written)
        beneath = node
    return argv


def _layer(
    node: str,
    descriptor: int,
    fdset: int,
    layer_format: str,
    *,
    beneath: str = "",
    written: bool = False,
) -> list[str]:
    opened = f"driver={layer_format},node-name={node},read-only={'off' if written else 'on'}"
    if layer_format == "qcow2":
        opened += f",l2-cache-size={L2_CACHE},backing={beneath}"
    return [
        "-add-fd",
        f"fd={descriptor},set={fdset}",
        "-blockdev",
        f"{opened},auto-read-only=off,file.driver=file,file.auto-read-only=off,"
        # One VMM per disk is our own rule, and its locks cannot be probed without /dev/null.
        f"file.locking=off,file.filename=/dev/fdset/{fdset}",
    ]


def _device(node: str, *, told: bool = False) -> list[str]:
    """A disk of the guest's. When the host's is full, QEMU holds the guest until there is room;
    with `told` the guest is told instead, for a machine that somebody waits for.
    """
    full = ",werror=report" if told else ""
    return ["-device", f"virtio-blk-device,drive={node},serial={node}{full}"]

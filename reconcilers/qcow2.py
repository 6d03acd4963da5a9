"""An empty qcow2 overlay, byte by byte. The host writes such files and never reads one.

What a VMM has written may say anything (a backing file, a data file, tables that loop), so no
program outside a jail opens it. An overlay names no backing file: whoever opens it says what lies
beneath. The format: docs/interop/qcow2.txt of QEMU, version 3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

CLUSTER_BITS = 16
CLUSTER = 1 << CLUSTER_BITS
_MAGIC = 0x514649FB
_HEADER_LENGTH = 104
_REFCOUNT_ORDER = 4  # 16 bits for each cluster
_PER_L1 = CLUSTER * (CLUSTER // 8)  # bytes that one entry of the first table maps: 512 MiB


def empty(size: int) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of an overlay of `size` bytes that holds nothing; between them lie zeroes.

    Four parts, a cluster each at least: header, refcount table, refcount block, first table.
    """
    entries = max(1, -(-size // _PER_L1))
    table_clusters = -(-entries * 8 // CLUSTER)
    clusters = 3 + table_clusters
    yield (
        0,
        struct.pack(
            ">IIQIIQIIQQIIQQQQII",
            _MAGIC,
            3,
            *(0, 0),  # no backing file
            CLUSTER_BITS,
            size,
            0,  # not encrypted
            entries,
            3 * CLUSTER,
            CLUSTER,
            *(1, 0, 0),  # a refcount table of one cluster, no internal snapshots
            *(0, 0, 0),  # no incompatible, compatible or automatically cleared features
            _REFCOUNT_ORDER,
            _HEADER_LENGTH,
        )
        + bytes(8),  # the end of the header's extensions
    )
    yield CLUSTER, struct.pack(">Q", 2 * CLUSTER)
    yield 2 * CLUSTER, struct.pack(">H", 1) * clusters
    # The last byte gives the file its length: a table that is only partly there is no table.
    yield empty_length(size) - 1, b"\0"


def empty_length(size: int) -> int:
    """The length of the file of an empty overlay. Whoever writes to one makes it longer: the first
    cluster with data, and the table that points to it, come after these.
    """
    entries = max(1, -(-size // _PER_L1))
    return (3 + -(-entries * 8 // CLUSTER)) * CLUSTER


def most_bytes(size: int) -> int:
    """The size that the file of an overlay of `size` bytes may grow to.

    Second tables take 1/8192 of it and refcounts 1/32768; the rest is room for clusters that a
    killed VMM had taken and not yet used.
    """
    return size + size // 64 + (16 << 20)

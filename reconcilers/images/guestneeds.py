"""What every guest needs of its root, put into a tree where an image lacks it.

The agent mounts over these folders before it enters the root, so a link in their place would lead
it through its own root; it is replaced. See agent/src/view.c, disks.c and resolver.c.
"""

from __future__ import annotations

from reconcilers.images.tree import Content, File, Folder, Tree
from specs.text import visible

# Mode, path. Those a plain image has are left as they are.
FOLDERS = (
    (0o555, b"proc"),
    (0o555, b"sys"),
    (0o755, b"dev"),
    (0o755, b"run"),
    (0o1777, b"tmp"),
    (0o755, b"data"),
    (0o755, b"mnt"),
    (0o755, b"etc"),
    (0o700, b"root"),
)
# Container engines mount these three over an image, which therefore has them empty or not at all.
_HOSTS = b"127.0.0.1 localhost\n::1 localhost\n"
_HOSTNAME = b"box\n"
CONTENTS = _HOSTS + _HOSTNAME
"""The bytes that `complete` refers to, as the source whose number it is given."""


def complete(tree: Tree, source: int) -> tuple[str, ...]:
    """Add what is missing; what was replaced, in words."""
    replaced = []
    for mode, name in FOLDERS:
        node = tree.root.children.get(name, (None, 0))[0]
        if isinstance(node, Folder):
            continue
        if node is not None:
            shown = visible(name.decode(), 20)
            replaced.append(f"/{shown} is a folder now: every guest needs it to be one")
        tree.root.children[name] = (Folder(mode), 0)
    found = tree.root.children[b"etc"][0]
    assert isinstance(found, Folder)
    etc = found.children
    resolver = etc.get(b"resolv.conf", (None, 0))[0]
    if not isinstance(resolver, File):  # else with a read-only root the guest's own has no place
        etc[b"resolv.conf"] = (File(0o644), 0)
    wanted = ((b"hosts", 0, len(_HOSTS)), (b"hostname", len(_HOSTS), len(_HOSTNAME)))
    for name, offset, size in wanted:
        node = etc.get(name, (None, 0))[0]
        if node is None or (isinstance(node, File) and node.content.size == 0):
            etc[name] = (File(0o644, content=Content(source, offset, size)), 0)
    return tuple(replaced)

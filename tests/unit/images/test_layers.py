"""Layers over each other: whiteouts, links, and what no entry may do."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconcilers.images import layers as rules
from reconcilers.images import tree as trees
from reconcilers.images.layers import Entry, Kind, Merge
from reconcilers.images.tree import BadImage, Content, File, Folder, Symlink
from tests.unit.images.layouts import Item, layer, listed, merged, result

ETC: Item = ("etc", "d")
MARKS = ["a/", "b/f", "a/c/f", "a/.wh.c", ".wh.b", ".wh.a", "a/.wh..wh..opq", "a/c/.wh..wh..opq"]
FIVE = (
    layer(ETC, ("etc/a", "-", b"1"), ("etc/b", "-", b"1")),
    layer(("etc/c", "-", b"2"), ("etc/.wh..wh..opq", "-")),
    layer(("etc/.wh.c", "-")),
    layer(("etc/a", "-", b"4")),
)


# -- case A5


def test_a5_only_what_the_last_layer_brought_is_left() -> None:
    assert result(*FIVE) == {"etc": "d", "etc/a": "4"}


def test_a5_an_opaque_marker_at_the_end_spares_its_own_layer() -> None:
    assert result(*FIVE[:2]) == {"etc": "d", "etc/c": "2"}
    assert result(*FIVE[:3]) == {"etc": "d"}


@pytest.mark.parametrize("name", [".wh.", ".wh..", ".wh..."])
@pytest.mark.parametrize("folder", ["", "etc/"])
def test_a5_a_whiteout_of_no_name_is_refused_and_removes_nothing(name: str, folder: str) -> None:
    merge = merged(*FIVE)
    with pytest.raises(BadImage) as caught:
        merge.apply([Entry((folder + name).encode(), Kind.file)])
    assert caught.value.message.startswith(f'layer 5, entry "{folder}{name}": ')
    assert listed(merge.tree, *FIVE) == {"etc": "d", "etc/a": "4"}


# -- whiteouts


def test_a_whiteout_hides_what_is_below_and_not_beside_it() -> None:
    below = layer(("a", "d"), ("a/x", "-"), ("b", "-"), ("c", "l", "a"))
    assert result(below, layer((".wh.a", "-"))) == {"b": "", "c": "l a"}
    three: list[Item] = [(".wh.a", "-"), ("a", "d"), ("a/y", "-", b"new")]
    for items in permutations(three):
        assert result(below, layer(*items)) == {"a": "d", "a/y": "new", "b": "", "c": "l a"}


def test_an_opaque_folder_hides_all_depths_and_spares_folders_that_are_only_implied() -> None:
    below = layer(("a", "d"), ("a/b", "d"), ("a/b/old", "-"), ("a/old", "-"), ("z", "-"))
    two: list[Item] = [("a/.wh..wh..opq", "-"), ("a/b/new", "-", b"n")]
    for items in permutations(two):
        assert result(below, layer(*items)) == {"a": "d", "a/b": "d", "a/b/new": "n", "z": ""}


def test_a_marker_is_never_seen() -> None:
    assert result(layer(("a/.wh.b", "-"), ("c/.wh..wh..opq", "-"))) == {"c": "d"}


def test_what_aufs_kept_for_itself_means_nothing() -> None:
    own = layer((".wh..wh.aufs", "-"), (".wh..wh.plnk", "d"), (".wh..wh.plnk/7", "-"), ("a", "-"))
    assert result(own) == {"a": ""}


def test_nothing_lies_below_a_whiteout() -> None:
    with pytest.raises(BadImage, match="below a whiteout"):
        merged(layer(("a/.wh.b/c", "-")))


@given(
    st.lists(st.sampled_from(["a", "b", "a/c", "a/d", "b/c", "a/c/e"]), max_size=6, unique=True),
    st.lists(
        st.sampled_from(MARKS),
        max_size=6,
        unique=True,
    ),
    st.randoms(use_true_random=False),
)
def test_the_order_within_a_layer_changes_nothing(
    below: list[str], above: list[str], dice: object
) -> None:
    lower = layer(*[(name, "d") for name in sorted(below)])
    items: list[Item] = [(n.rstrip("/"), "d" if n.endswith("/") else "-") for n in above]
    want = result(lower, layer(*items))
    dice.shuffle(items)  # type: ignore[attr-defined]
    assert result(lower, layer(*items)) == want
    assert not any(".wh." in path for path in want)


# -- replacing


def test_a_folder_over_a_folder_keeps_what_it_holds() -> None:
    tree = merged(layer(ETC, ("etc/a", "-")), layer(("etc", "d"), mode=0o700, uid=5)).tree
    assert isinstance(found := tree.find([b"etc"]), Folder)
    assert (found.mode, found.uid, list(found.children)) == (0o700, 5, [b"a"])


def test_another_kind_replaces_the_whole_of_what_was_there() -> None:
    below = layer(("a", "d"), ("a/x", "-"), ("b", "l", "a"))
    assert result(below, layer(("a", "-", b"f"))) == {"a": "f", "b": "l a"}
    assert result(below, layer(("b", "d"))) == {"a": "d", "a/x": "", "b": "d"}
    assert result(below, layer(("a", "p"))) == {"a": "p", "b": "l a"}


def test_the_root_has_an_entry_of_its_own() -> None:
    for name in (".", "./", "/"):
        assert merged(layer((name, "d"), mode=0o711)).tree.root.mode == 0o711
    with pytest.raises(BadImage, match="no folder"):
        merged(layer((".", "-")))


# -- links


def test_a_hard_link_is_the_same_file_in_any_layer() -> None:
    tree = merged(layer(("a", "-", b"x")), layer(("d/b", "h", "a")), layer((".wh.a", "-"))).tree
    assert tree.find([b"a"]) is None
    assert isinstance(tree.find([b"d", b"b"]), File)
    tree = merged(layer(("a", "-"), ("b", "h", "./a")), layer(("a", "-", b"new"))).tree
    assert tree.find([b"a"]) is not tree.find([b"b"])


def test_a_hard_link_to_a_symlink_is_the_link_itself() -> None:
    tree = merged(layer(("a", "l", "/etc/shadow"), ("b", "h", "a"))).tree
    assert isinstance(tree.find([b"b"]), Symlink)


@pytest.mark.parametrize("target", ["/etc/shadow", "../../etc/shadow", "x/../../etc/shadow"])
def test_a_hard_link_out_of_the_image_is_refused(target: str) -> None:
    with pytest.raises(BadImage, match=r"absolute|\.\."):
        merged(layer(("a", "h", target)))


def test_a_hard_link_to_nothing_or_to_a_folder_is_refused() -> None:
    with pytest.raises(BadImage, match='"b", which is not there'):
        merged(layer(("a", "h", "b")))
    with pytest.raises(BadImage, match='"b", which is a folder'):
        merged(layer(("b", "d"), ("a", "h", "b")))


def test_a_folder_that_is_a_link_leads_to_a_place_in_the_image() -> None:
    below = layer(("usr/lib", "d"), ("lib", "l", "usr/lib"), ("abs", "l", "/usr/lib"))
    new = layer(("lib/a", "-", b"1"), ("abs/b", "-", b"2"), ("lib/.wh.none", "-"))
    assert result(below, new) == {
        "usr": "d", "usr/lib": "d", "lib": "l usr/lib", "abs": "l /usr/lib",
        "usr/lib/a": "1", "usr/lib/b": "2",
    }  # fmt: skip


@pytest.mark.parametrize("target", ["/", "../../..", "/../../..", "x/../../.."])
def test_a_link_that_climbs_ends_at_the_root_of_the_image(target: str) -> None:
    bait = layer(("x", "d"), ("up", "l", target))
    assert result(bait, layer(("up/etc/passwd", "-", b"mine")))["etc/passwd"] == "mine"


def test_two_links_one_after_the_other_lead_no_further_than_one() -> None:
    found = result(layer(("a", "l", ".."), ("b", "l", "a/.."), ("b/etc/cron", "-", b"x")))
    assert found["etc/cron"] == "x"


def test_links_in_a_circle_are_refused() -> None:
    with pytest.raises(BadImage, match="more than 40 links") as caught:
        merged(layer(("a", "l", "b"), ("b", "l", "a"), ("a/x", "-")))
    assert caught.value.message.startswith('layer 1, entry "a/x": ')


def test_links_that_multiply_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "STEPS_MAX", 20_000)
    far = "/".join(["x", ".."] * 500)
    entries = [Entry(b"x", Kind.folder), Entry(b"a", Kind.symlink, link=far.encode())]
    entries += [Entry(b"a/x/f%d" % number, Kind.file) for number in range(100)]
    with pytest.raises(BadImage, match="steps"):
        Merge().apply(entries)


def test_a_path_through_a_file_is_refused() -> None:
    with pytest.raises(BadImage, match="through a file"):
        merged(layer(("a", "-"), ("a/b", "-")))


# -- names


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (b"/etc/passwd", "absolute"),
        (b"../etc/passwd", ".."),
        (b"a/../../etc/passwd", ".."),
        (b"a/..", ".."),
        (b"a\0b", "NUL"),
        (b"x" * 256, "longer than 255"),
        (b"/".join([b"x" * 200] * 25), "longer than 4095"),
    ],
)
def test_a_name_that_leads_elsewhere_is_refused_with_its_layer(name: bytes, why: str) -> None:
    merge = merged(layer(ETC))
    with pytest.raises(BadImage) as caught:
        merge.apply([Entry(name, Kind.file)])
    assert why in caught.value.message
    assert caught.value.message.startswith('layer 2, entry "')
    assert caught.value.message.isprintable()
    assert listed(merge.tree) == {"etc": "d"}


def test_names_are_kept_byte_for_byte() -> None:
    odd = ["\udcff\udcfe", "a\nb", " ", "-rf", "é", "e\u0301", "Readme", "README", "x" * 255]
    tree = merged(layer(*[(name, "-") for name in odd])).tree
    assert {name for name, _ in tree.walk()} == {
        name.encode("utf-8", "surrogateescape") for name in odd
    }


@pytest.mark.parametrize("target", [b"", b"a\0b", b"x" * 4096])
def test_a_link_to_no_path_is_refused(target: bytes) -> None:
    with pytest.raises(BadImage, match="cannot be one"):
        Merge().apply([Entry(b"a", Kind.symlink, link=target)])


# -- what a guest has of its own, and bounds


def test_devices_are_left_out_and_counted() -> None:
    merge = merged(layer(("dev/null", "-"), ("x", "-")), layer(("dev/null", "c"), ("x", "b")))
    assert listed(merge.tree) == {"dev": "d"}
    assert merge.devices == 2


def test_setuid_and_owners_stay() -> None:
    tree = merged(layer(("su", "-"), mode=0o4755, uid=70000, gid=8, mtime=12.5)).tree
    found = tree.find([b"su"])
    assert found is not None
    assert (found.mode, found.uid, found.gid, found.mtime) == (0o4755, 70000, 8, 12)


def test_attributes_of_the_image_stay_and_those_of_its_builder_do_not() -> None:
    capability = b"\x01\x00\x00\x02\x00\x20" + bytes(14) + b"\xff"
    attributes = {
        "SCHILY.xattr.security.capability": capability.decode("utf-8", "surrogateescape"),
        "SCHILY.xattr.user.note": "a\0b",
        "SCHILY.xattr.trusted.overlay.opaque": "y",
        "SCHILY.xattr.security.selinux": "unconfined",
        "comment": "x",
    }
    data = layer(("ping", "-"), pax_headers=attributes)
    assert (found := merged(data).tree.find([b"ping"])) is not None
    assert found.xattrs == ((b"security.capability", capability), (b"user.note", b"a\0b"))


def test_too_many_entries_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "ENTRIES_MAX", 100)
    merge = Merge()
    merge.apply(Entry(b"f%d" % number, Kind.file) for number in range(100))
    with pytest.raises(BadImage, match="more than 100 entries"):
        merge.apply([Entry(b"one", Kind.file)])


@pytest.mark.parametrize(
    ("most", "entry"),
    [
        ("TEXT_MAX", Entry(b"f" * 60, Kind.file)),
        ("TEXT_MAX", Entry(b"f", Kind.symlink, link=b"x" * 60)),
        ("TEXT_MAX", Entry(b"f", Kind.file, xattrs=((b"user.a", b"x" * 60),))),
        ("PIECES_MAX", Entry(b"f", Kind.file, content=Content(0, 0, 9, ((0, 1, 0),) * 60))),
    ],
)
def test_what_is_held_in_memory_is_bounded_for_all_layers_together(
    monkeypatch: pytest.MonkeyPatch, most: str, entry: Entry
) -> None:
    monkeypatch.setattr(rules, most, 100)
    merge = Merge()
    merge.apply([entry])
    with pytest.raises(BadImage, match="more than"):
        merge.apply([entry])

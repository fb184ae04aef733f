"""Archives of caches: what comes out is what went in, and nothing else is taken."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile

import pytest

from plait_utils import DiskCache
from plait_utils.cache_archive import CacheArchiveError, export_cache, import_cache

MACHINE = {"architecture": "x86_64", "instructions": "avx avx2 fma sse sse2"}


@pytest.fixture
def full(tmp_path):
    cache = DiskCache(tmp_path / "from")
    for number in range(5):
        cache.put_file(f"key {number}", ".so", bytes([number]) * (1000 + number))
    cache.put("small", b"data")
    return cache


@pytest.fixture
def empty(tmp_path):
    return DiskCache(tmp_path / "to")


def test_entries_are_found_where_they_are_taken(full, empty, tmp_path):
    out = export_cache(full, tmp_path / "all.zip", MACHINE)
    assert (out.entries, out.nbytes) == (6, 5014)
    into = import_cache(empty, tmp_path / "all.zip", MACHINE)
    assert (into.entries, into.nbytes, into.known) == (6, 5014, 0)
    assert empty.get("small") == b"data"
    assert empty.get_file("key 3", ".so").read_bytes() == b"\3" * 1003


def test_entries_that_are_there_are_kept_and_damaged_ones_replaced(full, empty, tmp_path):
    export_cache(full, tmp_path / "all.zip", MACHINE)
    import_cache(empty, tmp_path / "all.zip", MACHINE)
    path = empty.get_file("key 1", ".so")
    path.write_bytes(b"damaged")
    again = import_cache(empty, tmp_path / "all.zip", MACHINE)
    assert (again.entries, again.known) == (1, 5)
    assert empty.get_file("key 1", ".so").read_bytes() == b"\1" * 1001


def test_damaged_entries_are_not_exported(full, empty, tmp_path):
    full.get_file("key 1", ".so").write_bytes(b"damaged")
    assert export_cache(full, tmp_path / "all.zip", MACHINE).entries == 5
    import_cache(empty, tmp_path / "all.zip", MACHINE)
    assert empty.get_file("key 1", ".so") is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"architecture": "aarch64"}, "architecture is x86_64 there and aarch64 here"),
        ({"instructions": "avx sse sse2 fma"}, "instructions here lacks avx2"),
        ({"instructions": f"{MACHINE['instructions']} avx512f"}, "here also has avx512f"),
        ({"vectors": "64"}, "vectors is not told there and 64 here"),
    ],
)
def test_another_machine_says_what_differs(full, empty, tmp_path, changed, said):
    export_cache(full, tmp_path / "all.zip", MACHINE)
    with pytest.raises(CacheArchiveError, match=said):
        import_cache(empty, tmp_path / "all.zip", MACHINE | changed)
    assert not empty.root.exists()


def rewritten(file, change):
    """The archive with other contents: `change` gets them by name."""
    with zipfile.ZipFile(file) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(contents.pop("manifest.json"))
    change(manifest, contents)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
        archive.writestr("manifest.json", json.dumps(manifest))


def first(manifest):
    return next(iter(manifest["entries"]))


def other_data(manifest, contents):
    contents[first(manifest)] += b"more"


def bomb(manifest, contents):
    contents[first(manifest)] = bytes(200_000_000)


def outside(manifest, contents):
    name = "../../outside.so"
    contents[name] = b"x"
    facts = {"bytes": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
    manifest["entries"][name] = facts


def absolute(manifest, contents):
    manifest["entries"]["/tmp/outside.so"] = manifest["entries"][first(manifest)]


def a_checksum(manifest, contents):
    manifest["entries"][f"{first(manifest)}.sha256"] = manifest["entries"][first(manifest)]


def missing(manifest, contents):
    contents.pop(first(manifest))


def odd_size(manifest, contents):
    manifest["entries"][first(manifest)]["bytes"] = "many"


def too_much(manifest, contents):
    manifest["entries"][first(manifest)]["bytes"] = 10**15


def a_list(manifest, contents):
    manifest["entries"] = ["x"]


def new_format(manifest, contents):
    manifest["format"] = 2


HOSTILE = (
    *(other_data, bomb, outside, absolute, a_checksum, missing, odd_size, too_much, a_list),
    new_format,
)


@pytest.mark.parametrize("change", HOSTILE, ids=lambda change: change.__name__)
def test_hostile_archives_put_nothing_anywhere(full, empty, tmp_path, change):
    file = tmp_path / "all.zip"
    export_cache(full, file, MACHINE)
    rewritten(file, change)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CacheArchiveError):
        import_cache(empty, file, MACHINE)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("cut", [0, 10, 500, -30])
def test_cut_archives_are_refused(full, empty, tmp_path, cut):
    file = tmp_path / "all.zip"
    export_cache(full, file, MACHINE)
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(CacheArchiveError):
        import_cache(empty, file, MACHINE)
    assert not empty.root.exists()


def test_flipped_bytes_never_change_what_is_imported(full, tmp_path):
    file = tmp_path / "all.zip"
    export_cache(full, file, MACHINE)
    data = file.read_bytes()
    for place in range(0, len(data), 97):
        flipped = bytearray(data)
        flipped[place] ^= 0xFF
        file.write_bytes(flipped)
        cache = DiskCache(tmp_path / "to" / str(place))
        try:
            import_cache(cache, file, MACHINE)
        except CacheArchiveError:
            continue
        assert cache.get_file("key 3", ".so").read_bytes() == b"\3" * 1003


def test_files_that_cannot_be_read_or_written_are_named(full, empty, tmp_path):
    with pytest.raises(CacheArchiveError, match="nowhere"):
        import_cache(empty, tmp_path / "nowhere.zip", MACHINE)
    with pytest.raises(CacheArchiveError, match="cannot write"):
        export_cache(full, tmp_path / "no folder" / "all.zip", MACHINE)
    assert not [*tmp_path.glob("*.zip*")]


def test_other_zip_files_are_no_archives(empty, tmp_path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("manifest.json", "[1, 2")
    (tmp_path / "x.zip").write_bytes(stream.getvalue())
    with pytest.raises(CacheArchiveError, match="no readable manifest"):
        import_cache(empty, tmp_path / "x.zip", MACHINE)

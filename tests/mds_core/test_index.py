"""`index.json`: what is refused when it is parsed, and publishing it."""

import json
import multiprocessing
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mds_core import FormatError, MDSReader
from mds_core.index import INDEX, File, Index, Layout, Shard, is_inside, parse_index, publish_index, read_index
from mds_core.storage import open_storage

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
DATA = {"basename": "shard.00000.mds", "bytes": 100, "hashes": {"md5": "0" * 32}}
SHARD = {
    "column_encodings": ["int32", "str"],
    "column_names": ["a", "b"],
    "column_sizes": [4, None],
    "compression": None,
    "format": "mds",
    "hashes": ["md5"],
    "raw_data": DATA,
    "samples": 3,
    "size_limit": 1 << 26,
    "version": 2,
    "zip_data": None,
}
ZIPPED = {**SHARD, "compression": "zstd:3", "zip_data": {**DATA, "basename": "shard.00000.mds.zstd"}}


def parse(document: Any) -> Index:
    return parse_index(json.dumps(document).encode(), "the/index.json")


def parse_shards(*shards: Any) -> Index:
    return parse({"version": 2, "shards": list(shards)})


def changed(shard: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**shard, **changes}


def without(value: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in value.items() if k != key}


def test_an_index_is_parsed_and_written_to_the_same_text() -> None:
    document = {"version": 2, "shards": [SHARD, changed(ZIPPED, raw_data={**DATA, "basename": "sub/1.mds"})]}
    index = parse(document)
    assert json.loads(index.to_bytes()) == document
    assert index.columns == {"a": "int32", "b": "str"}
    assert index.shards[0].stored.basename == "shard.00000.mds"
    assert index.shards[1].stored.basename == "shard.00000.mds.zstd"
    assert parse_index(index.to_bytes(), "") == index


def test_further_top_level_keys_are_ignored_and_our_own_is_kept() -> None:
    index = parse({"version": 2, "shards": [], "made_by": {"x": 1}, "mds_spark": {"columns": {"a": "int32"}, "y": 2}})
    assert index.own == {"columns": {"a": "int32"}, "y": 2}
    assert index.columns == {"a": "int32"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b'{"version": 2', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"version": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"[]", r"the index: expected an object, found \[\]"),
        (b"null", "the index: expected an object, found None"),
        (b"{}", "version is missing"),
        (b'{"version": 1, "shards": []}', "version: expected 2, found 1"),
        (b'{"version": 2.0, "shards": []}', "version: expected a whole number, found 2.0"),
        (b'{"version": true, "shards": []}', "version: expected a whole number, found True"),
        (b'{"version": NaN, "shards": []}', "version: expected a whole number, found nan"),
        (b'{"version": 2}', "shards is missing"),
        (b'{"version": 2, "shards": {}}', "shards: expected a list, found {}"),
        (b'{"version": 2, "shards": null}', "shards: expected a list, found None"),
        (b'{"version": 2, "shards": [[]]}', r"shards\[0\]: expected an object"),
        (b'{"version": 2, "shards": [], "mds_spark": 5}', "mds_spark: expected an object, found 5"),
        (b'{"version": 2, "shards": [], "mds_spark": {"columns": []}}', "columns: expected an object"),
        (b'{"version": 2, "shards": [], "mds_spark": {"columns": {"a": 1}}}', "column 'a': expected a text, found 1"),
        (b'{"version": 2, "shards": [], "mds_spark": {"columns": {"a": "x"}}}', "column 'a': unknown encoding 'x'"),
    ],
)
def test_a_broken_document_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=f"^the/index.json: .*{message}"):
        parse_index(text, "the/index.json")


BAD_FIELDS: list[tuple[str, Any, str]] = [
    ("version", 1, "version: expected 2, found 1"),
    ("version", 2.0, "version: expected a whole number"),
    ("version", True, "version: expected a whole number"),
    ("format", "json", "format: expected 'mds', found 'json'"),
    ("format", None, "format: expected 'mds', found None"),
    ("column_names", "ab", "column_names: expected a list, found 'ab'"),
    ("column_names", ["a", 5], r"column_names\[1\]: expected a text, found 5"),
    ("column_names", ["b", "a"], "column_names: expected names, sorted and different"),
    ("column_names", ["a", "a"], "column_names: expected names, sorted and different"),
    ("column_names", [], "column_names: expected names, sorted and different"),
    ("column_names", ["a"], "column_encodings: expected 1 of encodings and of sizes"),
    ("column_encodings", ["int32"], "column_encodings: expected 2 of encodings and of sizes"),
    ("column_encodings", ["int32", None], "column 'b': expected a text, found None"),
    ("column_encodings", ["int32", "text"], "column 'b': unknown encoding 'text'"),
    ("column_encodings", ["int32", "ndarray:int8:99999999999"], "column 'b': encoding .* 4294967295 bytes"),
    ("column_sizes", [4], "column_encodings: expected 2 of encodings and of sizes"),
    ("column_sizes", [8, None], "column_sizes of 'a': expected 4 for int32, found 8"),
    ("column_sizes", [4.0, None], "column_sizes of 'a': expected 4 for int32, found 4.0"),
    ("column_sizes", [None, None], "column_sizes of 'a': expected 4 for int32, found None"),
    ("column_sizes", [4, 0], "column_sizes of 'b': expected null for str, found 0"),
    ("column_sizes", [4, -1], "column_sizes of 'b': expected null for str, found -1"),
    ("column_sizes", [4, False], "column_sizes of 'b': expected null for str, found False"),
    ("compression", 5, "compression: expected a text or null, found 5"),
    ("compression", "zip", "unknown compression 'zip'; expected one of br"),
    ("compression", "zstd:99", "compression 'zstd:99'"),
    ("compression", "zstd", "zip_data: expected a file if, and only if, there is a compression, found None"),
    ("hashes", "md5", "hashes: expected a list, found 'md5'"),
    ("hashes", [5], r"hashes\[0\]: expected a text, found 5"),
    ("hashes", ["crc"], "unknown hash 'crc'; expected some of"),
    ("hashes", ["shake_128"], "unknown hash 'shake_128'"),
    ("hashes", ["md5", "md5"], "hashes: expected names, sorted and different"),
    ("hashes", ["sha1", "md5"], "hashes: expected names, sorted and different"),
    ("hashes", [], r"raw_data.hashes: expected a digest for each of \[\]"),
    ("samples", -1, "samples: expected a number that fits a file of 100 bytes, found -1"),
    ("samples", 24, "samples: expected a number that fits a file of 100 bytes, found 24"),
    ("samples", 10**400, "samples: expected a number that fits a file of 100 bytes, found 1000"),
    ("samples", True, "samples: expected a whole number, found True"),
    ("samples", 3.0, "samples: expected a whole number, found 3.0"),
    ("samples", float("nan"), "samples: expected a whole number, found nan"),
    ("samples", None, "samples: expected a whole number, found None"),
    ("size_limit", "64mb", "size_limit: expected a whole number or null, found '64mb'"),
    ("size_limit", -1, "size_limit: expected a size or null, found -1"),
    ("size_limit", 1e300, "size_limit: expected a whole number or null"),
    ("raw_data", None, "raw_data: expected an object, found None"),
    ("raw_data", {}, "raw_data: keys: missing basename, bytes, hashes"),
    ("raw_data", {**DATA, "url": ""}, "raw_data: keys: unknown url"),
    ("raw_data", {**DATA, "basename": 5}, "raw_data.basename: expected a text, found 5"),
    ("raw_data", {**DATA, "bytes": -1}, "raw_data.bytes: expected a size, found -1"),
    ("raw_data", {**DATA, "bytes": 1.5}, "raw_data.bytes: expected a whole number, found 1.5"),
    ("raw_data", {**DATA, "bytes": True}, "raw_data.bytes: expected a whole number, found True"),
    ("raw_data", {**DATA, "bytes": 1 << 32}, "raw_data.bytes: expected at most 4294967295, found 4294967296"),
    ("raw_data", {**DATA, "bytes": 19}, "samples: expected a number that fits a file of 19 bytes, found 3"),
    ("raw_data", {**DATA, "hashes": ["md5"]}, "raw_data.hashes: expected an object"),
    ("raw_data", {**DATA, "hashes": {"md5": 5}}, "raw_data.hashes: expected a digest for each of .'md5'."),
    ("raw_data", {**DATA, "hashes": {"sha1": ""}}, "raw_data.hashes: expected a digest for each of .'md5'."),
    ("zip_data", DATA, "zip_data: expected a file if, and only if, there is a compression"),
    ("zip_data", [], "zip_data: expected a file if, and only if, there is a compression"),
]


@pytest.mark.parametrize(("key", "value", "message"), BAD_FIELDS, ids=[f"{i}-{b[0]}" for i, b in enumerate(BAD_FIELDS)])
def test_a_wrong_field_is_refused_with_file_field_found_and_expected(key: str, value: Any, message: str) -> None:
    with pytest.raises(FormatError, match=rf"^the/index.json: .*{message}"):
        parse_shards(SHARD if key != "version" else changed(SHARD, samples=2), changed(SHARD, **{key: value}))


@pytest.mark.parametrize("key", SHARD)
def test_each_key_of_a_shard_is_required_and_no_other_is_known(key: str) -> None:
    with pytest.raises(FormatError, match=rf"^the/index.json: shards\[0\]: keys: missing {key}$"):
        parse_shards(without(SHARD, key))
    with pytest.raises(FormatError, match=rf"^the/index.json: shards\[0\]: keys: missing {key} and unknown {key}2$"):
        parse_shards({**without(SHARD, key), key + "2": SHARD[key]})


ESCAPES = ["", ".", "..", "../x", "a/../x", "a/..", "/abs", "//host/x", "a//b", "a/", "./a", "a/./b", "a\\b", "..\\x",
           "C:x", "C:/x", "\\\\host\\x", "s3://x/y", "a\0b", "a/\ud800"]  # fmt: skip


@pytest.mark.parametrize("name", ESCAPES)
def test_a_basename_that_leaves_the_data_set_is_refused(name: str) -> None:
    assert not is_inside(name)
    for shard in (
        changed(SHARD, raw_data={**DATA, "basename": name}),
        changed(ZIPPED, zip_data={**DATA, "basename": name}),
    ):
        with pytest.raises(FormatError, match=r"(raw|zip)_data.basename: expected a path inside the data set, found"):
            parse_shards(shard)


@pytest.mark.parametrize("name", [INDEX, "INDEX.json", "sub/index.json", ".mds-1/a", ".mds-1", "sub/.MDS-1/a"])
def test_a_shard_that_would_be_an_index_or_in_a_staging_folder_is_refused(name: str) -> None:
    for shard in (
        changed(SHARD, raw_data={**DATA, "basename": name}),
        changed(ZIPPED, zip_data={**DATA, "basename": name}),
    ):
        with pytest.raises(FormatError, match=r"(raw|zip)_data.basename: expected a shard, not an index or a staging"):
            parse_shards(shard)


@pytest.mark.parametrize(
    "name",
    ["a", "a.mds", "17/shard.00000.mds", "a/b/c", "..a", "a..", "...", "ü/日本", " ", "index.json/a", "xindex.json",
     "index.json.mds", "x.mds-1", ".mds"],
)  # fmt: skip
def test_a_basename_below_the_data_set_is_taken(name: str) -> None:
    assert is_inside(name)
    assert parse_shards(changed(SHARD, raw_data={**DATA, "basename": name})).shards[0].raw_data.basename == name


def test_a_file_that_two_shards_name_is_refused() -> None:
    with pytest.raises(FormatError, match=r"shards\[1\]: file 'shard.00000.mds' is named by an earlier shard, too"):
        parse_shards(SHARD, SHARD)


def test_shards_of_different_columns_are_refused() -> None:
    other = changed(SHARD, column_names=["a", "c"], raw_data={**DATA, "basename": "other"})
    with pytest.raises(FormatError, match=r"shards\[1\] columns: expected those of shards\[0\], .*'b': 'str'.*'c'"):
        parse_shards(SHARD, other)


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["..", "int32", "zstd"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*SHARD, *DATA, "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=200)
@given(st.sampled_from([SHARD, ZIPPED]), st.dictionaries(st.sampled_from([*SHARD, "x"]), JUNK, max_size=3), JUNK)
def test_any_junk_in_an_index_is_an_index_or_a_format_error(shard: Any, changes: dict[str, Any], own: Any) -> None:
    with suppress(FormatError):
        parse({"version": 2, "shards": [changed(shard, **changes)], "mds_spark": own})


@settings(max_examples=300)
@given(
    st.sampled_from(["scalars", "hashes", "compression/zstd", "ndarrays"]),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_an_index_with_flipped_bytes_is_an_index_or_a_format_error(name: str, flips: list[tuple[int, int]]) -> None:
    data = bytearray((GOLDEN / name / INDEX).read_bytes())
    for at, byte in flips:
        data[at % len(data)] = byte
    with suppress(FormatError):
        assert all(is_inside(shard.stored.basename) for shard in parse_index(bytes(data), "").shards)


# Publishing


def shard_named(name: str) -> Shard:
    return Shard(Layout.of({"a": "int32"}), 0, File(name, 300, {}), None)


def test_a_folder_without_an_index_is_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no MDS data set at .*: there is no index.json.*merge_index"):
        read_index(open_storage(str(tmp_path)))


def test_publishing_asks_again_when_the_index_changed_meanwhile(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "new"))
    seen = []

    def change(before: Index | None) -> Index:
        seen.append(before)
        if len(seen) == 1:
            publish_index(storage, lambda _: Index((shard_named("other"),)))
        return Index((*(before.shards if before else ()), shard_named("mine")))

    before, after = publish_index(storage, change)
    assert [index and [s.raw_data.basename for s in index.shards] for index in seen] == [None, ["other"]]
    assert before == seen[1]
    assert [shard.raw_data.basename for shard in after.shards] == ["other", "mine"]
    assert read_index(storage) == after
    assert [path.name for path in (tmp_path / "new").iterdir()] == [INDEX]


def test_what_the_change_raises_leaves_the_index_as_it_was(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    publish_index(storage, lambda _: Index((shard_named("a"),)))

    def refuse(before: Index | None) -> Index:
        raise PermissionError("no")

    with pytest.raises(PermissionError, match="no"):
        publish_index(storage, refuse)
    assert [shard.raw_data.basename for shard in read_index(storage).shards] == ["a"]


def append(path: str, name: str, start: Any) -> None:
    start.wait()
    for i in range(20):
        shard = shard_named(f"{name}{i}")
        publish_index(open_storage(path), lambda before, new=shard: replace(before, shards=(*before.shards, new)))


def test_publishers_in_several_processes_all_land(tmp_path: Path) -> None:
    publish_index(open_storage(str(tmp_path)), lambda _: Index())
    context = multiprocessing.get_context("fork")
    start = context.Barrier(3)
    processes = [context.Process(target=append, args=(str(tmp_path), name, start)) for name in "xyz"]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    names = [shard.raw_data.basename for shard in read_index(open_storage(str(tmp_path))).shards]
    assert sorted(names) == sorted(f"{name}{i}" for name in "xyz" for i in range(20))
    for name in "xyz":
        assert [n for n in names if n.startswith(name)] == [f"{name}{i}" for i in range(20)]
    assert [path.name for path in tmp_path.iterdir()] == [INDEX]


def test_a_reader_never_sees_half_an_index(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    publish_index(storage, lambda _: Index())
    context = multiprocessing.get_context("fork")
    writer = context.Process(target=append, args=(str(tmp_path), "x", context.Barrier(1)))
    writer.start()
    lengths = [0]
    while writer.is_alive():
        lengths.append(len(MDSReader(str(tmp_path)).shards))
    writer.join()
    assert lengths == sorted(lengths)

"""One index over several data sets."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mds_core import FormatError, MDSReader, merge_index
from mds_core.index import INDEX, Index, publish_index
from mds_core.storage import open_storage

Make = Callable[..., Path]
COLUMNS = {"n": "int32"}


def numbers(folder: Path) -> list[int]:
    return [int(sample["n"]) for sample in MDSReader(str(folder))]


def names(folder: Path) -> list[str]:
    return [shard.stored.basename for shard in MDSReader(str(folder)).shards]


@pytest.fixture
def rows(make: Make) -> Make:
    """Write a data set of numbers: `rows("x/part0", 1, 2)`."""
    return lambda name, *values: make(COLUMNS, [{"n": value} for value in values], name)


def test_subfolders_at_any_depth_are_merged(rows: Make, tmp_path: Path) -> None:
    rows("a", 1, 2)
    rows("b/c/d", 3)
    index = merge_index(str(tmp_path))
    assert numbers(tmp_path) == [1, 2, 3]
    assert names(tmp_path) == ["a/shard.00000.mds", "b/c/d/shard.00000.mds"]
    assert index == MDSReader(str(tmp_path)).index


def test_folders_of_one_name_in_different_folders_stay_two(rows: Make, tmp_path: Path) -> None:
    rows("x/part0", 1)
    rows("y/part0", 2)
    merge_index(str(tmp_path))
    assert names(tmp_path) == ["x/part0/shard.00000.mds", "y/part0/shard.00000.mds"]
    assert numbers(tmp_path) == [1, 2]


def test_merging_twice_gives_the_same(rows: Make, tmp_path: Path) -> None:
    rows("x", 1)
    rows("y", 2)
    merge_index(str(tmp_path))
    first = (tmp_path / INDEX).read_bytes()
    merge_index(str(tmp_path))
    assert (tmp_path / INDEX).read_bytes() == first
    merge_index([str(tmp_path / "x"), str(tmp_path / "y")], str(tmp_path))
    assert (tmp_path / INDEX).read_bytes() == first


def test_merged_folders_are_merged_again_without_repeats(rows: Make, tmp_path: Path) -> None:
    rows("a/1", 1)
    rows("a/2", 2)
    rows("b/1", 3)
    merge_index(str(tmp_path / "a"))
    merge_index(str(tmp_path))
    merge_index(str(tmp_path))
    assert numbers(tmp_path) == [1, 2, 3]


def test_shards_of_the_folder_itself_are_kept_and_come_first(rows: Make, tmp_path: Path) -> None:
    rows("all", 1)
    rows("all/more", 2)
    merge_index(str(tmp_path / "all"))
    assert numbers(tmp_path / "all") == [1, 2]
    assert names(tmp_path / "all") == ["shard.00000.mds", "more/shard.00000.mds"]


def test_a_new_subfolder_comes_behind_what_was_merged_before(rows: Make, tmp_path: Path) -> None:
    rows("5", 5)
    rows("6", 6)
    merge_index(str(tmp_path))
    rows("1", 1)
    merge_index(str(tmp_path))
    assert numbers(tmp_path) == [5, 6, 1]


def test_a_subfolder_that_was_written_again_counts_as_it_is_now(make: Make, tmp_path: Path) -> None:
    make(COLUMNS, [{"n": n} for n in range(3)], "x", size_limit=1)
    make(COLUMNS, [{"n": 9}], "y")
    merge_index(str(tmp_path))
    assert numbers(tmp_path) == [0, 1, 2, 9]
    make(COLUMNS, [{"n": 7}], "x", exist_ok=True)
    merge_index(str(tmp_path))
    assert numbers(tmp_path) == [9, 7]  # its new shard has a new name, and so comes last


def test_task_folders_are_in_the_order_of_their_numbers(rows: Make, tmp_path: Path) -> None:
    for task in (10, 9, 100, 1):
        rows(str(task), task)
    rows("²", 5)
    merge_index(str(tmp_path))
    assert numbers(tmp_path) == [1, 9, 10, 100, 5]


def test_a_list_is_merged_in_its_order(rows: Make, tmp_path: Path) -> None:
    folders = [rows(name, value) for name, value in (("b", 1), ("a/deep", 2), ("c", 3))]
    merge_index([str(folder) for folder in folders], str(tmp_path))
    assert numbers(tmp_path) == [1, 2, 3]


def test_places_may_be_indexes_pairs_paths_and_urls(rows: Make, tmp_path: Path) -> None:
    a, b, c, d, e = (rows(name, i) for i, name in enumerate("abcde"))
    places = [f"{a}/{INDEX}", ("", str(b)), (str(c), ""), f"file://{d}", e]
    merge_index(places, ("", str(tmp_path)))
    assert numbers(tmp_path) == [0, 1, 2, 3, 4]
    for place in (tmp_path, f"{tmp_path}/", f"{tmp_path}/{INDEX}", (str(tmp_path), ""), f"file:{tmp_path}"):
        (tmp_path / INDEX).unlink()
        merge_index(place)
        assert numbers(tmp_path) == [0, 1, 2, 3, 4]


def test_a_relative_path_is_taken_from_here(rows: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows("a", 1)
    monkeypatch.chdir(tmp_path)
    merge_index(["a/index.json"], ".")
    (tmp_path / INDEX).unlink()
    merge_index(".")
    merge_index(INDEX)
    assert numbers(tmp_path) == [1]


def test_the_folder_itself_may_be_in_the_list(rows: Make, tmp_path: Path) -> None:
    rows("all", 1)
    rows("all/more", 2)
    merge_index([str(tmp_path / "all" / "more"), str(tmp_path / "all")], str(tmp_path / "all"))
    assert numbers(tmp_path / "all") == [2, 1]


def test_compressed_data_sets_are_merged(make: Make, tmp_path: Path) -> None:
    make(COLUMNS, [{"n": 1}], "a", compression="zstd", hashes=["md5"])
    make(COLUMNS, [{"n": 2}], "b")
    merge_index(str(tmp_path))
    assert numbers(tmp_path) == [1, 2]
    assert names(tmp_path) == ["a/shard.00000.mds.zstd", "b/shard.00000.mds"]


def test_empty_data_sets_add_nothing(make: Make, rows: Make, tmp_path: Path) -> None:
    make(COLUMNS, [], "a")
    rows("b", 1)
    merge_index(str(tmp_path))
    assert numbers(tmp_path) == [1]
    shutil.rmtree(tmp_path / "b")
    (tmp_path / INDEX).unlink()
    merge_index(str(tmp_path))
    assert numbers(tmp_path) == []
    assert MDSReader(str(tmp_path)).columns == COLUMNS


@pytest.mark.parametrize("columns", [{"n": "int64"}, {"m": "int32"}, {"n": "int32", "m": "str"}])
def test_data_sets_of_different_columns_are_refused(
    columns: dict[str, str], make: Make, rows: Make, tmp_path: Path
) -> None:
    rows("a", 1)
    make(columns, [], "b")
    with pytest.raises(ValueError, match=r"can't merge .*b: its columns are .*, those of .*a are .*'int32'"):
        merge_index(str(tmp_path))
    assert not (tmp_path / INDEX).exists()


def schema_of(kind: Any, nullable: bool = True) -> Any:
    field = {"name": "n", "type": kind, "nullable": nullable, "metadata": {}}
    return {"schema": {"type": "struct", "fields": [field]}}


def give_own(folder: Path, own: Any) -> None:
    publish_index(open_storage(str(folder)), lambda old: Index(old.shards if old else (), own))


STRUCT = {"type": "struct", "fields": [{"name": "a", "type": "integer", "nullable": False, "metadata": {}}]}
ARRAY = {"type": "array", "elementType": STRUCT, "containsNull": False}


def loose(value: Any) -> Any:
    """A schema in JSON with nulls allowed everywhere."""
    if isinstance(value, dict):
        return {key: loose(inner) for key, inner in value.items()}
    return [loose(inner) for inner in value] if isinstance(value, list) else value is False or value


@pytest.mark.parametrize("kind", ["date", STRUCT, ARRAY])
def test_sparks_types_stay_with_nulls_wherever_one_allows_them(kind: Any, rows: Make, tmp_path: Path) -> None:
    for name, own in [("a", schema_of(kind, False)), ("b", schema_of(loose(kind))), ("c", schema_of(kind))]:
        give_own(rows(name, 1), own)
    assert merge_index(str(tmp_path)).own == schema_of(loose(kind))
    assert merge_index(str(tmp_path)).own == schema_of(loose(kind))


@pytest.mark.parametrize("other", ["integer", STRUCT, {**STRUCT, "fields": []}])
def test_different_types_of_spark_are_refused(other: Any, rows: Make, tmp_path: Path) -> None:
    give_own(rows("a", 1), schema_of("date"))
    give_own(rows("b", 1), schema_of(other))
    expected = r"can't merge .*b: its Spark types are \{'n': .*\}, those of .*a are \{'n': 'date'\}; cast"
    with pytest.raises(ValueError, match=expected):
        merge_index(str(tmp_path))
    assert not (tmp_path / INDEX).exists()


@pytest.mark.parametrize("without", ["a", "b", "c"])
def test_a_data_set_without_sparks_types_leaves_them_to_the_encodings(without: str, rows: Make, tmp_path: Path) -> None:
    for name in "abc":
        rows(name, 1)
        if name != without:
            give_own(tmp_path / name, schema_of("date"))
    assert merge_index(str(tmp_path)).own == {}
    assert numbers(tmp_path) == [1, 1, 1]


@pytest.mark.parametrize("broken", [1, [], {}, {"fields": [1]}, {"fields": [{"name": "n"}]}, {"fields": None}])
def test_a_broken_schema_is_named(broken: Any, rows: Make, tmp_path: Path) -> None:
    give_own(rows("a", 1), schema_of("date"))
    give_own(rows("b", 1), {"schema": broken})
    with pytest.raises(FormatError, match=r"can't merge .*b: the schema in an index is broken"):
        merge_index(str(tmp_path))


def test_a_data_set_outside_of_the_folder_is_refused(rows: Make, tmp_path: Path) -> None:
    a = rows("a", 1)
    b = rows("ab", 2)
    with pytest.raises(ValueError, match=r"can't merge .*ab: it does not lie below .*a, where its shards would be"):
        merge_index([str(a), str(b)], str(a))


@pytest.mark.parametrize("name", ["a:b", "a\\b", "deep/x:/y", b"a\xff".decode("utf-8", "surrogateescape"), ".mds-1"])
def test_a_folder_that_no_index_can_name_is_refused_before_the_index_is_replaced(
    name: str, rows: Make, tmp_path: Path
) -> None:
    rows("all/good", 1)
    merge_index(str(tmp_path / "all"))
    bad = rows(f"all/{name}", 2)
    for merge in (
        lambda: merge_index(str(tmp_path / "all")),
        lambda: merge_index([str(tmp_path / "all" / "good"), str(bad)], str(tmp_path / "all")),
    ):
        with pytest.raises(ValueError, match="an index can't name what is in a folder") as caught:
            merge()
        assert repr(str(bad)) in str(caught.value)
        assert numbers(tmp_path / "all") == [1]


def test_a_list_needs_the_folder_that_gets_the_index(rows: Make) -> None:
    with pytest.raises(TypeError, match=r"merge_index\(\[path, ...\], out\): `out`"):
        merge_index([str(rows("a", 1))])


def test_nothing_to_merge_is_an_error(rows: Make, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing to merge: no index.json in"):
        merge_index(str(tmp_path))
    rows("a", 1)
    with pytest.raises(FileNotFoundError, match=r"can't merge .*nowhere: there is no index.json"):
        merge_index([str(tmp_path / "a"), str(tmp_path / "nowhere")], str(tmp_path))


def test_an_append_while_we_merge_is_kept(rows: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows("all", 1)
    rows("all/more", 2)
    late = MDSReader(str(rows("all/late", 3))).shards[0]
    (tmp_path / "all" / "late" / INDEX).unlink()
    (tmp_path / "all" / "late" / "shard.00000.mds").rename(tmp_path / "all" / "late.mds")
    storage = type(open_storage(str(tmp_path)))
    replace = storage.replace

    def appended_before(self: object, name: str, data: bytes, expected: bytes | None) -> bool:
        monkeypatch.undo()
        entry = type(late)(late.layout, 1, type(late.raw_data)("late.mds", late.raw_data.bytes, {}), None)
        publish_index(open_storage(str(tmp_path / "all")), lambda old: Index((*(old.shards if old else ()), entry)))
        return replace(self, name, data, expected)  # type: ignore[arg-type]

    monkeypatch.setattr(storage, "replace", appended_before)
    merge_index(str(tmp_path / "all"))
    assert numbers(tmp_path / "all") == [1, 3, 2]

"""The reference writer's data sets: what they hold, and that we write the same bytes."""

import base64
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from mds_core import MDSReader, MDSWriter, merge_index
from mds_core.compression import decompress
from mds_core.index import parse_index

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
DATA_SETS = sorted(path.parent for path in GOLDEN.rglob("expected.json"))


def name_of(folder: Path) -> str:
    return str(folder.relative_to(GOLDEN))


def expected(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "expected.json").read_text())


def image_of(stated: dict[str, Any]) -> Image.Image:
    return Image.frombytes(stated["mode"], tuple(stated["size"]), base64.b64decode(stated["base64"]))


def value_of(stated: dict[str, Any]) -> Any:
    """The Python value that expected.json states."""
    if "scalar" in stated:
        return np.dtype(stated["dtype"]).type(stated["scalar"])
    if "ndarray" in stated:
        return np.array(stated["ndarray"], stated["dtype"]).reshape(stated["shape"])
    if "base64" in stated:
        return base64.b64decode(stated["base64"])
    if "decimal" in stated:
        return Decimal(stated["decimal"])
    if "image" in stated:
        return image_of(stated["image"])
    if "images" in stated:
        return [image_of(item["image"]) for item in stated["images"]]
    return stated["value"]


def assert_same(found: Any, right: Any) -> None:
    if isinstance(right, list) and right and isinstance(right[0], Image.Image):
        assert len(found) == len(right)
        for a, b in zip(found, right, strict=True):
            assert_same(a, b)
    elif isinstance(right, Image.Image):
        assert (found.mode, found.size) == (right.mode, right.size)
        assert found.tobytes() == right.tobytes()
    elif isinstance(right, np.ndarray | np.generic):
        assert type(found) is type(right)
        assert found.dtype == right.dtype
        np.testing.assert_array_equal(found, right)
    else:
        assert type(found) is type(right)
        assert found == right


@pytest.mark.parametrize("folder", DATA_SETS, ids=name_of)
def test_golden_data_set_reads_to_its_expected_values(folder: Path) -> None:
    stated = expected(folder)
    reader = MDSReader(str(folder))
    assert reader.columns == stated["columns"]
    assert len(reader) == len(stated["samples"])
    for samples in (reader, [reader[i] for i in range(len(reader))], reader[:]):
        for found, right in zip(samples, stated["samples"], strict=True):
            assert found.keys() == right.keys()
            for name in right:
                assert_same(found[name], value_of(right[name]))


@pytest.mark.parametrize("algorithm", json.loads((GOLDEN / "hashes" / "index.json").read_text())["shards"][0]["hashes"])
def test_golden_digests_are_right(algorithm: str) -> None:
    assert len(MDSReader(str(GOLDEN / "hashes"), validate_hash=algorithm)[:]) == 60


def stored_files(folder: Path) -> list[bytes]:
    """For each sample, the bytes of its image columns as they are stored, by column."""
    reader = MDSReader(str(folder))
    rows = []
    for number in range(len(reader.shards)):
        shard = reader.open_shard(number)
        spans = shard.spans(np.arange(len(shard)))
        columns = [
            [bytes(shard.view[start:stop]) for start, stop in zip(starts, starts + sizes, strict=True)]
            for starts, sizes in spans
        ]
        rows += [dict(zip(shard.layout.column_names, row, strict=True)) for row in zip(*columns, strict=True)]
    return rows


def samples_to_write(folder: Path) -> list[dict[str, Any]]:
    """The expected values; for JPEGs, which lose pixels when encoded again, the stored files."""
    stored = stored_files(folder)
    rows = []
    for i, stated in enumerate(expected(folder)["samples"]):
        row = {name: value_of(value) for name, value in stated.items()}
        rows.append({**row, **{name: stored[i][name] for name in ("jpeg", "jpeg_array") if name in row}})
    return rows


def raw_shards(folder: Path) -> list[bytes]:
    index = parse_index((folder / "index.json").read_bytes(), "index.json")
    shards = []
    for shard in index.shards:
        data = (folder / shard.stored.basename).read_bytes()
        if shard.layout.compression:
            data = bytes(decompress(data, shard.layout.compression, shard.raw_data.bytes, shard.stored.basename))
        shards.append(data)
    return shards


def comparable(index: dict[str, Any]) -> dict[str, Any]:
    """An index without what may differ: the compressed files' bytes."""
    for shard in index["shards"]:
        if shard["zip_data"]:
            shard["zip_data"] = {
                "basename": shard["zip_data"]["basename"],
                "hashes": sorted(shard["zip_data"]["hashes"]),
            }
    return index


def assert_same_data_set(out: Path, folder: Path) -> None:
    assert raw_shards(out) == raw_shards(folder)
    found, right = (json.loads((path / "index.json").read_text()) for path in (out, folder))
    assert comparable(found) == comparable(right)


def options_of(folder: Path) -> dict[str, Any]:
    shard = json.loads((folder / "index.json").read_text())["shards"][0]
    return {key: shard[key] for key in ("compression", "hashes", "size_limit")}


REWRITABLE = [folder for folder in DATA_SETS if folder.name not in ("task_folders", "images")]


@pytest.mark.parametrize("folder", REWRITABLE, ids=name_of)
def test_writing_golden_values_again_gives_the_golden_bytes(folder: Path, tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path), columns=expected(folder)["columns"], **options_of(folder)) as writer:
        for sample in samples_to_write(folder):
            writer.write(sample)
    assert_same_data_set(tmp_path, folder)


def test_writing_golden_images_again_gives_the_golden_pixels(tmp_path: Path) -> None:
    folder = GOLDEN / "images"
    with MDSWriter(out=str(tmp_path), columns=expected(folder)["columns"], **options_of(folder)) as writer:
        for sample in samples_to_write(folder):
            writer.write(sample)
    for found, right in zip(stored_files(tmp_path), stored_files(folder), strict=True):
        assert {n: v for n, v in found.items() if "png" not in n} == {n: v for n, v in right.items() if "png" not in n}
    for found, right in zip(MDSReader(str(tmp_path)), expected(folder)["samples"], strict=True):
        for name in right:
            assert_same(found[name], value_of(right[name]))


def test_writing_golden_task_folders_again_and_merging_gives_the_golden_bytes(tmp_path: Path) -> None:
    folder = GOLDEN / "task_folders"
    index = json.loads((folder / "index.json").read_text())
    samples = iter(samples_to_write(folder))
    for task in ("17", "18", "19"):
        count = sum(s["samples"] for s in index["shards"] if s["raw_data"]["basename"].startswith(task))
        with MDSWriter(out=str(tmp_path / task), columns=expected(folder)["columns"], **options_of(folder)) as writer:
            for _ in range(count):
                writer.write(next(samples))
    merge_index(str(tmp_path))
    assert_same_data_set(tmp_path, folder)


def arrow_column(values: list[Any], encoding: str) -> pa.Array:
    if encoding in ("str_int", "str_float", "str_decimal", "json"):
        return pa.array([json.dumps(v).encode() if encoding == "json" else str(v).encode() for v in values])
    if encoding.startswith("ndarray"):
        return pa.array([v.tolist() for v in values], _list_type(values[0]))
    if encoding == "int":
        return pa.array(values, pa.int64())
    if isinstance(values[0], np.generic):
        return pa.array(np.array(values))
    return pa.array(values)


def _list_type(value: np.ndarray) -> pa.DataType:
    kind = pa.from_numpy_dtype(value.dtype)
    for _ in value.shape:
        kind = pa.list_(kind)
    return kind


COLUMNAR = [folder for folder in REWRITABLE if folder.name != "ndarrays"]


@pytest.mark.parametrize("folder", COLUMNAR, ids=name_of)
@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_writing_golden_values_as_record_batches_gives_the_golden_bytes(
    folder: Path, rows: int, tmp_path: Path
) -> None:
    columns = expected(folder)["columns"]
    samples = samples_to_write(folder)
    with MDSWriter(out=str(tmp_path), columns=columns, **options_of(folder)) as writer:
        for first in range(0, len(samples), rows):
            part = samples[first : first + rows]
            arrays = [arrow_column([s[name] for s in part], encoding) for name, encoding in columns.items()]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, list(columns)))
    assert_same_data_set(tmp_path, folder)

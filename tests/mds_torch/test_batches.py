"""Whole batches: of each encoding, across shards, and on their way from a worker."""

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, default_collate, get_worker_info

from mds_core import FormatError
from mds_torch import StreamingDataLoader, StreamingDataset
from tests.mds_torch.comparing import assert_same

Make = Callable[..., Path]
GOLDEN = Path(__file__).parents[1] / "data" / "golden"
WORKERS = pytest.mark.parametrize("workers", [0, 2])
ROWS = 71  # with two workers and batches of two: several batches a message, and a last batch of one


def assert_as_torch(dataset: StreamingDataset, batch_size: int, workers: int, drop_last: bool = False) -> None:
    """Compare a loader's epoch with what torch's default collation makes of its samples."""
    ids = dataset.epoch_order(dataset.epoch)[:].tolist()
    cuts = [ids[first : first + batch_size] for first in range(0, len(ids), batch_size)]
    right = [default_collate([dataset[i] for i in cut]) for cut in cuts if not drop_last or len(cut) == batch_size]
    loader = StreamingDataLoader(dataset, batch_size=batch_size, num_workers=workers, drop_last=drop_last)
    found = list(loader)
    assert len(found) == len(right) == len(loader)
    for a, b in zip(found, right, strict=True):
        assert_same(a, b)


def numbers(dtype: str, i: int) -> Any:
    info: Any = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
    return [info.min, info.max, 0, 1][i % 4] if i < 8 else np.dtype(dtype).type(i)


VALUES: dict[str, Callable[[int], Any]] = {
    **{
        dtype: lambda i, dtype=dtype: numbers(dtype, i)
        for dtype in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
        + ("float16", "float32", "float64")
    },
    "int": lambda i: i - 2**62,
    "str": lambda i: "äx" * (i % 5),
    "bytes": lambda i: bytes([i]) * (i % 3),
    "str_int": lambda i: i * 10**9,
    "str_float": lambda i: i / 7,
    "ndarray:int16:3": lambda i: np.arange(i, i + 3, dtype=np.int16),
    "ndarray:float32:2,2": lambda i: np.full((2, 2), i, np.float32),
    "ndarray:float32:0": lambda i: np.empty(0, np.float32),
    "ndarray:uint16:2,0": lambda i: np.empty((2, 0), np.uint16),
    "ndarray:float64": lambda i: np.array([i, np.nan]),
    "ndarray:uint8": lambda i: np.empty((3, 0), np.uint8),
    "ndarray": lambda i: np.full((2, 300), i, np.int32),
}
JSON: dict[str, Callable[[int], Any]] = {
    "numbers": lambda i: i,
    "booleans": lambda i: i % 2 == 0,
    "texts": lambda i: "t" * i,
    "lists": lambda i: [i, i / 2],
    "structs": lambda i: {"a": i, "b": ["x", {"c": [i]}]},
    "empty lists": lambda i: [],
}


@WORKERS
@pytest.mark.parametrize("kind", [*VALUES, *(f"json {kind}" for kind in JSON)])
def test_each_encoding_is_collated_as_torch_does(kind: str, workers: int, make: Make) -> None:
    name, _, values = kind.partition(" ")
    value = JSON[values] if values else VALUES[kind]
    rows = [{"x": value(i), "s": "s" * (i % 4)} for i in range(ROWS)]
    # Alone: samples of one size, if the encoding has one. With text: samples of different sizes.
    # One shard; a shard a sample, and an empty one.
    for columns, limit in (({"x": name}, 1 << 26), ({"x": name}, 1), ({"x": name, "s": "str"}, 1)):
        some = [{column: row[column] for column in columns} for row in rows]
        folder = make(columns, some, name=f"{len(columns)}-{limit}", size_limit=limit)
        assert_as_torch(StreamingDataset(local=str(folder), shuffle=limit == 1), 2, workers)


@WORKERS
def test_uint64_is_exact_where_torchs_collation_fails(workers: int, make: Make) -> None:
    values = [0, 1, 2**63, 2**64 - 1]
    dataset = StreamingDataset(local=str(make({"x": "uint64"}, ({"x": value} for value in values))))
    (batch,) = StreamingDataLoader(dataset, batch_size=4, num_workers=workers)
    assert batch["x"].dtype == torch.uint64
    assert batch["x"].numpy().tolist() == values


@WORKERS
@pytest.mark.parametrize("compression", ["zstd", "gz", None])
@pytest.mark.parametrize(("batch_size", "drop_last"), [(7, True), (100, False), (100, True), (71, False)])
def test_batches_cross_shards_of_any_compression(
    compression: str | None, batch_size: int, drop_last: bool, workers: int, make: Make
) -> None:
    rows = ({"n": i, "s": "s" * i, "a": np.arange(4)} for i in range(ROWS))
    folder = make({"n": "int64", "s": "str", "a": "ndarray:int64"}, rows, size_limit=900, compression=compression)
    dataset = StreamingDataset(local=str(folder), shuffle=True)
    assert len(dataset.reader.shards) > 5
    assert_as_torch(dataset, batch_size, workers, drop_last)


@WORKERS
def test_columns_keep_their_order(workers: int, make: Make) -> None:
    rows = ({"z": i, "b": "t", "a": [i], "c": i} for i in range(6))
    dataset = StreamingDataset(local=str(make({"z": "int8", "b": "str", "a": "json", "c": "int32"}, rows)))
    batch = next(iter(StreamingDataLoader(dataset, batch_size=3, num_workers=workers)))
    assert list(batch) == list(dataset[0])


# Arrays of several shapes and dtypes


@WORKERS
@pytest.mark.parametrize("encoding", ["ndarray", "ndarray:int64"])
@pytest.mark.parametrize("limit", [1, 1 << 26])
def test_shapes_may_differ_between_batches_but_not_within_one(
    encoding: str, limit: int, workers: int, make: Make
) -> None:
    lengths = [i // 2 for i in range(ROWS + 1)]
    folder = make({"x": encoding}, ({"x": np.arange(n)} for n in lengths), size_limit=limit)
    dataset = StreamingDataset(local=str(folder))
    assert_as_torch(dataset, 2, workers)


# After an error in a worker, torch takes seconds to end each worker: few such tests, of one worker each.
WORKER = pytest.mark.parametrize("workers", [0, 1])


@WORKER
def test_shapes_that_differ_within_a_batch_are_torchs_error(workers: int, make: Make) -> None:
    dataset = StreamingDataset(local=str(make({"x": "ndarray"}, ({"x": np.arange(i)} for i in range(8)))))
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        list(StreamingDataLoader(dataset, batch_size=3, num_workers=workers))


@pytest.mark.parametrize("limit", [1, 1 << 26], ids=["shards", "one shard"])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_dtypes_of_arrays_mix_as_in_torch(batch_size: int, limit: int, make: Make) -> None:
    # Batches of one hold one dtype each; batches of two hold both, which numpy promotes to float64, torch to float32.
    rows = ({"x": np.arange(3, dtype=np.int32 if i % 2 else np.float32)} for i in range(64))
    dataset = StreamingDataset(local=str(make({"x": "ndarray"}, rows, size_limit=limit)))
    assert_as_torch(dataset, batch_size, 0)


@pytest.mark.parametrize(("kind", "workers"), [("png", 0), ("str_decimal", 0), ("json", 0), ("json", 1)])
def test_what_torch_can_not_collate_is_its_type_error(kind: str, workers: int, make: Make) -> None:
    value = {"png": Image.new("L", (2, 2)), "str_decimal": Decimal("1.5"), "json": None}[kind]
    dataset = StreamingDataset(local=str(make({"x": kind}, [{"x": value}] * 4)))
    with pytest.raises(TypeError, match="default_collate: batch must contain tensors"):
        list(StreamingDataLoader(dataset, batch_size=2, num_workers=workers))


# On the way from a worker


@pytest.mark.parametrize("kind", ["str", "bytes", "ndarray:uint8"])
def test_batches_of_every_size_arrive(kind: str, make: Make) -> None:
    # Most samples are small: a batch with a large one has far more bytes than a usual one.
    lengths = [1, 0, 2_000_000, 5, 70_000, *range(40), 2_000_001, 3]
    make_value = {"str": lambda n: chr(97 + n % 26) * n, "bytes": lambda n: bytes([n % 256]) * n}
    value = make_value.get(kind, lambda n: np.full(n, n % 256, np.uint8))
    folder = str(make({"x": kind}, ({"x": value(n)} for n in lengths)))
    for batch_size in (1, 2, 46):
        assert_as_torch(StreamingDataset(local=folder), 1 if kind == "ndarray:uint8" else batch_size, 2)


@WORKERS
def test_empty_values_arrive(workers: int, make: Make) -> None:
    folder = make({"s": "str", "b": "bytes"}, [{"s": "", "b": b""}] * ROWS)
    assert_as_torch(StreamingDataset(local=str(folder)), 2, workers)


@WORKERS
@pytest.mark.parametrize("size", [8, 200_000])
def test_tensors_are_writable_and_of_their_own(size: int, workers: int, make: Make) -> None:
    rows = ({"a": np.full(size, i, np.uint8), "n": i} for i in range(12))
    dataset = StreamingDataset(local=str(make({"a": f"ndarray:uint8:{size}", "n": "int64"}, rows)))
    batches = list(StreamingDataLoader(dataset, batch_size=2, num_workers=workers))
    for batch in batches[:3]:
        batch["a"].fill_(255)
        assert batch["n"].tolist() != [255, 255]
        batch["n"].zero_()
        assert (batch["a"] == 255).all()
    for number, batch in enumerate(batches[3:], 3):
        assert batch["n"].tolist() == [2 * number, 2 * number + 1]
        assert batch["a"][:, -1].tolist() == batch["n"].tolist()
    assert dataset[0]["n"] == 0


@WORKERS
def test_a_batch_that_is_kept_outlives_its_loader(workers: int, make: Make) -> None:
    rows = ({"a": np.full(100_000, i, np.uint8)} for i in range(8))
    dataset = StreamingDataset(local=str(make({"a": "ndarray:uint8:100000"}, rows)))
    kept = [batch["a"] for batch in StreamingDataLoader(dataset, batch_size=2, num_workers=workers)]
    assert [batch[:, 7].tolist() for batch in kept] == [[0, 1], [2, 3], [4, 5], [6, 7]]


# Golden data sets


@WORKERS
@pytest.mark.parametrize(
    "name", ["compression/zstd", "compression/snappy", "compression/gz-1", "many_shards", "ndarrays", "variable"]
)
def test_golden_data_sets_are_collated_as_torch_does(name: str, workers: int) -> None:
    stated = json.loads((GOLDEN / name / "expected.json").read_text())
    dataset = StreamingDataset(local=str(GOLDEN / name), allow_unsafe_types=True)
    assert len(dataset) == len(stated["samples"])
    try:
        default_collate([dataset[0], dataset[len(dataset) - 1]])
        batch_size = 3
    except (TypeError, RuntimeError):
        batch_size = 1
    try:
        default_collate([dataset[0]])
    except TypeError:
        with pytest.raises(TypeError, match="default_collate"):
            list(StreamingDataLoader(dataset, batch_size=1, num_workers=workers))
        return
    assert_as_torch(dataset, batch_size, workers)


# Data sets that are broken


@pytest.mark.parametrize(("kind", "workers"), [("str", 0), ("str_int", 0), ("json", 0), ("str", 1)])
def test_a_broken_value_raises_with_its_shards_name(kind: str, workers: int, make: Make) -> None:
    value: Any = {"str": "abcd", "str_int": 1234, "json": [1, 2]}[kind]
    folder = make({"x": kind, "n": "int64"}, ({"x": value, "n": i} for i in range(40)), size_limit=600)
    shard = folder / "shard.00001.mds"
    data = bytearray(shard.read_bytes())
    at = data.rindex({"str": b"abcd", "str_int": b"1234", "json": b"[1, 2]"}[kind])
    data[at] = 0xFF
    shard.write_bytes(data)
    loader = StreamingDataLoader(StreamingDataset(local=str(folder)), batch_size=4, num_workers=workers)
    with pytest.raises(FormatError, match=r"shard\.00001\.mds: sample \d+, column 'x'"):
        list(loader)


@WORKER
def test_a_shard_that_fails_its_hash_raises_in_the_loop(workers: int, thirty: str) -> None:
    path = sorted(Path(thirty).glob("*.mds"))[-1]
    path.write_bytes(path.read_bytes()[:-1] + b"y")
    dataset = StreamingDataset(local=thirty, validate_hash="xxh64")
    with pytest.raises(FormatError, match=rf"{path.name}: xxh64: expected"):
        list(StreamingDataLoader(dataset, batch_size=4, num_workers=workers))


BROKEN = """
import sys
from mds_torch import StreamingDataLoader, StreamingDataset
from tests.mds_torch.comparing import assert_same
loader = StreamingDataLoader(StreamingDataset(local=sys.argv[1]), batch_size=4, num_workers=int(sys.argv[2]),
                             persistent_workers=sys.argv[2] != "0")
for batch in loader:
    pass
"""


@WORKERS
@pytest.mark.parametrize("what", ["missing", "cut"])
def test_a_program_that_meets_a_broken_shard_ends(
    what: str, workers: int, thirty: str, run_script: Callable[..., Any]
) -> None:
    shard = sorted(Path(thirty).glob("*.mds"))[2]
    if what == "missing":
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[:100])
    ended = run_script(BROKEN, thirty, workers)  # returns when the workers have ended, too
    assert ended.returncode == 1
    assert shard.name in ended.stderr


# What torch's DataLoader promises to a worker


def see_dataset(_: int) -> None:
    info = get_worker_info()
    assert info is not None
    assert isinstance(info.dataset, StreamingDataset), type(info.dataset)


@pytest.mark.parametrize("loader", [DataLoader, StreamingDataLoader])
def test_worker_init_fn_finds_the_dataset(loader: Any, thirty: str) -> None:
    # As torch's own examples do, to set up each worker's copy.
    dataset = StreamingDataset(local=thirty)
    assert len(list(loader(dataset, batch_size=10, num_workers=1, worker_init_fn=see_dataset))) == 3

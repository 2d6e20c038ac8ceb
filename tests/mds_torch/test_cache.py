"""The cache: each shard fetched once, never too many, never wrong, whoever shares the folder."""

import multiprocessing
import os
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mds_torch
from mds_core import FormatError, MDSReader, MDSWriter
from mds_core.errors import RewrittenError
from mds_core.index import Index, read_index
from mds_core.writer import ShardWriter
from mds_torch import Stream, StreamingDataLoader, StreamingDataset
from mds_torch.books import Books
from tests.mds_torch.remote import Remote, bytes_below, files_below, remote_data

SAMPLES = 400


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    with remote_data() as remote:
        remote.write(SAMPLES)
        yield remote


def read(dataset: StreamingDataset, workers: int = 0, batch_size: int = 8) -> list[int]:
    loader = StreamingDataLoader(dataset, batch_size=batch_size, num_workers=workers)
    return [n for batch in loader for n in batch["n"].tolist()]


# Each process is a rank that reads two epochs, and prints what it had.
RANK = """
import json, os, sys
from mds_torch import StreamingDataLoader, StreamingDataset

if __name__ == "__main__":
    path, local, rank, ranks, workers, options = sys.argv[1:]
    dataset = StreamingDataset(
        remote=path, local=local, rank=int(rank), world_size=int(ranks), local_world_size=int(ranks), shuffle=True,
        batch_size=4, shuffle_block_size=50, num_canonical_nodes=1, pad=False, **json.loads(options),
    )
    loader = StreamingDataLoader(dataset, batch_size=4, num_workers=int(workers))
    for epoch in range(2):
        print(json.dumps([n for batch in loader for n in batch["n"].tolist()]))
"""


def ranks_read(
    remote: Remote, local: Path, ranks: int, workers: int, options: str = "{}", timeout: float = 120
) -> list[list[int]]:
    """Run ranks in processes of their own; give what they had of each epoch together."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, remote.path, str(local), str(rank), str(ranks), str(workers), options],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **remote.environment},
        )
        for rank in range(ranks)
    ]
    try:
        outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * ranks
    epochs = zip(*[[eval(line) for line in output.splitlines()] for output in outputs], strict=True)
    return [[n for part in parts for n in part] for parts in epochs]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_all_processes_of_a_machine_fetch_each_shard_once(
    ranks: int, workers: int, remote: Remote, tmp_path: Path
) -> None:
    for epoch in ranks_read(remote, tmp_path / "local", ranks, workers):
        assert sorted(epoch) == list(range(SAMPLES))
    fetched = remote.proxy.fetched()
    assert len(fetched) == len(MDSReader(remote.path).shards)
    assert set(fetched.values()) == {1}


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("keep_zip", [False, True])
def test_what_is_fetched_stays_for_the_next_run(
    keep_zip: bool, compression: str | None, remote: Remote, tmp_path: Path
) -> None:
    remote.write(SAMPLES, compression=compression, hashes=["xxh64", "sha1"])
    for _ in range(2):
        dataset = StreamingDataset(
            remote=remote.path, local=str(tmp_path / "local"), keep_zip=keep_zip, validate_hash="sha1"
        )
        assert read(dataset) == list(range(SAMPLES))
        assert set(remote.proxy.fetched(".zstd" if compression else ".mds").values()) == {1}
    kept = files_below(tmp_path / "local", lambda name: name.endswith(".zstd"))
    assert len(kept) == (len(dataset.reader.shards) if keep_zip and compression else 0)
    assert not files_below(tmp_path / "local", lambda name: name.endswith(".tmp"))


class Sampled:
    """The most bytes that a folder had, looked at all the time."""

    def __init__(self, folder: Path):
        self.folder, self.most, self.ended = folder, 0, threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        while not self.ended.wait(0.001):
            self.most = max(self.most, bytes_below(self.folder))

    def __enter__(self) -> "Sampled":
        self.thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.ended.set()
        self.thread.join()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how", ["in order", "shuffled"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_cache_stays_below_its_limit_and_fetches_hardly_more(
    compression: str | None, how: str, workers: int, remote: Remote, tmp_path: Path
) -> None:
    remote.write(3000, compression=compression)
    size = sum(shard.raw_data.bytes for shard in MDSReader(remote.path).shards)
    dataset = StreamingDataset(
        remote=remote.path,
        local=str(tmp_path / "local"),
        cache_limit=size // 4,
        shuffle=how == "shuffled",
        shuffle_block_size=100,
        num_canonical_nodes=1,
    )
    with Sampled(tmp_path / "local") as sampled:
        assert sorted(read(dataset, workers)) == list(range(3000))
    assert 0 < sampled.most <= size // 4
    fetched = remote.proxy.fetched(".zstd" if compression else ".mds")
    assert len(fetched) == len(dataset.reader.shards)
    assert sum(fetched.values()) <= 1.2 * len(fetched)


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (1, 2), (3, 0), (2, 2)])
def test_processes_that_share_a_cache_of_two_shards_all_end(
    ranks: int, workers: int, remote: Remote, tmp_path: Path
) -> None:
    for epoch in ranks_read(remote, tmp_path / "local", ranks, workers, '{"cache_limit": "8kb"}', timeout=200):
        assert sorted(epoch) == list(range(SAMPLES))
    assert bytes_below(tmp_path / "local") <= 8 << 10


def test_a_limit_that_no_shard_fits_in_is_refused(remote: Remote, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cache_limit: expected at least \d+ bytes, as .*shard.* needs, found 1000"):
        StreamingDataset(remote=remote.path, local=str(tmp_path / "local"), cache_limit=1000)
    with pytest.raises(ValueError, match="cache_limit: expected a size"):
        StreamingDataset(remote=remote.path, local=str(tmp_path / "local"), cache_limit="much")


def test_streams_share_a_limit(remote: Remote, tmp_path: Path) -> None:
    other = Remote(remote.proxy, remote.path + "-other", remote.environment)
    other.write(SAMPLES)
    streams = [
        Stream(remote=one.path, local=str(tmp_path / "local" / str(number)))
        for number, one in enumerate((remote, other))
    ]
    dataset = StreamingDataset(streams=streams, cache_limit="20kb")
    with Sampled(tmp_path / "local") as sampled:
        assert read(dataset) == list(range(SAMPLES)) * 2
    assert sampled.most <= (20 << 10) + 1000  # and the names of their data sets


def test_a_local_data_set_is_never_evicted(remote: Remote, tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path / "mine"), columns={"n": "int64"}, size_limit=300) as writer:
        for n in range(SAMPLES):
            writer.write({"n": n})
    before = sorted(files_below(tmp_path / "mine"))
    assert read(StreamingDataset(local=str(tmp_path / "mine"), cache_limit="1kb")) == list(range(SAMPLES))
    assert read(StreamingDataset(remote=str(tmp_path / "mine"), cache_limit="1kb")) == list(range(SAMPLES))
    assert sorted(files_below(tmp_path / "mine")) == before


def test_a_folder_is_copied_where_local_is_another_one(remote: Remote, tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path / "share"), columns={"n": "int64"}, size_limit=300) as writer:
        for n in range(SAMPLES):
            writer.write({"n": n})
    dataset = StreamingDataset(remote=str(tmp_path / "share"), local=str(tmp_path / "local"))
    assert read(dataset) == list(range(SAMPLES))
    shutil.rmtree(tmp_path / "share")
    assert read(dataset) == list(range(SAMPLES))


def test_shards_that_lie_in_local_are_read_and_never_deleted(remote: Remote, tmp_path: Path) -> None:
    """A folder that mosaicml-streaming has filled is such a one."""
    local = tmp_path / "local"
    local.mkdir()
    reader = MDSReader(remote.path)
    names = ["index.json", *[shard.raw_data.basename for shard in reader.shards[:5]]]
    for name in names:
        (local / name).write_bytes(reader.storage.read(name) or b"")
    (local / names[2]).write_bytes(b"broken")
    remote.proxy.clear()
    dataset = StreamingDataset(remote=remote.path, local=str(local), cache_limit="10kb")
    assert read(dataset) == list(range(SAMPLES))
    assert set(names) - {names[2]} == {name for name in names if name not in remote.proxy.fetched()} - {
        "index.json"
    } | {"index.json"}
    assert set(names) <= set(os.listdir(local))
    assert (local / names[2]).read_bytes() == b"broken"


def test_a_cache_of_another_data_set_is_refused_by_name(remote: Remote, tmp_path: Path) -> None:
    other = Remote(remote.proxy, remote.path + "-other", remote.environment)
    other.write(5)
    StreamingDataset(remote=remote.path, local=str(tmp_path / "local"))
    with pytest.raises(ValueError, match=f"holds the cache of {remote.path}, not of {other.path}"):
        StreamingDataset(remote=other.path, local=str(tmp_path / "local"))
    with MDSWriter(out=str(tmp_path / "mine"), columns={"n": "int64"}) as writer:
        writer.write({"n": 1})
    with pytest.raises(ValueError, match=f"holds another data set than {remote.path}"):
        StreamingDataset(remote=remote.path, local=str(tmp_path / "mine"))
    assert MDSReader(str(tmp_path / "mine"))[0]["n"] == 1


def damage(path: str, how: str) -> None:
    data = bytearray(Path(path).read_bytes())
    if how == "flipped":
        data[-1] ^= 1
    elif how == "header":
        data[4:8] = b"\xff\xff\xff\xff"
    else:
        data = data[: len(data) // 2] if how == "cut" else bytearray()
    Path(path).write_bytes(data)


@pytest.mark.parametrize("how", ["cut", "empty", "header", "flipped"])
@pytest.mark.parametrize("limit", [None, "100kb"])
def test_a_cached_shard_that_is_broken_is_fetched_again(
    how: str, limit: str | None, remote: Remote, tmp_path: Path
) -> None:
    remote.write(SAMPLES, hashes=["xxh64"])
    options: dict[str, Any] = {"validate_hash": "xxh64"} if how == "flipped" else {}

    def dataset() -> StreamingDataset:
        return StreamingDataset(remote=remote.path, local=str(tmp_path / "local"), cache_limit=limit, **options)

    assert read(dataset()) == list(range(SAMPLES))
    shards = files_below(tmp_path / "local", lambda name: name.endswith(".mds"))
    for path in shards[:3]:
        damage(path, how)
    remote.proxy.clear()
    for _ in range(2):
        assert read(dataset()) == list(range(SAMPLES))
        assert list(remote.proxy.fetched().values()) == [1, 1, 1]


def test_a_data_set_that_is_written_again_is_noticed_within_an_epoch(remote: Remote, tmp_path: Path) -> None:
    dataset = StreamingDataset(remote=remote.path, local=str(tmp_path / "local"), predownload=1)
    iterator = iter(dataset)
    had = [next(iterator)["n"] for _ in range(20)]
    time.sleep(1.1)  # the store keeps seconds
    remote.write(SAMPLES)  # of the same bytes, under other names
    with pytest.raises((RewrittenError, FileNotFoundError), match=r"another file|is missing"):
        had += [sample["n"] for sample in iterator]
    assert had == list(range(len(had)))
    assert read(StreamingDataset(remote=remote.path, local=str(tmp_path / "local"))) == list(range(SAMPLES))


def test_a_data_set_that_is_written_again_under_the_same_names_is_noticed(remote: Remote, tmp_path: Path) -> None:
    """As mosaicml-streaming writes: index and shards have the same names and sizes, and other contents."""

    def write(first: int) -> None:
        folder = tmp_path / f"from {first}"
        with MDSWriter(out=str(folder), columns={"n": "int64"}, size_limit=300) as writer:
            for n in range(first, first + SAMPLES):
                writer.write({"n": n})
        storage = MDSReader(remote.path).storage
        for path in sorted(files_below(folder), key=lambda path: path.endswith("index.json")):
            name = os.path.relpath(path, folder)
            assert storage.replace(name, Path(path).read_bytes(), storage.read(name))

    def dataset() -> StreamingDataset:
        return StreamingDataset(remote=remote.path, local=str(tmp_path / "local"), predownload=1)

    write(0)
    iterator = iter(dataset())
    had = [next(iterator)["n"] for _ in range(20)]
    time.sleep(1.1)
    write(1000)
    with pytest.raises(RewrittenError, match="another file"):
        had += [sample["n"] for sample in iterator]
    assert had == list(range(len(had)))
    assert read(dataset()) == list(range(1000, 1000 + SAMPLES))
    names = os.listdir(tmp_path / "local" / ".mds-cache")
    assert len(names) == 3, names  # whose it is, and the two, of which the first is in use by this process


def append(remote: Remote, samples: int, write: str) -> None:
    """Add a shard to a data set as Spark does: under a name that holds the id of the write."""
    storage = MDSReader(remote.path).storage
    index = read_index(storage)
    shards = ShardWriter(storage, index.shards[0].layout, f"shard.{write}.{{:05d}}.mds".format)
    for n in range(samples):
        data = struct.pack("<Iq", 100, n) + bytes(100)
        shards.append(data, np.array([len(data)]))
    added = Index(index.shards + tuple(shards.finish()), index.own)
    assert storage.replace("index.json", added.to_bytes(), storage.read("index.json"))


def test_an_append_does_not_disturb_an_epoch_and_fetches_only_what_is_new(remote: Remote, tmp_path: Path) -> None:
    time.sleep(1.1)  # the store keeps seconds: what was written before the index is its own
    append(remote, 200, "0123456789abcdef")
    size = SAMPLES + 200

    def dataset() -> StreamingDataset:
        return StreamingDataset(remote=remote.path, local=str(tmp_path / "local"), predownload=1, shuffle=True)

    iterator = iter(dataset())
    had = [int(next(iterator)["n"]) for _ in range(20)]
    time.sleep(1.1)
    append(remote, 100, "fedcba9876543210")
    had += [int(sample["n"]) for sample in iterator]
    assert len(had) == size
    remote.proxy.clear()
    assert len(list(dataset())) == size + 100
    assert [name for name in remote.proxy.fetched() if "0123456789abcdef" in name] == []


@pytest.mark.timeout(200)
def test_many_start_at_once(remote: Remote, tmp_path: Path) -> None:
    """50 processes of 4 datasets each, which all begin at the same moment."""
    fork = multiprocessing.get_context("fork")
    start, failed = fork.Barrier(50), fork.SimpleQueue()
    children = [
        fork.Process(target=construct, args=(remote.path, str(tmp_path / "local"), start, failed)) for _ in range(50)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(150)
    assert failed.empty(), failed.get()
    assert [child.exitcode for child in children] == [0] * 50


def construct(path: str, local: str, start: Any, failed: Any) -> None:
    start.wait()
    try:
        for _ in range(4):
            assert StreamingDataset(remote=path, local=local)[0]["n"] == 0
    except BaseException as error:
        failed.put(repr(error))
        raise


def test_without_local_a_data_set_has_a_folder_of_its_own(remote: Remote, tmp_path: Path) -> None:
    first, second = StreamingDataset(remote=remote.path), StreamingDataset(remote=remote.path + "/")
    folder = first.streams[0].cache_folder
    assert folder is not None
    assert folder == second.streams[0].cache_folder
    assert folder.startswith(str(tmp_path / "user" / "mds-spark"))
    assert read(first) == list(range(SAMPLES))
    assert bytes_below(tmp_path / "user") > 100 * SAMPLES
    mds_torch.clean_cache()  # while it is in use
    assert read(first) == read(second) == list(range(SAMPLES))
    assert set(remote.proxy.fetched().values()) == {1}


def test_a_cache_is_emptied(remote: Remote, tmp_path: Path) -> None:
    ranks = f"from mds_torch import StreamingDataset; list(StreamingDataset(remote={remote.path!r}))"
    subprocess.run([sys.executable, "-c", ranks], check=True, env={**os.environ, **remote.environment})
    assert bytes_below(tmp_path / "user") > 100 * SAMPLES
    mds_torch.clean_cache()
    assert files_below(tmp_path / "user") == []
    mds_torch.clean_cache()


def test_a_folder_that_is_emptied_while_it_is_read_is_filled_again(remote: Remote, tmp_path: Path) -> None:
    dataset = StreamingDataset(remote=remote.path, local=str(tmp_path / "local"))
    iterator = iter(dataset)
    had = [next(iterator)["n"] for _ in range(20)]
    while (tmp_path / "local").exists():  # it is being filled just now
        shutil.rmtree(tmp_path / "local", ignore_errors=True)
    had += [sample["n"] for sample in iterator]
    assert had == list(range(SAMPLES))
    assert read(StreamingDataset(remote=remote.path, local=str(tmp_path / "local"))) == list(range(SAMPLES))


def open_as_another_user(path: str, local: str, said: Any) -> None:
    if not os.getuid():
        os.setuid(65534)
    try:
        StreamingDataset(remote=path, local=local)
    except PermissionError as error:
        said.put(str(error))


def test_a_folder_of_another_user_is_named(remote: Remote, tmp_path: Path) -> None:
    local = tmp_path / "local"
    StreamingDataset(remote=remote.path, local=str(local))
    (local / ".mds-cache").chmod(0o500)
    fork = multiprocessing.get_context("fork")
    said = fork.SimpleQueue()
    other = fork.Process(target=open_as_another_user, args=(remote.path, str(local), said))
    other.start()
    other.join(60)
    (local / ".mds-cache").chmod(0o700)
    assert "another user's" in said.get()


def test_single_samples_are_read_without_their_shards(remote: Remote, tmp_path: Path) -> None:
    dataset = StreamingDataset(remote=remote.path, local=str(tmp_path / "local"))
    reader = MDSReader(remote.path)
    for source in (reader, dataset):
        remote.proxy.clear()
        assert [int(source[n]["n"]) for n in (0, 1, 2, 0)] == [0, 1, 2, 0]
        # The offsets once, then a request a sample; and a look whether the data set is still the same, unless the shard
        # is older than the index, of which the store keeps seconds.
        assert remote.proxy.fetched() == {reader.shards[0].raw_data.basename: 5}
        assert sum(remote.proxy.asked.values()) in (5, 6)
    assert files_below(tmp_path / "local", lambda name: name.endswith(".mds")) == []
    assert [int(dataset[n]["n"]) for n in range(20)] == list(range(20))
    assert len(files_below(tmp_path / "local", lambda name: name.endswith(".mds"))) == 1


def test_a_sample_that_is_read_by_itself_is_checked(remote: Remote) -> None:
    reader = MDSReader(remote.path)
    assert reader[0]["n"] == 0
    name = reader.shards[0].raw_data.basename
    data = reader.storage.read(name)
    assert data is not None
    time.sleep(1.1)
    assert reader.storage.replace(name, data, data)
    with pytest.raises(RewrittenError, match="was written again"):
        reader[1]
    last = reader.shards[0].samples - 1
    for broken in (data[:-1], data[:8] + b"\xff\xff" + data[10:], data[:50], b""):
        assert reader.storage.replace(name, broken, reader.storage.read(name))
        with pytest.raises((FormatError, OSError), match=name):
            MDSReader(remote.path)[last]


def test_a_data_set_may_be_two_streams(remote: Remote, tmp_path: Path) -> None:
    streams = [Stream(remote=remote.path, local=str(tmp_path / "local")) for _ in range(2)]
    dataset = StreamingDataset(streams=streams, cache_limit="20kb")
    assert read(dataset) == list(range(SAMPLES)) * 2
    assert bytes_below(tmp_path / "local") <= 20 << 10


def test_a_limit_is_checked_for_all_streams_together(remote: Remote, tmp_path: Path) -> None:
    other = Remote(remote.proxy, remote.path + "-other", remote.environment)
    other.write(SAMPLES)
    streams = [Stream(remote=one.path, local=str(tmp_path / str(n))) for n, one in enumerate((remote, other))]
    with pytest.raises(ValueError, match="cache_limit: expected at least") as found:
        StreamingDataset(streams=streams, cache_limit=3900)
    least = int(str(found.value).split("at least ")[1].split()[0])
    assert read(StreamingDataset(streams=streams, cache_limit=least)) == list(range(SAMPLES)) * 2


def test_a_lock_stays_when_the_books_are_opened_again(tmp_path: Path) -> None:
    books, others = Books(str(tmp_path / "books"), 3), Books(str(tmp_path / "books"), 3)
    with books.own(0, 1, "a shard"):
        assert books.try_own(0) is None
        books._open()
        assert others.try_own(0) is None
    owned = others.try_own(0)
    assert owned is not None
    owned.close()


def test_a_folder_that_others_may_write_to_is_refused(remote: Remote, tmp_path: Path) -> None:
    local = tmp_path / "local"
    (local / ".mds-cache").mkdir(parents=True)
    (local / ".mds-cache").chmod(0o777)
    with pytest.raises(PermissionError, match="only this user"):
        StreamingDataset(remote=remote.path, local=str(local))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / ".mds-cache").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="only this user"):
        StreamingDataset(remote=remote.path, local=str(tmp_path / "link"))
    assert os.listdir(tmp_path / "elsewhere") == []


def test_what_lies_in_local_is_read_only_while_it_is_the_data_sets(remote: Remote, tmp_path: Path) -> None:
    """Shards that were put there before the data set was written again, and broken ones, are fetched."""
    local = tmp_path / "local"
    local.mkdir()
    reader = MDSReader(remote.path)
    names = [shard.raw_data.basename for shard in reader.shards[:2]]
    for name in ["index.json", *names]:
        (local / name).write_bytes(reader.storage.read(name) or b"")
    os.utime(local / names[0], (0, 0))
    damage(str(local / names[1]), "header")
    remote.proxy.clear()
    assert read(StreamingDataset(remote=remote.path, local=str(local))) == list(range(SAMPLES))
    assert set(names) <= set(remote.proxy.fetched())

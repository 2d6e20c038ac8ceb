"""Who am I: where a process's rank comes from."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from mds_torch import StreamingDataset
from mds_torch.world import World, data_world, find_worker, find_world

RunScript = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def launch(monkeypatch: pytest.MonkeyPatch, **environment: str) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def test_a_process_is_alone_unless_told_otherwise() -> None:
    assert find_world() == World(0, 1, 1)
    assert find_world().nodes == 1
    assert find_worker() == (0, 1)


def test_the_launchers_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    launch(monkeypatch, RANK="5", WORLD_SIZE="8", LOCAL_WORLD_SIZE="4")
    assert find_world() == World(5, 8, 4)
    assert find_world().nodes == 2


def test_without_a_local_size_all_ranks_share_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_world(1, 4) == World(1, 4, 4)
    launch(monkeypatch, RANK="1", WORLD_SIZE="6")
    assert find_world() == World(1, 6, 6)


def test_torch_distributed_comes_before_the_environment(group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    launch(monkeypatch, RANK="5", WORLD_SIZE="8")
    assert find_world() == World(0, 1, 1)


def test_arguments_come_before_all(group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    launch(monkeypatch, RANK="5", WORLD_SIZE="8", LOCAL_WORLD_SIZE="4")
    assert find_world(2, 3) == World(2, 3, 3)
    assert find_world(2, 4, 2) == World(2, 4, 2)


def test_the_local_size_alone_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    launch(monkeypatch, RANK="5", WORLD_SIZE="8", LOCAL_WORLD_SIZE="8")
    assert find_world(local_world_size=2) == World(5, 8, 2)


@pytest.mark.parametrize(("rank", "world_size"), [(1, None), (None, 2)])
def test_rank_and_world_size_go_together(rank: int | None, world_size: int | None, thirty: str) -> None:
    with pytest.raises(ValueError, match="rank and world_size go together, found rank="):
        find_world(rank, world_size)
    with pytest.raises(ValueError, match="rank and world_size go together, found rank="):
        StreamingDataset(local=thirty, rank=rank, world_size=world_size)


@pytest.mark.parametrize(
    "numbers", [(2, 2, None), (-1, 2, None), (0, 0, None), (0, 4, 3), (0, 2, 4), (0, 2, 0), (0, 2, -1)], ids=str
)
def test_numbers_that_do_not_fit_are_refused_with_their_values(
    numbers: tuple[int, int, int | None], thirty: str
) -> None:
    match = f"the arguments .*found rank={numbers[0]}, world_size={numbers[1]}"
    with pytest.raises(ValueError, match=match):
        find_world(*numbers)
    with pytest.raises(ValueError, match=r"(rank|world_size).*found"):
        StreamingDataset(local=thirty, rank=numbers[0], world_size=numbers[1], local_world_size=numbers[2])


def test_an_environment_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    launch(monkeypatch, RANK="8", WORLD_SIZE="8")
    with pytest.raises(ValueError, match=r"environment's RANK.* found rank=8, world_size=8"):
        find_world()
    launch(monkeypatch, RANK="1", WORLD_SIZE="8", LOCAL_WORLD_SIZE="3")
    with pytest.raises(ValueError, match="local_world_size=3"):
        find_world()


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"])
def test_an_environment_without_sense_is_an_error_that_names_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Taken for unset, every rank would read all samples.
    launch(monkeypatch, **{"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", name: "two"})
    with pytest.raises(ValueError, match=name):
        find_world()


def test_an_empty_environment_is_an_unset_one(monkeypatch: pytest.MonkeyPatch) -> None:
    launch(monkeypatch, RANK="", WORLD_SIZE="", LOCAL_WORLD_SIZE="")
    assert find_world() == World(0, 1, 1)


def test_a_dataset_made_before_ranks_are_known_reads_its_share(thirty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = StreamingDataset(local=thirty)
    assert len(dataset) == 30
    launch(monkeypatch, RANK="1", WORLD_SIZE="3")
    assert len(dataset) == 10
    assert [sample["n"] for sample in dataset] == list(range(1, 30, 3))


SPAWN = """
import sys
import torch.multiprocessing
from mds_torch import StreamingDataLoader, StreamingDataset

def train(rank, dataset, out):
    import torch.distributed as dist
    dist.init_process_group("gloo", init_method=f"file://{out}/group", rank=rank, world_size=2)
    loader = StreamingDataLoader(dataset, batch_size=4, num_workers=1, multiprocessing_context="spawn")
    ids = [i for batch in loader for i in batch["n"].tolist()]
    with open(f"{out}/{rank}", "w") as file:
        print(len(dataset), *ids, file=file)
    dist.destroy_process_group()

if __name__ == "__main__":
    dataset = StreamingDataset(local=sys.argv[1], shuffle=True)
    torch.multiprocessing.spawn(train, (dataset, sys.argv[2]), nprocs=2)
"""


def test_ranks_that_are_spawned_with_a_dataset_take_their_own_places(
    thirty: str, run_script: RunScript, tmp_path: Path
) -> None:
    ended = run_script(SPAWN, thirty, tmp_path)
    assert ended.returncode == 0, ended.stderr
    ranks = [list(map(int, (tmp_path / str(rank)).read_text().split())) for rank in range(2)]
    assert [rank[0] for rank in ranks] == [15, 15]
    assert sorted(ranks[0][1:] + ranks[1][1:]) == list(range(30))


def test_the_environment_is_left_as_it_was(thirty: str) -> None:
    before = dict(os.environ)
    list(StreamingDataset(local=thirty))
    assert dict(os.environ) == before


# Data ranks


@pytest.mark.parametrize(("ranks", "replication"), [(4, 1), (4, 2), (4, 4), (6, 3)])
def test_replicated_ranks_read_the_same(ranks: int, replication: int, thirty: str) -> None:
    parts = [
        [
            int(sample["n"])
            for sample in StreamingDataset(
                local=thirty, shuffle=True, replication=replication, rank=rank, world_size=ranks, batch_size=2
            )
        ]
        for rank in range(ranks)
    ]
    for rank in range(ranks):
        assert parts[rank] == parts[rank // replication * replication]
    assert {i for part in parts[::replication] for i in part} == set(range(30))


def test_a_replication_that_does_not_divide_the_ranks_is_refused(thirty: str) -> None:
    with pytest.raises(ValueError, match="replication: expected a divisor of the 4 ranks, found 3"):
        StreamingDataset(local=thirty, replication=3, rank=0, world_size=4)


def test_any_ranks_may_be_one_data_rank(thirty: str) -> None:
    # Ranks 0 and 2 are the stages of one pipeline, 1 and 3 of the other.
    parts = [
        [int(s["n"]) for s in StreamingDataset(local=thirty, data_rank=lambda r: r % 2, rank=rank, world_size=4)]
        for rank in range(4)
    ]
    assert parts[0] == parts[2]
    assert parts[1] == parts[3]
    assert sorted(parts[0] + parts[1]) == list(range(30))
    with pytest.raises(ValueError, match=r"expected each of 0 to 2, found \[0, 2\] for 4 ranks"):
        StreamingDataset(local=thirty, data_rank=lambda r: r % 2 * 2, rank=0, world_size=4)


@pytest.mark.parametrize(
    ("ranks", "per_node", "replication", "expected"),
    [
        (8, 4, 1, (8, 4)),
        (8, 4, 2, (4, 2)),
        (8, 4, 4, (2, 1)),
        (8, 4, 8, (1, 1)),
        (8, 2, 4, (2, 1)),
        (6, 2, 3, (2, 1)),
        (12, 4, 3, (4, 4)),
    ],
)
def test_data_ranks_lie_on_the_nodes_of_their_ranks(
    ranks: int, per_node: int, replication: int, expected: tuple[int, int]
) -> None:
    for rank in range(ranks):
        found = data_world(World(rank, ranks, per_node), lambda r: r // replication)
        assert found.rank == rank // replication
        assert (found.ranks, found.ranks_per_node) == expected


MESH = """
import json, sys
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from mds_torch import StreamingDataLoader, StreamingDataset

if __name__ == "__main__":
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dataset = StreamingDataset(local=sys.argv[1], shuffle=True, batch_size=3, device_mesh=mesh["dp"])
    loader = StreamingDataLoader(dataset, batch_size=3, num_workers=1, multiprocessing_context="spawn")
    ids = [i for batch in loader for i in batch["n"].tolist()]
    with open(f"{sys.argv[2]}/{dist.get_rank()}.json", "w") as file:
        json.dump([dataset.world.rank, dataset.world.ranks, ids], file)
    dist.destroy_process_group()
"""


def test_the_places_of_a_device_mesh_are_ranks(thirty: str, run_script: RunScript, tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    ended = run_script(MESH, thirty, tmp_path, launcher=launcher)
    assert ended.returncode == 0, ended.stderr
    parts = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    assert [part[:2] for part in parts] == [[0, 2], [0, 2], [1, 2], [1, 2]]
    assert parts[0][2] == parts[1][2]
    assert parts[2][2] == parts[3][2]
    assert sorted(parts[0][2] + parts[2][2]) == list(range(30))

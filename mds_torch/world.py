"""Who am I: this process's rank among all, and how many share a node."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.utils.data import get_worker_info

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class World:
    """A process's place: `rank` of `ranks`, of which `ranks_per_node` share a node."""

    rank: int = 0
    ranks: int = 1
    ranks_per_node: int = 1

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return self.ranks // self.ranks_per_node


def find_world(rank: int | None = None, world_size: int | None = None, local_world_size: int | None = None) -> World:
    """Find this process's place: as given, else torch.distributed's, else the launcher's environment, else alone.

    Never waits for other processes, and makes no process group.

    Raises:
        ValueError: numbers that do not fit together.
    """
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank and world_size go together, found rank={rank} and world_size={world_size}")
    source = "the arguments rank, world_size and local_world_size"
    if rank is None or world_size is None:
        if dist.is_available() and dist.is_initialized():
            rank, world_size, source = dist.get_rank(), dist.get_world_size(), "torch.distributed"
        else:
            rank, world_size = _from_environment("RANK", 0), _from_environment("WORLD_SIZE", 1)
            source = "the environment's RANK, WORLD_SIZE and LOCAL_WORLD_SIZE"
        if local_world_size is None:
            local_world_size = _from_environment("LOCAL_WORLD_SIZE", world_size)
    local = world_size if local_world_size is None else local_world_size
    if not (0 <= rank < world_size and local > 0 and world_size % local == 0):
        raise ValueError(
            f"{source}: expected 0 <= rank < world_size, a multiple of local_world_size; found rank={rank}, "
            f"world_size={world_size}, local_world_size={local}"
        )
    return World(rank, world_size, local)


def data_world(world: World, data_rank: Callable[[int], int]) -> World:
    """Give the place among the data ranks: ranks of one data rank read the same samples.

    Args:
        world: the place among all ranks.
        data_rank: gives the data rank of a rank; from 0, without gaps.

    Raises:
        ValueError: the data ranks have gaps.
    """
    ranks = [int(data_rank(rank)) for rank in range(world.ranks)]
    count = max(ranks) + 1
    missing = sorted(set(range(count)) - set(ranks))
    if missing or min(ranks) < 0:
        raise ValueError(
            f"data ranks: expected each of 0 to {count - 1}, found {sorted(set(ranks))[:20]} for {world.ranks} ranks; "
            "give a function of a rank whose values have no gaps"
        )
    # Data ranks that lie evenly on nodes, one node after the other, have nodes; others do without.
    node = [ranks.index(rank) // world.ranks_per_node for rank in range(count)]
    nodes = len(set(node))
    even = count % nodes == 0 and node == sorted(node) and all(node.count(n) == count // nodes for n in set(node))
    return World(ranks[world.rank], count, count // nodes if even else count)


def mesh_world(mesh: DeviceMesh) -> World:
    """Give the place on a device mesh whose dimensions are all of data parallelism.

    Raises:
        ValueError: this process is not on it.
    """
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ValueError(f"device_mesh: rank {dist.get_rank()} is not on {mesh}; give the mesh that it is on")
    rank = 0
    for at, size in zip(coordinate, mesh.shape, strict=True):
        rank = rank * size + at
    per_node = _from_environment("LOCAL_WORLD_SIZE", dist.get_world_size())
    # The node of each place on the mesh, as far as this process sees it: those of a submesh are this submesh's ranks.
    nodes = (mesh.mesh.reshape(-1) // per_node).tolist()
    shares = [nodes.count(node) for node in sorted(set(nodes))]
    even = nodes == sorted(nodes) and len(set(shares)) == 1
    return World(rank, mesh.size(), shares[0] if even else mesh.size())


def _from_environment(name: str, default: int) -> int:
    text = os.environ.get(name)
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"the environment's {name}: expected a number, found {text!r}; unset it, or set it") from None


def find_worker() -> tuple[int, int]:
    """Give this DataLoader worker's number and how many there are; (0, 1) outside of workers."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)

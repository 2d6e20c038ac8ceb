"""Who am I: this process's rank among all, and how many share a node."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch.distributed as dist
from torch.utils.data import get_worker_info


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

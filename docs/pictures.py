"""Draws the pictures of the page on the order, from orders that the library itself gives.

mkdocs calls it when it builds the site: the pictures are in no commit. To look at them alone:

    python docs/pictures.py FOLDER
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mds_core import MDSReader, MDSWriter
from mds_torch import StreamingDataset

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

SEED = 1
# A colour for each rank: blue ones are of the first node, orange ones of the second.
RANKS = ("#2b6cb0", "#90cdf4", "#c05621", "#fbd38d")
INK = ("white", "black", "white", "black")
GREY = "#e2e8f0"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pictures to the site's files (a hook of mkdocs)."""
    from mkdocs.structure.files import File

    for name, image in draw().items():
        files.append(File.generated(config, f"pictures/{name}", content=image))
    return files


def draw() -> dict[str, bytes]:
    """Draw all pictures: PNG files by name, the same ones each time."""
    pictures: dict[str, Callable[[str], Figure]] = {
        "mixing.png": draw_mixing,
        "dealing.png": draw_dealing,
        "shards.png": draw_shards,
        "resuming.png": draw_resuming,
    }
    with tempfile.TemporaryDirectory() as folder, matplotlib.rc_context({"font.size": 9}):
        return {name: _png(picture(f"{folder}/{name}")) for name, picture in pictures.items()}


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=160, metadata={"Software": None})
    return file.getvalue()


def write(folder: str, shards: int, each: int) -> str:
    """Write a data set of numbers: so many shards, of so many samples each."""
    # A shard's head takes some 170 bytes, a sample 8 for itself and 4 for where it begins.
    with MDSWriter(out=folder, columns={"id": "int64"}, size_limit=174 + 12 * each) as writer:
        for number in range(shards * each):
            writer.write({"id": number})
    found = [shard.samples for shard in MDSReader(folder).shards]
    assert found == [each] * shards, found
    return folder


def draw_mixing(folder: str) -> Figure:
    """Draw when the samples of each shard come, for each way to shuffle."""
    shards, each, block = 24, 60, 6
    path = write(folder, shards, each)
    ways: list[tuple[str, dict[str, Any]]] = [
        ("shuffle=False", {"shuffle": False}),
        ("py1s, 1 canonical node", {"shuffle_algo": "py1s"}),
        ("py1s, 4 canonical nodes", {"shuffle_algo": "py1s", "num_canonical_nodes": 4}),
        (f"py1br, blocks of {block} shards", {"shuffle_algo": "py1br"}),
        (f"py1e, blocks of {block} shards", {"shuffle_algo": "py1e"}),
        ("naive", {"shuffle_algo": "naive"}),
    ]
    figure = Figure(figsize=(9, 5.6), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    for at, (title, arguments) in zip(axes.flat, ways, strict=True):
        usual = {"shuffle": True, "num_canonical_nodes": 1, "shuffle_block_size": block * each, "shuffle_seed": SEED}
        ids = StreamingDataset(local=path, **{**usual, **arguments}).epoch_order(0)[:]
        shard = ids // each
        # Shards stand in the order in which they come: by the mean of their samples' places.
        means = np.bincount(shard, np.arange(len(ids))) / each
        at.plot(np.arange(len(ids)), np.argsort(np.argsort(means))[shard], "|", color=RANKS[0], ms=3, mew=0.6)
        at.set_title(title)
        at.set_xlim(0, len(ids))
        at.set_ylim(shards - 0.3, -0.7)
    figure.supxlabel("when a sample comes: its place in the epoch", fontsize=10)
    figure.supylabel("its shard, in the order in which they come", fontsize=10)
    return figure


def draw_dealing(folder: str) -> Figure:
    """Draw to which rank each place of an epoch is dealt, on two clusters."""
    path = write(folder, 16, 4)
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    above, below = figure.subplots(2, 1)
    for at, ranks, nodes, batch_size in ((above, 4, 2, 4), (below, 2, 1, 4)):
        ids, _ = _sequence(path)
        rank_of = np.full(len(ids), -1)
        for rank in range(ranks):
            dataset = _small(path, rank=rank, world_size=ranks, local_world_size=ranks // nodes, batch_size=batch_size)
            for batch in dataset.epoch_order(0).batches():
                rank_of[batch] = rank
        _show(at, ids, rank_of)
        step = ranks * batch_size
        cluster = f"{ranks} ranks on {nodes} node{'s' * (nodes > 1)}"
        at.set_title(f"{cluster}, batch size {batch_size}: each step takes the next {step} places")
        names = [f"rank {rank}" + f" (node {rank // 2})" * (nodes > 1) for rank in range(ranks)]
        _legend(at, RANKS, names)
    return figure


def draw_resuming(folder: str) -> Figure:
    """Draw what a run leaves, and how another number of ranks goes on with it."""
    path = write(folder, 16, 4)
    done = 32
    ids, state = _sequence(path, done)
    left = set(ids[done:].tolist())
    rank_of = np.full(len(ids), -1)
    for rank in range(3):
        dataset = _small(path, rank=rank, world_size=3, batch_size=4)
        dataset.load_state_dict(state)
        # The last batch repeats a sample that was there before, for all ranks to have as many.
        rank_of[[sample["id"] for sample in dataset if sample["id"] in left]] = rank
    figure = Figure(figsize=(9, 2.4), layout="constrained")
    at = figure.subplots()
    _show(at, ids, rank_of)
    at.set_title("4 ranks had 2 steps of 16; 3 ranks go on, batch size 4: each step takes the next 12 of what is left")
    _legend(at, (GREY, *RANKS), ["before", "rank 0", "rank 1", "rank 2"])
    return figure


def draw_shards(folder: str) -> Figure:
    """Draw which node reads which shard, epoch after epoch."""
    shards, each, epochs = 15, 8, 4
    path = write(folder, shards, each)
    dataset = _small(path, rank=1, world_size=2, local_world_size=1, batch_size=4)
    part = np.zeros((epochs, shards))
    for epoch in range(epochs):
        for batch in dataset.epoch_order(epoch).batches():
            np.add.at(part[epoch], batch // each, 1 / each)
    figure = Figure(figsize=(9, 2.1), layout="constrained")
    at = figure.subplots()
    colours = matplotlib.colors.LinearSegmentedColormap.from_list("nodes", (RANKS[0], "#cbd5e0", RANKS[2]))
    image = at.imshow(part, cmap=colours, vmin=0, vmax=1, aspect="auto")
    at.set_xticks(range(shards))
    at.set_yticks(range(epochs))
    _lines_between(at, shards, epochs)
    at.set_xlabel("shard")
    at.set_ylabel("epoch")
    bar = figure.colorbar(image, ticks=[0, 0.5, 1], label="read by")
    bar.ax.set_yticklabels(["node 0", "half each", "node 1"])
    return figure


def _small(path: str, **arguments: Any) -> StreamingDataset:
    return StreamingDataset(local=path, shuffle=True, shuffle_seed=SEED, num_canonical_nodes=2, **arguments)


def _sequence(path: str, after: int = 0) -> tuple[np.ndarray, dict[str, Any]]:
    """Give an epoch's samples in order, and the state after so many."""
    dataset = _small(path)
    return dataset.epoch_order(0)[:], dataset.state_dict(num_samples=after)


def _show(at: Axes, ids: np.ndarray, rank_of: np.ndarray, width: int = 16) -> None:
    """Draw the places of an epoch row by row, each with its sample's number, in its rank's colour."""
    rows = len(ids) // width
    ranks = rank_of[ids].reshape(rows, width)
    at.imshow(ranks, cmap=matplotlib.colors.ListedColormap([GREY, *RANKS]), vmin=-1, vmax=len(RANKS) - 1, aspect="auto")
    for place, sample in enumerate(ids.tolist()):
        rank = rank_of[sample]
        ink = "#718096" if rank < 0 else INK[rank]
        at.text(place % width, place // width, str(sample), ha="center", va="center", color=ink)
    at.set_xticks(range(width))
    at.set_yticks(range(rows), [f"{row * width}" for row in range(rows)])
    _lines_between(at, width, rows)
    at.set_xlabel("place in the epoch: the row's first, and so many more; in the cell, the sample there")


def _lines_between(at: Axes, columns: int, rows: int) -> None:
    at.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    at.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    at.grid(which="minor", color="white", linewidth=2)
    at.tick_params(which="both", length=0)
    at.spines[:].set_visible(False)


def _legend(at: Axes, colours: tuple[str, ...], names: list[str]) -> None:
    patches = [Patch(color=colour, label=name) for colour, name in zip(colours, names, strict=False)]
    at.legend(handles=patches, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, image in draw().items():
        (folder / name).write_bytes(image)
        print(folder / name)

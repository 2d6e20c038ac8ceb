"""What is logged, and what is shown on a terminal: nothing, unless somebody asks or looks."""

import fcntl
import logging
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mds_core import MDSWriter
from mds_torch import StreamingDataLoader, StreamingDataset

RunScript = Callable[..., Any]
Make = Callable[..., Path]

TRAIN = """
import sys
from mds_torch import StreamingDataLoader, StreamingDataset

if __name__ == "__main__":
    dataset = StreamingDataset(remote=sys.argv[1], local=sys.argv[2], shuffle=True, batch_size=4)
    loader = StreamingDataLoader(dataset, batch_size=4, num_workers=2)
    for epoch in range(2):
        for batch in loader:
            pass
    loader.load_state_dict(loader.state_dict())
"""

FILTER = """
import sys, time
from mds_core import merge_index
from mds_torch import StreamingDataset

def slowly(n):
    time.sleep(0.4)
    return n % 2 == 0

if __name__ == "__main__":
    assert len(StreamingDataset(local=sys.argv[1], batch_size=4, filter=("n", slowly))) == 15
"""


def test_a_training_loop_says_nothing(thirty: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", TRAIN, thirty, str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_who_asks_is_told_what_happens(thirty: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "mds_torch")
    caplog.set_level(logging.DEBUG, "mds_core")
    local = tmp_path / "cache"
    loader = StreamingDataLoader(StreamingDataset(remote=thirty, local=str(local), batch_size=4), batch_size=4)
    list(loader)
    with MDSWriter(out=str(tmp_path / "written"), columns={"n": "int64"}) as writer:
        writer.write({"n": 1})
    told = caplog.text
    assert f"{thirty}: 30 samples in " in told
    assert f"fetched to {local}" in told
    assert "epoch 0 begins at sample 0, rank 0 of 1" in told
    assert f"fetching {thirty}/shard." in told
    assert f"{tmp_path / 'written'}: wrote 1 samples in 1 shards" in told


@pytest.mark.parametrize("terminal", [True, False])
def test_a_filter_shows_how_far_it_is_on_a_terminal_only(terminal: bool, make: Make) -> None:
    folder = make({"n": "int64"}, ({"n": n} for n in range(30)), size_limit=200)
    ours, theirs = pty.openpty() if terminal else os.pipe()
    if terminal:
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen([sys.executable, "-c", FILTER, str(folder)], stderr=theirs)
    os.close(theirs)
    told = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # of a terminal that nobody writes to any more
            part = b""
        if not part:
            break
        told += part
    os.close(ours)
    assert process.wait(60) == 0
    assert (b"filtering" in told and b"shards" in told) if terminal else told == b"", told

"""Virtual environments of other libraries, which want old releases of what we use in new ones."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
# Written last, and compared: an environment that was left half-made or is of an older recipe is made again.
_MARKER = "mds-recipe"


class EnvironmentFailure(Exception):
    """A step in another environment failed; the message ends with what it wrote to stderr."""


@dataclass(frozen=True)
class Environment:
    """How to make an environment.

    Args:
        folder: where it is.
        requirements: what pip installs.
        alone: what pip installs then, without what it says it needs.
        stubs: modules to write, text by path, that stand for what would not load.
        verify: code that must run in it.
    """

    folder: Path
    requirements: list[str]
    alone: list[str]
    stubs: dict[str, str] = field(default_factory=dict)
    verify: str = ""

    @property
    def recipe(self) -> str:
        """What tells one way to make it from another."""
        return "\n".join([*self.requirements, *self.alone, *self.stubs, *self.stubs.values()])

    def python(self) -> str:
        """Give its interpreter; make it if it is not there."""
        with _locked(self.folder):
            marker = self.folder / _MARKER
            if not (marker.is_file() and marker.read_text() == self.recipe):
                self._build()
        return str(self.folder / "bin" / "python")

    def _build(self) -> None:
        folder = self.folder
        if any(folder.iterdir()) and not (folder / "pyvenv.cfg").exists():
            raise EnvironmentFailure(f"{folder} is neither empty nor a virtual environment: it will not be cleared")
        print(f"Making an environment in {folder} …", file=sys.stderr, flush=True)
        python = str(folder / "bin" / "python")
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([sys.executable, "-m", "venv", "--clear", str(folder)])
        run([*pip, *self.requirements])
        run([*pip, "--no-deps", *self.alone])
        packages = Path(run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())
        for name, text in self.stubs.items():
            (packages / name).parent.mkdir(parents=True, exist_ok=True)
            (packages / name).write_text(text)
        run([python, "-c", self.verify], cwd=str(folder))
        (folder / _MARKER).write_text(self.recipe)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder. The lock is on the folder itself: no file is left, and it dies with us."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def run(command: list[str], timeout: float = 1800, cwd: str | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command and give its stdout; raise with its stderr if it fails or takes too long."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=env,
        start_new_session=True,  # Ctrl-C is ours alone to act on
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except BaseException as error:
        # Ranks by themselves, as torchrun gives each a group of its own.
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate(timeout=60)
        if isinstance(error, subprocess.TimeoutExpired):
            raise EnvironmentFailure(f"{command[0]} took more than {timeout} s:\n{stdout}\n{stderr}") from None
        raise
    if process.returncode:
        raise EnvironmentFailure(f"{' '.join(command)[:500]} ended with {process.returncode}:\n{stdout}\n{stderr}")
    return stdout

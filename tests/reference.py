"""The reference library (mosaicml-streaming) in an environment of its own.

It wants old releases of what we use in new ones, so that it never shares our environment.
`reference_python()` makes its environment when there is none and returns its interpreter;
`run_reference(code)` runs a snippet there. The environment is `.venv-reference` in the repository, or the
folder that MDS_REFERENCE_VENV names.

    python tests/reference.py       # makes it, and prints its interpreter
"""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STREAMING = "mosaicml-streaming==0.13.0"
# What importing the library needs, and its client of S3: those of other stores are imported only when used.
REQUIREMENTS = [
    "boto3>=1.21.45,<2",
    "brotli>=1.0.9",
    "catalogue>=2,<3",
    "numpy<2.2",
    "pandas>=2.2,<3",
    "pillow>=10",
    "pyarrow>=18",
    "pyspark==4.3.0",
    "python-snappy>=0.6.1,<1",
    "torch==2.13.0",
    "tqdm>=4.64,<5",
    "transformers>=4.21.3,<5",
    "xxhash>=3,<4",
    "zstd>=1.5.2.5,<2",
]
# The library imports two names of torchvision, and uses them in data sets that we do not touch. Its shared memory has
# the same names in every process of a machine (000000_locals), and each process deletes what it takes for left behind:
# run_reference gives each run names of its own.
STUBS = {
    "torchvision/__init__.py": "",
    "torchvision/datasets.py": "class VisionDataset:\n    pass\n",
    "torchvision/transforms/__init__.py": "",
    "torchvision/transforms/functional.py": "def to_tensor(image):\n    raise NotImplementedError('a stub')\n",
    "sitecustomize.py": """
import os

if prefix := os.environ.get("MDS_REFERENCE_MEMORY"):
    import _posixshmem

    shm_open, shm_unlink = _posixshmem.shm_open, _posixshmem.shm_unlink
    _posixshmem.shm_open = lambda name, *args, **named: shm_open(f"/{prefix}{name[1:]}", *args, **named)
    _posixshmem.shm_unlink = lambda name: shm_unlink(f"/{prefix}{name[1:]}")
""",
}
VERIFY = (
    "from streaming import MDSWriter, StreamingDataset, StreamingDataLoader\n"
    "from streaming.base.converters import dataframe_to_mds\n"
)
# Written last, and compared: an environment that was left half-made or is of an older recipe is made again.
MARKER = "mds-reference"
RECIPE = "\n".join([STREAMING, *REQUIREMENTS, *STUBS, *STUBS.values()])


class ReferenceFailure(Exception):
    """A step in the reference environment failed; the message ends with what it wrote to stderr."""


def reference_python() -> str:
    """Return the interpreter that can `import streaming`; make its environment if there is none."""
    folder = _folder()
    with _locked(folder):
        if not _is_whole(folder):
            _build(folder)
    return str(folder / "bin" / "python")


def run_reference(code: str, *args: str, timeout: float = 300) -> str:
    """Run a Python snippet in the reference environment and return its stdout, by convention JSON.

    It runs in a new process, in an empty folder, with shared memory and temporary files that no other run sees.
    """
    python = reference_python()
    environment = {**os.environ, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    environment.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory() as folder:
        memory = f"reference-{Path(folder).name}-"
        environment |= {"TMPDIR": folder, "MDS_REFERENCE_MEMORY": memory}
        try:
            return _run([python, "-c", code, *args], timeout=timeout, cwd=folder, env=environment)
        finally:
            for left in Path("/dev/shm").glob(f"{memory}*"):
                left.unlink(missing_ok=True)


def _folder() -> Path:
    default = Path(__file__).resolve().parent.parent / ".venv-reference"
    return Path(os.environ.get("MDS_REFERENCE_VENV") or default).absolute()


def _is_whole(folder: Path) -> bool:
    marker = folder / MARKER
    return marker.is_file() and marker.read_text() == RECIPE


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


def _build(folder: Path) -> None:
    if any(folder.iterdir()) and not (folder / "pyvenv.cfg").exists():
        raise ReferenceFailure(f"{folder} is neither empty nor a virtual environment: it will not be cleared")
    print(f"Making the environment of the reference library in {folder} …", file=sys.stderr, flush=True)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    _run([*pip, *REQUIREMENTS])
    _run([*pip, "--no-deps", STREAMING])
    packages = Path(_run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())
    for name, text in STUBS.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(text)
    _run([python, "-c", VERIFY], cwd=str(folder))
    (folder / MARKER).write_text(RECIPE)


def _run(command: list[str], timeout: float = 1800, cwd: str | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command; raise with its stderr if it fails or takes too long, and end all that it started."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=env,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        _, stderr = process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise ReferenceFailure(f"{command[0]} took more than {timeout} s:\n{stderr}") from None
        raise
    if process.returncode:
        raise ReferenceFailure(f"{command[0]} ended with {process.returncode}:\n{stderr}")
    return stdout


if __name__ == "__main__":
    print(reference_python())

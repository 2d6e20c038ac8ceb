"""The reference library (mosaicml-streaming) in an environment of its own.

`reference_python()` makes its environment when there is none and returns its interpreter; `run_reference(code)` runs a
snippet there. The environment is `.venv-reference` in the repository, or the folder that MDS_REFERENCE_VENV names.

    python -m tests.reference       # makes it, and prints its interpreter
"""

import os
import tempfile
from pathlib import Path

from tests.environments import ROOT, Environment, run

REFERENCE = Environment(
    folder=Path(os.environ.get("MDS_REFERENCE_VENV") or ROOT / ".venv-reference").absolute(),
    # What importing the library needs, and its client of S3: those of other stores are imported only when used.
    requirements=[
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
    ],
    alone=["mosaicml-streaming==0.13.0"],
    # The library imports two names of torchvision, and uses them in data sets that we do not touch. Its shared memory
    # has the same names in every process of a machine (000000_locals), and each process deletes what it takes for left
    # behind: run_reference gives each run names of its own.
    stubs={
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
    },
    verify=(
        "from streaming import MDSWriter, StreamingDataset, StreamingDataLoader\n"
        "from streaming.base.converters import dataframe_to_mds\n"
    ),
)


def reference_python() -> str:
    """Return the interpreter that can `import streaming`; make its environment if there is none."""
    return REFERENCE.python()


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
            return run([python, "-c", code, *args], timeout=timeout, cwd=folder, env=environment)
        finally:
            for left in Path("/dev/shm").glob(f"{memory}*"):
                left.unlink(missing_ok=True)


if __name__ == "__main__":
    print(reference_python())

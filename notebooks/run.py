"""Run the notebooks from top to bottom, each in a kernel of its own.

    python notebooks/run.py                                       # all; their files stay as they are
    python notebooks/run.py --save mixing_and_curriculum.ipynb    # keep the new output in the file

Prints each notebook's seconds. It ends with an error if a cell raises.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).resolve().parent
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
# A path of this machine would be another one in the next run.
MACHINE_PATH = re.compile(r"/(?:tmp|home|root|Users|usr|opt|var|private|work)/[\w.-]+")


def main() -> int:
    """Run the notebooks that the command line names; give the number of those that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", metavar="NOTEBOOK", help="default: all in this folder")
    parser.add_argument("--save", action="store_true", help="write the output to the notebooks' files")
    arguments = parser.parse_args()
    failed = 0
    for path in [FOLDER / Path(name).name for name in arguments.notebooks] or NOTEBOOKS:
        start = time.monotonic()
        try:
            notebook = execute(path)
        except CellExecutionError as error:
            failed += 1
            print(f"{path.name}: {error}", file=sys.stderr)
            continue
        print(f"{path.name}: {time.monotonic() - start:.0f} s", flush=True)
        if arguments.save:
            nbformat.write(notebook, path)
    return failed


def execute(path: Path) -> nbformat.NotebookNode:
    """Run a notebook in this interpreter's kernel, in the folder of the notebooks, and give it with its output.

    Raises:
        CellExecutionError: a cell raised; the message has its code and traceback.
    """
    notebook = nbformat.read(path, as_version=4)
    # jupyter_client knows a kernel python3 for this interpreter, where none is installed, too.
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],
        startup_timeout=120,
        timeout=600,
        resources={"metadata": {"path": str(FOLDER)}},
        record_timing=False,
        coalesce_streams=True,
        # A kernel that ends by itself waits for its children, of which Java stays on as a zombie.
        shutdown_kernel="immediate",
    )
    with tempfile.TemporaryDirectory(prefix="mds-notebook-", ignore_cleanup_errors=True) as folder:
        return normalize(client.execute(env={**os.environ, "TMPDIR": folder}))


def normalize(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Take away what is another in each run or on each machine, so that saving again changes what has changed."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            # Warnings and logs name processes, ports and hosts.
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def machine_paths(notebook: nbformat.NotebookNode) -> list[str]:
    """Give the paths of a machine that a notebook's code, text and output name."""
    texts = [cell.source for cell in notebook.cells]
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            texts += [output.get("text", ""), *(v for k, v in output.get("data", {}).items() if k != "image/png")]
    return [found for text in texts for found in MACHINE_PATH.findall(text)]


def figures(notebook: nbformat.NotebookNode) -> int:
    """Give the number of pictures in a notebook's output."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)


if __name__ == "__main__":
    sys.exit(main())

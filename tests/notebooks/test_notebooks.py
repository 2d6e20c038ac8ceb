"""The notebooks: kept with their output, and each runs from top to bottom."""

import sys
from pathlib import Path

import nbformat
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "notebooks"))
import run

# How many pictures each has.
PICTURES = {
    "distributed_on_one_machine": 4,
    "mixing_and_curriculum": 5,
    "moving_from_mosaicml_streaming": 3,
    "spark_to_pytorch": 4,
}
EACH = pytest.mark.parametrize("name", PICTURES)


def test_these_are_all_notebooks() -> None:
    assert {path.stem for path in run.NOTEBOOKS} == PICTURES.keys()
    told = (Path(__file__).parents[2] / "docs" / "notebooks.md").read_text()
    assert [name for name in PICTURES if f"{name}.ipynb" not in told] == []


@EACH
def test_a_notebook_is_kept_with_its_output(name: str) -> None:
    path = run.FOLDER / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [output for cell in code for output in cell.outputs if output.output_type == "error"]
    assert run.figures(notebook) == PICTURES[name]
    assert run.machine_paths(notebook) == []
    assert path.stat().st_size < 400_000
    # Saving it again would change nothing but the output.
    assert run.normalize(nbformat.read(path, as_version=4)) == notebook


# A kernel starts a Spark of its own, or wants both cores: not beside the Spark of the other tests.
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(900)
@EACH
def test_a_notebook_runs(name: str) -> None:
    notebook = run.execute(run.FOLDER / f"{name}.ipynb")
    assert run.figures(notebook) == PICTURES[name]
    assert run.machine_paths(notebook) == []


def test_paths_of_a_machine_are_found() -> None:
    stream = nbformat.v4.new_output("stream", text="at /home/me/x and s3://bucket/tmp")
    result = nbformat.v4.new_output("execute_result", data={"text/plain": "PosixPath('/tmp/abc')"})
    cell = nbformat.v4.new_code_cell("open('/root/x')", outputs=[stream, result])
    assert run.machine_paths(nbformat.v4.new_notebook(cells=[cell])) == ["/root/x", "/home/me", "/tmp/abc"]


def test_a_cell_that_raises_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cells = [nbformat.v4.new_code_cell(code) for code in ("import sys; print(sys.executable)", "1 / 0")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "broken.ipynb")
    monkeypatch.setattr(run, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", ["run.py", "--save", "broken.ipynb"])
    before = (tmp_path / "broken.ipynb").read_text()
    assert run.main() == 1
    assert "broken.ipynb" in (told := capfd.readouterr().err)
    assert "ZeroDivisionError" in told
    assert (tmp_path / "broken.ipynb").read_text() == before


def test_output_is_saved_from_this_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys; print(sys.prefix); print('no', file=sys.stderr)"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)]), tmp_path / "one.ipynb")
    monkeypatch.setattr(run, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", ["run.py", "--save", "one.ipynb"])
    assert run.main() == 0
    (cell,) = nbformat.read(tmp_path / "one.ipynb", as_version=4).cells
    assert [output.text for output in cell.outputs] == [sys.prefix + "\n"]

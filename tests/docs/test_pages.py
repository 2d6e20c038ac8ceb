"""The documentation: its site builds, its code runs, and what it says of errors and names is so."""

from __future__ import annotations

import ast
import doctest
import html
import importlib.util
import inspect
import os
import pickle
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from PIL import Image
from pyspark.sql import SparkSession
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import default_collate

import mds_core
import mds_spark
import mds_torch
from mds_core import MDSWriter
from mds_torch import StreamingDataset
from mds_torch.order.epoch import EpochOrder
from tests.mds_core.storage.servers import environment_of, s3_server

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))]
# What a fence may be: `python` runs, `sh` is in COMMANDS; what is to run nowhere is text, or a transcript.
LANGUAGES = {"python", "sh", "text", "pycon", "json", "yaml", "toml"}
ROWS = 1_300


@dataclass(frozen=True)
class Fence:
    """A block of code on a page: where its text begins, and why it is not run, if it is not."""

    page: str
    language: str
    text: str
    line: int
    reason: str | None

    @property
    def included(self) -> list[str]:
        """The files that the block shows, if it is nothing else."""
        lines = [line for line in self.text.splitlines() if line.strip()]
        found = [re.fullmatch(r'\s*-+8<-+ "([^":]+)[^"]*"\s*', line) for line in lines]
        return [match[1] for match in found if match] if all(found) else []


def fences(page: str) -> list[Fence]:
    text = (ROOT / page).read_text()
    blocks = re.finditer(r"(?ms)(?:^ *<!-- not run: ([^\n]+) -->\n+)?^( *)```(\S*)[^\n]*\n(.*?)^\2```$", text)
    return [
        Fence(page, block[3], textwrap.dedent(block[4]), text.count("\n", 0, block.start(4)), block[1])
        for block in blocks
    ]


ALL = [fence for page in PAGES for fence in fences(page)]


# The site

# With pytest -n, the process that has built it runs what looks at it.
looks_at_site = pytest.mark.xdist_group("site")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The site, and what mkdocs said as it built it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # a banner of the theme, on its future
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return folder, done.stderr


@looks_at_site
def test_the_site_builds_without_a_warning(site: tuple[Path, str]) -> None:
    told = site[1]
    assert "WARNING" not in told, told


@looks_at_site
def test_pictures_are_the_same_each_time(site: tuple[Path, str]) -> None:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "docs/pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shown = re.findall(r"\(pictures/(\S+)\)", (ROOT / "docs/order.md").read_text())
    assert sorted(shown) == sorted(path.name for path in (site[0] / "pictures").iterdir())
    assert {name: (site[0] / "pictures" / name).read_bytes() for name in shown} == module.draw()


@looks_at_site
def test_a_page_loads_nothing_from_elsewhere(site: tuple[Path, str]) -> None:
    for page in site[0].rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|link|iframe)[^>]*\b(?:src|href)=\"?(https?:)?//[^>]*", page.read_text())
        assert loaded == [], page


@looks_at_site
def test_docstrings_examples_are_shown_as_code(site: tuple[Path, str]) -> None:
    text = (site[0] / "reference/mds_torch/index.html").read_text()
    assert "Examples:" in text
    assert text.count('<span class="gp">&gt;&gt;&gt; </span>') > 5
    assert "<blockquote>" not in text, "a >>> that is not code"


# What its pages show


@pytest.mark.parametrize("page", PAGES)
def test_blocks_are_of_known_kinds(page: str) -> None:
    for fence in fences(page):
        assert fence.language in LANGUAGES, f"{page}:{fence.line}"
    assert (ROOT / page).read_text().count("```") == 2 * len(fences(page)), "a block that is not found is not run"


def test_few_blocks_are_not_run() -> None:
    skipped = [fence for fence in ALL if fence.reason is not None]
    assert all(fence.language == "python" for fence in skipped)
    assert len(skipped) <= 4, skipped


def test_an_included_file_is_run_by_a_test_of_its_own() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__))
    for fence in ALL:
        for name in fence.included:
            assert re.search(rf"\b{re.escape(Path(name).stem)}\b", tests), f"{fence.page}: {name}"


def picture() -> bytes:
    file = BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(file, "PNG")
    return file.getvalue()


def write(folder: str | Path, columns: dict[str, str], rows: Iterator[dict[str, Any]], **options: Any) -> str:
    with MDSWriter(out=str(folder), columns=columns, size_limit=20_000, hashes=["xxh64"], **options) as writer:
        for row in rows:
            writer.write(row)
    return str(folder)


def reviews(folder: str | Path, **options: Any) -> str:
    rows = ({"text": "good" if i % 5 == 0 else "bad", "stars": 5 - i % 5} for i in range(100))
    return write(folder, {"text": "str", "stars": "int32"}, rows, **options)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data set of some columns that the pages' code asks for."""
    image = picture()
    rows = ({"image": image, "label": i % 10, "stars": i % 5 + 1, "text": f"text {i}"} for i in range(ROWS))
    columns = {"image": "png", "label": "int32", "stars": "int32", "text": "str"}
    return write(tmp_path_factory.mktemp("pages") / "data", columns, rows)


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The URL of an S3 server with the bucket that the pages name; the environment has its credentials."""
    with s3_server("bucket") as environment, environment_of(environment):
        yield environment["S3_ENDPOINT_URL"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with the user's cache below it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def mesh(here: Path) -> Iterator[Any]:
    """A mesh of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{here / 'group'}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
    dist.destroy_process_group()


def moved(text: str, here: Path, server: str) -> str:
    """Give code with the folders that the pages name below a temporary one, and a test's server."""
    text = re.sub(r"([\"'])(/(?:data|Volumes|local_disk0)/)", rf"\1{here}\2", text)
    return text.replace("http://localhost:9000", server)


@pytest.mark.parametrize("page", sorted({fence.page for fence in ALL if fence.language == "python"}))
def test_the_code_of_a_page_runs(
    page: str,
    spark: SparkSession,
    data: str,
    s3: str,
    here: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Run a page's `python` blocks in order, in one namespace.

    Given are `spark`; `df`, a DataFrame with the columns text, stars, label and image; `path`, a data set of these;
    `web` and `code`, two more; and `mesh`, a mesh of this process with the dimension dp. There is a data set of text
    and stars at s3://bucket/reviews. Paths that begin with /data, /Volumes and /local_disk0 lie in a temporary folder.

    Left out are blocks after a comment `not run: REASON`, and those that show whole files, which have their own tests.
    """
    monkeypatch.setenv("PYSPARK_PYTHON", os.environ["PYSPARK_PYTHON"])  # for pages that set it
    blocks = [f for f in fences(page) if f.language == "python" and f.reason is None and not f.included]
    reviews("s3://bucket/reviews", exist_ok=True)
    rows = [(f"text {i}", i % 5 + 1, i % 10, picture()) for i in range(100)]
    names: dict[str, Any] = {
        "__name__": "page",
        "spark": spark,
        "df": spark.createDataFrame(rows, "text string, stars int, label int, image binary"),
        "path": str(shutil.copytree(data, here / "data set")),
        "web": data,
        "code": data,
    }
    if any("mesh[" in block.text for block in blocks):
        names["mesh"] = request.getfixturevalue("mesh")
    try:
        for block in blocks:
            code = "\n" * block.line + moved(block.text, here, s3)
            exec(compile(code, str(ROOT / page), "exec"), names)
    finally:
        spark.catalog.dropTempView("reviews")


# Commands

# What is run by CI, and what of it is in .ci/run.
COMMANDS = {
    "pip install '.[spark,torch]'": [],
    "python3 -m venv .venv && .venv/bin/pip install torch==2.13.0 -e '.[all]'": ["torch==2.13.0"],
    "python3 -m venv .venv && .venv/bin/pip install torch==2.13.0 -e '.[all]' scikit-learn": ["torch==2.13.0"],
    "python3 -m venv .venv && .venv/bin/pip install torch==2.13.0 -e '.[all]' scikit-learn av": ["torch==2.13.0"],
    "python3 -m venv .venv && .venv/bin/pip install torch==2.13.0 -e '.[all]' scikit-learn && "
    ".venv/bin/python notebooks/digits.py": ["torch==2.13.0"],
    "python3 -m venv .venv && .venv/bin/pip install torch==2.13.0 -e '.[dev]' && "
    ".venv/bin/npm install --prefix .ci/azurite && .venv/bin/python -m pytest -n 2 --dist loadgroup": [
        "-m venv .venv",
        "torch==2.13.0 -e '.[dev]'",
        ".venv-ci/bin/npm install --prefix .ci/azurite",
        "-m pytest -n 2 --dist loadgroup",
    ],
}


def commands() -> list[str]:
    """The lines of all `sh` blocks, but for comments."""
    lines = [line for fence in ALL if fence.language == "sh" for line in fence.text.splitlines()]
    return [line for line in lines if line.strip() and not line.startswith("#")]


def test_each_command_is_run_somewhere() -> None:
    ci = (ROOT / ".ci/run").read_text()
    # What tests install: what the extra dev has, and what has an environment of its own.
    dev = (ROOT / "pyproject.toml").read_text() + (ROOT / "tests/docs/composer_environment.py").read_text()
    extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.M)
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__))
    for command in commands():
        if command.startswith("export "):
            continue
        for script in re.findall(r"\S+\.py\b", command):
            assert (ROOT / script).exists(), command
            assert re.search(rf"\b{Path(script).stem}\b", tests), f"no test runs {script}"
        for named in re.findall(r"\.\[([\w,]+)\]", command):
            assert set(named.split(",")) <= set(extras), command
        if installed := re.fullmatch(r"\.venv/bin/pip install ([\w '\[\]]+)", command):
            for package in installed[1].replace("'", "").split():
                assert re.search(rf'"{re.escape(package)}[>=]=', dev), command
        elif not re.search(r"\S+\.py\b", command):
            assert command in COMMANDS, command
    assert set(COMMANDS) <= set(commands())
    for parts in COMMANDS.values():
        assert all(part in ci for part in parts), parts


def test_variables_that_pages_export_are_read_or_advised_somewhere() -> None:
    code = "".join(path.read_text() for path in (ROOT / "mds_core/storage").glob("*.py"))
    exports = [command for command in commands() if command.startswith("export ")]
    assert len(exports) > 15
    for command in exports:
        subprocess.run(["sh", "-n", "-c", command], check=True, timeout=30)
        assert re.search(rf"\b{command.split()[1].partition('=')[0]}\b", code), command


# Errors


class Texts(ast.NodeVisitor):
    """All texts of a module but docstrings, with `…` for what is put into them."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.found.append(re.sub("%[sd]", "…", node.value))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self.found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values))


def texts() -> list[str]:
    visitor = Texts()
    for package in (mds_core, mds_spark, mds_torch):
        for path in Path(str(package.__file__)).parent.rglob("*.py"):
            visitor.visit(ast.parse(path.read_text()))
    return visitor.found


def collate(*values: Any) -> Any:
    return default_collate([{"a": value} for value in values])


def import_elsewhere(module: str) -> None:
    """Import a module in a Python without any packages."""
    command = [sys.executable, "-I", "-S", "-c", f"import {module}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    raise ModuleNotFoundError(done.stderr)


# What others say, and how to make them say it.
OTHERS: dict[str, Callable[[], Any]] = {
    "No module named 'mds_spark'": lambda: import_elsewhere("mds_spark"),
    "Can't pickle": lambda: pickle.dumps(OTHERS["Can't pickle"]),
    "batch must contain tensors, numpy arrays, numbers, dicts or lists": lambda: collate(Image.new("L", (1, 1))),
    "stack expects each tensor to be equal size": lambda: collate(np.zeros(2), np.zeros(3)),
}


def test_each_error_of_the_page_is_what_the_code_says() -> None:
    quoted = re.findall(r"(?m)^### `(.+)`$", (ROOT / "docs/troubleshooting.md").read_text())
    assert len(quoted) > 40
    known = texts()
    strange = [text for text in quoted if text not in OTHERS and not any(text in one for one in known)]
    assert strange == []
    assert set(OTHERS) <= set(quoted)


@pytest.mark.parametrize("text", OTHERS)
def test_an_error_of_others_is_what_they_say(text: str) -> None:
    with pytest.raises(Exception, match=re.escape(text)):
        OTHERS[text]()


# Names, and their docstrings

PACKAGES = (mds_core, mds_spark, mds_torch)
PUBLIC = [(package, name) for package in PACKAGES for name in package.__all__]
# Whose examples write the data set that others' read.
WRITERS = {"MDSWriter", "dataframe_to_mds", "register"}


@looks_at_site
@pytest.mark.parametrize(("package", "name"), PUBLIC)
def test_each_public_name_has_its_place_in_the_reference(package: Any, name: str, site: tuple[Path, str]) -> None:
    page = (site[0] / f"reference/{package.__name__}/index.html").read_text()
    text = " ".join(html.unescape(re.sub("<[^>]+>", "", page)).split())
    assert f" {package.__name__}.{name} " in text
    assert str(inspect.getdoc(getattr(package, name))).splitlines()[0].replace("`", "") in text


def examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for package, name in PUBLIC for test in finder.find(getattr(package, name), name)]
    return [test for test in [*found, *finder.find(EpochOrder, "EpochOrder")] if test.examples]


@pytest.mark.parametrize("example", examples(), ids=lambda test: test.name)
def test_the_example_of_a_docstring_runs(example: doctest.DocTest, spark: SparkSession, s3: str, here: Path) -> None:
    """Run it as a doctest.

    Given are all public names, `spark`, `df` (text and stars), `dataset`; and data sets at /data/reviews, /data/a and
    /data/b, unless the example writes one.
    """
    if example.name not in WRITERS:
        for name in ("reviews", "a", "b"):
            reviews(here / "data" / name)
    df = spark.createDataFrame([("good", 5)], "text string, stars int")
    names = {name: getattr(package, name) for package, name in PUBLIC}
    given = {"np": np, "torch": torch, "spark": spark, "df": df, "mds_torch": mds_torch, "dataset": None}
    if example.name == "StreamingDataLoader":
        given["dataset"] = StreamingDataset(local=str(here / "data/reviews"), batch_size=64)
    elif "epoch_order" in "".join(one.source for one in example.examples):
        given["dataset"] = ten(here / "ten")
    for one in example.examples:
        one.source, one.want = moved(one.source, here, s3), moved(one.want, here, s3)
    example.globs = {**names, **given}
    told: list[str] = []
    failed = doctest.DocTestRunner(verbose=False).run(example, out=told.append).failed
    assert failed == 0, "".join(told)


SEED = 1454


def ten(folder: Path) -> StreamingDataset:
    """A data set of ten samples as the second of two ranks reads it, under a seed that gives the docstrings' order."""
    path = write(folder, {"id": "int64"}, ({"id": i} for i in range(10)))
    return StreamingDataset(local=path, shuffle=True, shuffle_seed=SEED, batch_size=2, rank=0, world_size=2)

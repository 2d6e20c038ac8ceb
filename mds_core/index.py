"""`index.json`: parse, check, merge, publish.

A data set's index lists its shards in order. What an untrusted index says is checked when it is parsed, so that
the rest of the code can rely on it: names stay inside the data set's folder, sizes are possible.
"""

from __future__ import annotations

import json
import posixpath
import re
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from pathlib import PurePosixPath
from typing import Any, TypeAlias

import xxhash

from mds_core.compression import parse_compression
from mds_core.encodings import get_encoding
from mds_core.errors import FormatError, RewrittenError
from mds_core.hashing import check_hashes
from mds_core.progress import progress
from mds_core.storage import Storage, open_storage
from mds_core.storage.info import Version

INDEX = "index.json"
VERSION = 2
OWN_KEY = "mds_spark"
# How the shards' names begin that hold the id of their write.
_WRITE_ID = re.compile(r"shard\.[0-9a-f]{16}\.")
MAX_SHARD_BYTES = (1 << 32) - 1  # offsets are u32


@dataclass(frozen=True, slots=True)
class File:
    """A file of a shard: its path relative to the data set, size in bytes, and hex digest by hash name."""

    basename: str
    bytes: int
    hashes: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Give the index's JSON object of this file."""
        return {"basename": self.basename, "bytes": self.bytes, "hashes": self.hashes}


@dataclass(frozen=True, slots=True)
class Layout:
    """What a data set's shards have in common: columns, sorted by name, and how shards are made."""

    column_names: tuple[str, ...]
    column_encodings: tuple[str, ...]
    column_sizes: tuple[int | None, ...]
    compression: str | None = None
    hashes: tuple[str, ...] = ()
    size_limit: int | None = 1 << 26

    @classmethod
    def of(
        cls,
        columns: dict[str, str],
        compression: str | None = None,
        hashes: Sequence[str] = (),
        size_limit: int | None = 1 << 26,
    ) -> Layout:
        """Make the layout of columns given as encoding by name."""
        names = tuple(sorted(columns))
        sizes = tuple(get_encoding(columns[name]).size for name in names)
        return cls(
            names,
            tuple(columns[name] for name in names),
            sizes,
            compression,
            check_hashes(hashes),
            size_limit,
        )

    @property
    def columns(self) -> dict[str, str]:
        """The encoding of each column, by name."""
        return dict(zip(self.column_names, self.column_encodings, strict=True))

    def to_json(self) -> dict[str, Any]:
        """Give the keys that the index and the shard's own header have in common."""
        return {
            "column_encodings": list(self.column_encodings),
            "column_names": list(self.column_names),
            "column_sizes": list(self.column_sizes),
            "compression": self.compression,
            "format": "mds",
            "hashes": list(self.hashes),
            "size_limit": self.size_limit,
            "version": VERSION,
        }


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard's entry in the index."""

    layout: Layout
    samples: int
    raw_data: File
    zip_data: File | None

    @property
    def stored(self) -> File:
        """The file that is kept: the compressed one, if there is one."""
        return self.zip_data or self.raw_data

    def to_json(self) -> dict[str, Any]:
        """Give the index's JSON object of this shard."""
        return {
            **self.layout.to_json(),
            "samples": self.samples,
            "raw_data": self.raw_data.to_json(),
            "zip_data": self.zip_data.to_json() if self.zip_data else None,
        }


@dataclass(frozen=True)
class Index:
    """A data set's shards in order, and what we keep beside them under the key `mds_spark`."""

    shards: tuple[Shard, ...] = ()
    own: dict[str, Any] = field(default_factory=dict)

    @property
    def columns(self) -> dict[str, str]:
        """The encoding of each column by name; empty for a data set without columns or shards."""
        if self.shards:
            return self.shards[0].layout.columns
        columns: dict[str, str] = self.own.get("columns", {})
        return columns

    def to_bytes(self) -> bytes:
        """Give the text of `index.json`."""
        document: dict[str, Any] = {
            "shards": [shard.to_json() for shard in self.shards],
            "version": VERSION,
        }
        if self.own:
            document[OWN_KEY] = self.own
        return json.dumps(document, sort_keys=True).encode()


def parse_index(data: bytes, where: str) -> Index:
    """Parse and check the text of an index.

    Args:
        data: the bytes of `index.json`.
        where: its path, for errors.

    Raises:
        FormatError: naming the file, the field, what was found and what was expected.
    """
    try:
        return _parse(_Check(where), json.loads(data))
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: not JSON: {error}") from None


def _parse(check: _Check, document: Any) -> Index:
    check.kind(document, dict, "the index")
    if check.get(document, "version", int, "") != VERSION:
        raise check.fail("version", str(VERSION), document["version"])
    shards = check.get(document, "shards", list, "")
    layouts: dict[str, Layout] = {}
    parsed = tuple(_parse_shard(check, shard, f"shards[{i}]", layouts) for i, shard in enumerate(shards))
    own = document.get(OWN_KEY, {})
    check.kind(own, dict, OWN_KEY)
    if "columns" in own:
        _check_columns(check, own["columns"])
    index = Index(parsed, own)
    _check_shards_agree(check, index)
    return index


@dataclass(frozen=True)
class _Check:
    """Checks on the fields of the index at `where`."""

    where: str

    def fail(self, name: str, expected: str, found: object) -> FormatError:
        text = repr(found)
        return FormatError(
            f"{self.where}: {name}: expected {expected}, found {text if len(text) < 100 else text[:97] + '...'}"
        )

    def kind(self, value: Any, kind: type | tuple[type, ...], name: str) -> Any:
        if type(value) is kind:
            return value
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = {
                dict: "an object",
                list: "a list",
                str: "a text",
                int: "a whole number",
                type(None): "null",
            }
            raise self.fail(name, " or ".join(names[k] for k in kinds), value)
        return value

    def get(self, parent: dict[str, Any], key: str, kind: type | tuple[type, ...], path: str) -> Any:
        name = f"{path}.{key}" if path else key
        if key not in parent:
            raise FormatError(f"{self.where}: {name} is missing")
        return self.kind(parent[key], kind, name)

    def keys(self, value: dict[str, Any], expected: set[str], path: str) -> None:
        if value.keys() != expected:
            unknown, missing = sorted(set(value) - expected), sorted(expected - set(value))
            words = [f"missing {', '.join(missing)}"] * bool(missing) + [f"unknown {', '.join(unknown)}"] * bool(
                unknown
            )
            raise FormatError(f"{self.where}: {path}: keys: {' and '.join(words)}")


_LAYOUT_KEYS = {
    "column_encodings", "column_names", "column_sizes", "compression", "format", "hashes", "size_limit", "version",
}  # fmt: skip
_SHARD_KEYS = _LAYOUT_KEYS | {"samples", "raw_data", "zip_data"}


def _parse_shard(check: _Check, value: Any, path: str, layouts: dict[str, Layout]) -> Shard:
    check.kind(value, dict, path)
    check.keys(value, _SHARD_KEYS, path)
    # Shards of a data set share their layout: check and keep it once.
    key = repr([value[name] for name in sorted(_LAYOUT_KEYS)])
    layout = layouts.get(key)
    if layout is None:
        layout = layouts[key] = _parse_layout(check, value, path)
    samples = check.get(value, "samples", int, path)
    raw = _parse_file(check, value["raw_data"], f"{path}.raw_data", layout.hashes)
    zipped = None
    if (value["zip_data"] is None) != (layout.compression is None):
        raise check.fail(f"{path}.zip_data", "a file if, and only if, there is a compression", value["zip_data"])
    if value["zip_data"] is not None:
        zipped = _parse_file(check, value["zip_data"], f"{path}.zip_data", layout.hashes)
    if raw.bytes > MAX_SHARD_BYTES:
        raise check.fail(f"{path}.raw_data.bytes", f"at most {MAX_SHARD_BYTES}", raw.bytes)
    if samples < 0 or 8 + 4 * samples > raw.bytes:
        raise check.fail(f"{path}.samples", f"a number that fits a file of {raw.bytes} bytes", samples)
    return Shard(layout, samples, raw, zipped)


def _parse_layout(check: _Check, value: dict[str, Any], path: str) -> Layout:
    if check.get(value, "version", int, path) != VERSION:
        raise check.fail(f"{path}.version", str(VERSION), value["version"])
    if value["format"] != "mds":
        raise check.fail(f"{path}.format", "'mds'", value["format"])
    names = check.get(value, "column_names", list, path)
    encodings = check.get(value, "column_encodings", list, path)
    sizes = check.get(value, "column_sizes", list, path)
    hashes = check.get(value, "hashes", list, path)
    compression = check.get(value, "compression", (str, type(None)), path)
    size_limit = check.get(value, "size_limit", (int, type(None)), path)
    for i, name in enumerate(names):
        check.kind(name, str, f"{path}.column_names[{i}]")
    for i, name in enumerate(hashes):
        check.kind(name, str, f"{path}.hashes[{i}]")
    if size_limit is not None and size_limit < 0:
        raise check.fail(f"{path}.size_limit", "a size or null", size_limit)
    if not names or names != sorted(set(names)):
        raise check.fail(f"{path}.column_names", "names, sorted and different", names)
    if not len(names) == len(encodings) == len(sizes):
        raise check.fail(f"{path}.column_encodings", f"{len(names)} of encodings and of sizes", (encodings, sizes))
    _check_columns(check, dict(zip(names, encodings, strict=True)))
    for name, encoding, size in zip(names, encodings, sizes, strict=True):
        expected = get_encoding(encoding).size
        if type(size) is not type(expected) or size != expected:
            expected_text = "null" if expected is None else str(expected)
            raise check.fail(f"{path}.column_sizes of {name!r}", f"{expected_text} for {encoding}", size)
    try:
        if compression is not None:
            parse_compression(compression)
        known = check_hashes(hashes)
    except ValueError as error:
        raise FormatError(f"{check.where}: {path}: {error}") from None
    if hashes != list(known):
        raise check.fail(f"{path}.hashes", "names, sorted and different", hashes)
    return Layout(tuple(names), tuple(encodings), tuple(sizes), compression, known, size_limit)


def _check_columns(check: _Check, columns: Any) -> None:
    check.kind(columns, dict, "columns")
    for name, encoding in columns.items():
        try:
            get_encoding(check.kind(encoding, str, f"the encoding of column {name!r}"))
        except ValueError as error:
            raise FormatError(f"{check.where}: column {name!r}: {error}") from None


def _parse_file(check: _Check, value: Any, path: str, hashes: Sequence[str]) -> File:
    check.kind(value, dict, path)
    check.keys(value, {"basename", "bytes", "hashes"}, path)
    basename = check.kind(value["basename"], str, f"{path}.basename")
    if not is_inside(basename):
        raise check.fail(f"{path}.basename", "a path inside the data set", basename)
    if _NO_SHARDS.search(basename):
        raise check.fail(f"{path}.basename", "a shard, not an index or a staging folder's file", basename)
    size = check.kind(value["bytes"], int, f"{path}.bytes")
    if size < 0:
        raise check.fail(f"{path}.bytes", "a size", size)
    digests = check.kind(value["hashes"], dict, f"{path}.hashes")
    if set(digests) != set(hashes) or not all(isinstance(text, str) for text in digests.values()):
        raise check.fail(f"{path}.hashes", f"a digest for each of {list(hashes)}", digests)
    return File(basename, size, digests)


# A colon is a drive on Windows, a backslash a separator; lone surrogates are no text that a name could have.
_NEVER_IN_NAMES = re.compile("[\\\\:\0\ud800-\udfff]")
# What a write keeps beside shards, which it must not take for one: an index (some file systems know no case) and the
# folder that files are staged in.
_NO_SHARDS = re.compile(r"(^|/)(index\.json$|\.mds-)", re.IGNORECASE)


def is_inside(basename: str) -> bool:
    """Tell whether a basename is a plain relative path that stays inside its data set, on any system."""
    parts = basename.split("/")
    return not ("" in parts or "." in parts or ".." in parts or _NEVER_IN_NAMES.search(basename))


def _check_shards_agree(check: _Check, index: Index) -> None:
    columns = index.columns
    seen: set[str] = set()
    for i, shard in enumerate(index.shards):
        if shard.layout.columns != columns:
            raise check.fail(f"shards[{i}] columns", f"those of shards[0], {columns}", shard.layout.columns)
        name = shard.stored.basename
        if name in seen:
            raise FormatError(f"{check.where}: shards[{i}]: file {name!r} is named by an earlier shard, too")
        seen.add(name)


def read_index(storage: Storage) -> Index:
    """Read and check a data set's index.

    Raises:
        FileNotFoundError: there is none.
        FormatError: it is broken.
    """
    return read_index_version(storage)[0]


def read_index_version(storage: Storage) -> tuple[Index, str, Version]:
    """Read and check a data set's index; give its identity, a hash of its bytes, and the version of its file, too.

    Raises:
        FileNotFoundError: there is none.
        FormatError: it is broken.
    """
    try:
        data, version = storage.read_range(INDEX, 0, None)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(
            f"no MDS data set at {storage.root}: there is no {INDEX}. If one is being written, it appears when the "
            "write has ended; if only its subfolders have one, merge them with merge_index()"
        ) from None
    return parse_index(data, storage.describe(INDEX)), identity_of(data), version


def check_unchanged(storage: Storage, index: Version, shard: Shard, fetched: Version | None) -> None:
    """Raise RewrittenError if a file of a data set may be of a later one than its index, as that was read.

    A file that was written before the index is the index's own: who writes the data set again writes after it. For
    others, it is looked up whether the index still is the same; or has the same shard, under a name that no other write
    can have chosen, as after an append.

    Args:
        storage: the data set's folder.
        index: the version of its index, when that was read.
        shard: the shard's entry there.
        fetched: the version of its file; None: it is not there.
    """
    if fetched is not None and fetched.is_before(index):
        return
    info = storage.info(INDEX)
    if info is not None and info.version == index:
        return
    if info is not None and fetched is not None and has_own_name(shard) and shard in read_index(storage).shards:
        return
    found = "gone" if info is None else f"another file ({info.version.tag})"
    raise RewrittenError(
        f"{storage.describe(INDEX)} is {found} since it was read ({index.tag}), and {shard.stored.basename} is not "
        "what it was: what is read from here on would be of another data set; open it anew"
    )


def has_own_name(shard: Shard) -> bool:
    """Tell whether a shard's name holds the id of its write: no other write can have chosen it."""
    return _WRITE_ID.match(posixpath.basename(shard.stored.basename)) is not None


def identity_of(data: bytes, version: str = "") -> str:
    """Give a text, 32 hexadecimal digits, that tells an index from all others: of its bytes, and a version."""
    hasher = xxhash.xxh3_128(data)
    hasher.update(version.encode())
    return hasher.hexdigest()


def publish_index(storage: Storage, change: Callable[[Index | None], Index]) -> tuple[Index | None, Index]:
    """Replace a data set's index in one atomic step by what `change` makes of the one that is there.

    Two publishers at once both land: where the index changed since it was read, `change` is asked again.

    Args:
        storage: the data set's folder.
        change: from the present index (None: there is none) to the new one. What it raises, this raises.

    Returns:
        The index before, and the one published.
    """
    while True:
        data = storage.read(INDEX)
        before = None if data is None else parse_index(data, storage.describe(INDEX))
        after = change(before)
        if storage.replace(INDEX, after.to_bytes(), expected=data):
            return before, after


def delete_replaced(storage: Storage, before: Index, after: Index) -> None:
    """Delete the shards of an index that the one published after it does not name.

    Those that can't be deleted only take space: a warning names them.
    """
    named = {shard.stored.basename for shard in after.shards}
    for shard in before.shards:
        if shard.stored.basename not in named:
            try:
                storage.delete(shard.stored.basename)
            except (FormatError, OSError) as error:
                warnings.warn(
                    f"the new data set is in place, but a shard of the old one stays: {error}; delete it by hand",
                    stacklevel=2,
                )


Path: TypeAlias = "str | PathLike[str]"
Place: TypeAlias = "Path | tuple[Path, Path]"


def merge_index(
    source: Place | Sequence[Place],
    out: Place | None = None,
    keep_local: bool = True,
    download_timeout: int = 60,
    storage_options: dict[str, str] | None = None,
) -> Index:
    """Publish one index over the shards of several data sets.

    `merge_index(path)` merges all data sets in the subfolders of `path` (at any depth), and keeps the shards of an
    index that `path` has already; merging twice gives the same. `merge_index([path, ...], out)` merges the named
    data sets, which lie in or below the folder `out`, in their order.

    Spark's types are kept where all data sets have the same; nulls may be where one of them allows nulls. If one has
    none, because Spark did not write it, the merged one has none: Spark then reads all values as their encodings say.

    Args:
        source: a folder, or a list of data sets' folders (or of their index.json). Of a pair (local, remote), as
            mosaicml-streaming has them, the remote one counts where it is not empty.
        out: with a list, the folder that gets the index.
        keep_local: accepted for mosaicml-streaming's callers; nothing is copied that would have to be kept.
        download_timeout: likewise; nothing is downloaded.
        storage_options: of the folder's store, by name, instead of what the environment says: `endpoint`, `profile`, …

    Returns:
        The index that was published.

    Raises:
        FileNotFoundError: there is nothing to merge.
        ValueError: the data sets' columns or Spark's types of them differ, one does not lie below `out`, or its folder
            has a name that no index may hold.

    Example:
        >>> index = merge_index("/data/reviews")
    """
    if isinstance(source, str | PathLike | tuple):
        root = open_storage(_path_of(source), storage_options)
        folders = sorted({posixpath.dirname(n) for n in root.list() if posixpath.basename(n) == INDEX}, key=_natural)
        if not folders:
            raise FileNotFoundError(f"nothing to merge: no {INDEX} in {root.root} or below it")
    else:
        if out is None:
            raise TypeError("merge_index([path, ...], out): `out`, the folder that gets the index, is missing")
        root = open_storage(_path_of(out), storage_options)
        folders = [_relative(_path_of(path), root, storage_options) for path in source]
    for folder in folders:
        if folder and (not is_inside(folder) or _NO_SHARDS.search(folder + "/")):
            raise ValueError(
                f"can't merge {root.describe(folder)!r}: an index can't name what is in a folder with ':', '\\', or "
                "bytes that are no text in its path, or '.mds-' at a name's start; rename it, and merge again"
            )
    indexes = {folder: _index_of(root, folder) for folder in progress(folders, "merging", "data sets")}

    def merged(before: Index | None) -> Index:
        if before is not None and "" in indexes:
            indexes[""] = before  # which an append may have changed since
        named = {folder: {_below(folder, shard.stored) for shard in index.shards} for folder, index in indexes.items()}
        shards: dict[str, Shard] = {}
        first: tuple[str, Index] | None = None
        own: dict[str, Any] = {}
        for folder, index in indexes.items():
            if first and index.columns:
                if index.columns != first[1].columns:
                    raise ValueError(_differ(root, "columns", (folder, index.columns), (first[0], first[1].columns)))
                own = _merged_own(root, (folder, index.own), (first[0], own))
            elif index.columns:
                first, own = (folder, index), index.own
            for shard in index.shards:
                # What an earlier merge named keeps its place, if the data set that the file is in still has it; that
                # data set's own entry is the newer one.
                moved = _moved(shard, folder)
                name = moved.stored.basename
                if name in named[_nearest(name, named)]:
                    shards[name] = moved
        return Index(tuple(shards.values()), own)

    return publish_index(root, merged)[1]


def _differ(root: Storage, what: str, new: tuple[str, Any], old: tuple[str, Any]) -> str:
    return (
        f"can't merge {root.describe(new[0])}: its {what} are {new[1]}, those of {root.describe(old[0])} are {old[1]}"
    )


def _merged_own(root: Storage, new: tuple[str, dict[str, Any]], old: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """Give what is kept beside the shards: Spark's schema only if both have it."""
    if "schema" not in new[1] or "schema" not in old[1]:
        return {key: value for key, value in old[1].items() if key != "schema"}
    try:
        types, old_types = spark_types(new[1]["schema"]), spark_types(old[1]["schema"])
        if types == old_types:
            return {**old[1], "schema": loosened(old[1]["schema"], new[1]["schema"])}
    except (AttributeError, KeyError, TypeError) as error:
        raise FormatError(f"can't merge {root.describe(new[0])}: the schema in an index is broken: {error!r}") from None
    names = [name for name in types if types[name] != old_types.get(name)]
    differing = [{name: each[name] for name in names if name in each} for each in (types, old_types)]
    text = _differ(root, "Spark types", (new[0], differing[0]), (old[0], differing[1]))
    raise ValueError(f"{text}; cast those columns in one of them, and write it again")


_NULLABLE = ("nullable", "containsNull", "valueContainsNull")


def spark_types(schema: Any) -> dict[str, Any]:
    """Give the type of each column of Spark's schema in JSON, without where nulls may be and without comments.

    Raises:
        KeyError, TypeError: it is no schema.
    """
    return {column["name"]: _without_nullability(column["type"]) for column in schema["fields"]}


def _without_nullability(schema: Any) -> Any:
    if isinstance(schema, dict):
        left_out = (*_NULLABLE, "metadata")
        return {key: _without_nullability(value) for key, value in schema.items() if key not in left_out}
    return [_without_nullability(value) for value in schema] if isinstance(schema, list) else schema


def loosened(schema: Any, other: Any) -> Any:
    """Give Spark's schema in JSON with nulls allowed where it or another one of the same types allows them."""
    if isinstance(schema, dict):
        return {
            key: value
            if key == "metadata"
            else value or other[key]
            if key in _NULLABLE
            else loosened(value, other.get(key, value))
            for key, value in schema.items()
        }
    if isinstance(schema, list):
        others = {field["name"]: field for field in other}
        return [loosened(field, others[field["name"]]) for field in schema]
    return schema


def _path_of(place: Place) -> str:
    path = fspath((place[1] or place[0]) if isinstance(place, tuple) else place)
    folder, slash, name = path.rpartition("/")
    return (folder + slash or ".") if name == INDEX else path


def _natural(folder: str) -> list[tuple[bool, int, str]]:
    """Sort task folders by number: 2 before 10; the root first."""
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in folder.split("/") if part]


def _relative(path: str, root: Storage, options: dict[str, str] | None) -> str:
    folder = open_storage(path, options).root
    relative = PurePosixPath(folder)
    if not relative.is_relative_to(root.root):
        raise ValueError(f"can't merge {path}: it does not lie below {root.root}, where its shards would be looked for")
    text = relative.relative_to(root.root).as_posix()
    return "" if text == "." else text


def _index_of(root: Storage, folder: str) -> Index:
    name = posixpath.join(folder, INDEX)
    data = root.read(name)
    if data is None:
        raise FileNotFoundError(f"can't merge {root.describe(folder)}: there is no {INDEX}")
    return parse_index(data, root.describe(name))


def _below(folder: str, file: File) -> str:
    return posixpath.join(folder, file.basename)


def _nearest(name: str, folders: Collection[str]) -> str:
    """Give the innermost of the folders that a file is in."""
    folder = posixpath.dirname(name)
    while folder not in folders:
        folder = posixpath.dirname(folder)
    return folder


def _moved(shard: Shard, folder: str) -> Shard:
    def moved(file: File) -> File:
        return replace(file, basename=_below(folder, file))

    return replace(shard, raw_data=moved(shard.raw_data), zip_data=shard.zip_data and moved(shard.zip_data))

"""The MDS format: writing and reading data sets, without Spark and without torch."""

from mds_core.errors import EncodeError, FormatError, RewrittenError
from mds_core.index import merge_index
from mds_core.packing import Packed, pack_tokens
from mds_core.reader import MDSReader
from mds_core.writer import MDSWriter

__all__ = [
    "EncodeError",
    "FormatError",
    "MDSReader",
    "MDSWriter",
    "Packed",
    "RewrittenError",
    "merge_index",
    "pack_tokens",
]

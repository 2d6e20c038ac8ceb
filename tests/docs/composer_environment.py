"""Composer in an environment of its own: it asks for a torch and a torchvision that are older than ours.

Its environment is `.venv-composer` in the repository, or the folder that MDS_COMPOSER_VENV names.
"""

import os
from pathlib import Path

from tests.environments import ROOT, Environment

COMPOSER = Environment(
    folder=Path(os.environ.get("MDS_COMPOSER_VENV") or ROOT / ".venv-composer").absolute(),
    requirements=[
        "coolname>=1.1,<3",
        "importlib-metadata>=5,<9",
        "mosaicml-cli>=0.5.25,<1",
        "numpy<2.3",
        "pillow>=10.3",
        "psutil>=5.8",
        "py-cpuinfo>=8,<10",
        "pyarrow>=18",
        "pyyaml>=6,<7",
        "requests>=2.26,<3",
        "tabulate==0.9.0",
        "torch==2.13.0",
        "torchmetrics>=1,<1.7.5",
        "tqdm>=4.64,<5",
        "xxhash>=3,<4",
    ],
    alone=["mosaicml==0.32.1", "torch-optimizer==0.3.0", "pytorch-ranger==0.1.1"],
    # It imports names of torchvision for algorithms on images, which nothing here uses; torchmetrics does, too.
    stubs={
        "torchvision/__init__.py": '''
"""A stub: any module below it imports, with any name in it, and none of them does anything."""
import importlib.abc
import importlib.machinery
import sys
import types


class Anything(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith("torchvision.") else None

    def create_module(self, spec):
        return Anything(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Finder())
'''
    },
    verify="from composer import Trainer\nfrom composer.models import ComposerModel\n",
)

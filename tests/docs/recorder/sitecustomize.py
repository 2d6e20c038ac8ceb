"""On PYTHONPATH: every process that trains a `Model` writes down which samples it was trained on.

With RECORD=FOLDER in the environment, `FOLDER/RANK` gets a line of JSON for each forward pass in training: the numbers
of its samples, which docs/frameworks/table.py puts in the first of their features. It works in whatever process a
framework starts, and imports torch in none. With LATE_RANK in the environment, that rank makes its model so late that
ranks which do not wait for it are several steps ahead.
"""

import importlib.abc
import importlib.util
import json
import os
import sys
import time

ROWS = 203


class AfterTorch(importlib.abc.MetaPathFinder):
    """Adds the hook when torch's modules have been imported."""

    def find_spec(self, name, path, target=None):
        if name != "torch.nn.modules.module":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def run_and_hook(module):
            run(module)
            module.register_module_forward_hook(record, with_kwargs=True)
            if os.environ.get("LATE_RANK") == os.environ.get("RANK", "0"):
                make_late(module.Module)

        spec.loader.exec_module = run_and_hook
        return spec


def make_late(base):
    make = base.__init__

    def sleep_and_make(self, *arguments, **named):
        if type(self).__name__ == "Model":
            time.sleep(5)
        make(self, *arguments, **named)

    base.__init__ = sleep_and_make


def record(module, inputs, named, output):
    if module.training and any(kind.__name__ == "Model" for kind in type(module).__mro__):
        import torch.distributed as dist

        x = inputs[0] if inputs else named["x"]
        rank = dist.get_rank() if dist.is_initialized() else 0
        with open(os.path.join(os.environ["RECORD"], str(rank)), "a") as file:
            print(json.dumps((x[:, 0].detach().double() * ROWS).round().int().tolist()), file=file)


if "RECORD" in os.environ:
    sys.meta_path.insert(0, AfterTorch())

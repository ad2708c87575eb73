"""`import flash_attn` finds this package."""
from __future__ import annotations

import importlib.abc
import importlib.metadata
import re
import sys

from .. import flash_attn
from ..errors import FlashKilnError
from . import bert_padding, flash_attn_interface, layers
from .layers import rotary

MODULES = {"flash_attn": flash_attn, "flash_attn.flash_attn_interface": flash_attn_interface,
           "flash_attn.bert_padding": bert_padding, "flash_attn.layers": layers, "flash_attn.layers.rotary": rotary}


def install_as_flash_attn(force=False):
    """Makes flashkiln.flash_attn the package flash_attn of this process, until uninstall_as_flash_attn(): `import
    flash_attn`, its modules flash_attn_interface, bert_padding and layers.rotary, importlib.util.find_spec("flash_attn")
    and importlib.metadata.version("flash-attn") find it. Once or more often is the same.

    Call it before the program's other imports: names that a module took from flash_attn stay what they are, and libraries
    such as transformers look once for whether there is a flash_attn. It does not reach processes that are started anew,
    nor what pip and pkg_resources see.

    force: replaces a flash_attn that is imported already; otherwise that is an error. One that is installed but not
    imported is hidden.

        >>> import flashkiln
        >>> flashkiln.install_as_flash_attn()
        >>> from flash_attn import flash_attn_func
    """
    if sys.modules.get("flash_attn") is flash_attn:
        return
    present = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "flash_attn"}
    if present and not force:
        raise FlashKilnError(f"flash_attn is imported already, from {getattr(present.get('flash_attn'), '__file__', None)}; "
                             "call install_as_flash_attn() before that, or with force=True")
    for name in present:
        del sys.modules[name]
    Metadata.replaced = present
    sys.modules.update(MODULES)
    sys.meta_path.insert(0, Metadata)


def uninstall_as_flash_attn():
    """Undoes install_as_flash_attn(): what it replaced is there again. Without one, does nothing."""
    if sys.modules.get("flash_attn") is not flash_attn:
        return
    sys.meta_path.remove(Metadata)
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.modules.update(Metadata.replaced)


class Metadata(importlib.abc.MetaPathFinder):
    """What importlib.metadata says of flash-attn: name, version and the package that it has."""
    replaced = {}  # modules that were there before

    @staticmethod
    def find_spec(name, path=None, target=None):
        return None  # modules are in sys.modules

    @staticmethod
    def find_distributions(context):
        if context.name is None or re.sub(r"[-_.]+", "-", context.name).lower() == "flash-attn":
            yield Distribution()


class Distribution(importlib.metadata.Distribution):
    FILES = {"METADATA": f"Metadata-Version: 2.1\nName: flash-attn\nVersion: {flash_attn.__version__}\n"
                         "Summary: FlashAttention's functions, by FlashKiln\n",
             "top_level.txt": "flash_attn\n"}

    def read_text(self, filename):
        return self.FILES.get(filename)

    def locate_file(self, path):
        raise FileNotFoundError(f"{path}: this flash-attn is a part of flashkiln, and has no files of its own")

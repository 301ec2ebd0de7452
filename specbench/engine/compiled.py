"""Parts of a round compiled by PyTorch for fixed shapes."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.exc import TorchDynamoException
from torch._inductor import cpp_builder, exc

from specbench.config import COMPILE, EAGER
from specbench.errors import CaptureError, UsageError

# Each combination of method, draft length, batch size and cache size is compiled separately.
MOST_SHAPES = 256
COMPILER = ("_dynamo", "_functorch", "_inductor", "fx")  # folders of PyTorch


def compile_rounds(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function compiled for fixed shapes; it raises ``CaptureError`` if it cannot be."""
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, MOST_SHAPES)
    compiled = torch.compile(function, dynamic=False, fullgraph=True)

    def run(*args: Any) -> Any:
        try:
            result = compiled(*args)
        except Exception as error:
            # An error of any other kind may come from PyTorch's compiler too.
            files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
            folders = [Path(torch.__file__).parent / name for name in COMPILER]
            compiles = any(file.match("torch/_dynamo/convert_frame.py") for file in files)
            inside = any(files[-1].is_relative_to(folder) for folder in folders)
            if not (isinstance(error, TorchDynamoException) or compiles or inside):
                raise
            # The first line of the message, with the innermost line of code that it names.
            lines = str(error).strip().splitlines()
            lines = [line for line in lines if not line.endswith("raised:")]
            reason = [*lines, type(error).__name__][0].rstrip(". ")
            if places := re.findall(r'File "(.+?)", line (\d+)', str(error)):
                reason = f"{Path(places[-1][0]).name}, line {places[-1][1]}: {reason}"
            raise CaptureError(f"a round cannot be compiled ({reason})") from error
        fields = getattr(result, "_fields", None)
        if fields is not None and len(fields) != len(result):  # 2.11 does so with copied drafts
            raise CaptureError(f"PyTorch {torch.__version__} loses results of a compiled round")
        return result

    return run


def require_compiler() -> None:
    """Raise ``UsageError`` if there is no C++ compiler."""
    try:
        cpp_builder.get_cpp_compiler()
    except (exc.InvalidCxxCompiler, RuntimeError) as error:
        raise UsageError(
            f"--engine {COMPILE} needs a C++ compiler: install g++ or clang, name "
            f"one in CXX, or choose --engine {EAGER}"
        ) from error

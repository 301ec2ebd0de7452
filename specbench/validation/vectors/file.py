"""The cases as a file: JSON, or safetensors with the texts of each case as metadata."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from specbench.validation.vectors.cases import vectors
from specbench.version import __version__

FORMATS = (".json", ".safetensors")


def encoded(suffix: str) -> bytes:
    """Return the content of a file with one of the ``FORMATS``.

    In safetensors an array is named ``cases/NAME/p``; the metadata ``index`` has all else.
    """
    content = vectors()
    if suffix == ".json":
        return json.dumps({"specbench": __version__, **content}, default=_listed).encode() + b"\n"
    from safetensors.numpy import save

    arrays = {
        f"{kind}/{case['name']}/{key}": np.ascontiguousarray(value)
        for kind, cases in content.items()
        for case in cases
        for key, value in case.items()
        if isinstance(value, np.ndarray)
    }
    index = {
        kind: [{k: v for k, v in case.items() if not isinstance(v, np.ndarray)} for case in cases]
        for kind, cases in content.items()
    }
    return bytes(save(arrays, {"specbench": __version__, "index": json.dumps(index)}))


def _listed(value: Any) -> Any:
    return value.tolist()

"""Time products in bfloat16 by PyTorch's layout of weights and by two packed ones, on a CPU.

    python tasks/measure/packed_products.py [--repeats R] [--threads T]

The layers have the sizes of Qwen2.5-Coder 1.5B (hidden 1,536), more of them than a cache holds.
Layouts take turns, so that a machine which others use too treats them alike. ``specbench.engine``
packs for ``TOKENS``; this says whether that is right on a machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from specbench.analysis.tables.table import Column, Table, number, with_interval
from specbench.cli.output import print_table
from specbench.engine.packing import TOKENS

SIZES = ((8960, 1536), (1536, 8960), (1536, 1536), (256, 1536))  # outputs, inputs
LAYERS = 16
ROWS = (1, 6, 16, 96)
PYTORCH = "PyTorch's"


def products(repeats: int) -> Iterator[tuple[int, str, list[float]]]:
    """Yield rows, layout, and seconds of all layers for each repeat."""
    weights = [torch.randn(size).bfloat16() for _ in range(LAYERS) for size in SIZES]
    multiply: dict[str, list[Callable[[Tensor], Tensor]]] = {
        PYTORCH: [partial(linear, weight=weight) for weight in weights]
    }
    for tokens in (1, TOKENS):
        packed = [torch.ops.mkldnn._reorder_linear_weight(weight, tokens) for weight in weights]
        multiply[f"packed for {tokens}"] = [partial(_packed, weight) for weight in packed]
    for rows in ROWS:
        inputs = [torch.randn(rows, 1, inputs).bfloat16() for _, inputs in SIZES]
        seconds: dict[str, list[float]] = {layout: [] for layout in multiply}
        for _ in range(repeats):
            for layout, layers in multiply.items():
                start = time.perf_counter()
                for index, layer in enumerate(layers):
                    layer(inputs[index % len(SIZES)])
                seconds[layout].append(time.perf_counter() - start)
        yield from ((rows, layout, times[1:]) for layout, times in seconds.items())


def _packed(weight: Tensor, tokens: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(tokens, weight, None, "none", [], "")
    return product


def main() -> None:
    """Print GB/s of weights, as the median and quartiles of the repeats."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=16)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    size = 2e-9 * LAYERS * sum(outputs * inputs for outputs, inputs in SIZES)
    rows = []
    with torch.inference_mode():
        for tokens, layout, seconds in products(options.repeats):
            low, middle, high = np.quantile(size / np.array(seconds), (0.25, 0.5, 0.75))
            speed = number(middle * tokens / 1000, ".2f")
            rows.append([str(tokens), layout, with_interval(middle, low, high, ".1f"), speed])
    names = ("tokens", "layout", "GB/s [quartiles]", "TFLOP/s")
    print_table(Table("Products", [Column(name) for name in names], rows, stub=2))


if __name__ == "__main__":
    main()

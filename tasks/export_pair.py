"""Write a pair of Llama models as GGUF files, for ``--engine llamacpp`` and llama.cpp's server.

llama.cpp's own ``convert_hf_to_gguf.py`` exports published models, but not the tokenizers of the
bundled pairs:

    python tasks/export_pair.py mini --type q8_0 --output results/gguf/mini
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from specbench.engine.export import FILE_TYPES, export_pair
from specbench.engine.pairs import get_pair
from specbench.errors import SpecbenchError
from specbench.files import check_writable


def main() -> None:
    """Export the pair that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pair", help="a pair's name, as in: specbench list pairs")
    parser.add_argument(
        "--type",
        choices=FILE_TYPES,
        default="f32",
        help="type of the weight matrices: 32 or 16 bits, or 8 bits with a scale per 32 weights "
        "(default: f32)",
    )
    parser.add_argument("--output", type=Path, help="folder to write (default: results/gguf/PAIR)")
    options = parser.parse_args()
    folder = options.output or Path("results/gguf") / options.pair
    try:
        spec = get_pair(options.pair)
        check_writable(folder)
        files = export_pair(spec, folder, options.type)
    except SpecbenchError as error:
        sys.exit(f"error: {error}")
    print(*files, sep="\n")


if __name__ == "__main__":
    main()

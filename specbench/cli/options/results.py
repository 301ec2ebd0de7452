"""Where a run goes, and whether it runs at all."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from specbench.cli.options.common import NoProgress

_option: Any = partial(typer.Option, rich_help_panel="Results")

Output = Annotated[
    Path | None,
    _option(
        "--output",
        "-o",
        help="Folder to write; a run of the same plan that is there is gone on with.",
        show_default="results/<time>-<command>-<pair>, or the newest unfinished of the same plan",
    ),
]

Fresh = Annotated[
    bool,
    _option("--fresh", help="Start anew; a run in the folder is moved aside, never deleted."),
]

DryRun = Annotated[
    bool,
    _option(
        "--dry-run",
        help="Print the plan: cells, samples, memory, and the time as a short probe tells it.",
    ),
]


@dataclass(frozen=True)
class Results:
    """Where a run goes, and whether it runs at all."""

    output: Output = None
    fresh: Fresh = False
    dry_run: DryRun = False
    no_progress: NoProgress = False

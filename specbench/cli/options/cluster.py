"""How many workers there are, and where."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from specbench.errors import UsageError
from specbench.experiment.settings import require_at_least

_option: Any = partial(typer.Option, rich_help_panel="Workers")

Workers = Annotated[
    int | None,
    _option(
        "--workers",
        metavar="N",
        help="Share the work between N processes, one per GPU, or without GPUs one per core; needs "
        "Ray, specbench's extra of that name.",
        show_default="this process alone",
    ),
]

RayAddress = Annotated[
    str | None,
    _option(
        "--ray-address",
        metavar="ADDRESS",
        help="Ray's cluster to take workers from: auto, or HOST:PORT.",
        show_default="this machine",
    ),
]


@dataclass(frozen=True)
class Cluster:
    """How many workers there are, and where.

    Raises:
        UsageError: There are less than one, or an address without workers.
    """

    workers: Workers = None
    ray_address: RayAddress = None

    def __post_init__(self) -> None:
        require_at_least(1, "--workers", self.workers)
        if self.ray_address is not None and self.workers is None:
            raise UsageError("--ray-address goes with --workers N: say how many")


ALONE = Cluster()

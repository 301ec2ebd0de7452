"""Which models, and how they are loaded."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from specbench.cli.choices import DEFAULT_PAIR, choose_pair
from specbench.cli.options.common import completer
from specbench.engine.settings import (
    AUTO,
    DUMMY,
    LOAD_FORMATS,
    QUANTIZATIONS,
    Loading,
)
from specbench.errors import UsageError
from specbench.pairs.checked import ROLES
from specbench.pairs.registry import PairSpec, pairs

_option: Any = partial(typer.Option, rich_help_panel="Models")

Pair = Annotated[
    str | None,
    _option(
        "--pair",
        metavar="NAME",
        help=f"Target and draft by one name: {', '.join(pairs())}, or FILE.toml[:NAME] with pairs "
        "of yours.",
        show_default=DEFAULT_PAIR,
        autocompletion=completer(pairs),
    ),
]

Target = Annotated[
    str | None,
    _option(
        "--target",
        metavar="ID_OR_FOLDER",
        help="Instead of a pair: the target model, a Hugging Face id or a folder.",
        show_default=False,
    ),
]

Draft = Annotated[
    str | None,
    _option(
        "--draft",
        metavar="ID_OR_FOLDER",
        help="The draft that goes with --target, or one in the place of the pair's own.",
        show_default=False,
    ),
]

TargetRevision = Annotated[
    str | None,
    _option(
        "--target-revision",
        metavar="REVISION",
        help="Branch, tag or commit of the target on the hub.",
        show_default="the pair's own",
    ),
]

DraftRevision = Annotated[
    str | None,
    _option(
        "--draft-revision",
        metavar="REVISION",
        help="Branch, tag or commit of the draft on the hub.",
        show_default="the pair's own",
    ),
]

Device = Annotated[
    str,
    _option(
        "--device",
        help="cpu, cuda, cuda:1 ...; auto takes a GPU where there is one.",
    ),
]

Dtype = Annotated[
    str,
    _option(
        "--dtype",
        help="float32, bfloat16 or float16; auto suits pair and device.",
    ),
]

LoadFormat = Annotated[
    str,
    _option(
        "--load-format",
        metavar="FORMAT",
        help="auto reads the weights; dummy makes random ones of the same shape, for timing "
        "without a download.",
        autocompletion=completer(lambda: LOAD_FORMATS),
    ),
]

DeviceMap = Annotated[
    str | None,
    _option(
        "--device-map",
        metavar="MAP",
        help="auto spreads the layers over all GPUs (needs accelerate).",
        show_default="off",
    ),
]

Quantization = Annotated[
    str | None,
    _option(
        "--quantization",
        metavar="BITS",
        help=f"{' or '.join(QUANTIZATIONS)} weights of the target (needs bitsandbytes).",
        show_default="off",
        autocompletion=completer(lambda: QUANTIZATIONS),
    ),
]

TrustRemoteCode = Annotated[
    bool,
    _option(
        "--trust-remote-code",
        help="Run Python code that comes with the models.",
    ),
]


@dataclass(frozen=True)
class Models:
    """Which models, and how they are loaded."""

    pair: Pair = None
    target: Target = None
    draft: Draft = None
    target_revision: TargetRevision = None
    draft_revision: DraftRevision = None
    device: Device = AUTO
    dtype: Dtype = AUTO
    load_format: LoadFormat = AUTO
    device_map: DeviceMap = None
    quantization: Quantization = None
    trust_remote_code: TrustRemoteCode = False

    def spec(self) -> PairSpec:
        """Return the pair the user means.

        Raises:
            UsageError: There is none, or a revision is of nothing on the hub.
        """
        spec = choose_pair(self.pair, self.target, self.draft)
        dummies = spec.architecture if self.load_format == DUMMY else ()
        for role in ROLES:
            revision = getattr(self, f"{role}_revision")
            if revision is not None and role in dummies:
                raise UsageError(
                    f"--{role}-revision goes with a model that is read, not with --load-format "
                    f"{DUMMY}: leave one out"
                )
            require_hub(role, spec, revision)
        return spec

    def loading(self) -> Loading:
        """Return how it is to be loaded."""
        return Loading(**{field.name: getattr(self, field.name) for field in fields(Loading)})


def require_hub(role: str, spec: PairSpec, revision: str | None) -> None:
    """Refuse the revision of a model that is a folder here.

    Raises:
        UsageError: It was given, and the model is such a folder.
    """
    model = spec.target if role == "target" else spec.draft
    if revision is not None and Path(model).exists():
        raise UsageError(
            f"--{role}-revision goes with a model on the hub, and {model} is a folder here: leave "
            "it out"
        )

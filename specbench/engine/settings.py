"""How the models of a pair are to be loaded; free of PyTorch, for the command line."""

from __future__ import annotations

from dataclasses import dataclass

from specbench.errors import UsageError

AUTO, DUMMY = "auto", "dummy"
LOAD_FORMATS = (AUTO, DUMMY)
EAGER, COMPILE, GRAPH = "eager", "compile", "graph"
ENGINES = (EAGER, COMPILE, GRAPH)
QUANTIZATIONS = ("8bit", "4bit")


@dataclass(frozen=True)
class Loading:
    """What the user chooses of how a pair is loaded.

    Attributes:
        device: ``auto`` (the first GPU, else the CPU) or a PyTorch device.
        dtype: ``auto`` (bfloat16 on a GPU, float32 on a CPU) or the name of a floating point type.
        load_format: ``auto`` reads the weights; ``dummy`` fills the real architecture with random
            ones, which needs no download.
        device_map: How Transformers spreads the layers over devices, for instance ``auto``; None
            puts both models on ``device``. Needs the package accelerate.
        quantization: ``8bit`` or ``4bit`` for the target's weights, by the package bitsandbytes;
            None leaves them as they are.
        target_revision: Branch, tag or commit of the target's repository; None takes the pair's.
        draft_revision: The same of the draft's.
        trust_remote_code: Run model code that comes with the weights.

    Raises:
        UsageError: A value is none of those that may be chosen, or two exclude each other.
    """

    device: str = AUTO
    dtype: str = AUTO
    load_format: str = AUTO
    device_map: str | None = None
    quantization: str | None = None
    target_revision: str | None = None
    draft_revision: str | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        _require_one_of("--load-format", self.load_format, LOAD_FORMATS)
        if self.quantization is not None:
            _require_one_of("--quantization", self.quantization, QUANTIZATIONS)
        if self.dummy and (self.device_map or self.quantization):
            raise UsageError(
                "--load-format dummy makes plain weights on one device: leave out --device-map "
                "and --quantization"
            )

    @property
    def dummy(self) -> bool:
        """True where the weights are random."""
        return self.load_format == DUMMY


def _require_one_of(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{option} cannot be {value!r}: choose {' or '.join(choices)}")

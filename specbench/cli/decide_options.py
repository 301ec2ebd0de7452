"""The options of ``specbench decide``, and what they ask."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from specbench.cli.options import JsonOutput
from specbench.cli.price import DEFAULT_DRAFTERS
from specbench.config import Count, option
from specbench.decoding.drafters.kind import DrafterKind
from specbench.decoding.drafters.registry import DRAFTERS, parse_kind
from specbench.errors import require
from specbench.pricing.heads import HEADS, ShapedDrafter, kind_called

if TYPE_CHECKING:
    from specbench.pricing.costs import Costs


class DecideOptions(JsonOutput):
    """What to decide on, and what rounds cost."""

    drafter: list[str] = option(
        DEFAULT_DRAFTERS,
        f"What proposes drafts: {', '.join(DRAFTERS)}; with rates also {', '.join(HEADS)}.",
        metavar="NAME[,NAME...]",
        shown=",".join(DEFAULT_DRAFTERS),
        complete=lambda: [*DRAFTERS, *HEADS],
    )
    draft_length: list[Count] = option(
        list(range(1, 9)), "Draft lengths to choose from.", metavar="N[,N...]", shown="1 to 8"
    )
    batch_size: list[Count] = option(
        [1, 2, 4, 8, 16], "Batch sizes to decide for.", metavar="B[,B...]"
    )
    acceptance: str | None = option(
        None,
        "Acceptance in place of texts: a rate for each position, given that the drafts before it "
        "are accepted, or one for all. Then nothing is decoded or scored.",
        metavar="A[,A...]",
        shown="of the target's texts",
    )
    accepted_length: float | None = option(
        None,
        "Tokens per round that a server reports with N = --draft-length, in place of rates.",
        metavar="L",
        conflicts={
            "acceptance": "--acceptance and --accepted-length say the same: give only one of them"
        },
    )
    costs: list[Path] | None = option(
        None,
        "Seconds of rounds: a folder of `specbench bench`, a CSV file, or what llama-bench -o json "
        "or vllm bench wrote, of target and draft (page price).",
        metavar="FILE",
        shown="measured here",
    )
    machine: str | None = option(
        None,
        "Compute the seconds from a machine's figures instead: h100, a100, rtx5090, m3-ultra and "
        "about fifty others, or FILE.toml.",
        metavar="NAME",
        conflicts={"costs": "--costs and --machine exclude each other"},
    )
    gpus: Annotated[int, Field(ge=1)] = option(1, "How many of these machines share the layers.")
    serving: str | None = option(
        None,
        "Whose overheads to add to --machine: vllm, sglang, tensorrt-llm, llama.cpp or specbench.",
        metavar="ENGINE",
        shown="by the machine and the weights",
    )
    weights: list[str] = option(
        [],
        "Format of the target's and the draft's weights for --machine: bf16, fp8, awq, q4_k_m ...",
        metavar="NAME[,NAME]",
        shown="as published",
        repeats=True,
    )
    cache: str | None = option(
        None, "Format of caches for --machine: bf16, fp8, q8_0 ...", metavar="NAME", shown="bf16"
    )
    context_length: Count = option(512, "Tokens of a prompt, where rates replace the texts.")

    @property
    def has_rates(self) -> bool:
        """Whether acceptance is given, so that no texts are needed."""
        return self.acceptance is not None or self.accepted_length is not None

    @property
    def lengths(self) -> list[int]:
        """The draft lengths to choose from; with a mean length all that it says something of."""
        if self.accepted_length is None:
            return sorted(self.draft_length)
        return list(range(1, max(self.draft_length) + 1))

    def batches(self, costs: Costs) -> list[int]:
        """Return the batch sizes to decide for; by default those that the costs cover."""
        first, last = costs.batches[[0, -1]]
        is_typed = "batch_size" in self.model_fields_set or last < self.batch_size[0]
        return sorted(b for b in self.batch_size if is_typed or first <= b <= last)

    def drafters(self) -> list[DrafterKind]:
        """Return the drafters; those that are priced by shape need rates."""
        kinds: list[DrafterKind] = []
        for name in self.drafter:
            kind = "" if name in DRAFTERS else kind_called(name)
            if kind in HEADS and not Path(name).is_dir():
                require(
                    self.has_rates,
                    f"--drafter {name} is priced by its shape, and its drafts are unknown: give "
                    "its rates by --acceptance or --accepted-length",
                )
                kinds.append(ShapedDrafter(kind))
            else:
                kinds.append(parse_kind(name, None))
        return kinds

    def rates(self) -> list[float]:
        """Return the rate of acceptance at each position.

        Raises:
            UsageError: It is no rate, or fits no draft length.
        """
        from specbench.pricing.rounds import rate_of_length, rates_of

        if self.accepted_length is None:
            return rates_of(str(self.acceptance), max(self.draft_length))
        require(
            "draft_length" in self.model_fields_set and len(self.draft_length) == 1,
            "--accepted-length is a mean of rounds with N drafts: give that N by --draft-length",
        )
        drafts = self.draft_length[0]
        return [rate_of_length(self.accepted_length, drafts)] * drafts

"""The draft model, and modules on the target's states (EAGLE-3, MTP), as drafters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.decoding.drafters.kind import DrafterKind, drafter
from specbench.decoding.modules import CONFIG, WEIGHTS

if TYPE_CHECKING:
    from torch import Tensor

    from specbench.engine.pair import LoadedPair
    from specbench.engine.passes import Pass


@drafter("model", source="Leviathan et al. 2023, arXiv:2211.17192")
@dataclass(frozen=True)
class ModelDrafter(DrafterKind):
    """Draws tokens from the draft model's q."""

    needs_draft = True

    def plain(
        self, pair: LoadedPair, texts: Sequence[Sequence[int]], position: Tensor, hidden: bool
    ) -> Pass:
        """Run the draft model over the texts."""
        from specbench.engine.passes import plain_pass

        return plain_pass(pair.draft, texts, position.shape[1], hidden)

    def along(
        self, pair: LoadedPair, text: Sequence[int], last: int, depths: int
    ) -> Iterator[Tensor]:
        """Yield the draft model's logits once: they depend on the text alone."""
        from specbench.engine.passes import plain_pass

        yield plain_pass(pair.draft, [text], last).logits[0]

    def vllm(self, drafts: int, draft: str | None) -> dict[str, Any]:
        """Return the settings of a draft model."""
        settings = {"method": "draft_model", "model": draft, "draft_sample_method": self._sampled}
        return {**settings, "num_speculative_tokens": drafts}

    def sglang(self, drafts: int, draft: str) -> list[str]:
        """Return the flags of a chain, which counts the token after the drafts as one of them."""
        chain = {"steps": drafts, "draft-tokens": drafts + 1}
        return [
            *("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", draft),
            *("--speculative-eagle-topk", "1"),
            *(part for name, n in chain.items() for part in (f"--speculative-num-{name}", f"{n}")),
        ]

    def tensorrt_llm(self, drafts: int, draft: str) -> dict[str, Any]:
        """Return the settings of a draft model."""
        return {
            "decoding_type": "Draft_Target",
            "speculative_model": draft,
            "max_draft_len": drafts,
        }

    def llamacpp(self, drafts: int, draft: str) -> list[str]:
        """Return the flags of a draft model."""
        return [
            *("--model-draft", draft, "--spec-type", "draft-simple"),
            *("--spec-draft-n-max", f"{drafts}", "--spec-draft-sampling", self._sampled),
        ]

    @property
    def _sampled(self) -> str:
        return "greedy" if self.greedy else "probabilistic"


@drafter("greedy")
class GreedyDrafter(ModelDrafter):
    """Takes the draft model's likeliest tokens: q is one-hot."""

    greedy = True


@dataclass(frozen=True)
class ModuleDrafter(DrafterKind):
    """Draws tokens from the q of a module that reads the target's states.

    It has the name of the pair's module or that of a folder, so it is not declared by a name.
    """

    folder: str  # or the name of the pair's module

    def __str__(self) -> str:
        return self.folder

    def load(self, pair: LoadedPair) -> DrafterKind:
        """Return the module of the pair, or of the folder, ready to draft."""
        from specbench.decoding.modules.loaded import load

        return load(self._path(pair.drafters), pair.runners[0])

    def files(self, modules: Mapping[str, Path]) -> list[Path]:
        """Return its files; of a pair's module the weights alone, as in keys of earlier runs."""
        folder = self._path(modules)
        names = [WEIGHTS] if self.folder in modules else [WEIGHTS, CONFIG]
        return [folder / name for name in names] if (folder / WEIGHTS).is_file() else []

    def _path(self, modules: Mapping[str, Path]) -> Path:
        return modules.get(self.folder, Path(self.folder))

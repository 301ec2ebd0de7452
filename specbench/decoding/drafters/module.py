"""A module on the target's states as a drafter: EAGLE-3, or multi-token prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.decoding.drafters.kind import DrafterKind
from specbench.decoding.modules import CONFIG, WEIGHTS

if TYPE_CHECKING:
    from specbench.engine.pair import LoadedPair


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

"""The drafter of a name."""

from functools import lru_cache
from pathlib import Path

from specbench.decoding.drafters.drafter import HeadDrafter
from specbench.decoding.drafters.files import load_head
from specbench.decoding.drafters.lookup import LookupDrafter
from specbench.decoding.drafting import Drafter, ModelDrafter
from specbench.engine.pair import LoadedPair
from specbench.engine.runner import Runner
from specbench.methods.drafters import GREEDY, MODEL, ngram_lengths


def load_drafter(name: str, pair: LoadedPair) -> Drafter:
    """Return the drafter of a name that ``methods.drafters.checked`` accepts.

    Raises:
        UsageError: A head is not supported, or is for another target.
    """
    if lengths := ngram_lengths(name):
        return LookupDrafter(*lengths)
    name = name.partition("+")[0]
    if name in (MODEL, GREEDY):
        return ModelDrafter(greedy=name == GREEDY)
    return _loaded(pair.drafters.get(name, Path(name)), pair.runners[0])


@lru_cache(maxsize=4)
def _loaded(folder: Path, target: Runner) -> HeadDrafter:
    return HeadDrafter(load_head(folder, target.config), target)

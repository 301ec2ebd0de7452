"""Names of heads in the column ``head``, and the logs of their training."""

from pathlib import Path, PurePath

BUNDLED, RESULTS = "bundled", "results"
# Equal weights on both models: static w = 0.5 with the cost of a head, for any pair.
UNTRAINED = "untrained"
# Goals of training, with the prefix of a head's folder in a family.
FAMILIES = {"target_acceptance": "acceptance-", "max_quality_loss": "loss-"}
# Prefix of the folders of heads that differ in nothing but the seed of their training.
SEED = "seed-"

LOG = "training.csv"
FIGURES = "figures"  # subfolder for figures of a head


def recipe_of(head: str) -> str | None:
    """Return the folder that heads of one recipe share if this one is named by its seed."""
    path = PurePath(head)
    return str(path.parent) if path.name.startswith(SEED) else None


def logged(root: Path) -> list[Path]:
    """Return the folders of trained heads at or below ``root``, the oldest log first."""
    # The data of the training figure has the same name.
    logs = [log for log in root.rglob(LOG) if log.parent.name != FIGURES]
    return [log.parent for log in sorted(logs, key=lambda log: (log.stat().st_mtime, log))]

"""The drafters by name, and the drafter that a text names. This module does not import torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from specbench import plugins
from specbench.decoding.drafters.kind import Declaration, DrafterKind
from specbench.decoding.drafters.model import ModelDrafter, ModuleDrafter
from specbench.decoding.modules import CONFIG
from specbench.errors import UsageError, require, unknown

DRAFTERS = {
    declaration.name: declaration
    for declaration in plugins.bundled(
        "specbench.decoding.drafters", Declaration, ("model", "lookup")
    )
}
"""Every drafter by name; modules on the target's states have the names of their folders."""


@dataclass(frozen=True)
class DrafterSpec:
    """What proposes drafts, and how many: as options name it and runs record it."""

    kind: DrafterKind = ModelDrafter()  # noqa: RUF009 (frozen)
    policy: str = ""  # how many tokens a round drafts; empty for N

    def __str__(self) -> str:
        return f"{self.kind}+{self.policy}" if self.policy else f"{self.kind}"


MODEL = DrafterSpec()
"""The draft model, which drafts by default."""


def parse_drafter(text: str, modules: Collection[str] | None = ()) -> DrafterSpec:
    """Return the drafter that a text names: NAME, NAME:VALUE or a folder, each with +POLICY.

    ``modules`` are the names of the pair's modules that draft; None accepts no module.

    Raises:
        UsageError: There is no such drafter.
    """
    name, _, policy = text.partition("+")
    if modules is not None and name in modules:
        require(
            not names_drafter(name),
            f"the pair's module {name} has the name of a drafter: rename it in the pair file",
        )
        return DrafterSpec(ModuleDrafter(name), policy)
    if not names_drafter(name):
        if modules is not None and (Path(name) / CONFIG).is_file():
            return DrafterSpec(ModuleDrafter(Path(name).as_posix()), policy)
        advice = "" if modules is None else f"; the folder of a module has its {CONFIG}"
        raise UsageError(unknown("drafter", text, [*DRAFTERS, *(modules or ())]) + advice)
    plain, _, value = name.partition(":")
    kind = DRAFTERS[plain].kind.parse(value)
    require(
        not (policy and kind.copies),
        f"drafter {text}: copies cost nothing, so give {kind} without a policy",
    )
    return DrafterSpec(kind, policy)


def parse_kind(text: str, modules: Collection[str] | None = ()) -> DrafterKind:
    """Return the drafter that a text names where drafters have no policy; see ``parse_drafter``.

    Raises:
        UsageError: There is no such drafter, or it has a policy.
    """
    spec = parse_drafter(text, modules)
    require(not spec.policy, f"--drafter {text}: leave out the policy {spec.policy}")
    return spec.kind


def require_draft(draft: str | None, drafters: Iterable[DrafterKind]) -> None:
    """Refuse drafters that need a draft model, if there is none.

    Raises:
        UsageError: One of them needs it.
    """
    copying = next(name for name, declared in DRAFTERS.items() if declared.kind.copies)
    for drafter in drafters:
        require(
            draft is not None or not drafter.needs_draft,
            f"--drafter {drafter} needs a draft model: name one with --draft, or draft without one "
            f"by --drafter {copying}",
        )


def recorded_drafter(text: str) -> DrafterSpec:
    """Return the drafter that a run names; any other name is that of a module."""
    name, _, policy = text.partition("+")
    return parse_drafter(text) if names_drafter(name) else DrafterSpec(ModuleDrafter(name), policy)


def names_drafter(text: str) -> bool:
    """Return whether a text names a drafter by its kind, and not a model or a module."""
    return text.partition(":")[0] in DRAFTERS

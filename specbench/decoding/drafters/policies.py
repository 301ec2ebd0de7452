"""Policies: how many tokens a round drafts. Each is one function, declared by ``policy``.

The same function prices a policy along texts (``price``) and runs it while drafting (``Online``).

A policy sees what a drafter knows along the path on which all of its drafts are accepted: there
the drafts are the text's own tokens. It is predictable if the decision to draft a token depends on
earlier tokens alone, never on the token itself. Only then do the emitted texts stay the target's.

A function returns the number of drafts of a round that starts at each token.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from specbench.errors import UsageError, require, unknown
from specbench.methods.control import DraftControl, DraftState
from specbench.methods.lazy import Tensor, torch
from specbench.methods.lazy import numpy as np
from specbench.methods.verdict import entropy_of
from specbench.plugins import declare, declared, declared_in, find, user_code

if TYPE_CHECKING:
    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.float64]"
Integers: TypeAlias = "NDArray[np.int64]"

GAMMA = 0.2  # of AdaEDL


class Drafting(NamedTuple):
    """What is known of the rounds that could start at each token of B texts, with up to N drafts.

    The values at ``[b, s, k]`` belong to the k-th draft of a round that starts at s, from 0.
    """

    q: Floats  # [B, T, N] probability under the draft of the drafted token
    top: Floats  # [B, T, N] largest probability under the draft
    entropy: Floats  # [B, T, N] of the draft, nats
    reach: Floats  # [B, T, N + 1] probability that so many drafts are accepted; 1 while drafting
    most: Integers  # [B, T] drafts that can be proposed; while drafting, one more than so far
    length: Integers  # [B] tokens of each text

    @property
    def longest(self) -> int:
        """N."""
        return int(self.reach.shape[-1]) - 1

    def within(self, size: int) -> Drafting:
        """Return the same rounds with at most so many drafts."""
        return Drafting(
            self.q[..., :size],
            self.top[..., :size],
            self.entropy[..., :size],
            self.reach[..., : size + 1],
            np.minimum(self.most, size),
            self.length,
        )


@dataclass(frozen=True)
class Policy:
    """A policy with its value, such as a threshold."""

    name: str
    predictable: bool  # whether a drafted token never decides if it is drafted
    function: Callable[..., Any]
    value: Any = None  # None without a value
    most: float = 1e9  # largest value; the least is 0

    @property
    def label(self) -> str:
        """The name with the value."""
        return self.name if self.value is None else f"{self.name} {self.value}"

    def __call__(self, rounds: Drafting) -> Integers:
        """Return the number of drafts ``[B, T]``.

        Raises:
            UsageError: A function of the user's own raised an error, or returns numbers of another
                shape, below 0 or no whole numbers.
        """
        values = () if self.value is None else (self.value,)
        with user_code(self.function):
            returned = self.function(rounds, *values)
        try:
            drafts = np.broadcast_to(returned, rounds.most.shape)
        except ValueError:
            drafts = np.array(np.nan)
        require(
            np.issubdtype(drafts.dtype, np.integer) and bool((drafts >= 0).all()),
            f"{self.name} returns no numbers of drafts: let it return whole numbers of 0 or more, "
            "one for each token of the texts",
        )
        return drafts.astype(np.int64)


F = Callable[..., Any]


def policy(*, predictable: bool = True, most: float = 1e9) -> Callable[[F], F]:
    """Declare a policy; an argument with a default is its value, from 0 to ``most``."""

    def declaring(function: F) -> F:
        names = list(inspect.signature(function).parameters.values())[1:]
        value = next((p.default for p in names if p.default is not p.empty), None)
        name = function.__name__.replace("_", "-")
        return declare(function, Policy(name, predictable, function, value, most))

    return declaring


@policy()
def fixed(rounds: Drafting) -> Integers:
    """Draft N tokens in each round."""
    return np.full(rounds.most.shape, rounds.longest)


@policy(most=1)
def confidence(rounds: Drafting, threshold: float = 0.4) -> Integers:
    """Draft until a token is less likely than the threshold, and verify it (Transformers)."""
    return 1 + leading(rounds.q[..., :-1] >= threshold)


@policy(most=1)
def p_min(rounds: Drafting, threshold: float = 0.75) -> Integers:
    """Draft while the likeliest token has at least this probability (llama.cpp)."""
    return leading(rounds.top >= threshold)


@policy()
def svip(rounds: Drafting, threshold: float = 0.6) -> Integers:
    """Draft while sqrt(H(q)) is at most the threshold, at least 1 (arXiv:2411.18462)."""
    return np.maximum(1, leading(np.sqrt(rounds.entropy) <= threshold))


@policy(most=1)
def adaedl(rounds: Drafting, threshold: float = 0.4) -> Integers:
    """Draft while a bound on acceptance is at least this, at least 1 (arXiv:2410.18351)."""
    return np.maximum(1, leading(1 - np.sqrt(GAMMA * rounds.entropy) >= threshold))


@policy()
def adaptive(rounds: Drafting, cost: float = 0.1) -> Integers:
    """Draft while the next draft raises the expected tokens per time, one token in any case.

    After i drafts, a round is expected to emit E tokens in time 1 + i c, in units of a target pass.
    One more draft adds c to the time. It adds to E the probability that all drafts are accepted,
    with the largest probability of the last draft as the estimate for the next one.

    Source: Leviathan et al. 2023, arXiv:2211.17192.
    """
    survival = rounds.top.cumprod(-1)
    rate = (1 + survival.cumsum(-1)) / (1 + cost * np.arange(1, rounds.longest + 1))
    return 1 + leading((survival * rounds.top > cost * rate)[..., :-1])


def leading(flags: NDArray[np.bool_]) -> Integers:
    """Return how many flags ``[B, T, K]`` are true before the first false one."""
    number: Integers = flags.cumprod(-1).sum(-1)
    return number


def get_policy(name: str) -> Policy:
    """Return a policy by ``NAME``, ``NAME:VALUE``, or ``FILE.py:FUNCTION``.

    Raises:
        UsageError: There is no such policy, or its value is no number in its range.
    """
    if plugin := find(name):
        declaration = declared(plugin.function, Policy) or declared(
            policy()(plugin.function), Policy
        )
        assert declaration is not None
        return replace(declaration, name=plugin.name)
    plain, colon, value = name.partition(":")
    if plain not in POLICIES:
        raise UsageError(unknown("policy", plain, [*POLICIES, "FILE.py:FUNCTION"]))
    chosen = POLICIES[plain]
    if not colon:
        return chosen
    require(chosen.value is not None, f"{plain} takes no value: give {plain}")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    require(
        0 <= number <= chosen.most,
        f"{plain} takes a number from 0 to {chosen.most:g}, not {value!r}",
    )
    return replace(chosen, value=number)


@dataclass
class Online(DraftControl):
    """A policy that runs while drafting.

    After each draft the policy gets the drafts so far, and a next one of which the draft is sure:
    it stops there if it drafts no more even then.

    Raises:
        UsageError: The policy is not predictable.
    """

    policy: Policy
    softmax: bool = False  # whether it sees the softmax at temperature 1, as q is one-hot

    def __post_init__(self) -> None:
        """Check the policy."""
        require_predictable(self.policy)

    def after(
        self, state: DraftState, x: Tensor, q: Tensor, q1: Tensor, drafted: int
    ) -> DraftState:
        """Return the state after one more draft; see ``DraftControl``."""
        law = q1 if self.softmax else q
        drawn, entropy = law.gather(1, x[:, None])[:, 0], entropy_of(law)
        history = (*state.history, (drawn, law.amax(-1), entropy))
        number = torch.as_tensor(self._drafts(history), device=x.device)
        return DraftState(
            torch.where(state.active, number.clamp_max(drafted), state.proposed),
            state.active & (number > drafted),
            history,
        )

    def _drafts(self, history: Sequence[tuple[Tensor, ...]]) -> Integers:
        """Return the drafts of a round ``[B]`` by those so far; one more means further ones."""
        texts, size = len(history[0][0]), len(history) + 1
        columns = zip(*history, strict=True)
        numbers = [torch.stack(values, -1).double().numpy(force=True) for values in columns]
        q, top, entropy = (
            np.pad(values, ((0, 0), (0, 1)), constant_values=value)[:, None]
            for values, value in zip(numbers, (1.0, 1.0, 0.0), strict=True)
        )
        reach, most = np.ones((texts, 1, size + 1)), np.full((texts, 1), size)
        rounds = Drafting(q, top, entropy, reach, most, most[:, 0])
        return self.policy(rounds)[:, 0]


def require_predictable(chosen: Policy) -> None:
    """Refuse a policy that would change the texts.

    Raises:
        UsageError: It looks at the tokens that it drops.
    """
    require(
        chosen.predictable,
        f"{chosen.name} looks at the tokens that it drops, so the texts would no longer be the "
        "target's: choose another policy",
    )


POLICIES = {chosen.name: chosen for chosen in declared_in(sys.modules[__name__], Policy)}
"""Every policy by name."""

"""Controls for rules that implicitly sharpen what the models say."""

from __future__ import annotations

from dataclasses import replace

from specbench.methods import laws
from specbench.methods.ensembles import WEIGHT, static
from specbench.methods.lazy import Tensor, torch
from specbench.methods.method import Parameter, rule
from specbench.methods.verdict import Positions, Verdict, maximal_coupling


@rule(
    Parameter("target_temperature", 0.6, "times the run's", gt=0, le=1, sign="t="),
    Parameter(
        "target_min_p",
        0.0,
        "drop tokens with p < this share of max p from the target; 0 drops none",
        ge=0,
        le=1,
        sign="m=",
    ),
    summary="a control: sd with a target sharpened by a lower temperature or truncation",
    source="this project",
    law=laws.sharpened,
)
def sharpened(
    at: Positions, x: Tensor, *, target_temperature: float, target_min_p: float
) -> Verdict:
    """Verify strictly against a sharpened target; emits that target exactly.

    This is the control for rules that implicitly lower the temperature or truncate the tail: this
    rule has the same gain in quality from sharpening. The bonus token comes from p, as for all
    rules.

    The target is norm(p^(1/t)), that is, p at t times its temperature.

    Source: specbench; min-p is from Nguyen et al. 2024, arXiv:2407.01082.
    """
    # Relative to the maximum, so that a high power does not underflow for all tokens.
    p = (at.p / at.p.amax(-1, keepdim=True)).pow(1 / target_temperature)
    p = torch.where(p >= target_min_p, p, 0)
    return maximal_coupling(at, x, p / p.sum(-1, keepdim=True))


@rule(
    Parameter("both_temperature", 0.6, "factor on the run's", gt=0, le=1, sign="t="),
    Parameter(
        "both_min_p",
        0.0,
        "drop tokens with p < this share of max p from both models; 0 drops none",
        ge=0,
        le=1,
        sign="m=",
    ),
    # Its target is not the run's, so no weight makes it exact.
    replace(WEIGHT, name="cooled_weight", default=1.0, exact=None),
    summary="a control: static with both models at a lower temperature or truncated; w = 1 is sd",
    source="this project",
    law=laws.cooled,
)
def cooled(at: Positions, x: Tensor, *, cooled_weight: float) -> Verdict:
    """Verify as `static`; p and q are those of both models at a lower temperature or truncated.

    This is the control for rules that implicitly sharpen what both models say. With a weight of 1
    it is `sd` at that temperature, and emits what the target alone would emit there.

    Source: specbench.
    """
    return static(at, x, weight=cooled_weight)

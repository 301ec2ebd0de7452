"""Registry of methods, with their sources and parameters.

A new method needs one function and one entry here. This module does not import torch; a rule's
module is imported when the rule is loaded.
"""

from dataclasses import replace

from specbench import plugins
from specbench.errors import UsageError
from specbench.methods.method import Method, Parameter
from specbench.methods.own import GROUP, own_method
from specbench.words import unknown

_TENTHS = tuple(step / 10 for step in range(11))
_BOTH_SIDES = tuple(step / 5 for step in range(-5, 6))
_WIDE = (-2, -1, -0.5, 0, 0.5, 1, 2)

# Default, bounds, grid and help of alpha for each deferral rule. The defaults lie between strict
# and draft-only; they are not tuned.
_ALPHA: dict[str, tuple[float, float | None, float | None, tuple[float, ...], str]] = {
    "token-v3": (0.5, None, 1, _TENTHS, "trust tokens with p >= (1 - alpha) max p; below 0 strict"),
    "token-v2": (0.2, -1, 1, _BOTH_SIDES, "trust tokens with p >= max p - alpha; -1 strict"),
    "token-v1": (0.2, -1, 1, _BOTH_SIDES, "trust tokens with q >= max p - alpha; -1 strict"),
    "opt": (0.5, None, None, _WIDE, "trust the draft where max q >= max p - alpha TV(p, q)"),
    "diff": (0.2, -1, 1, _BOTH_SIDES, "trust the draft where max q >= max p - alpha; -1 strict"),
    "chow": (0.5, 0, 1, _TENTHS, "trust the draft where max q >= 1 - alpha; 0 only where certain"),
}
_DEFERRAL = "deferral rule: where the draft is trusted"
_SPECCASCADE = (
    Parameter("rule", "token-v3", _DEFERRAL, str, choices=tuple(sorted(_ALPHA)), sign=""),
    *(
        Parameter(
            "alpha", default, help, ge=low, le=high, grid=grid, when=("rule", rule), sign="α="
        )
        for rule, (default, low, high, grid, help) in _ALPHA.items()
    ),
)

_WEIGHT = Parameter(
    "weight",
    0.5,
    "w on the target; 1 is sd, 0 the draft alone",
    ge=0,
    le=1,
    grid=_TENTHS,
    exact=1,
    sign="w=",
)
_HEAD = Parameter(
    "head",
    None,
    "a trained head's folder or file, a folder with one per task or with acceptance-* folders of "
    "them, or bundled, results or untrained (w = 0.5 everywhere); repeat or separate by commas; by "
    "default bundled, else results/heads/<pair>",
    str,
    sign="",
)
_GATE = Parameter(
    "gate",
    0.1,
    "the target's plausible set: tokens with p >= gate max p; 0 is every token, above 1 is sd",
    ge=0,
    grid=(0, 0.003, 0.01, 0.03, 0.1, 0.3, 1),
    sign="g=",
)
_LENIENCE = Parameter(
    "lenience",
    0.5,
    "l; 1 is sd, smaller accepts more",
    gt=0,
    le=1,
    grid=_TENTHS[1:],
    exact=1,
    sign="l=",
)
_COST = Parameter(
    "cost",
    0.1,
    "time of a draft step / time of a target pass, see `specbench bench`; "
    "--draft-length is the largest number of drafts",
    gt=0,
    grid=(0.02, 0.05, 0.1, 0.2, 0.4),
    sign="c=",
)
_BUDGET = Parameter(
    "budget",
    0.1,
    "largest KL divergence of the emitted distribution from p, in nats per token; 0 is sd",
    ge=0,
    grid=(0, 0.01, 0.03, 0.1, 0.3, 1),
    exact=0,
    sign="D=",
)
_EPSILON = Parameter(
    "epsilon",
    0.09,
    "accept where p exceeds the smaller of epsilon and delta exp(-entropy of p)",
    ge=0,
    le=1,
    grid=(0.001, 0.003, 0.01, 0.03, 0.09, 0.3),
    sign="ε=",
)
_DELTA = Parameter(
    "delta",
    0.3,
    "as for epsilon; smaller accepts more",
    ge=0,
    le=1,
    grid=(0.003, 0.01, 0.03, 0.1, 0.3, 1),
    sign="δ=",
)
_DIVERGENCE = Parameter(
    "divergence",
    0.1,
    "d; p is raised by sqrt(2 d p (1 - p)); 0 is sd",
    ge=0,
    grid=(0, 0.001, 0.01, 0.1, 0.3, 1),
    exact=0,
    sign="d=",
)
_TARGET_TEMPERATURE = Parameter(
    "target_temperature",
    0.6,
    "temperature of the target alone, on top of the run's",
    gt=0,
    le=1,
    grid=(0.2, 0.4, 0.6, 0.8),
    sign="t=",
)
_TARGET_MIN_P = Parameter(
    "target_min_p",
    0.0,
    "drop tokens with p < this share of max p from the target; 0 drops none",
    ge=0,
    le=1,
    grid=(0.01, 0.03, 0.1, 0.3),
    sign="m=",
)
_BOTH_TEMPERATURE = Parameter(
    "both_temperature",
    0.6,
    "temperature of both models, as a factor on the run's",
    gt=0,
    le=1,
    grid=(0.2, 0.4, 0.6, 0.8),
    sign="t=",
)
_BOTH_MIN_P = Parameter(
    "both_min_p",
    0.0,
    "drop tokens with p < this share of max p from both models; 0 drops none",
    ge=0,
    le=1,
    grid=(0, 0.01, 0.03, 0.1, 0.3),
    sign="m=",
)
# Its target is not the run's, so no weight makes it exact.
_COOLED_WEIGHT = replace(_WEIGHT, name="cooled_weight", default=1.0, exact=None)

_SINGLE = Parameter(
    "single",
    0.5,
    "always accept where p is at least this",
    gt=0,
    le=1,
    grid=(0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1),
    sign="s=",
)
_ACCUMULATED = Parameter(
    "accumulated",
    1.0,
    "elsewhere accept with p over this; 1 is match, smaller accepts more",
    gt=0,
    le=1,
    grid=(0.05, 0.1, 0.2, 0.5, 1),
    sign="a=",
)
_FORM = Parameter(
    "form",
    "margin",
    "what close means: p >= max p - margin, or p >= ratio max p",
    str,
    choices=("margin", "ratio"),
    sign="",
)
_MARGIN = Parameter(
    "margin",
    0.3,
    "p may be this much below max p",
    ge=0,
    le=1,
    grid=(0, 0.1, 0.2, 0.3, 0.6, 1),
    when=("form", "margin"),
    sign="",
)
_RATIO = Parameter(
    "ratio",
    0.3,
    "p must be at least this share of max p",
    ge=0,
    le=1,
    grid=(0, 0.01, 0.03, 0.1, 0.3, 1),
    when=("form", "ratio"),
    sign="",
)
_KEEP = Parameter(
    "keep", 10, "k: only the k likeliest are kept", int, ge=1, grid=(1, 2, 3, 5, 10), sign="k="
)
_REPLACEMENT = Parameter(
    "replacement",
    "argmax",
    "of a rejected token: the target's likeliest, or a draw from p",
    str,
    choices=("argmax", "draw"),
    sign="",
)

AUTOREGRESSIVE = "autoregressive"  # no draft; the baseline of speed-ups
#: Methods that only sharpen, as controls for rules that do so implicitly.
CONTROLS = ("sharpened", "cooled")

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(AUTOREGRESSIVE, "the target alone, one token a step", "-", rule=None, exact=True),
        Method(
            "sd",
            "speculative decoding: the target's distribution, exactly",
            "arXiv:2211.17192, arXiv:2302.01318",
            rule="rules:sd",
            exact=True,
        ),
        Method(
            "lossy",
            "speculative decoding with lenience: accept with min(1, p / (l q))",
            "arXiv:2211.17192, appendix A.5",
            rule="rules:lossy",
            parameters=(_LENIENCE,),
        ),
        Method(
            "speccascade",
            "speculative cascade: a deferral rule mixes draft and target",
            "arXiv:2405.19261",
            rule="speccascade:speccascade",
            parameters=_SPECCASCADE,
        ),
        Method(
            "static",
            "ensemble w p + (1 - w) q with one weight",
            "arXiv:2604.07622",
            rule="rules:static",
            parameters=(_WEIGHT,),
        ),
        Method(
            "diversed",
            "ensemble w p + (1 - w) q with a learned weight per token",
            "arXiv:2604.07622",
            rule="rules:diversed",
            parameters=(_HEAD,),
        ),
        Method(
            "sd-adaptive",
            "sd that stops drafting where another draft would not pay off; exact",
            "arXiv:2211.17192, section 3.5",
            rule="rules:sd",
            control="control:DraftControl",
            exact=True,
            parameters=(_COST,),
        ),
        Method(
            "block",
            "block verification: sd judging all drafts of a round together; exact, accepts more",
            "arXiv:2403.10444",
            rule="block:block",
            exact=True,
        ),
        Method(
            "mentored",
            "the fewest rejections within a budget of divergence from the target",
            "Tran-Thien 2023",
            rule="mentored:mentored",
            parameters=(_BUDGET,),
        ),
        Method(
            "typical",
            "typical acceptance: accept drafts likely under the target, else emit its argmax",
            "arXiv:2401.10774",
            rule="rules:typical",
            parameters=(_EPSILON, _DELTA),
        ),
        Method(
            "cactus",
            "raise p of the drafted token as far as a bound on divergence allows",
            "arXiv:2604.04987",
            rule="rules:cactus",
            parameters=(_DIVERGENCE,),
        ),
        Method(
            "sharpened",
            "a control: sd with a target sharpened by a lower temperature or truncation",
            "this project",
            rule="rules:sharpened",
            parameters=(_TARGET_TEMPERATURE, _TARGET_MIN_P),
        ),
        Method(
            "cooled",
            "a control: static with both models at a lower temperature or truncated; w = 1 is sd",
            "this project",
            rule="rules:cooled",
            parameters=(_BOTH_TEMPERATURE, _BOTH_MIN_P, _COOLED_WEIGHT),
        ),
        Method(
            "match",
            "accept a draft that a draw from the target repeats: exact, accepts less than sd",
            "default of several serving engines",
            rule="serving:match",
            exact=True,
        ),
        Method(
            "threshold",
            "match that keeps tokens the target finds likely: SGLang's acceptance thresholds",
            "SGLang",
            rule="serving:threshold",
            parameters=(_SINGLE, _ACCUMULATED),
        ),
        Method(
            "relaxed",
            "keep a draft among the target's k likeliest whose p is close to the likeliest's",
            "TensorRT-LLM",
            rule="serving:relaxed",
            parameters=(_FORM, _MARGIN, _RATIO, _KEEP, _REPLACEMENT),
        ),
        Method(
            "gated",
            "static in the target's plausible set, tokens with p >= gate max p; strict outside",
            "this project",
            rule="rules:gated",
            parameters=(_GATE, _WEIGHT),
        ),
        Method(
            "gated-diversed",
            "diversed in the target's plausible set, tokens with p >= gate max p; strict outside",
            "this project",
            rule="rules:gated_diversed",
            parameters=(_GATE, _HEAD),
        ),
    )
}
"""Every method by name, in the order tables and figures show them."""

PAPER = tuple(METHODS)[:6]
"""The methods of the DIVERSED paper, arXiv:2604.07622; the default methods of a run."""


def get_method(name: str) -> Method:
    """Return the method of that name: one of ``METHODS``, ``FILE.py:FUNCTION``, or installed.

    Raises:
        UsageError: There is no such method; the message suggests the nearest name. Or a rule of
            the user's own cannot be loaded.
    """
    if name in METHODS:
        return METHODS[name]
    plugin = plugins.find(name, GROUP)
    if plugin is None:
        raise UsageError(unknown("method", name, [*METHODS, *installed_methods()]))
    return own_method(plugin, _HEAD)


def installed_methods() -> list[str]:
    """Return the names of the methods of installed packages."""
    return [name for name in plugins.installed(GROUP) if name not in METHODS]

"""The methods by name: what each is, where it comes from and which parameters it takes.

A new method is one function and one entry here. Nothing in this module imports torch; a rule's
module is imported when the rule is loaded.
"""

from specbench.errors import UsageError
from specbench.methods.method import Method, Parameter
from specbench.words import unknown

_TENTHS = tuple(step / 10 for step in range(11))
_BOTH_SIDES = tuple(step / 5 for step in range(-5, 6))


def _alpha(
    rule: str,
    default: float,
    low: float | None,
    high: float | None,
    grid: tuple[float, ...],
    text: str,
) -> Parameter:
    when = ("rule", rule)
    return Parameter("alpha", default, float, text, low=low, high=high, grid=grid, when=when)


# The defaults of alpha lie well inside their ranges, between strict and draft-only; none is tuned.
_SPECCASCADE = (
    Parameter(
        "rule",
        "token-v3",
        str,
        "deferral rule: where the draft is trusted",
        choices=("chow", "diff", "opt", "token-v1", "token-v2", "token-v3"),
    ),
    _alpha(
        "token-v3",
        0.5,
        None,
        1,
        _TENTHS,
        "trust tokens with p >= (1 - alpha) max p; below 0 strict",
    ),
    _alpha("token-v2", 0.2, -1, 1, _BOTH_SIDES, "trust tokens with p >= max p - alpha; -1 strict"),
    _alpha("token-v1", 0.2, -1, 1, _BOTH_SIDES, "trust tokens with q >= max p - alpha; -1 strict"),
    _alpha(
        "opt",
        0.5,
        None,
        None,
        (-2, -1, -0.5, 0, 0.5, 1, 2),
        "trust the draft where max q >= max p - alpha TV(p, q)",
    ),
    _alpha(
        "diff", 0.2, -1, 1, _BOTH_SIDES, "trust the draft where max q >= max p - alpha; -1 strict"
    ),
    _alpha(
        "chow", 0.5, 0, 1, _TENTHS, "trust the draft where max q >= 1 - alpha; 0 only where certain"
    ),
)

_WEIGHT = Parameter(
    "weight",
    0.5,
    float,
    "w on the target; 1 is sd, 0 the draft alone",
    low=0,
    high=1,
    grid=_TENTHS,
    exact=1,
)
_HEAD = Parameter(
    "head",
    None,
    str,
    "a trained head's folder or file, a folder with one per task or with acceptance-* folders of "
    "them, or bundled, results or untrained (w = 0.5 everywhere); repeat or separate by commas; by "
    "default bundled, else results/heads/<pair>",
)
_GATE = Parameter(
    "gate",
    0.1,
    float,
    "the target's plausible set: tokens with p >= gate max p; 0 is every token, above 1 is sd",
    low=0,
    grid=(0, 0.003, 0.01, 0.03, 0.1, 0.3, 1),
)

AUTOREGRESSIVE = "autoregressive"  # drafts nothing; speed-ups are over it

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(AUTOREGRESSIVE, "the target alone, one token a step", "-", rule=None, exact=True),
        Method(
            "sd",
            "speculative decoding: the target's distribution, exactly",
            "arXiv:2211.17192, arXiv:2302.01318",
            rule="specbench.methods.rules:sd",
            exact=True,
        ),
        Method(
            "lossy",
            "speculative decoding with lenience: accept with min(1, p / (l q))",
            "arXiv:2211.17192, appendix A.5",
            rule="specbench.methods.rules:lossy",
            parameters=(
                Parameter(
                    "lenience",
                    0.5,
                    float,
                    "l; 1 is sd, smaller accepts more",
                    low=0,
                    high=1,
                    low_excluded=True,
                    grid=_TENTHS[1:],
                    exact=1,
                ),
            ),
        ),
        Method(
            "speccascade",
            "speculative cascade: a deferral rule mixes draft and target",
            "arXiv:2405.19261",
            rule="specbench.methods.speccascade:speccascade",
            parameters=_SPECCASCADE,
        ),
        Method(
            "static",
            "ensemble w p + (1 - w) q with one weight",
            "arXiv:2604.07622",
            rule="specbench.methods.rules:static",
            parameters=(_WEIGHT,),
        ),
        Method(
            "diversed",
            "ensemble w p + (1 - w) q with a learned weight per token",
            "arXiv:2604.07622",
            rule="specbench.methods.rules:diversed",
            parameters=(_HEAD,),
        ),
        Method(
            "sd-adaptive",
            "sd that stops drafting where another draft would not pay; exact",
            "arXiv:2211.17192, section 3.5",
            rule="specbench.methods.rules:sd",
            control="specbench.methods.control:DraftControl",
            exact=True,
            parameters=(
                Parameter(
                    "cost",
                    0.1,
                    float,
                    "time of a draft step over that of a target pass, see `specbench bench`; "
                    "--draft-length is the most that is drafted",
                    low=0,
                    low_excluded=True,
                    grid=(0.02, 0.05, 0.1, 0.2, 0.4),
                ),
            ),
        ),
        Method(
            "block",
            "block verification: sd judging all drafts of a round together; exact, accepts more",
            "arXiv:2403.10444",
            rule="specbench.methods.block:block",
            exact=True,
        ),
        Method(
            "mentored",
            "the fewest rejections that a budget of divergence from the target allows",
            "Tran-Thien 2023",
            rule="specbench.methods.mentored:mentored",
            parameters=(
                Parameter(
                    "budget",
                    0.1,
                    float,
                    "most KL divergence of what is emitted from p, in nats per token; 0 is sd",
                    low=0,
                    grid=(0, 0.01, 0.03, 0.1, 0.3, 1),
                    exact=0,
                ),
            ),
        ),
        Method(
            "typical",
            "typical acceptance: keep what the target finds likely enough, else its likeliest",
            "arXiv:2401.10774",
            rule="specbench.methods.rules:typical",
            parameters=(
                Parameter(
                    "epsilon",
                    0.09,
                    float,
                    "accept where p exceeds the smaller of epsilon and delta exp(-entropy of p)",
                    low=0,
                    high=1,
                    grid=(0.001, 0.003, 0.01, 0.03, 0.09, 0.3),
                ),
                Parameter(
                    "delta",
                    0.3,
                    float,
                    "as for epsilon; smaller accepts more",
                    low=0,
                    high=1,
                    grid=(0.003, 0.01, 0.03, 0.1, 0.3, 1),
                ),
            ),
        ),
        Method(
            "cactus",
            "raise p of the drafted token as far as a bound on divergence allows",
            "arXiv:2604.04987",
            rule="specbench.methods.rules:cactus",
            parameters=(
                Parameter(
                    "divergence",
                    0.1,
                    float,
                    "d; p is raised by sqrt(2 d p (1 - p)); 0 is sd",
                    low=0,
                    grid=(0, 0.001, 0.01, 0.1, 0.3, 1),
                    exact=0,
                ),
            ),
        ),
        Method(
            "sharpened",
            "a control: sd whose target is sharpened, by a lower temperature or truncation",
            "this project",
            rule="specbench.methods.rules:sharpened",
            parameters=(
                Parameter(
                    "target_temperature",
                    0.6,
                    float,
                    "temperature of the target alone, on top of the run's",
                    low=0,
                    high=1,
                    low_excluded=True,
                    grid=(0.2, 0.4, 0.6, 0.8),
                ),
                Parameter(
                    "target_min_p",
                    0.0,
                    float,
                    "drop tokens with p < this share of max p from the target; 0 drops none",
                    low=0,
                    high=1,
                    grid=(0.01, 0.03, 0.1, 0.3),
                ),
            ),
        ),
        Method(
            "gated",
            "static in the target's plausible set, tokens with p >= gate max p; strict outside",
            "this project",
            rule="specbench.methods.rules:gated",
            parameters=(_GATE, _WEIGHT),
        ),
        Method(
            "gated-diversed",
            "diversed in the target's plausible set, tokens with p >= gate max p; strict outside",
            "this project",
            rule="specbench.methods.rules:gated_diversed",
            parameters=(_GATE, _HEAD),
        ),
    )
}
"""Every method by name, in the order tables and figures show them."""

PAPER = tuple(METHODS)[:6]
"""The methods of the DIVERSED paper, arXiv:2604.07622: what is measured by default."""

PARAMETERS = tuple(dict.fromkeys(p.name for m in METHODS.values() for p in m.parameters))
"""The names of all parameters."""


def get_method(name: str) -> Method:
    """Return the method of that name.

    Raises:
        UsageError: there is none; the message suggests the nearest name.
    """
    if name in METHODS:
        return METHODS[name]
    raise UsageError(unknown("method", name, METHODS))

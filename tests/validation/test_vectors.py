"""The file of cases passes correct kernels and rejects planted faults, each by name."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers.generation import utils

from specbench.decoding.drafting import Drafts, State
from specbench.decoding.records import read_report
from specbench.decoding.round import TargetOutput, verify
from specbench.methods.exact import block
from specbench.methods.strict import sd
from specbench.methods.verdict import Positions, Rule
from tasks.make_vectors import (
    VOID,
    Floats,
    Form,
    Thresholds,
    accepted_drafts,
    draw,
    encoded,
    law_of_rounds,
    thresholds,
)

from ..pages import ROOT, blocks

DOCS = ROOT / "specbench" / "docs"
VECTORS: dict[str, list[dict[str, Any]]] = json.loads((DOCS / "vectors.json").read_text())
CASES, LAWS, DRAFTS = (VECTORS[kind] for kind in ("cases", "laws", "drafts"))
Answer = tuple[int, Floats, list[int]]  # accepted drafts, what the last token is drawn from, tokens
Kernel = Callable[[Form, Floats, Floats, list[int], Floats], Answer]


def of(kernel: Thresholds) -> Kernel:
    """Return a kernel that decides by these thresholds, with nothing else wrong."""

    def decide(form: Form, p: Floats, q: Floats, x: list[int], u: Floats) -> Answer:
        passing, sources = kernel(form, p, q, x)
        accepted = accepted_drafts(form, [bool(mark) for mark in u[:-1] < passing])
        last = draw(sources[accepted], u[-1])
        return accepted, sources[accepted], [*x[:accepted], last]

    return decide


def dense(case: dict[str, Any], key: str) -> Floats:
    rows = np.array(case[key])
    if "size" in case:
        full = np.zeros((*rows.shape[:-1], case["size"]))
        full[..., case["tokens"]] = rows
        return full
    return rows


def wrong_cases(kernel: Kernel, most_texts: int = 1000) -> set[str]:
    """Return the cases that a kernel fails, text by text; after ``most_texts``, rows repeat."""
    wrong = set()
    for case in CASES:
        p, q, sources = (dense(case, key) for key in ("p", "q", "source"))
        x, u = (np.array(case[key]) for key in ("drafts", "uniforms"))
        for text, n in enumerate(case["counts"]):
            row = text % most_texts
            numbers = np.append(u[row, :n], u[row, -1])
            drafts = x[row, :n].tolist()
            given = p[row, : n + 1], q[row, :n], drafts, numbers
            accepted, source, tokens = kernel(case["form"], *given)
            emitted = [token for token in case["emitted"][text] if token != VOID]
            same = accepted == case["accepted"][text] and tokens == emitted
            if not same or not np.allclose(source, sources[text], atol=1e-6, rtol=0):
                wrong.add(case["name"])
    return wrong


def test_numpy_passes_and_its_law_is_the_target_s():
    assert not wrong_cases(of(thresholds))
    for case in LAWS:
        p = np.array(case["p"])
        product = p[0]
        for row in p[1:]:
            product = np.multiply.outer(product, row)
        np.testing.assert_allclose(case["law"], product, atol=1e-15)
        assert sum(case["accepted"]) == pytest.approx(1)
    means = {case["name"]: np.dot(case["accepted"], range(3)[: len(case["p"])]) for case in LAWS}
    assert means["base"] == pytest.approx(0.5)  # 1 - TV
    assert means["block"] > means["two drafts"] + 0.01


def of_rule(rule: Rule) -> Thresholds:
    """A rule's verdict on one text; a block's probabilities are given all drafts before."""

    def kernel(form: Form, p: Floats, q: Floats, x: Sequence[int]) -> tuple[Floats, Floats]:
        P, Q = torch.tensor(p[:-1]), torch.tensor(q)
        verdict = rule(Positions(P, Q, P, Q, P, Q, False, len(x)), torch.tensor(x))
        return verdict.accept.numpy(), np.concatenate((verdict.residual.numpy(), p[-1:]))

    return kernel


def by_rule(form: Form, p: Floats, q: Floats, x: list[int], u: Floats) -> Answer:
    """One text through the round of the loop; a block's thresholds are another form of the law."""
    n = len(x)
    if form == "block" or n == 0:
        return of(thresholds)(form, p, q, x, u)
    P, Q, none = torch.tensor(p)[None], torch.tensor(q)[None], torch.zeros(1, n + 1, 0)
    numbers, nothing = torch.tensor([*np.zeros(n), *u])[None], torch.zeros(1, 2).long()
    state = State(nothing, nothing[:, 0], numbers, torch.ones(1).bool(), None)
    drafts = Drafts(torch.tensor([x]), Q, Q, none[:, :n])
    done = verify(sd, state, drafts, TargetOutput(P, P, none), False)
    report = read_report(done.report[0].tolist())
    source = of_rule(sd)(form, p, q, x)[1][report.accepted]
    return report.accepted, source, report.new_tokens[: report.accepted + 1]


def test_our_rules_pass():
    assert not wrong_cases(by_rule)
    for case in LAWS:
        if case["form"] == "block":
            p, q = np.array(case["p"]), np.array(case["q"])
            law, accepted = law_of_rounds("tokens", p, q, of_rule(block))
            np.testing.assert_allclose(law, case["law"], atol=1e-12)
            np.testing.assert_allclose(accepted, case["accepted"], atol=1e-12)


def test_transformers_passes_except_at_zero(monkeypatch):
    """It accepts p(x) = 0 if its uniform number is exactly 0, which has probability 2^-24."""

    def kernel(form, p, q, x, u):
        if not x or form == "block":
            return of(thresholds)(form, p, q, x, u)
        sources: list[torch.Tensor] = []

        def last(mass, num_samples):
            sources.append(mass[0])
            return torch.tensor([[draw(mass[0].numpy(), u[-1])]])

        monkeypatch.setattr(torch, "rand_like", lambda rows: torch.tensor(u[:-1])[None])
        monkeypatch.setattr(torch, "multinomial", last)
        ids = torch.tensor([[0, *x]])
        logits = [torch.tensor(rows).log()[None] for rows in (q, p)]
        tokens, accepted = utils._speculative_sampling(ids, logits[0], len(x), logits[1])
        return int(accepted), sources[0].numpy(), tokens[0].tolist()

    assert wrong_cases(kernel) == {"zero mass"}


# Faults that projects had, as thresholds or as kernels; the last are faults of drafting.
# The former change what is right: thresholds [N] and sources [N + 1, V], given p, q and x.
Change = Callable[[Floats, Floats, Floats, Floats, Sequence[int]], tuple[Floats, Floats]]


def planted(change: Change) -> Thresholds:
    return lambda form, p, q, x: change(*thresholds(form, p, q, x), p, q, x)


def drawn_mass(rows: Floats, x: Sequence[int]) -> Floats:
    return rows[range(len(x)), list(x)]


def without(p: Floats, x: Sequence[int]) -> Floats:
    rest = p.copy()
    rest[range(len(x)), list(x)] = 0
    return rest / np.where(rest.sum(-1) > 0, rest.sum(-1), 1)[:, None]


def absolute(right: Floats, p: Floats, q: Floats) -> Floats:
    mass = np.abs(p[:-1] - q)
    rows = np.concatenate((np.where(mass.any(-1, keepdims=True), mass, right[:-1]), p[-1:]))
    return np.asarray(rows / rows.sum(-1, keepdims=True))


FAULTS: dict[str, Thresholds] = {
    name: planted(change)
    for name, change in dict[str, Change](
        residual_p=lambda passing, sources, p, q, x: (passing, p),
        pure_acceptance=lambda passing, sources, p, q, x: (drawn_mass(p, x), sources),
        without_draft=lambda passing, sources, p, q, x: (passing, without(p, x)),
        pure=lambda passing, sources, p, q, x: (drawn_mass(p, x), without(p, x)),
        absolute=lambda passing, sources, p, q, x: (passing, absolute(sources, p, q)),
        accepts_all=lambda passing, sources, p, q, x: (np.ones(len(x)), sources),
        bonus_from_q=lambda passing, sources, p, q, x: (
            *(passing, np.concatenate((sources[:-1], q[-1:])) if len(q) else sources),
        ),
    ).items()
}


def accepts_zero(form: Form, p: Floats, q: Floats, x: list[int], u: Floats) -> Answer:
    return of(thresholds)(form, p, q, x, u - 1e-12)  # as u <= a does


def acceptance_number_again(form: Form, p: Floats, q: Floats, x: list[int], u: Floats) -> Answer:
    accepted, source, tokens = of(thresholds)(form, p, q, x, u)
    return accepted, source, [*tokens[:-1], draw(source, float(u[min(accepted, len(x))]))]


def old_block(clipped: bool) -> Kernel:
    """The longest i at which the product of the ratios is at least that of the numbers."""

    def kernel(form: Form, p: Floats, q: Floats, x: list[int], u: Floats) -> Answer:
        if form == "tokens":
            return of(thresholds)(form, p, q, x, u)
        ratio = np.array([p[i, y] / q[i, y] for i, y in enumerate(x)])
        reached = (ratio.clip(max=1) if clipped else ratio).cumprod() >= u[:-1].cumprod()
        accepted = accepted_drafts("block", reached.tolist())
        source = thresholds("tokens", p, q, x)[1][accepted]
        return accepted, source, [*x[:accepted], draw(source, u[-1])]

    return kernel


def neighbour(form: Form, p: Floats, q: Floats, x: list[int], u: Floats) -> Answer:
    """Rows without drafts are skipped, so that later texts read the rows of earlier ones."""
    return of(thresholds)(form, np.roll(p, 1, 0), q, x, u)


def within(first: int, end: int | None) -> Kernel:
    """The residual is summed and drawn over a part of the vocabulary only."""

    def kernel(form: Form, p: Floats, q: Floats, x: list[int], u: Floats) -> Answer:
        accepted, source, tokens = of(thresholds)(form, p, q, x, u)
        stop = len(source) if end is None else end * (len(source) // end)
        places = np.arange(len(source))
        part = np.where((places >= first) & (places < stop), source, 0)
        part = part / part.sum() if len(source) > 1000 and part.any() else source
        return accepted, part, [*tokens[:-1], draw(part, u[-1])]

    return kernel


def at_most(drafts: int) -> Kernel:
    """A loop over the drafts, or a mask of their bits, is too short."""

    def kernel(form: Form, p: Floats, q: Floats, x: list[int], u: Floats) -> Answer:
        numbers = np.append(u[:-1][:drafts], u[-1])
        return of(thresholds)(form, p[: drafts + 1], q[:drafts], x[:drafts], numbers)

    return kernel


def test_every_planted_fault_of_size_is_rejected():
    """Each is invisible to vocabularies of 6, three drafts and batches of 17."""
    large = {
        "drops the last part of a tile of 1,024": wrong_cases(within(0, 1024)),
        "drops the last part of a tile of 4,096": wrong_cases(within(0, 4096)),
        "drops the last part of a tile of 8": wrong_cases(within(0, 8)),
        "starts at the second tile": wrong_cases(within(1024, None)),
    }
    assert all(cases == {"large vocabulary"} for cases in large.values()), large
    for drafts in (4, 7, 8):
        assert wrong_cases(at_most(drafts)) == {"many drafts", "many drafts in a block"}
    for epsilon in (1e-5, 1e-6):  # a small number keeps q from 0
        kernel = of(lambda form, p, q, x, more=epsilon: thresholds(form, p, q + more, x))
        assert wrong_cases(kernel) >= {"small"}
    for texts in (32, 64):
        assert wrong_cases(of(thresholds), most_texts=texts) == {"many texts"}


def test_every_planted_fault_is_rejected():
    rejected_cases = {
        name: wrong_cases(kernel)
        for name, kernel in {
            **{name: of(fault) for name, fault in FAULTS.items()},
            **{"clipped": old_block(True), "raw": old_block(False), "neighbour": neighbour},
            **{"accepts_zero": accepts_zero, "acceptance_number_again": acceptance_number_again},
        }.items()
    }
    assert all(rejected_cases.values()), rejected_cases
    assert rejected_cases["accepts_zero"] == {"zero mass"}
    assert "base" in rejected_cases["residual_p"] & rejected_cases["acceptance_number_again"]
    forms = {case["form"] for case in CASES if case["name"] in rejected_cases["clipped"]}
    assert forms == {"block"}


DISTANCES = {
    **{"residual_p": 0.15, "pure_acceptance": 0.15, "without_draft": 0.09, "absolute": 0.25},
    **{"accepts_all": 0.5, "pure": 0.0},  # `pure` is lossless: seen by its acceptance only
}


@pytest.mark.parametrize(("fault", "distance"), DISTANCES.items())
def test_a_fault_changes_the_law_as_far_as_it_should(fault, distance):
    case = next(case for case in LAWS if case["name"] == "base")
    wrong, accepted = law_of_rounds("tokens", *map(np.array, (case["p"], case["q"])), FAULTS[fault])
    assert np.abs(wrong - case["law"]).sum() / 2 == pytest.approx(distance, abs=5e-4)
    assert fault != "pure" or not np.allclose(accepted, case["accepted"])


Drafter = Callable[..., tuple[Floats, Floats]]


def drafted(logits: Floats, temperature: float, top_k: int) -> tuple[Floats, Floats]:
    """What a draft is drawn from, and what the drafter says that it is: here the same."""
    case = next(
        case
        for case in DRAFTS
        if case["logits"] == logits.tolist()
        and case["options"] == {"temperature": temperature, "top_k": top_k}
    )
    return np.array(case["q"]), np.array(case["q"])


def soft(logits: Floats, temperature: float, top_k: int) -> tuple[Floats, Floats]:
    """Greedy drafts, or cut ones, are judged with the softmax of the raw logits."""
    return drafted(logits, temperature, top_k)[0], np.exp(logits) / np.exp(logits).sum()


def rounded(logits: Floats, temperature: float, top_k: int) -> tuple[Floats, Floats]:
    """Drafts are drawn from logits in bfloat16 and judged with those in float32."""
    low = torch.tensor(logits).bfloat16().double().softmax(-1).numpy()
    plain = temperature == 1 and not top_k
    q = drafted(logits, temperature, top_k)[1]
    return (low if plain else q), q


def wrong_drafts(drafter: Drafter, draws: int = 20_000) -> set[str]:
    """Return the draft laws that a drafter does not follow, by 20,000 draws of each."""
    random, wrong = np.random.default_rng(1), set()
    for case in DRAFTS:
        drawn_from, q = drafter(np.array(case["logits"]), **case["options"])
        law = np.array(case["q"])
        counts = Counter(random.choice(len(law), draws, p=drawn_from).tolist())
        seen, possible = np.array([counts[y] for y in range(len(law))]), draws * law > 5
        expected = draws * law[possible] / law[possible].sum()
        scaled = seen[possible] * draws / max(seen[possible].sum(), 1)
        fits = len(expected) == 1 or chisquare(scaled, expected).pvalue > 1e-4
        if seen[~possible].sum() > 20 or not fits or not np.allclose(q, law, atol=1e-6):
            wrong.add(case["name"])
    return wrong


def test_faults_of_drafting_are_rejected():
    assert not wrong_drafts(drafted)
    assert wrong_drafts(soft) == {"temperature", "top-k", "greedy"}
    assert wrong_drafts(rounded) == {"bfloat16 would tie"}


def test_the_shipped_file_is_what_the_script_makes():
    made = json.loads(encoded())
    assert made.keys() == VECTORS.keys()
    for kind, cases in made.items():
        for case, shipped in zip(cases, VECTORS[kind], strict=True):
            assert case.keys() == shipped.keys()
            for key, value in case.items():
                if isinstance(value, list):
                    np.testing.assert_allclose(value, shipped[key], atol=1e-12, rtol=0)
                else:
                    assert value == shipped[key]


def test_the_documented_lines_work():
    page = (DOCS / "proofs.md").read_text()
    (lines,) = (code for code in blocks(page, "python") if "vectors.json" in code)

    def my_kernel(*arrays):
        answers = [
            of(thresholds)("tokens", p[: n + 1], q[:n], x[:n].tolist(), np.append(u[:n], u[-1]))
            for p, q, x, n, u in zip(*arrays, strict=True)
        ]
        return [a for a, _, _ in answers], [source for _, source, _ in answers]

    exec(lines, {"my_kernel": my_kernel})
    assert len(lines.splitlines()) <= 17

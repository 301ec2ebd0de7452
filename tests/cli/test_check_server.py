"""``specbench check --server``: verdicts, files and exit codes."""

import json
import re
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from specbench.experiment.loader import Loader
from specbench.validation import check as checking

from ..validation.toy import END, Handler, serving, toy
from .conftest import Cli, Result


@pytest.fixture(autouse=True)
def loaded(monkeypatch, tmp_path) -> list[str]:
    """Replace the bundled pair by the one that the server runs; return the formats loaded."""
    formats: list[str] = []

    def load_pair(spec: Any, loading: Any) -> Any:
        formats.append(loading.dtype)
        return toy()

    replacement = partial(Loader, load_pair, check_memory=lambda *_: None)
    monkeypatch.setattr(checking, "Loader", replacement)
    (tmp_path / "prompts.txt").write_text("a\nab\n c\nd\n")
    return formats


def check(cli: Cli, url: str, *more: str, **how: int) -> Result:
    options = ("--prompts", "prompts.txt", "--draft-length", "3", "-o", "out")
    return cli("check", "--server", url, *options, *more, **how)


def report() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path("out/check.json").read_text())
    return content


@pytest.fixture
def without_cuts(monkeypatch) -> None:
    """Leave out the prompts that are cut, which need as many texts again."""
    monkeypatch.setattr("specbench.validation.server.CUT_SAMPLES", 0)


@pytest.mark.usefixtures("without_cuts")
def test_a_server_without_fault(cli, loaded):
    with serving() as url:
        result = check(cli, url, "--samples", "96", code=0)
    assert loaded == ["float32"]
    results, answer = result.out.splitlines()[-2:]
    assert results == "results: out/check.json"
    assert answer.startswith("decoded correctly: no fault found in ")
    described = report()["check"]
    assert (described["samples"], described["temperature"]) == (96, [1.0, 0.7])
    assert described["server"] == url
    findings = report()["findings"]
    assert len(findings) == 13
    assert any(f["facts"].get("share") for f in findings[1:])


@pytest.mark.parametrize(("dtype", "verdict"), [("float32", "FAILED"), ("float16", "ok")])
def test_greedy_texts_may_fork_by_the_rounding_of_the_servers_dtype(cli, dtype, verdict):
    class Rounding(Handler):
        """Takes the second choice where its logit is less than .25 behind."""

        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            tokens = [asked["prompt"][-1]]
            while tokens[-1] != END or len(tokens) == 1:
                second, first = (logits := toy().target.logits[tokens[-1]]).argsort()[-2:]
                tokens.append(int(second if logits[first] - logits[second] < 0.25 else first))
                if len(tokens) > asked["max_tokens"]:
                    break
            reason = "stop" if tokens[-1] == END else "length"
            choice = {"text": "a", "token_ids": tokens[1:], "finish_reason": reason}
            self.reply(200, {"choices": [choice]})

    with serving(handler=Rounding) as url:
        check(cli, url, "--samples", "1", "--dtype", dtype)
    first, *_ = report()["findings"]
    assert (first["name"], first["verdict"]) == ("first choices", verdict), first
    hinted = "give the server's --dtype if it is not float32" in first["sentence"]
    assert hinted == (verdict == "FAILED")


def test_faults_give_exit_code_1_and_a_refused_option_is_left_out_alone_and_named(cli):
    refused = "frequency_penalty"
    bodies: list[dict[str, Any]] = []

    class Strict(Handler):
        def do_POST(self):
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if refused in bodies[-1]:
                return self.reply(400, {"error": f"{refused} is no option"})
            content = json.dumps({"seed": 0, **bodies[-1]}).encode()
            self.headers.replace_header("Content-Length", str(len(content)))
            self.rfile = BytesIO(content)  # type: ignore[assignment]
            return super().do_POST()

    with serving("forced", Strict) as url:
        lossy = check(cli, url, "--temperature", "1", "--json", "--samples", "64", code=1)
    assert re.search(r"error: not decoded correctly: \d of 7 comparisons failed", lossy.err)
    assert json.loads(lossy.out)["findings"] == report()["findings"]
    assert f"the server refuses {refused}, so its own values apply: start it without" in lossy.err
    assert "--generation-config vllm" in lossy.err
    assert bodies[-1].keys() ^ bodies[0].keys() == {refused}


def test_the_key_is_sent_and_never_stored_or_printed(cli, monkeypatch):
    keys: list[str] = []

    class Locked(Handler):
        def do_POST(self):
            keys.append(self.headers["Authorization"])
            super().do_POST()

        def do_GET(self):
            right = self.headers["Authorization"] == "Bearer sk-5150-right"
            self.reply(200 if right else 401, {"you sent": self.headers["Authorization"]})

    few = ("--samples", "8", "--temperature", "1")
    with serving(handler=Locked) as url:
        monkeypatch.setenv("SPECBENCH_API_KEY", "sk-5150-wrong")
        wrong = check(cli, url)
        monkeypatch.setenv("SPECBENCH_API_KEY", "sk-5150-right")
        right = check(cli, url, *few)
    assert (wrong.code, right.code) == (2, 2)
    assert "decoded correctly" not in right.out and "too weak to judge" in right.err
    assert report()["verdicts"]["weak"]
    assert "put the server's key into SPECBENCH_API_KEY" in wrong.err
    assert {*keys} == {"Bearer sk-5150-right"}
    stored = "".join(path.read_text() for path in Path().rglob("*") if path.is_file())
    assert "sk-5150" not in wrong.out + wrong.err + right.out + right.err + stored

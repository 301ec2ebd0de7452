"""``specbench audit``: verdicts, files and exit codes."""

import json
import re
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from specbench.errors import UsageError
from specbench.experiment import loader
from specbench.experiment.loader import Loader

from ..validation.toy import Handler, serving, toy
from .conftest import Cli, Result


@pytest.fixture(autouse=True)
def loaded(monkeypatch, tmp_path) -> list[str]:
    """Replace the bundled pair by the one that the server runs; return the formats loaded."""
    formats: list[str] = []

    def load_pair(spec: Any, loading: Any) -> Any:
        formats.append(loading.dtype)
        return toy()

    replacement = partial(Loader, load_pair, check_memory=lambda *_: None)
    monkeypatch.setattr(loader, "Loader", replacement)
    (tmp_path / "prompts.txt").write_text("a\nab\n c\nd\n")
    return formats


def audit(cli: Cli, url: str, *more: str) -> Result:
    how = ("--prompts", "prompts.txt", "--draft-length", "3", "--concurrency", "2", "-o", "out")
    return cli("audit", "--decoder", url, *how, *more)


def test_a_lossless_server(cli, loaded):
    with serving() as url:
        result = audit(cli, url, "--samples", "96")
        again = audit(cli, url, "--samples", "96")
    assert result.code == 0, result.err
    assert again.out == result.out and "resuming out: 964 texts are done" in again.err
    assert loaded == ["float32"] * 2
    verdict, results = result.out.splitlines()[-2:]
    assert re.fullmatch(
        r"verdict: no fault found; at T=1 it would have seen \d+ % of draws from the draft, "
        r"a temperature off by .*; at T=0\.7 .* \(99 % confidence\)",
        verdict,
    )
    assert results == "results: out/audit.json"
    report = json.loads(Path("out/audit.json").read_text())
    assert report["verdict"] == "no fault found" and report["audit"]["samples"] == 96
    assert len(report["findings"]) == 13
    assert all((f["facts"].get("share") or 0) < 1 for f in report["findings"][1:])


def test_a_lossy_server_gives_exit_code_1(cli):
    with serving("forced") as url:
        result = audit(cli, url, "--temperature", "1", "--json", "--samples", "64")
    assert result.code == 1
    assert re.search(r"error: the decoder has a fault: \d of 7 tests failed", result.err)
    report = json.loads(result.out)
    assert report["verdict"] == "fault found" and report["results"] == "out/audit.json"


def test_an_option_that_the_server_refuses_is_left_out_alone_and_named(cli):
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
        lossy = audit(cli, url, "--temperature", "1", "--samples", "64")
        again = audit(cli, url, "--temperature", "1", "--samples", "64")  # from the stored texts
    assert lossy.code == again.code == 1
    told = f"the server refuses {refused}, so its own values apply: start it without values of its"
    for text in (lossy.out, lossy.err, again.out):
        assert told in text and "--generation-config vllm" in text
    assert json.loads(Path("out/audit.json").read_text())["options_refused"] == [refused]
    assert bodies[-1].keys() ^ bodies[0].keys() == {refused}


def test_a_weak_audit_says_so(cli):
    with serving() as url:
        result = audit(cli, url, "--samples", "8")
    assert result.code == 2
    assert "verdict: too weak" in result.out
    assert "error: the audit is too weak to judge" in result.err


def test_what_was_found_before_an_error_is_kept(cli, monkeypatch):
    from specbench.serving import server

    complete = server.Server.complete

    def failing(self, prompt, temperature, *how):
        if temperature == 0.7:
            raise UsageError("the server is gone: start it again")
        return complete(self, prompt, temperature, *how)

    monkeypatch.setattr(server.Server, "complete", failing)
    with serving() as url:
        result = audit(cli, url, "--samples", "64")
    assert result.code == 2
    assert result.err.splitlines()[-1] == "error: the server is gone: start it again"
    report = json.loads(Path("out/audit.json").read_text())
    assert report["verdict"] == "unfinished" and len(report["findings"]) == 7


def test_a_killed_audit_goes_on(cli, tmp_path):
    """What a killed process leaves is what lies there while it waits for a text."""
    left: list[str] = []

    class Watching(Handler):
        def do_POST(self):
            if not left:
                left.append((tmp_path / "out" / "audit.json").read_text())
            super().do_POST()

    few = ("--samples", "8", "--temperature", "1")
    with serving(handler=Watching) as url:
        whole = audit(cli, url, *few)
        (tmp_path / "out" / "audit.json").write_text(left[0])
        again = audit(cli, url, *few)
    assert json.loads(left[0])["verdict"] == "unfinished"
    assert (again.code, again.out) == (whole.code, whole.out)
    assert "note: resuming out: 44 texts are done" in again.err


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
        wrong = audit(cli, url)
        monkeypatch.setenv("SPECBENCH_API_KEY", "sk-5150-right")
        right = audit(cli, url, *few)
    assert wrong.code == 2
    assert "put the server's key into SPECBENCH_API_KEY" in wrong.err
    assert {*keys} == {"Bearer sk-5150-right"}
    stored = "".join(path.read_text() for path in Path().rglob("*") if path.is_file())
    assert "sk-5150" not in wrong.out + wrong.err + right.out + right.err + stored

"""Where the API of a server is, which of its models are one, and what servers say of failures."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from specbench.errors import UsageError
from specbench.serving.client import Client
from specbench.serving.server import Server, is_alias
from specbench.serving.values import Failure, error_words, failure_of, parsed, whole

from ..told import listed
from .fake import Fake, Handler, Quiet, threaded


@contextmanager
def listing(base: str, *rows: dict[str, Any], others: int = 404) -> Iterator[str]:
    """A server that lists models under one address, and answers others with a status."""

    class Listing(Quiet):
        def do_GET(self) -> None:
            if self.path == f"{base}/models":
                self.reply(200, {"data": rows})
            else:
                self.reply(others, {"detail": "Not Found"})

    with threaded(Listing) as url:
        yield url


@pytest.mark.parametrize("others", [404, 401, 500])
def test_an_address_with_and_without_version_prefix_and_endpoint(others):
    for base, given in (
        *(("/v1", ""), ("/v1", "/"), ("/v1", "/v1"), ("/v1", "/v1/chat/completions")),
        *(("/v1", "/v1/completions/"), ("/v1beta/openai", "/v1beta/openai")),
        ("/api/paas/v4", "/api/paas/v4/"),
        ("/api/paas/v4", "/api/paas/v4/chat/completions"),
        *(("/openai", "/openai"), ("", ""), ("", "/chat/completions")),
        ("/proxy/8000/v1", "/proxy/8000"),
    ):
        with listing(base, {"id": "m"}, others=others) as url:
            server = Server(f"{url}{given}").located()
            assert server.base == f"{url}{base}"
            assert server.chat_endpoint == f"{url}{base}/chat/completions"
            assert Server(server.url).base == server.base  # without asking again
            assert server.describe()["model"] == "m"


def test_a_server_without_a_list_has_the_likeliest_address_or_still_loads():
    with (
        listing("/none", others=503) as url,
        pytest.raises(UsageError, match=r"answers 503 \(Not Found\): wait until it is ready"),
    ):
        Server(url).located()
    with listing("/none") as url:
        for given, base in (("", "/v1"), ("/x", "/x/v1"), ("/v2/x", "/v2/x"), ("/x/v3", "/x/v3")):
            server = Server(f"{url}{given}").located()
            assert server.base == f"{url}{base}"
            with pytest.raises(UsageError, match=r"lists no model: name .* as in .*#MODEL"):
                server.describe()
            assert Server(server.url, model="any").describe()["model"] == "any"


@pytest.mark.parametrize("status", [429, 503])
def test_a_list_of_models_is_asked_for_when_the_server_wants_it(monkeypatch, status):
    monkeypatch.setattr("specbench.serving.client.PAUSE", 0.01)

    class Busy(Handler):
        fake, asked = Fake(), 0

        def do_GET(self):
            Busy.asked += 1
            if Busy.asked % 3:
                self.reply(status, b"", {"Retry-After": "0"})
            else:
                super().do_GET()

    with threaded(Busy) as url:
        assert Server(url).located().describe()["model"] == "tiny"


def test_a_name_with_a_date_or_folders_is_an_alias():
    for asked, answered, same in (
        *(("m", "m", True), ("m", "m-2026-08-06", True), ("m-2026-08-06", "m", True)),
        *(("gpt-4", "gpt-4-0613", True), ("large", "large-2407", True), ("m", "m@20260806", True)),
        *(("m:latest", "M", True), ("org/Model", "model", True)),
        *(("model", "/data/models/model", True), ("m", "m-mini", False)),
        *(("m-2026-08-06", "m-2025-01-02", False), ("a/m", "b/m", False), ("m-8b", "m-70b", False)),
        *(("m", "m-2048", False), ("m", "other-m", False), ("m", "m:8b", False)),
    ):
        assert is_alias(asked, answered) == is_alias(answered, asked) == same


def test_a_list_may_be_long_have_long_names_and_several_names_of_one_model():
    long = f"/models/{'x' * 200}/snapshots/0"
    rows = [{"id": f"m{i}"} for i in range(60)]
    rows += [{"id": name, "root": "/data/m", "max_model_len": 9} for name in ("base", "second")]
    rows += [{"id": "adapter", "root": "/data/adapter"}, {"id": long}, {"id": "d-2026-01-02"}]
    with listing("/v1", *rows) as url:
        facts = Server(url, model="second").describe()
        assert facts["aliases"] == ["base", "second"] and facts["context"] == 9
        assert "second" in facts["models"] and len(facts["models"]) == 21
        assert "aliases" not in Server(url, model="adapter").describe()
        assert Server(url, model=long).describe()["model"] == long
        assert Server(url, model="d").describe()["model"] == "d"
        with pytest.raises(UsageError, match=r"has no model none but m0, .* or give .* by --alias"):
            Server(url, model="none").describe()
        assert Server(url, model="none").describe("base")["model"] == "none"


def test_what_a_proxy_does_is_one_sentence_without_its_password(monkeypatch):
    class Refusing(Handler):
        fake = Fake()

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.reply(407, json.dumps({"error": "who?"}).encode())

    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("http_proxy", "http://me:secret@127.0.0.1:9")
    with pytest.raises(UsageError, match=r"no server answers at http://192.0.2.1/v1 \(") as error:
        Client().reach("http://192.0.2.1/v1")
    assert "start it, or correct the address" in str(error.value)
    assert "secret" not in str(error.value)
    with threaded(Refusing) as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        with pytest.raises(UsageError, match=r"192.0.2.1/v1 answers 407 \(who\?\): look into"):
            Client().post("http://192.0.2.1/v1", [{}])


@pytest.mark.parametrize(("value", "words"), listed("serving/errors.txt"))
def test_the_words_of_a_server_are_found_in_every_form(value, words):
    assert error_words(json.dumps(value).encode()) == words
    failure = failure_of(value)
    assert failure is not None and failure.words == f"fails in its answer: {words}"


def test_other_content_is_quoted_and_cut_and_what_is_no_failure_is_none():
    assert error_words(b"<html>gone\x1b") == "<html>gone\ufffd"
    assert error_words(b'{"e": 1}') == '{"e": 1}'
    assert error_words(json.dumps({"error": 300 * "a"}).encode()) == 200 * "a" + "..."
    deep = b'{"error": ' * 500 + b'"x"' + b"}" * 500
    assert error_words(deep).startswith('{"error": {"error"')
    for value in (
        {"choices": [{"delta": {"content": "a"}}], "error": None},
        {"choices": [], "usage": {"completion_tokens": 3}},
        {"choices": [{"delta": {}, "finish_reason": None}]},
        *({"choices": [{"finish_reason": r}]} for r in ("stop", "eos", "eos_token", "MAX_TOKENS")),
        *({"choices": [{"finish_reason": r}]} for r in ("tool-calls", "content_filter", "length")),
        *({"ok": 1}, "error", [1], None),
    ):
        assert failure_of(value) is None


@pytest.mark.parametrize("reason", ["abort", "error", "timeout", "cancelled", "load"])
def test_a_reason_that_is_no_end_is_a_failure(reason):
    by = f"ends an answer by the finish_reason {reason}"
    value: dict[str, Any] = {"choices": [{"delta": {"content": "so"}, "finish_reason": reason}]}
    assert failure_of(value) == Failure(by, 0)
    for further in ({"error_message": "oom"}, {"error": {"message": "oom"}}):
        assert failure_of(value | further) == Failure(f"{by} (oom)", 0)
    value["choices"][0]["error"] = {"message": "oom", "code": 502}  # OpenRouter
    assert failure_of(value) == Failure(f"{by} (oom)", 0)


def test_the_status_in_an_error_is_read():
    for value, status in (
        ({"error": {"message": "m", "code": 529}}, 529),
        ({"message": "m", "status_code": 500}, 500),
        ({"error": {"message": "m"}, "code": 429}, 429),
        ({"error": {"message": "m", "code": "rate_limit"}}, 200),
        ({"error": {"message": "m", "code": 7}}, 200),
    ):
        failure = failure_of(value)
        assert failure is not None and failure.status == status, value


def test_halves_of_a_character_are_joined_or_replaced():
    for parts, text in (
        (["a\ud83d", "\ude00 b"], "a\U0001f600 b"),
        (["\ud83d", "\ude00\ud83d", "\ude01"], "\U0001f600\U0001f601"),
        *((["a\ud83d", "b"], "a\ufffdb"), (["\ude00a"], "\ufffda"), (["cut \ud83d"], "cut \ufffd")),
        (["\ufeffa", "é"], "\ufeffaé"),
    ):
        assert whole(parts) == text
        assert whole(parsed(json.dumps(part).encode()) for part in parts) == text
        in_bytes = [f'"{part}"'.encode(errors="surrogatepass") for part in parts]
        assert whole(map(parsed, in_bytes)) == text

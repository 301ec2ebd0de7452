"""A real run of the bundled pair, and a browser if one is installed."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from specbench.analysis.report.build import build

from ...cli.conftest import measured

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "chromium-headless-shell")
NAMED = "SPECBENCH_TEST_BROWSER"
TASKS = ("mini-math", "mini-headline")
METHODS = ("autoregressive", "sd", "static", "diversed")

# Inserted before the page's own scripts, to record their errors.
_WATCH = "<script>window.wrong = []; addEventListener('error', e => wrong.push(e.message))</script>"
# Answers are unpacked in a thread, for which a browser's virtual time does not wait.
_RECORD_ERRORS = """<script>
const answer = () => {
  if (document.querySelector("#find output")?.textContent === "") {
    for (let i = 0; i < 3e6; i++);
    setTimeout(answer, 25);
  } else parent.postMessage(JSON.stringify((() => { %s })()), "*");
};
addEventListener("load", () => setTimeout(answer, 50));
</script>"""
# A window is at least 500 pixels wide, but a frame in it can be narrower.
_FRAME = """<!doctype html><meta name="color-scheme" content="light dark"><pre id="result"></pre>
<script>addEventListener("message", e => result.textContent = e.data)</script>
<iframe src="page.html" width="%d" height="900" style="border: 0"></iframe>"""

Ask = Callable[..., Any]


@pytest.fixture(scope="session")
def finished(once) -> Path:
    """A run of two tasks, ten prompts and four methods."""
    line = f"--set weight=0.4 -t {','.join(TASKS)} -n 10 --max-new-tokens 16"
    return once("reported", lambda folder: measured(folder, line))


@pytest.fixture(scope="session")
def page(once, finished) -> str:
    return once("page.html", lambda path: path.write_text(build([finished]).html)).read_text()


@pytest.fixture
def ask(tmp_path) -> Ask:
    """Open a page in a browser, run a script in it and return what the script returns."""
    browser = os.environ.get(NAMED) or next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"needs a browser: put Chromium on the PATH or name one in {NAMED}")

    def asked(page: str, script: str, width: int = 1280, dark: bool = False) -> Any:
        watched = page.replace("<head>", f"<head>{_WATCH}", 1) + _RECORD_ERRORS % script
        (tmp_path / "page.html").write_text(watched, "utf-8")
        (tmp_path / "frame.html").write_text(_FRAME % width, "utf-8")
        done = subprocess.run(
            [
                browser,
                *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                "--disable-dev-shm-usage",  # small in containers
                f"--user-data-dir={tmp_path / 'profile'}",
                f"--blink-settings=preferredColorScheme={0 if dark else 1}",
                "--window-size=1400,1000",
                "--virtual-time-budget=60000",
                "--dump-dom",
                (tmp_path / "frame.html").as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=600,  # only ends a browser that hangs
        )
        match = re.search(r'<pre id="result">(.+?)</pre>', done.stdout, re.DOTALL)
        assert match, done.stderr
        return json.loads(unescape(match[1]))

    return asked

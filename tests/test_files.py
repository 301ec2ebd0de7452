"""Messages show no secret and steer no terminal; files survive a power loss, and errors advise."""

import errno
from pathlib import Path
from random import Random

import pytest

from specbench.errors import RunError, UsageError, mask_tokens, printable, shown
from specbench.files import check_parent, clear_errors, make_folder, require_plain, write_atomically

from .disk import Recorder


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOENT, errno.EROFS])
def test_only_a_full_disk_asks_for_space(number):
    other = "choose another folder with --output"
    with pytest.raises(UsageError, match=rf"x \(why\): {other}$"), clear_errors(Path("x")):
        raise OSError(number, "why")
    full = rf"x \(why\): free disk space or {other}$"
    with pytest.raises(RunError, match=full), clear_errors(Path("x")):
        raise OSError(errno.ENOSPC, "why")


def test_a_link_to_itself_and_a_file_without_a_folder_are_refused(tmp_path):
    check_parent(tmp_path / "x")
    with pytest.raises(UsageError, match=r"none/x \(No such file or directory\)"):
        check_parent(tmp_path / "none" / "x")
    (tmp_path / "samples.csv").symlink_to("samples.csv")
    with pytest.raises(UsageError, match=r"leads nowhere|is not a regular file"):
        require_plain(tmp_path)


def test_a_replaced_file_is_the_old_or_the_new_one_after_a_power_loss(tmp_path):
    recorder = Recorder(tmp_path)
    path = tmp_path / "new" / "folder" / "file"
    with recorder.recording():
        make_folder(path.parent)
        for done, content in enumerate(["a" * 90, "b" * 90], start=1):
            write_atomically(path, content)
            recorder.done = done
    assert recorder.moments
    random = Random(0)
    for number, moment in enumerate(recorder.moments * 9):
        moment.rebuild(tmp_path / f"left-{number}", random)
        left = tmp_path / f"left-{number}" / "new" / "folder" / "file"
        content = left.read_text() if left.exists() else ""
        assert content in (["", "a" * 90, "b" * 90][moment.done :])


HARMLESS_TEXT = "line\n\t é 漢 👩\u200d🔬 می\u200cخواهم \u00a0"


def test_characters_that_steer_a_terminal_are_replaced_and_quotes_printable():
    for text, expected in (
        ("\x1b]0;title\x07red\x1b[31m", "�]0;title�red�[31m"),
        ("a\x00b\x7fc\x9bd\r\b", "a�b�c�d��"),
        ("file\u202etxt.exe\u2066\ufeff", "file�txt.exe��"),
        ("one\u2028two\u2029\ud800", "one�two��"),
        (HARMLESS_TEXT, HARMLESS_TEXT),
        ("", ""),
    ):
        assert printable(text) == expected
        assert printable(expected) == expected
    assert shown("a\x1b[2J\nb") == "a�[2J b"


def test_anything_that_looks_like_a_token_and_the_one_in_use_are_masked(monkeypatch):
    for text, masked in (
        ("403 for hf_AbCdEfGhIjKl, twice hf_AbCdEfGhIjKl", "403 for hf_***, twice hf_***"),
        ("https://me:hf_AbCdEfGhIjKl@hub/x", "https://me:hf_***@hub/x"),
        ("models/hf_8B/half_hf_AbCdEfGh", "models/hf_8B/half_hf_AbCdEfGh"),
        ("", ""),
    ):
        assert mask_tokens(text) == masked
    monkeypatch.setenv("HF_TOKEN", "from-somewhere-else")
    assert mask_tokens("from-somewhere-else is wrong") == "hf_*** is wrong"

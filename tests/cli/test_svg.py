"""Terminal output as an SVG picture."""

from xml.etree import ElementTree

from rich.text import Text

from specbench.cli.output import picture

NAME = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    found = ElementTree.fromstring(svg).iter(f"{NAME}text")
    return ["".join(text.itertext()).replace("\xa0", " ").strip() for text in found]


def test_a_picture_has_every_line_and_needs_nothing_else() -> None:
    svg = picture(Text("one <two> & three", "bold red"), Text(8 * "four "), width=20)
    assert list(filter(None, texts(svg))) == [
        *("one <two> & three", "four four four four", "four four four four"),
    ]
    assert "font-weight: bold" in svg and "#800000" in svg
    assert "http" not in svg.replace('xmlns="http://www.w3.org/2000/svg"', "")

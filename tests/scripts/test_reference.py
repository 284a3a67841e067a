"""The reference pages are what the code says, and say all of it."""

from __future__ import annotations

import dataclasses

import pytest

from qwill.cli import COMMANDS
from qwill.cli.flags import FLAG_OWNERS, NOT_ON_THE_COMMAND_LINE
from qwill.cli.variables import VARIABLES
from qwill.formats.weight_formats import FORMATS
from qwill.settings import settings_of
from scripts import reference

PAGES = reference.pages()


@pytest.mark.parametrize("name", PAGES)
def test_the_committed_page_is_what_the_code_says(name: str) -> None:
    committed = (reference.FOLDER / name).read_text(encoding="utf-8")
    assert committed == PAGES[name], "run python -m scripts.reference"


def test_there_is_no_page_that_nothing_makes() -> None:
    assert {path.name for path in reference.FOLDER.iterdir()} == set(PAGES)


def test_every_command_is_told() -> None:
    assert [name for name in COMMANDS if f"\n## qwill {name}\n" not in PAGES["cli.md"]] == []


@pytest.mark.parametrize("owner", FLAG_OWNERS, ids=lambda owner: owner.__name__)
def test_every_flag_is_told(owner: type) -> None:
    text = PAGES["cli.md"] + PAGES["settings.md"]
    names = set(settings_of(owner)) - NOT_ON_THE_COMMAND_LINE
    told = {name for name in names if f"`{name}`" in text or f"`--{name.replace('_', '-')}`" in text}
    assert names - told == set()


@pytest.mark.parametrize("owner", reference.OWNERS, ids=lambda owner: owner.__name__)
def test_every_field_of_the_settings_is_told(owner: type) -> None:
    assert [f.name for f in dataclasses.fields(owner) if f"| `{f.name}`" not in PAGES["settings.md"]] == []


def test_every_variable_and_format_is_told() -> None:
    assert [name for name in VARIABLES if f"| `{name}` |" not in PAGES["environment.md"]] == []
    assert [name for name in FORMATS if f"| `{name}` |" not in PAGES["formats.md"]] == []


def test_a_text_with_the_signs_of_a_table_or_a_tag_is_shown_as_it_is() -> None:
    assert reference.table(["a"], [["<|x|> *y* `a|b<c`"]]) == "| a |\n|---|\n| &lt;\\|x\\|> \\*y\\* `a\\|b<c` |\n"

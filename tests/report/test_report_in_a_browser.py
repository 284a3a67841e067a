"""The report in a real Chromium: it loads from a file, switches, and asks nothing of any network.

Each test also fails if the browser complains in its console, shows a dialog, or requests anything but the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from qwill.report import SECTIONS, About, Report

Open = Callable[..., Page]
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True}


def ready(page: Page, section: str) -> None:
    """Wait until a section is open and drawn."""
    page.wait_for_selector(f"#panel-{section}[aria-busy=false]:not([hidden])")


def inked(page: Page, selector: str) -> int:
    """How many different colours a canvas shows."""
    return int(
        page.eval_on_selector(
            selector,
            """canvas => {
                const bytes = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
                return new Set(new Uint32Array(bytes.buffer)).size;
            }""",
        )
    )


def test_every_section_opens_by_the_keyboard_alone(hostile_report: Report, open_page: Open) -> None:
    page = open_page(hostile_report)
    page.focus("#tab-tokens")
    for name, title in SECTIONS.items():
        ready(page, name)
        expect(page.locator(":focus")).to_have_text(title)
        expect(page.locator("[role=tabpanel]:visible")).to_have_count(1)
        assert page.locator(f"#panel-{name} .body > *").count() >= 1
        assert page.locator(f"#panel-{name} :is(.problem, .missing)").count() == 0
        page.keyboard.press("ArrowRight")
    expect(page.locator(":focus")).to_have_text(SECTIONS["tokens"])


def test_hostile_texts_are_shown_and_become_nothing_else(hostile_report: Report, open_page: Open) -> None:
    page = open_page(hostile_report)
    for name in SECTIONS:
        page.goto(f"{page.url.partition('#')[0]}#{name}")
        ready(page, name)
    assert page.locator("img, iframe, object, embed, form, base, body b:has-text('|im_')").count() == 0
    assert page.locator("script").count() == len(SECTIONS) + 2
    strip = page.locator("#strip")
    expect(strip).to_contain_text("</script><img src=x onerror=alert(1)>")
    expect(strip).to_contain_text("<U+202E>left<U+202C>")
    expect(strip).to_contain_text("{{data}}")
    assert "\u202e" not in page.inner_text("body")


def test_arrow_keys_choose_a_token_in_every_section(hostile_report: Report, open_page: Open) -> None:
    page = open_page(hostile_report, "probabilities")
    page.focus("#strip [aria-selected=true]")
    page.keyboard.press("Home")
    expect(page.locator("#panel-probabilities")).to_contain_text("The first token")
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#chosen")).to_have_text(re.compile("^你好 position 4 · id 1004 · bytes e4 bd a0 e5 a5 bd"))
    expect(page.locator("#panel-probabilities")).to_contain_text("Candidates for position 4")
    page.click("#tab-rotary")
    expect(page.locator("#panel-rotary")).to_contain_text("Angles at position 4")
    page.click("#strip [data-position='6']")
    expect(page.locator("#panel-rotary")).to_contain_text("Angles at position 6")
    page.click("#next")
    expect(page.locator("#panel-rotary")).to_contain_text("Angles at position 7")


def test_a_token_stands_with_its_id_its_bytes_and_what_is_special_about_it(
    hostile_report: Report, open_page: Open
) -> None:
    page = open_page(hostile_report)
    cards = page.locator("#panel-tokens .card")
    expect(cards).to_have_count(25)
    expect(cards.nth(0)).to_have_text(re.compile(r"<\|im_start\|>.*1000.*special, prompt"))
    expect(cards.nth(2)).to_have_text(re.compile("↵"))
    expect(cards.nth(4)).to_have_text(re.compile("你好.*1004.*e4 bd a0 e5 a5 bd"))
    expect(cards.nth(6)).to_contain_text("part of a character")
    cards.nth(8).click()
    expect(page.locator("#chosen")).to_contain_text("👩‍👩‍👧 position 8")


def test_what_would_have_followed_another_token_is_shown(hostile_report: Report, open_page: Open) -> None:
    page = open_page(hostile_report, "probabilities")
    panel = page.locator("#panel-probabilities")
    expect(panel).to_contain_text("Not computed for this position")
    panel.get_by_role("button", name=re.compile("^18 ")).click()
    expect(panel.locator(".what-if")).to_have_text(re.compile("Instead of ·answer.*·w0</script>.*另一种 way 🎈"))


def test_a_head_is_chosen_by_keys_and_its_strongest_tokens_are_listed(hostile_report: Report, open_page: Open) -> None:
    page = open_page(hostile_report, "attention")
    panel = page.locator("#panel-attention")
    expect(panel.locator("h3").first).to_have_text("Layer 1, head 0 (KV head 0, shared by heads 0–1)")
    expect(panel.locator(".head")).to_have_count(12)
    assert inked(page, ".kv canvas") > 20
    page.focus(".head[aria-selected=true]")
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    expect(panel.locator("h3").first).to_have_text("Layer 2, head 3 (KV head 1, shared by heads 2–3)")
    attention = hostile_report.views["attention"]
    assert inked(page, ".detail .heatmap canvas") > 20
    expect(panel.locator("caption", has_text="looks at most")).to_contain_text("17 “The”")
    rows = panel.locator("table", has_text="looks at most").locator("tbody tr")
    expect(rows).to_have_count(attention["top"]["k"])
    rows.first.locator("button").click()
    page.wait_for_function("document.querySelector('#strip [aria-selected=true]').dataset.position !== '17'")
    panel.locator("select").first.select_option("0")
    expect(panel.locator("h3").first).to_contain_text("Layer 0, head 3")
    panel.get_by_role("radio", name="entropy").check()
    expect(panel.locator(".head").nth(1)).to_have_text("3.0")


def test_the_steps_of_the_cache_show_blocks_that_are_shared(hostile_report: Report, open_page: Open) -> None:
    page = open_page(hostile_report, "kv_cache")
    panel = page.locator("#panel-kv_cache")
    expect(panel.locator(".block.shared")).to_have_count(0)
    page.focus("#step")
    page.keyboard.press("ArrowRight")
    expect(panel).to_contain_text("Step 2 of 8")
    expect(panel.locator(".block.shared")).to_have_count(3)
    expect(panel.locator(".block.shared").first).to_have_text(re.compile("A B4/4$"))


def test_time_is_shown_for_either_phase_and_tables_sort(hostile_report: Report, open_page: Open) -> None:
    page = open_page(hostile_report, "roofline")
    panel = page.locator("#panel-roofline")
    expect(panel.locator(".dot")).to_have_count(4)
    panel.get_by_label("prefill").check()
    expect(panel).to_contain_text("1 step with 17 tokens in 30.0 ms")
    panel.get_by_role("button", name="operation", exact=True).click()
    expect(panel.locator("tbody tr").first).to_contain_text("mlp.down_proj (linear)")
    panel.get_by_role("button", name="operation", exact=True).click()
    expect(panel.locator("tbody tr").first).to_contain_text("self_attn.qkv_proj (linear)")
    panel.get_by_role("button", name="norm (rms_norm)", exact=True).click()
    expect(panel.locator(".dot[aria-pressed=true]")).to_have_attribute("aria-label", re.compile("^norm"))


def test_a_tensor_is_found_by_its_name_and_shown(hostile_report: Report, open_page: Open) -> None:
    page = open_page(hostile_report, "weights")
    panel = page.locator("#panel-weights")
    panel.get_by_label("Only names with").fill("DOWN")
    expect(panel.locator("tbody tr")).to_have_count(1)
    panel.get_by_role("button", name="layers.0.mlp.down_proj.weight").click()
    expect(panel.locator("h3")).to_have_text("layers.0.mlp.down_proj.weight")
    expect(panel).to_contain_text("Error of quantizing: 5.00 %")


def test_the_theme_follows_the_system_until_it_is_chosen(hostile_report: Report, open_page: Open) -> None:
    page = open_page(hostile_report, "attention", color_scheme="dark")
    background = "getComputedStyle(document.documentElement).backgroundColor"
    assert page.evaluate(background) == "rgb(20, 22, 26)"
    page.get_by_label("Theme").select_option("light")
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    page.get_by_label("Theme").select_option("")
    assert page.evaluate(background) == "rgb(20, 22, 26)"


@pytest.mark.parametrize("context", [PHONE, {"viewport": {"width": 1280, "height": 900}}], ids=["phone", "desktop"])
def test_no_section_is_wider_than_the_screen(hostile_report: Report, open_page: Open, context: dict[str, Any]) -> None:
    page = open_page(hostile_report, **context)
    for name in SECTIONS:
        page.click(f"#tab-{name}")
        ready(page, name)
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0


def test_a_section_without_data_says_why(open_page: Open) -> None:
    page = open_page(Report(About("m", "p"), {}, missing={"weights": "it was left out <b>."}), "weights")
    expect(page.locator("#panel-weights .missing")).to_have_text("This part is not in the report: it was left out <b>.")
    page.click("#tab-attention")
    expect(page.locator("#panel-attention .missing")).to_contain_text("was not captured")


def test_a_browser_that_cannot_unpack_is_told_so(hostile_report: Report, browser: Any, tmp_path: Any) -> None:
    hostile_report.save(tmp_path / "report.html")
    context = browser.new_context()
    context.add_init_script("delete window.DecompressionStream")
    page = context.new_page()
    page.goto((tmp_path / "report.html").as_uri() + "#attention")
    expect(page.locator("#panel-attention .problem")).to_contain_text("This browser cannot unpack the data")
    context.close()


def test_every_picture_has_a_name_and_every_control_too(hostile_report: Report, open_page: Open) -> None:
    page = open_page(hostile_report)
    for name in SECTIONS:
        page.click(f"#tab-{name}")
        ready(page, name)
        unnamed = page.evaluate(
            """() => [...document.querySelectorAll("canvas, svg, button, select, input")].filter((element) =>
                element.checkVisibility() && !element.closest("[aria-hidden=true]") && !element.ariaLabel
                && !element.labels?.length && !element.textContent.trim()).map((element) => element.outerHTML)"""
        )
        assert unnamed == []

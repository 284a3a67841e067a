"""What is derived from the sums, what the picture shows, and what it says about itself."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from qwill import LLM
from qwill.errors import SettingError, UsageError
from qwill.tracing import Trace, trace
from qwill.views.roofline import HONEST, RooflineView, roofline

BANDWIDTH = 1e10


@pytest.fixture(scope="module")
def view(seen: Trace) -> RooflineView:
    return roofline(seen, read_bandwidth=BANDWIDTH, untraced_step_seconds=1e-4)


def test_derived_numbers_are_quotients_of_the_sums(view: RooflineView) -> None:
    phases = {phase["phase"]: phase for phase in view.data()["phases"]}
    for one in view.data()["ops"]:
        assert one["bytes_per_second"] == pytest.approx(one["nbytes"] / one["seconds"])
        assert one["bandwidth_share"] == pytest.approx(one["nbytes"] / one["seconds"] / BANDWIDTH)
        assert one["operations_per_second"] == pytest.approx(one["operations"] / one["seconds"])
        assert one["intensity"] == pytest.approx(one["operations"] / one["nbytes"])
        assert one["share"] == pytest.approx(one["seconds"] / phases[one["phase"]]["seconds"])


def test_what_is_outside_the_ops_is_told(seen: Trace, view: RooflineView) -> None:
    data = view.data()
    assert [(p["phase"], p["steps"], p["tokens"]) for p in data["phases"]] == [("prefill", 1, 19), ("decode", 7, 7)]
    for phase, steps in (("prefill", {0}), ("decode", set(range(1, 8)))):
        whole = sum(step.seconds for step in seen.steps if step.index in steps)
        inside = sum(op.seconds for op in seen.ops if op.step in steps)
        assert view.phase(phase).seconds == pytest.approx(whole)
        assert view.phase(phase).outside_seconds == pytest.approx(whole - inside)
        assert 0 < view.phase(phase).outside_seconds < whole
    with pytest.raises(SettingError, match="mixed"):
        view.phase("mixed")


def test_data_is_json_of_finite_numbers_with_and_without_limits(seen: Trace, view: RooflineView) -> None:
    for one in (view, roofline(seen), roofline(seen, peak_operations=1e12)):
        assert json.loads(json.dumps(one.data(), allow_nan=False)) == one.data()
    assert roofline(seen).data()["read_bandwidth"] is None
    assert {one["bandwidth_share"] for one in roofline(seen).data()["ops"]} == {None}


def test_the_cost_of_tracing_is_told_only_where_it_was_measured(seen: Trace, view: RooflineView) -> None:
    per_step = view.phase("decode").seconds / 7
    assert f"{per_step / 1e-4:.2f} times as long" in view.remark()
    assert "100 µs without it" in view.remark()
    assert roofline(seen).remark() == ""
    assert "Measured here" not in roofline(seen)._repr_html_()
    assert HONEST in view._repr_html_()


def test_the_picture_has_the_memory_line_and_a_bar_for_each_op_and_for_the_rest(view: RooflineView) -> None:
    figure = view.figure()
    roof, prefill, decode = figure.axes
    [line] = [line for line in roof.lines if line.get_label().startswith("memory: 10.0 GB/s")]
    xs, ys = line.get_data()
    assert ys == pytest.approx([x * BANDWIDTH for x in xs])
    assert roof.get_xscale() == roof.get_yscale() == "log"
    for axes, phase in ((prefill, "prefill"), (decode, "decode")):
        labels = [label.get_text() for label in axes.get_yticklabels()]
        assert len(labels) == len(view.ops_of(phase)) + 1
        assert labels[-1] == "outside ops"
        times = [bar.get_width() for bar in axes.containers[0]]
        whole = view.phase(phase).seconds / view.phase(phase).steps
        assert sum(times) == pytest.approx(1e3 * whole)
        memory = [bar.get_width() for bar in axes.containers[1]]
        least = [1e3 * one.nbytes / BANDWIDTH / view.phase(phase).steps for one in view.ops_of(phase)]
        assert memory == pytest.approx(least)


def test_a_flat_roof_begins_where_memory_no_longer_is_the_limit(seen: Trace) -> None:
    view = roofline(seen, read_bandwidth=BANDWIDTH, peak_operations=2e10)
    lines = {line.get_label().partition(":")[0]: line.get_data() for line in view.figure().axes[0].lines}
    assert lines["memory"][0][1] == pytest.approx(2.0)
    assert lines["arithmetic"][0][0] == pytest.approx(2.0)
    assert list(lines["arithmetic"][1]) == [2e10, 2e10]


def test_it_is_saved_and_shown(view: RooflineView, seen: Trace, tmp_path: Path) -> None:
    for number, one in enumerate((view, roofline(seen))):
        for suffix in (".png", ".svg", ".json"):
            one.save(tmp_path / f"{number}{suffix}")
        assert ET.parse(tmp_path / f"{number}.svg").getroot().tag.endswith("svg")
    page = view._repr_html_()
    tables = [
        ET.fromstring(part.partition("</table>")[0] + "</table>")
        for part in page.split("<figure")[1].split("<table")[1:]
        for part in ["<table" + part]
    ]
    assert len(tables) == 2
    for table, phase in zip(tables, ("prefill", "decode"), strict=True):
        rows = [[cell.text or "" for cell in row] for row in table.iter("tr")]
        assert [row[0] for row in rows[1:]] == [*(one.name for one in view.ops_of(phase)), "outside ops"]
        shares = [float(row[3].removesuffix(" %")) for row in rows[1:]]
        assert math.fsum(shares) == pytest.approx(100, abs=1.0)


def test_a_trace_without_a_step_has_no_picture(llm: LLM) -> None:
    with trace(llm) as empty:
        pass
    with pytest.raises(UsageError, match="no steps"):
        roofline(empty)


@pytest.mark.parametrize("value", [float("nan"), 0.0, -1.0, float("inf")])
def test_what_cannot_have_been_measured_is_refused(seen: Trace, value: float) -> None:
    for name in ("read_bandwidth", "peak_operations", "untraced_step_seconds"):
        with pytest.raises(SettingError, match=name):
            roofline(seen, **{name: value})

"""Memory of a recording is used again when nobody holds it, and never before."""

from __future__ import annotations

from qwill.ops.recording import Recording


def test_a_result_that_is_gone_gives_its_memory_to_the_next() -> None:
    recording = Recording(None)
    address = recording.empty((3, 5)).data_ptr()
    assert recording.empty((2, 4)).data_ptr() == address


def test_memory_is_held_by_any_view_of_a_result() -> None:
    recording = Recording(None)
    view = recording.empty((4, 6)).view(24).split(10)[1]
    other = recording.empty((4, 6))
    assert not overlaps(view, other)
    address = view.data_ptr()
    del view
    again = recording.empty((4, 6))
    assert again.data_ptr() <= address < again.data_ptr() + 4 * again.numel()


def test_results_that_are_held_do_not_overlap() -> None:
    recording = Recording(None)
    held = [recording.empty((size,)) for size in (1, 70, 64, 300, 2, 1)]
    assert not any(overlaps(a, b) for i, a in enumerate(held) for b in held[:i])
    assert recording.nbytes >= 4 * sum(len(x) for x in held)


def overlaps(a, b) -> bool:  # type: ignore[no-untyped-def]
    start, end = a.data_ptr(), a.data_ptr() + 4 * a.numel()
    return bool(start < b.data_ptr() + 4 * b.numel() and b.data_ptr() < end)

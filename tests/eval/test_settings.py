"""What an evaluation can be told is checked."""

from __future__ import annotations

import pytest

from qwill.errors import SettingError
from qwill.eval.settings import KLSettings


@pytest.mark.parametrize("value", [1, 0, -3, 2.5, True, 2**25])
def test_a_number_of_tokens_that_predicts_nothing_is_refused(value: int) -> None:
    with pytest.raises(SettingError, match="text_tokens") as caught:
        KLSettings(text_tokens=value)
    assert caught.value.hint

"""What is refused before a prompt is copied or read."""

from __future__ import annotations

import pytest

from hopline.errors import RequestTooLarge
from hopline_generate.engine import MOST_PROMPT_CHARS, EngineInfo
from hopline_generate.request import Prompt, Sampling


@pytest.mark.parametrize("param", ["prompt", "messages"])
def test_a_prompt_that_cannot_fit_the_context_is_refused_by_its_size(param: str) -> None:
    info = EngineInfo("naive", "1", 512, 32, 16, longest_token_bytes=3)

    def prompt(size: int) -> Prompt:
        return (
            Prompt("x" * size, "", Sampling()) if param == "prompt" else Prompt("", "x" * size, Sampling())
        )

    info.check_size([prompt(3 * 512)])
    with pytest.raises(RequestTooLarge, match="1537 characters, more than 512 tokens") as caught:
        info.check_size([prompt(1), prompt(3 * 512 + 1)])
    assert caught.value.param == param


def test_one_long_prompt_for_many_texts_is_refused() -> None:
    """Each text has its own copy: 30 MB for 32 texts were a gigabyte."""
    upstream = EngineInfo("openai", "", 0, 1, 0)
    prompt = Prompt("x" * (MOST_PROMPT_CHARS // 32), "", Sampling())
    upstream.check_size([prompt] * 32)
    with pytest.raises(RequestTooLarge, match="all 33 texts have 17301504 characters together"):
        upstream.check_size([prompt] * 33)

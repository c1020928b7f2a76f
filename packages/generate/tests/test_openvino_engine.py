"""What is done around openvino-genai, without a model."""

from __future__ import annotations

import pytest

from hopline.errors import ArtifactError, BadRequest
from hopline_generate.openvino_engine import check_template, first_line

#: As openvino-genai 2026.4 writes them.
FAILED_TEMPLATE = """Exception from /home/build/openvino.genai/src/cpp/src/tokenizer/tokenizer_impl.cpp:855:
Minja failed to apply chat template. Possible solutions are
* Provide a simplified chat template with set_chat_template().
Minja's error: Only users may speak at row 1, column 19:
{{ raise_exception('Only users may speak') }}
                  ^
"""
FAILED_LOAD = """Exception from src/inference/src/cpp/core.cpp:133:
Check 'file' failed at src/frontends/common.cpp:12:
Could not open the file
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (FAILED_TEMPLATE, "Only users may speak at row 1, column 19:"),
        (FAILED_LOAD, "Could not open the file"),
        ("", "no reason given"),
    ],
)
def test_the_reason_in_an_error_is_found(text: str, reason: str) -> None:
    assert first_line(RuntimeError(text)) == reason


def test_a_template_must_show_what_the_user_says() -> None:
    check_template(lambda messages: f"<user>{messages[0]['content']}</user>")
    with pytest.raises(ArtifactError, match="leaves out the content"):
        check_template(lambda messages: "<user>")


def test_a_template_that_fails_is_refused_with_the_reason() -> None:
    def render(messages: object) -> str:
        raise BadRequest("Expected variable names at row 1")

    with pytest.raises(ArtifactError, match="row 1"):
        check_template(render)

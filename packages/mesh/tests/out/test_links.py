"""Links to other tools, by templates."""

import pytest

from hopline.errors import ConfigError
from hopline_mesh.incident import Incident, Suspect
from hopline_mesh.out.links import check_template, links_of
from hopline_mesh.settings import load_settings

HOSTILE = 'shop/"><script>&x=1/../#'


def test_values_are_quoted_and_cannot_leave_their_place():
    incident = Incident("i", 1000.0, 1300.0, 2.0, (Suspect(HOSTILE, 1.0, "web/ü", ()),))
    templates = ("logs=https://logs/a?q={service}&c={caller}&from={start_s}&to={end_ms}",)
    (link,) = links_of(incident, templates, 9e9)
    assert link["url"] == (
        "https://logs/a?q=shop%2F%22%3E%3Cscript%3E%26x%3D1%2F..%2F%23&c=web%2F%C3%BC&from=400&to=1900000"
    )


def test_an_open_incident_ends_now_and_one_without_suspects_has_no_links():
    template = "t=https://t/{namespace}/{name}/{end_s}"
    (link,) = links_of(Incident("i", 0.0, None, 2.0, (Suspect("a/b", 1.0, None, ()),)), (template,), 50.0)
    assert link == {"name": "t", "url": "https://t/a/b/50"}
    assert links_of(Incident("i", 0.0, None, 2.0, ()), (template,), 50.0) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("https://t", 'is not "name=https://host'),
        ("t=javascript:alert(1)", 'is not "name=https://host'),
        ("t=https://t/{pod}", "has {pod}; known are service, namespace"),
    ],
)
def test_a_template_that_is_none_is_refused_at_the_start(text, said):
    with pytest.raises(ConfigError, match=said):
        check_template(text)
    with pytest.raises(ConfigError, match=said):
        load_settings(flags={"links": (text,)})

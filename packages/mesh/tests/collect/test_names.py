"""Names and messages from outside."""

from hypothesis import given
from hypothesis import strategies as st

from hopline_mesh.collect.names import full_name, safe_name, safe_text
from hopline_mesh.roster import namespace_of

anything = st.text(st.characters(), max_size=400)


@given(anything, anything)
def test_names_that_differ_stay_different_and_are_tame(one, other):
    for raw in (one, other):
        name = safe_name(raw)
        assert 0 < len(name) <= 253
        assert name.isascii()
        assert name.isprintable()
        assert not set(name) & set("/<>&'\" ")
        assert safe_name(name) == name or "~" in name
    assert (safe_name(one) == safe_name(other)) == (one == other)


@given(st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,200}[a-z0-9])?", fullmatch=True))
def test_names_of_kubernetes_stay_as_they_are(name):
    assert safe_name(name) == name


def test_the_namespace_is_found_again():
    assert full_name("shop", "cart") == "shop/cart"
    assert full_name("", "api.example.com:443") == "api.example.com:443"
    assert namespace_of(full_name("a/b", "c/d")).startswith("a_b~")


@given(st.text(st.characters(), max_size=2000))
def test_a_message_is_one_short_line(raw):
    text = safe_text(raw)
    assert len(text) <= 200
    assert len(text.splitlines()) <= 1

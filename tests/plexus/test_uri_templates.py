"""URI templates: which are supported, and what they match."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plexus.registry.uri_templates import Template


@pytest.mark.parametrize(
    ("uri", "required", "optional"),
    [
        ("test://static", (), ()),
        ("test://template/{id}/data", ("id",), ()),
        ("run://{run}{?after}", ("run",), ("after",)),
        ("a-b+c:{x}-{y}{?p,q}", ("x", "y"), ("p", "q")),
        ("notes://all{?tag}", (), ("tag",)),
    ],
)
def test_the_variables_of_an_address_are_found(
    uri: str, required: tuple[str, ...], optional: tuple[str, ...]
) -> None:
    template = Template(uri)
    assert (template.required, template.optional) == (required, optional)
    assert template.fixed is (not required and not optional)


@pytest.mark.parametrize(
    ("uri", "word"),
    [
        ("static", "scheme"),
        ("", "scheme"),
        ("://x", "scheme"),
        ("{scheme}://x", "scheme"),
        ("a://{", "variables"),
        ("a://}", "variables"),
        ("a://{}", "variables"),
        ("a://{1}", "variables"),
        ("a://{x y}", "variables"),
        ("a://{+x}", "variables"),
        ("a://{x*}", "variables"),
        ("a://{{x}}", "variables"),
        ("a://{?", "variables"),
        ("a://{?}", "variables"),
        ("a://{?x,}", "variables"),
        ("a://{?x}/more", "variables"),
        ("a://{?x}{?y}", "variables"),
        ("a://{x}{y}", "text between"),
        ("a://{x}/{x}", "twice"),
        ("a://{x}{?x}", "twice"),
    ],
)
def test_an_invalid_template_is_refused(uri: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Template(uri)


@pytest.mark.parametrize(
    ("uri", "values"),
    [
        ("test://template/7/data", {"id": "7"}),
        ("test://template/a%20b/data", {"id": "a b"}),
        ("test://template/a%2Fb/data", {"id": "a/b"}),
        ("test://template/%C3%A4/data", {"id": "ä"}),
        ("test://template//data", None),
        ("test://template/a/b/data", None),
        ("test://template/a?b/data", None),
        ("test://template/a/data?b=1", None),
        ("test://template/a/data/", None),
        ("Xtest://template/a/data", None),
        ("test://template/a/dataX", None),
    ],
)
def test_a_variable_is_one_part_of_the_path(uri: str, values: dict[str, str] | None) -> None:
    assert Template("test://template/{id}/data").match(uri) == values


@pytest.mark.parametrize(
    ("uri", "values"),
    [
        ("run://5", {"run": "5"}),
        ("run://5?", {"run": "5"}),
        ("run://5?after=3", {"run": "5", "after": "3"}),
        ("run://5?to=9&after=a%26b/c", {"run": "5", "after": "a&b/c", "to": "9"}),
        ("run://5?after=", {"run": "5", "after": ""}),
        ("run://5?after", None),
        ("run://5?other=3", None),
        ("run://5?after=3&after=4", None),
        ("run://5?run=6", None),
        ("run://5?after=3#x", None),
        ("run://?after=3", None),
    ],
)
def test_the_variables_of_the_query_are_optional(uri: str, values: dict[str, str] | None) -> None:
    assert Template("run://{run}{?after,to}").match(uri) == values


def test_text_between_variables_is_matched_literally() -> None:
    assert Template("a://x.y/{z}").match("a://xxy/1") is None
    assert Template("a://(x)+/{z}").match("a://(x)+/1") == {"z": "1"}


def test_two_addresses_that_differ_only_in_names_have_the_same_shape() -> None:
    assert Template("a://{x}/b{?c}").shape == Template("a://{y}/b").shape
    assert Template("a://{x}/b").shape != Template("a://{x}/c").shape


@given(st.text(min_size=1), st.text())
def test_any_text_comes_back_as_it_was_written(one: str, other: str) -> None:
    try:
        uri = f"a://{quote(one, safe='')}/x?q={quote(other, safe='')}"
    except UnicodeEncodeError:  # half of a pair has no UTF-8
        return
    assert Template("a://{p}/x{?q}").match(uri) == {"p": one, "q": other}


@given(st.text())
def test_any_text_matches_or_does_not(uri: str) -> None:
    found = Template("a:{p}{?q}").match(uri)
    assert found is None or "p" in found

"""Names of models: what is legal, and that nothing hostile gets through."""

from __future__ import annotations

import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from navrl.errors import NavrlError, RegistryError
from navrl.registry.model_names import (
    MAX_LENGTH,
    Reference,
    check_alias,
    check_name,
    parse_reference,
)

HOSTILE = [
    "",
    ".",
    "..",
    "../x",
    "a/../b",
    "/etc/passwd",
    "C:\\x",
    "a\\b",
    "a\0b",
    "a\nb",
    "a\x1b[31mb",
    "a\x7f",
    "a b",
    " a",
    "a\n",
    "-rf",
    "--help",
    ".hidden",
    "a.",
    "con",
    "NUL",
    "com1.pt",
    "m" * 300,
    "b\u0435st",  # a Cyrillic e
    "\uff42est",  # a full-width b
    "be\u200bst",  # a character without width
    "\u202ebest",  # written from right to left
    "be\u0301st",
    "a:",
    "a*",
    "$HOME",
    "~root",
    "a;b",
    "\ud800",
]

LEGAL = st.text(
    string.ascii_letters + string.digits + "_-.", min_size=1, max_size=MAX_LENGTH
).filter(lambda name: name[0] not in ".-" and name[-1] != ".")


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
@pytest.mark.parametrize("check", [check_name, check_alias, parse_reference])
def test_a_hostile_name_is_refused_and_shown_in_plain_characters(check, name):
    with pytest.raises(RegistryError) as caught:
        check(name)
    message = str(caught.value)
    assert message.isascii()
    assert message.isprintable()
    assert len(message) < 500
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, NavrlError)


@pytest.mark.parametrize("name", [None, 3, b"model", ["a"], True])
@pytest.mark.parametrize("check", [check_name, check_alias, parse_reference])
def test_what_is_no_text_is_refused(check, name):
    with pytest.raises(RegistryError, match=type(name).__name__):
        check(name)


@pytest.mark.parametrize(
    "alias", ["latest", "best", "stable", "prod", "v1.0", "v", "v1a", "x3", "2026-01-31"]
)
def test_an_alias_may_be_any_legal_name(alias):
    assert check_alias(alias) == alias


@pytest.mark.parametrize("alias", ["v0", "v3", "V3", "v007", "v" + "9" * 100])
def test_a_version_number_is_no_alias(alias):
    with pytest.raises(RegistryError, match="version number"):
        check_alias(alias)


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("policy", Reference(None, None, "policy", None)),
        ("policy:best", Reference(None, None, "policy", "best")),
        ("policy:v3", Reference(None, None, "policy", "v3")),
        ("ada/drones/policy:best", Reference("ada", "drones", "policy", "best")),
        ("drones/policy", Reference(None, "drones", "policy", None)),
    ],
)
def test_a_reference_is_taken_apart_and_put_together_again(text, reference):
    assert parse_reference(text) == reference
    assert str(reference) == text


@pytest.mark.parametrize(
    "text",
    [
        "a:b:c",
        "a/b/c/d",
        "/policy",
        "policy/",
        "//policy",
        "policy:",
        ":best",
        "policy:V3",
        "policy:v03",
        "policy:v1234567890",
        "ada/../policy:best",
        "../../policy",
        "policy:../best",
        "policy@best",
    ],
)
def test_another_form_of_reference_is_refused(text):
    with pytest.raises(RegistryError, match="NAME:ALIAS"):
        parse_reference(text)


def test_the_label_says_whether_it_is_a_version_or_an_alias():
    assert (parse_reference("a:v12").version, parse_reference("a:v12").alias) == (12, None)
    assert (parse_reference("a:v1.0").version, parse_reference("a:v1.0").alias) == (None, "v1.0")
    assert (parse_reference("a").version, parse_reference("a").alias) == (None, "latest")


@settings(deadline=None)
@given(LEGAL, LEGAL)
@example("CON", "x")
def test_every_name_is_refused_or_survives_being_written_as_a_reference(name, label):
    try:
        check_name(name)
        check_alias(label)
    except RegistryError:
        return
    assert parse_reference(f"{name}:{label}") == Reference(None, None, name, label)


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_a_legal_name_of_plain_characters_or_refused(text):
    told = ""
    try:
        name = check_name(text)
    except RegistryError as error:
        name, told = None, str(error)
    assert (name == text) != bool(told)
    assert told.isascii()
    assert set(name or "") <= set(string.ascii_letters + string.digits + "_-.")

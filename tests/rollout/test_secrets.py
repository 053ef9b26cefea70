"""Secrets are resolved from the process environment, and their echoes are found in whatever form."""

import base64
import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from orl_core.config import Secret, decode_config
from orl_core.errors import ConfigError
from orl_rollout.secrets import Scrubber, resolve_secrets


def config_of(secrets=None, own=None):
    return decode_config({"environments": {"a/b": {"secrets": own or {}}}, "secrets": secrets or {}}, "test")


def test_values_come_from_the_configuration_or_the_process(monkeypatch):
    monkeypatch.setenv("exact_name", "one")
    monkeypatch.setenv("SHOUTED", "two")
    hosted = {"value": None, "hosts": ["x.example"]}
    monkeypatch.setenv("HOSTED", "three")
    config = config_of({"exact_name": None, "shouted": None, "given": "four"}, {"hosted": hosted, "given": "five"})
    assert resolve_secrets(config, "a/b") == {
        "exact_name": Secret(value="one"),
        "shouted": Secret(value="two"),
        "given": Secret(value="five"),
        "hosted": Secret(value="three", hosts=("x.example",)),
    }


def test_a_missing_value_names_variable_and_environment(monkeypatch):
    monkeypatch.delenv("NOT_THERE", raising=False)
    with pytest.raises(
        ConfigError, match=r"`a/b` needs the secret `not_there`: set the variable not_there or NOT_THERE"
    ):
        resolve_secrets(config_of(own={"not_there": None}), "a/b")


def test_a_scrubber_knows_all_secrets_and_the_key(monkeypatch):
    monkeypatch.setenv("OPENREWARD_API_KEY", "the-platforms-key")
    monkeypatch.setenv("WEATHER", "the-weather-key")
    monkeypatch.delenv("NOT_THERE", raising=False)
    scrubber = Scrubber.of(config_of({"weather": None, "not_there": None}, {"own": "my-own-secret"}))
    assert scrubber.scrub("a the-platforms-key b the-weather-key c my-own-secret d") == (
        "a [secret] b [secret] c [secret] d"
    )
    assert not scrubber.find("the platforms key")


def test_values_too_short_to_tell_apart_are_left_alone():
    assert not Scrubber(["", "yes"]).find("yes")


@given(st.text(min_size=8, max_size=40), st.binary(max_size=5), st.binary(max_size=5))
def test_every_encoded_form_is_found_and_scrubbed(value, before, after):
    assume(value.strip() and not set(value) <= set("[secrt]"))
    scrubber = Scrubber([value])
    packed = before + value.encode() + after
    forms = [
        f"x{value}y",
        json.dumps({"key": value}),
        json.dumps({"key": value}, ensure_ascii=False),
        json.dumps(json.dumps([value])),
        base64.b64encode(packed).decode(),
        base64.urlsafe_b64encode(packed).decode(),
    ]
    for text in forms:
        assert scrubber.find(text), text
        assert not scrubber.find(scrubber.scrub(text)) or "[secret]" in scrubber.scrub(text)


def test_trees_are_searched_and_scrubbed_keys_too():
    scrubber = Scrubber(["a-long-secret"])
    tree = {"ids": [1, 2], "a-long-secret": ["deep", {"x": "(a-long-secret)"}], "n": None}
    assert scrubber.find_in(tree)
    assert scrubber.scrub_in(tree) == {"ids": [1, 2], "[secret]": ["deep", {"x": "([secret])"}], "n": None}
    assert not scrubber.find_in({"a": 1.5})

"""Secrets are resolved from the process environment, and their echoes are found in whatever form."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_core.config import Secret, decode_config
from orl_core.errors import ConfigError
from orl_rollout.edge.secrets import Scrubber, refuse_repeats, resolve_secrets, unset_secrets

from tests.kit.secret_forms import FORMS


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


def test_a_secret_without_a_value_is_left_out(monkeypatch):
    monkeypatch.delenv("NOT_THERE", raising=False)
    config = config_of({"given": "four"}, {"not_there": None})
    assert resolve_secrets(config, "a/b") == {"given": Secret(value="four")}
    (entry,) = unset_secrets(config, "a/b")
    assert (entry.name, entry.holder, entry.variables) == ("not_there", "a/b", ("not_there", "NOT_THERE"))


@pytest.mark.parametrize("empty", ["", {"value": "", "hosts": ["x.example"]}])
def test_an_empty_value_takes_a_secret_away(monkeypatch, empty):
    monkeypatch.setenv("SHARED", "from-outside")
    for config in (config_of({"shared": "four"}, {"shared": empty}), config_of({"shared": empty})):
        assert resolve_secrets(config, "a/b") == {}
        assert unset_secrets(config, "a/b") == []
        assert resolve_secrets(decode_config(config.public(), "test"), "a/b") == {}


def test_public_keeps_the_hosts_of_a_secret():
    config = config_of({"k": {"value": "a-long-value", "hosts": ["x.example"]}})
    assert decode_config(config.public(), "test").secrets == {"k": Secret(hosts=("x.example",))}


@pytest.mark.parametrize(
    "fields",
    [
        {"trainer": {"flags": {"--note": "the-hidden-value"}}},
        {"openreward_run_name": "run of the-hidden-value"},
        {"trainer": {"wandb_project": "dGhlLWhpZGRlbi12YWx1ZQ=="}},
        {"environments": {"a/b": {"base_url": "http://host/the-hidden-value"}}},
    ],
)
def test_secret_elsewhere_in_the_configuration_is_refused(monkeypatch, fields):
    monkeypatch.setenv("FROM_OUTSIDE", "the-hidden-value")
    for secrets in ({"from_outside": None}, {"given": "the-hidden-value"}):
        refuse_repeats(decode_config({"environments": {"a/b": {}}, "secrets": secrets}, "test"))
        with pytest.raises(ConfigError) as caught:
            refuse_repeats(decode_config({"environments": {"a/b": {}}, "secrets": secrets, **fields}, "test"))
        assert "hidden" not in str(caught.value)


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


LETTERS = st.characters(exclude_categories=("C", "Z"), include_characters=" \n\r\t")
VALUES = st.text(LETTERS, min_size=8, max_size=40).filter(lambda value: len(value.strip()) >= 8)


@given(form=st.sampled_from(sorted(FORMS)), value=VALUES, before=st.text(max_size=5), after=st.text(max_size=5))
def test_an_echo_is_found_and_scrubbed_in_every_form(form: str, value: str, before: str, after: str):
    scrubber, echo = Scrubber([value]), FORMS[form](value)
    text = f"{before} {echo} {after}"
    assert scrubber.find(text)
    scrubbed = scrubber.scrub(text)
    assert "[secret]" in scrubbed
    assert echo not in scrubbed


@given(value=VALUES, data=st.data())
def test_value_split_over_neighbours_is_scrubbed(value: str, data: st.DataObject):
    at = data.draw(st.integers(1, len(value) - 1))
    scrubber = Scrubber([value])
    for tree in (
        [{"type": "text", "text": f"so: {value[:at]}"}, {"type": "text", "text": f"{value[at:]} and"}],
        {"turns": [{"said": "a", "results": [value[:at]]}, {"said": "b", "results": [value[at:]]}]},
    ):
        assert scrubber.find_in(tree)
        assert "[secret]" in str(scrubber.scrub_in(tree))


KEY = "-----BEGIN PRIVATE KEY-----\n" + "".join(f"{line:02}{'aB3+/xYz' * 7}9Q{line:04}\n" for line in range(26))


@pytest.mark.parametrize(
    "echo",
    [
        *(KEY, KEY.strip(), " ".join(KEY.split()), KEY.replace("\n", "\\n"), KEY.replace("\n", "\r\n"), KEY[:300]),
        "\n".join(KEY.splitlines()[2:-1]),
        KEY.splitlines()[9],
        base64.b64encode(f"key: {KEY}".encode()).decode(),
    ],
)
def test_a_key_of_many_lines_is_found_whole_and_by_its_lines(echo: str):
    scrubber = Scrubber([f"{KEY}\n"])
    assert scrubber.find(f"the key is {echo}.")
    assert not any(line in scrubber.scrub(f"the key is {echo}.") for line in KEY.splitlines()[1:4])


def test_numbers_that_spell_a_secret_are_found_and_masked():
    scrubber, number = Scrubber(["4111111111111111"]), 4111111111111111
    for tree in (
        {"default": number},
        [float(number)],
        [41111111, 11111111],
        [{"card": [-number]}],
        {"a": f"n {number}"},
    ):
        assert scrubber.find_in(tree)
        assert "1111" not in str(scrubber.scrub_in(tree))
    others = {"a": [1, 2.5, True, None, 10**400, 10**9000, float("inf"), float("nan")], "b": 1e300}
    assert not scrubber.find_in(others)
    masked = scrubber.scrub_in({**others, "card": number})
    assert masked.pop("card") == "[secret]"
    assert masked == others


def test_the_password_of_an_address_is_a_secret_by_itself():
    scrubber = Scrubber(["http://user:pass-word-1234@proxy.example:3128"])
    assert scrubber.scrub("user and pass-word-1234") == "user and [secret]"


def test_text_of_everyday_is_no_echo():
    scrubber = Scrubber(["sk-0123456789abcdef", KEY, "correct horse battery"])
    says = "The quick brown fox: -----BEGIN PRIVATE KEY----- is how a key begins; 0123456789, correct, a horse. " * 200
    assert not scrubber.find(says)
    assert not scrubber.find_in({"text": says, "more": [base64.b64encode(says.encode()).decode(), says.encode().hex()]})


def test_trees_are_searched_and_scrubbed_keys_too():
    scrubber = Scrubber(["a-long-secret"])
    tree = {"ids": [1, 2], "a-long-secret": ["deep", {"x": "(a-long-secret)"}], "n": None}
    assert scrubber.find_in(tree)
    assert scrubber.scrub_in(tree) == {"ids": [1, 2], "[secret]": ["deep", {"x": "([secret])"}], "n": None}
    assert not scrubber.find_in({"a": 1.5})

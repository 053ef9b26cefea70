"""Checks of the model's input: certify the tokenizer and chat template, and render the first prompt.

The weights are not loaded. It knows no environments: it renders the opening that it is given.
"""

from __future__ import annotations

from orl_core import Renderer, RunConfig
from orl_core.config.limits import context_tokens_of
from orl_core.render.tokenizer import Tokenizer
from orl_rollout.runtime.runtime import check_renderer
from orl_rollout.tokenizer.rendering import open_renderer, open_tokenizer
from orl_rollout.tokenizer.tokenizer import HFTokenizer

from orl_launcher.doctor.environments import Opened
from orl_launcher.doctor.report import Report

HEAD, TAIL = 1000, 300  # characters of a prompt that are shown of a longer one


Reader = tuple[Tokenizer, Renderer]  # the renderer is certified


def check_tokenizer(page: Report, config: RunConfig, model: str) -> Reader | None:
    """Certify the model's tokenizer. Return None if it cannot be trusted."""
    if not model:
        page.say("failed", "no model. Give --model, or set trainer.model in the file")
        return None
    advice = "--model takes the folder of a checkpoint, or a name on a reachable model hub"
    tokenizer = page.attempt(model, lambda: open_tokenizer(config, model), advice=advice, stage="loading the tokenizer")
    if tokenizer is None:
        return None
    renderer = page.attempt(model, lambda: open_renderer(config, tokenizer), stage="certifying the chat template")
    if renderer is None:
        return None
    _say_certificate(page, model, renderer)
    if page.attempt("thinking", lambda: check_renderer(config, renderer) or True):
        page.say("ok", _thinking(config, tokenizer))
    return tokenizer, renderer


def _thinking(config: RunConfig, tokenizer: HFTokenizer) -> str:
    """Return the value of `thinking` and the variables that the chat template gets."""
    variables = ", ".join(f"{name}={value!r}" for name, value in tokenizer.chat_template.variables.items())
    setting = "not set" if config.thinking is None else str(config.thinking).lower()
    masked = "" if config.rollout.train_on.reasoning else "; reasoning does not train"
    return f"thinking: {setting}{masked}; the chat template gets {variables or 'no variable'}"


def _say_certificate(page: Report, model: str, renderer: Renderer) -> None:
    certificate = renderer.certificate
    passed = sum(check.passed for check in certificate.checks)
    page.say("ok", f"{model}: certified, {passed} checks passed; format of tool calls: {renderer.tool_format}")
    for check in certificate.checks:
        if not check.passed:
            page.say("warning", f"{check.check}: {check.detail}")
    for note in certificate.notes:
        page.note(note)
    if not certificate.user_turns:
        page.note("the template takes no user message after an action, so no reminder to call a tool is possible")
    if certificate.calls_per_action is not None:
        page.note(f"the template takes results of at most {certificate.calls_per_action} calls in one action")


def check_prompt(page: Report, config: RunConfig, opened: Opened, reader: Reader, *, full: bool) -> tuple[int, ...]:
    """Render the opening, compare its length with the context and show it. Return its ids, () if that fails."""
    (name, opening), (tokenizer, renderer) = opened, reader
    ids = page.attempt(name, lambda: renderer.open(opening.messages, opening.tools))
    if ids is None:
        return ()
    context, turn = context_tokens_of(config), config.rollout.turn_tokens
    room = context - len(ids)
    line = f"{name}: {len(ids)} ids of a context of {context}"
    wider = "Raise rollout.context_tokens (--max-context-len)"
    if room <= 0:
        page.say("failed", f"{line}: no turn can be played. {wider}")
    elif room < turn:
        page.say("warning", f"{line}: {room} are left, fewer than rollout.turn_tokens ({turn}). {wider}")
    else:
        page.say("ok", line)
    page.note(_shortened(page.scrubber.scrub(tokenizer.decode(ids)), full=full))
    return ids


def _shortened(text: str, *, full: bool) -> str:
    left_out = len(text) - HEAD - TAIL
    if full or left_out <= 0:
        return text
    return f"{text[:HEAD]}\n[… {left_out} characters left out; --full shows them]\n{text[-TAIL:]}"

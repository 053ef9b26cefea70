"""A run's tokenizer and renderer, made from its configuration. Only this module reads the rendering settings.

Every process of a run makes them here, so all of them show a model the same prompt. A setting that a checkpoint cannot
obey is refused. The module must not know engines or environments.
"""

from __future__ import annotations

from datetime import datetime, time

from orl_core import ConfigError, Renderer, RunConfig

from orl_rollout.logs import logger_of
from orl_rollout.tokenizer.tokenizer import HFTokenizer, load_tokenizer

logger = logger_of("orl")


def open_tokenizer(config: RunConfig, model: str) -> HFTokenizer:
    """Load the tokenizer of the checkpoint `model` with the run's chat template, variables and date.

    Raises:
        RenderError: the tokenizer cannot be loaded or used.
        ConfigError: a setting that the chat template cannot obey.
    """
    date = config.chat_template_date
    tokenizer = load_tokenizer(
        model,
        thinking=config.thinking,
        chat_template=config.chat_template,
        chat_template_kwargs=config.chat_template_kwargs,
        clock=datetime.combine(date, time.min) if date else None,
        stop_tokens=config.stop_tokens,
    )
    if tokenizer.turn_end:
        logger.warning("%s ends an action too: the chat template ends turns with it", tokenizer.turn_end)
    _check_switch(config, tokenizer)
    if date is None and tokenizer.chat_template.shows_time:
        logger.warning(
            "the chat template shows the date: set `chat_template_date`, so that all processes show the same"
        )
    return tokenizer


def open_renderer(config: RunConfig, tokenizer: HFTokenizer) -> Renderer:
    """Make and certify the run's renderer.

    Raises:
        RenderError: the certificate fails.
        ConfigError: `thinking: false`, and the chat template opens the reasoning all the same.
    """
    renderer = Renderer(tokenizer, tool_format=config.tool_format, system_prompt_template=config.system_prompt_template)
    if config.thinking is False and renderer.opens("user"):
        raise ConfigError(
            "`thinking: false` cannot be obeyed: the chat template opens the reasoning in every prompt. "
            "Leave `thinking` out, or set it to `keep`"
        )
    return renderer


def _check_switch(config: RunConfig, tokenizer: HFTokenizer) -> None:
    """Refuse a `thinking` that the user states and the chat template cannot obey.

    orl itself does `strip`, which needs no switch. The renderer checks its needs.
    """
    template, thinking = tokenizer.chat_template, config.thinking
    if thinking is None:
        return
    setting = f"`thinking: {str(thinking).lower()}`"
    if thinking is False and template.always_thinks:
        raise ConfigError(
            f"{setting} cannot be obeyed: the chat template sets how much the model thinks, and cannot turn it off. "
            "Leave `thinking` out; `chat_template_kwargs: {reasoning_effort: low}` lowers it in some templates"
        )
    if thinking in (True, "keep") and not template.can_think:
        raise ConfigError(f"{setting} changes nothing: the chat template knows no reasoning. Leave `thinking` out")
    contrary = template.contrary(config.chat_template_kwargs, on=bool(thinking))
    if contrary:
        raise ConfigError(f"{setting} and `chat_template_kwargs: {{{contrary}}}` contradict each other: leave one out")

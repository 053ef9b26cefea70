"""Rendering: messages ⇄ token ids, append only (laws L1, L4, L5), certified for a tokenizer and its chat template.

tokenizer       the protocol that the renderer is handed
renderer        Renderer: open, extend, parse, cut, stop_ids, certificate
opening         first messages through the chat template, guarded
plan            what follows an action, worked out once for each shape
dummy           the conversations that plans are made from
call_check      the format of calls: the template's own, or that of a system prompt; both read back
independence    what follows an action does not depend on the history
junction        where an action ends and what follows it begins
plain_template  results as user messages, if a template knows no tools
calls           an action's ids split at delimiters, and positions in them
controls        control strings: found, kept out, spliced
conversation    messages as templates read them
certify         the checks that a tokenizer and a template must pass, and the certificate
"""

from orl_core.render.certify import Certificate, Check
from orl_core.render.renderer import Renderer
from orl_core.render.tokenizer import Tokenizer

__all__ = ["Certificate", "Check", "Renderer", "Tokenizer"]

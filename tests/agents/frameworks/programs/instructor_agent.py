"""A loop around instructor, whose answers are typed. `program` is examples/agents/program.py."""

import os

import instructor
from openai import OpenAI
from program import over_mcp
from pydantic import BaseModel


class guess(BaseModel):
    """Guess the number."""

    number: int


client = instructor.from_openai(OpenAI(), mode=instructor.Mode.TOOLS)
messages = [{"role": "user", "content": os.environ["ORL_PROMPT"]}]
while True:
    typed, answer = client.chat.completions.create_with_completion(
        model=os.environ["ORL_MODEL"], messages=messages, response_model=guess, max_retries=1
    )
    said = answer.choices[0].message
    result = over_mcp("tools/call", name="guess", arguments=typed.model_dump())["content"]
    text = "\n".join(block["text"] for block in result)
    messages.append(said.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": text})

#!/bin/sh
# Play an episode with OpenCode: `agent: {command: [sh, /path/to/opencode.sh]}` in the configuration.
# It runs in a new folder, which is its home too, so that it reads no settings of yours. Its settings hold no key:
# OpenCode puts the variables in their places.
export HOME="$PWD"
export OPENCODE_DISABLE_AUTOUPDATE=1 OPENCODE_DISABLE_MODELS_FETCH=1 OPENCODE_DISABLE_LSP_DOWNLOAD=1
export OPENCODE_DISABLE_DEFAULT_PLUGINS=1
cat > opencode.json <<'END'
{
  "model": "orl/{env:ORL_MODEL}",
  "share": "disabled",
  "autoupdate": false,
  "provider": {
    "orl": {
      "npm": "@ai-sdk/openai-compatible",
      "options": {"baseURL": "{env:OPENAI_BASE_URL}", "apiKey": "{env:OPENAI_API_KEY}"},
      "models": {"{env:ORL_MODEL}": {"name": "orl"}}
    }
  },
  "agent": {"title": {"disable": true}},
  "mcp": {"orl": {"type": "remote", "url": "{env:ORL_MCP_URL}", "oauth": false}}
}
END
exec opencode run -- "$ORL_PROMPT"

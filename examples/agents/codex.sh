#!/bin/sh
# Play an episode with Codex: `agent: {command: [sh, /path/to/codex.sh]}` in the configuration.
# It runs in a new folder, which is its home too, so that it reads no settings of yours. Its settings hold no key: the
# gateway takes that from OPENAI_API_KEY, which is the token of the episode.
export HOME="$PWD" CODEX_HOME="$PWD/.codex"
gateway="${ORL_MCP_URL%/s/*}"
mkdir "$CODEX_HOME"
cat > "$CODEX_HOME/config.toml" <<END
model = "$ORL_MODEL"
model_provider = "orl"
approval_policy = "never"
sandbox_mode = "read-only"
web_search = "disabled"
check_for_update_on_startup = false

[model_providers.orl]
name = "orl"
base_url = "$gateway/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
supports_websockets = false

[mcp_servers.orl]
url = "$gateway/mcp"
bearer_token_env_var = "OPENAI_API_KEY"
default_tools_approval_mode = "approve"

[features]  # other tools than the environment's
goals = false
multi_agent = false
shell_tool = false
unified_exec = false

[analytics]
enabled = false
END
exec codex exec --skip-git-repo-check -- "$ORL_PROMPT"

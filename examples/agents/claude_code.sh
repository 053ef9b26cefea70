#!/bin/sh
# Play an episode with Claude Code: `agent: {command: [sh, /path/to/claude_code.sh]}` in the configuration.
# It runs in a new folder, which is its home too, so that it reads no settings of yours.
export HOME="$PWD"
export CLAUDE_CODE_ATTRIBUTION_HEADER=0  # it would change the system prompt with each request
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 DISABLE_AUTOUPDATER=1 DISABLE_TELEMETRY=1 DISABLE_ERROR_REPORTING=1
export ANTHROPIC_MODEL="$ORL_MODEL" ANTHROPIC_SMALL_FAST_MODEL="$ORL_MODEL"
cat > mcp.json <<'END'
{"mcpServers": {"orl": {"type": "http", "url": "${ORL_MCP_URL}"}}}
END
exec claude --print --strict-mcp-config --mcp-config mcp.json --tools "" --allowedTools mcp__orl -- "$ORL_PROMPT"
